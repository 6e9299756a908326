"""A cancellation that one thread gives and another obeys: an event with a reason and callbacks."""

import threading
from collections.abc import Callable
from enum import StrEnum


class CancelReason(StrEnum):
    """Why an attempt must end. The first reason given stands."""

    STOP = "stop"
    DEADLINE = "deadline"
    DRAIN = "drain"
    SUPERSEDED = "superseded"
    TIMEOUT = "timeout"


class Cancellation:
    """Handed to whatever waits outside. Safe for use by many threads."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._lock = threading.Lock()
        self._reason: CancelReason | None = None
        self._callbacks: list[Callable[[], None]] = []

    @property
    def reason(self) -> CancelReason | None:
        """The first reason given, or None."""
        return self._reason

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` has been called."""
        return self.event.is_set()

    def cancel(self, reason: CancelReason) -> None:
        """Give the signal; later calls change nothing. Runs the callbacks in the caller's thread."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            self.event.set()
            callbacks = tuple(self._callbacks)
        for callback in callbacks:
            callback()

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Register what to do at the signal (at once if it was given already). Returns the removal.

        A callback must be quick and must not raise: it typically shuts a socket down.
        """
        with self._lock:
            if self._reason is None:
                self._callbacks.append(callback)
                return lambda: self._remove(callback)
        callback()
        return lambda: None

    def _remove(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)
