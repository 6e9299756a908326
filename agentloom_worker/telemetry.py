"""Structured logs and counters. Values are ids, counts, codes and times; never a prompt, a body or a key."""

import json
import logging
import threading
import traceback
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TextIO

from agentloom_worker.secrecy import conceal_known

_logger = logging.getLogger("agentloom")
_logger.addHandler(logging.NullHandler())

_CAUSES_MAX = 8
# Upper bounds of the buckets that durations are counted in, in seconds.
BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)


@dataclass(slots=True)
class Durations:
    """How long something took, so far: the sum, and how many fell below each bound (the last one: above all)."""

    sum_s: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))

    @property
    def count(self) -> int:
        """How many durations were observed."""
        return sum(self.buckets)


_lock = threading.Lock()
_counters: Counter[str] = Counter()
_gauges: dict[str, float] = {}
_durations: dict[tuple[str, str], Durations] = {}


def log(level: int, event: str, **fields: object) -> None:
    """Write one fact: a constant event name and its fields."""
    if _logger.isEnabledFor(level):
        _logger.log(level, event, extra={"fields": fields})


def frames_of(error: BaseException) -> str:
    """Where an exception and its causes were raised: types, places and lines of code, never what they say.

    A database quotes the row that it refuses, a validator the value: either may be a body.
    """
    told: list[str] = []
    found: BaseException | None = error
    while found is not None and len(told) < _CAUSES_MAX:
        kind = type(found)
        told.append(f"{''.join(traceback.format_tb(found.__traceback__))}{kind.__module__}.{kind.__qualname__}")
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return "\nraised from\n".join(told)


def count(name: str, by: int = 1) -> None:
    """Add to a counter of this process."""
    with _lock:
        _counters[name] += by


def counters() -> dict[str, int]:
    """A copy of this process's counters."""
    with _lock:
        return dict(_counters)


def gauge(name: str, value: float) -> None:
    """Set a reading of this process."""
    with _lock:
        _gauges[name] = value


def gauges() -> dict[str, float]:
    """A copy of this process's readings."""
    with _lock:
        return dict(_gauges)


def observe(name: str, label: str, seconds: float) -> None:
    """Note how long something took."""
    with _lock:
        seen = _durations.get((name, label))
        if seen is None:
            seen = _durations[(name, label)] = Durations()
        seen.sum_s += seconds
        seen.buckets[bisect_left(BUCKETS_S, seconds)] += 1


def durations() -> dict[tuple[str, str], Durations]:
    """A copy of this process's durations, by name and label."""
    with _lock:
        return {key: Durations(seen.sum_s, list(seen.buckets)) for key, seen in _durations.items()}


def log_to(stream: TextIO, level: int) -> None:
    """Write log lines from a level on to a stream, until `log_no_more`. For programs, not for libraries."""
    log_no_more()
    handler = _ProgramHandler(stream)
    handler.setFormatter(JsonFormatter())
    _logger.addHandler(handler)
    _logger.setLevel(level)


def log_no_more() -> None:
    """End what `log_to` began."""
    for handler in [found for found in _logger.handlers if isinstance(found, _ProgramHandler)]:
        _logger.removeHandler(handler)
        _logger.setLevel(logging.NOTSET)


class _ProgramHandler(logging.StreamHandler[TextIO]):
    """The handler of `log_to`."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, event, fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = getattr(record, "fields", {})
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "event": conceal_known(record.getMessage()),
            **{
                key: conceal_known(str(value)) if not isinstance(value, int | float | bool | None) else value
                for key, value in fields.items()
            },
        }
        if record.exc_info:
            line["traceback"] = conceal_known(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)
