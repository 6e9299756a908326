"""Time as a port. Nothing else in the library reads a clock or sleeps (STYLE, Time).

Instants are integers: microseconds since the epoch, UTC. Leases and due times compare the database's
clock; the process's own clock measures durations only.
"""

import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

US = 1_000_000


class Clock(Protocol):
    """What the library asks of time. Safe for use by many threads."""

    def wall_us(self) -> int:
        """Now, in microseconds since the epoch; for ids, logs and display, never for leases."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that go on through a suspend (CLOCK_BOOTTIME); for durations inside the process."""
        ...

    def database_now_us(self) -> int | None:
        """What `:now` binds to: None: PostgreSQL reads its own clock; a number fixes it (tests, SQLite)."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait for an event at most so long; True if it is set."""
        ...


class SystemClock:
    """The production clock."""

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    def database_now_us(self) -> int | None:
        return None

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)


class ManualClock:
    """A clock that moves only when told to; the database reads it too, so that leases follow it."""

    def __init__(self, start_us: int = 1_800_000_000 * US) -> None:
        self._lock = threading.Lock()
        self._now_us = start_us
        self._start_us = start_us

    def wall_us(self) -> int:
        with self._lock:
            # A microsecond a look keeps instants distinct and ordered without touching real time.
            self._now_us += 1
            return self._now_us

    def monotonic_s(self) -> float:
        with self._lock:
            return (self._now_us - self._start_us) / US

    def database_now_us(self) -> int | None:
        with self._lock:
            return self._now_us

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if not event.is_set():
            self.advance(s=timeout_s)
        return event.is_set()

    def advance(self, s: float) -> None:
        """Move forward by so many seconds."""
        with self._lock:
            self._now_us += int(s * US)

    def advance_to(self, instant_us: int) -> None:
        """Move forward to an instant; never backward."""
        with self._lock:
            self._now_us = max(self._now_us, instant_us)


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far another machine's wall clock is ahead of this one's; the truth lies within `error_us` of it."""

    ahead_us: int
    error_us: int

    @classmethod
    def between(cls, before_us: int, theirs_us: int, after_us: int) -> "ClockOffset":
        """From their reading, and our readings before it was asked for and after it came."""
        return cls(theirs_us - (before_us + after_us) // 2, max(0, after_us - before_us) // 2)

    @property
    def certain_us(self) -> int:
        """By how much the clocks differ at least."""
        return max(0, abs(self.ahead_us) - self.error_us)


def to_datetime(instant_us: int) -> datetime:
    """An aware UTC datetime of an instant."""
    return datetime.fromtimestamp(instant_us // US, UTC).replace(microsecond=instant_us % US)


def to_text(instant_us: int) -> str:
    """ISO 8601 in UTC with microseconds, the form that listings print."""
    return to_datetime(instant_us).isoformat(timespec="microseconds").replace("+00:00", "Z")
