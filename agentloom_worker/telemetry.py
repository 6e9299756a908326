"""Structured logs and counters. Values are ids, counts, codes and times; never a prompt, a body or a key."""

import json
import logging
import threading
from collections import Counter
from typing import TextIO

_logger = logging.getLogger("agentloom")
_logger.addHandler(logging.NullHandler())

_lock = threading.Lock()
_counters: Counter[str] = Counter()


def log(level: int, event: str, **fields: object) -> None:
    """Write one fact: a constant event name and its fields."""
    if _logger.isEnabledFor(level):
        _logger.log(level, event, extra={"fields": fields})


def count(name: str, by: int = 1) -> None:
    """Add to a counter of this process."""
    with _lock:
        _counters[name] += by


def counters() -> dict[str, int]:
    """A copy of this process's counters."""
    with _lock:
        return dict(_counters)


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
            "event": record.getMessage(),
            **{
                key: str(value) if not isinstance(value, int | float | bool | None) else value
                for key, value in fields.items()
            },
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
