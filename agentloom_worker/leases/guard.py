"""The guard before a store that may be away: it then knows nothing, at once, and says so once (RUNTIME 4)."""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import TypeVar

from agentloom_worker import limits, telemetry
from agentloom_worker.clock import Clock
from agentloom_worker.ids import ClaimToken, DispatchId, RunId
from agentloom_worker.leases.fast_path import (
    CancelListener,
    ClaimPair,
    FastPath,
    Rate,
    Subscription,
    Waiter,
    WatchedRuns,
)

Answer = TypeVar("Answer")


class _Pass(Enum):
    """What a call may do."""

    REFUSED = auto()
    NORMAL = auto()
    TRIAL = auto()


class _Breaker:
    """Open after a failure: one call at a time finds out whether the store is back, the others do not ask."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._asks_again_s = 0.0
        self._trying = False

    def admit(self) -> _Pass:
        """Whether to ask. Unless refused, `settle` must follow."""
        if self._failures == 0:
            return _Pass.NORMAL
        with self._lock:
            if self._failures == 0:
                return _Pass.NORMAL
            if self._trying or self._clock.monotonic_s() < self._asks_again_s:
                return _Pass.REFUSED
            self._trying = True
            return _Pass.TRIAL

    def settle(self, admitted: _Pass, error: Exception | None) -> None:
        """Tell what came of it. Calls that were under way together fail as one; an old success proves nothing."""
        if error is None and admitted is _Pass.NORMAL:
            return
        with self._lock:
            first = error is not None and self._failures == 0
            if admitted is _Pass.TRIAL:
                self._trying = False
            if error is None:
                self._failures = 0
            elif first or admitted is _Pass.TRIAL:
                doublings = min(self._failures, limits.FAST_PATH_DOUBLINGS_MAX)
                pause_s = min(limits.FAST_PATH_PAUSE_S * 2.0**doublings, limits.FAST_PATH_PAUSE_MAX_S)
                self._asks_again_s = self._clock.monotonic_s() + pause_s
                self._failures += 1
        if error is None:
            telemetry.log(logging.INFO, "fast_path_back")
            return
        telemetry.count("fast_path_errors")
        if first:
            # Its type alone: an error's text may hold an address, and more of it than we know.
            telemetry.log(logging.WARNING, "fast_path_lost", error=type(error).__name__)


class GuardedFastPath:
    """As FastPath says: whatever `errors` the store raises become "I know nothing", and cost microseconds."""

    def __init__(self, store: FastPath, errors: tuple[type[Exception], ...], clock: Clock) -> None:
        self._store = store
        self._errors = errors
        self._breaker = _Breaker(clock)

    def note_claim(self, dispatch_id: DispatchId, token: ClaimToken, ttl_ms: int) -> None:
        """As FastPath says; lost if the store is away."""
        self._ask(lambda: self._store.note_claim(dispatch_id, token, ttl_ms), None)

    def renew_claims(self, claims: Sequence[ClaimPair], ttl_ms: int) -> None:
        """As FastPath says; lost if the store is away."""
        self._ask(lambda: self._store.renew_claims(claims, ttl_ms), None)

    def is_held(self, dispatch_id: DispatchId) -> bool:
        """As FastPath says; False if the store is away, so that the database is asked."""
        return self._ask(lambda: self._store.is_held(dispatch_id), False)

    def drop_claim(self, dispatch_id: DispatchId, token: ClaimToken) -> None:
        """As FastPath says; if the store is away the key expires, and until then only forced wake-ups help."""
        self._ask(lambda: self._store.drop_claim(dispatch_id, token), None)

    def push_cancel(self, run_id: RunId) -> None:
        """As FastPath says; if the store is away every keeper finds the stop in the database (RULINGS T9)."""
        self._ask(lambda: self._store.push_cancel(run_id), None)

    def pushed(self, run_ids: Sequence[RunId]) -> frozenset[RunId]:
        """As FastPath says; none if the store is away."""
        return self._ask(lambda: self._store.pushed(run_ids), frozenset())

    def subscribe(self, listener: CancelListener, watched: WatchedRuns) -> Subscription:
        """As FastPath says; the store itself comes back to a subscription."""
        return self._store.subscribe(listener, watched)

    def take_slot(self, name: str, limit: int, owner: str, ttl_ms: int) -> bool:
        """As FastPath says; True if the store is away."""
        return self._ask(lambda: self._store.take_slot(name, limit, owner, ttl_ms), True)

    def give_slot(self, name: str, owner: str) -> None:
        """As FastPath says; if the store is away the slot expires."""
        self._ask(lambda: self._store.give_slot(name, owner), None)

    def enter_window(
        self, name: str, rate: Rate, owner: str, tokens: int, window_ms: int, waiter: Waiter | None = None
    ) -> int:
        """As FastPath says; 0 if the store is away."""
        return self._ask(lambda: self._store.enter_window(name, rate, owner, tokens, window_ms, waiter), 0)

    def correct_window(self, name: str, owner: str, before: int, tokens: int) -> None:
        """As FastPath says; if the store is away the estimate stands until it leaves the window."""
        self._ask(lambda: self._store.correct_window(name, owner, before, tokens), None)

    def leave_window(self, name: str, owner: str, before: int, waiter: Waiter | None = None, wait_ms: int = 0) -> None:
        """As FastPath says; if the store is away the request leaves the window in its time."""
        self._ask(lambda: self._store.leave_window(name, owner, before, waiter, wait_ms), None)

    def close(self) -> None:
        """As FastPath says."""
        with contextlib.suppress(*self._errors):
            self._store.close()

    def _ask(self, question: Callable[[], Answer], unknown: Answer) -> Answer:
        admitted = self._breaker.admit()
        if admitted is _Pass.REFUSED:
            telemetry.count("fast_path_skipped")
            return unknown
        answer, failure = unknown, None
        try:
            answer = question()
        except self._errors as error:
            failure = error
        finally:
            self._breaker.settle(admitted, failure)
        return answer
