"""The limits of one call and the door through which another thread ends it.

The reading thread asks before each socket operation how long it may block, so no timer thread is needed;
a cancellation shuts the socket down from the thread that gives it, which wakes the reader at once.
"""

import math
import threading
from collections.abc import Callable
from enum import StrEnum

import httpx

from agentloom_worker.clock import Clock


class Limit(StrEnum):
    """What bounds a wait."""

    CONNECT = "connect"
    FIRST_OUTPUT = "first_output"
    IDLE = "idle"
    DEADLINE = "deadline"
    ERROR_BODY = "error_body"


class LimitExpired(httpx.TimeoutException):
    """A limit of the call has passed."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(f"the {limit.value} limit has passed")
        self.limit = limit


class CallInterrupted(httpx.TransportError):
    """Another thread has ended the call."""

    def __init__(self) -> None:
        super().__init__("the call was cancelled")


class CallWatch:
    """Owned by the reading thread; only `interrupt` may come from elsewhere.

    `on_sent` is what `before_send` calls. `sent` says whether the request may have left.
    """

    def __init__(self, clock: Clock, on_sent: Callable[[], None]) -> None:
        self._clock = clock
        self._on_sent = on_sent
        self._ends: dict[Limit, float] = {}
        self._nearest: tuple[float, Limit] | None = None
        self._idle_s: float | None = None
        self._lock = threading.Lock()
        self._interrupted = False
        self._wake: Callable[[], None] | None = None
        self.sent = False

    def limit(self, which: Limit, duration_s: float) -> None:
        """Begin or replace a limit, counted from now."""
        self._ends[which] = self._clock.monotonic_s() + duration_s
        self._find_nearest()

    def lift(self, which: Limit) -> None:
        """End a limit, if it runs."""
        if self._ends.pop(which, None) is not None:
            self._find_nearest()

    def passed(self, which: Limit) -> bool:
        """Whether a limit that runs is over, though another one may have been over before it."""
        return self._ends.get(which, math.inf) <= self._clock.monotonic_s()

    def start_idle(self, idle_s: float | None) -> None:
        """From now on bytes must arrive at least so often."""
        self._idle_s = idle_s
        self.bytes_arrived()

    def bytes_arrived(self) -> None:
        """Any byte is a sign of life; it re-arms the idle limit and no other."""
        if self._idle_s is not None:
            self.limit(Limit.IDLE, self._idle_s)

    def block_s(self) -> float:
        """How long the next operation may block. Raises LimitExpired or CallInterrupted."""
        if self._interrupted:
            raise CallInterrupted()
        assert self._nearest is not None, "a call always has a deadline"
        end, which = self._nearest
        left_s = end - self._clock.monotonic_s()
        if left_s <= 0:
            raise LimitExpired(which)
        return left_s

    def timed_out(self) -> LimitExpired:
        """The error for an operation that blocked as long as `block_s` allowed."""
        assert self._nearest is not None, "a call always has a deadline"
        return LimitExpired(self._nearest[1])

    def before_send(self) -> None:
        """The connection stands and the first byte is about to be written."""
        self.sent = True
        self._on_sent()

    def attach(self, wake: Callable[[], None]) -> None:
        """Say how the wait that comes next is woken. Raises CallInterrupted if it must not begin."""
        with self._lock:
            if self._interrupted:
                raise CallInterrupted()
            self._wake = wake

    def detach(self) -> None:
        """After this returns, an interruption touches nothing of this call any more."""
        with self._lock:
            self._wake = None

    def interrupt(self) -> None:
        """End the call from any thread: quick, idempotent, never raises."""
        # Held while waking, so that a socket which `detach` has given back is never shut down by mistake.
        with self._lock:
            self._interrupted = True
            if self._wake is not None:
                self._wake()

    @property
    def interrupted(self) -> bool:
        """Whether `interrupt` was called."""
        return self._interrupted

    def _find_nearest(self) -> None:
        self._nearest = min(((end, which) for which, end in self._ends.items()), default=None)
