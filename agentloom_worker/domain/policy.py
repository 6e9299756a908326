"""RetryPolicy: what may be sent again, how often and how soon. Frozen in the release."""

from dataclasses import dataclass
from enum import StrEnum


class OnUnknownAction(StrEnum):
    """What follows an attempt that may have left and has no result (RULINGS R11)."""

    RETRY = "retry"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class OnUnknown:
    """`maximum` counts unknown attempts of one operation that are followed by another attempt."""

    action: OnUnknownAction
    maximum: int


class Jitter(StrEnum):
    """How a delay is spread."""

    FULL = "full"
    NONE = "none"


class RetryClass(StrEnum):
    """The classes of failure that a policy may retry; by code tables only, never by words in a message."""

    TRANSPORT = "transport"
    RATE_LIMIT = "rate_limit"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`max_attempts` counts every attempt, the first and those of unknown outcome too (RULINGS A20)."""

    max_attempts: int
    initial_ms: int
    multiplier: float
    max_ms: int
    jitter: Jitter
    on_unknown: OnUnknown


def backoff_ms(policy: RetryPolicy, attempt_no: int, chance: float, retry_after_ms: int | None) -> int:
    """How long to wait after attempt `attempt_no` (from 1) before the next one.

    `chance` is uniform in [0, 1). A provider's `Retry-After` is kept exactly, plus a jitter of at most
    `initial_ms` (RULINGS U7); otherwise exponential, capped, with the policy's jitter.
    """
    if retry_after_ms is not None:
        return retry_after_ms + int(chance * policy.initial_ms)
    exponent = min(attempt_no - 1, 62)
    delay = min(float(policy.max_ms), policy.initial_ms * policy.multiplier**exponent)
    return int(delay * chance) if policy.jitter is Jitter.FULL else int(delay)
