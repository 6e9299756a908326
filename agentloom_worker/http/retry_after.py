"""How long a server asks us to wait."""

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

from agentloom_worker import limits


def retry_after_ms(headers: Mapping[str, str], wall_us: int) -> int | None:
    """The wish in `retry-after-ms` or `Retry-After` (seconds or an HTTP date), bounded; None without one.

    What is neither a number nor a date is no wish, nor is a number below zero. A date that has passed asks for no wait.

    A date is compared with the answer's own `Date` where it has one, so that a wrong local clock (`wall_us`)
    changes nothing (CASES D22).
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is None:
        text = headers.get("retry-after")
        seconds = _number(text)
        if seconds is None and text is not None:
            until_s = _http_date_s(text)
            now_s = _http_date_s(headers.get("date", ""))
            if until_s is not None:
                seconds = until_s - (wall_us / 1e6 if now_s is None else now_s)
        milliseconds = None if seconds is None else seconds * 1000
    if milliseconds is None:
        return None
    return int(min(max(milliseconds, 0.0), limits.RETRY_AFTER_MAX_S * 1000))


def _number(text: str | None) -> float | None:
    if text is None or not re.fullmatch(r"\s*\d+(\.\d+)?\s*", text, re.ASCII):
        return None
    return float(text)


def _http_date_s(text: str) -> float | None:
    try:
        found = parsedate_to_datetime(text)
        # The forms of a date that name no zone mean UTC (RFC 9110, 5.6.7), not the zone of this machine.
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
