"""The fast path inside one process: what its threads know of each other."""

import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentloom_worker import limits
from agentloom_worker.clock import Clock
from agentloom_worker.ids import ClaimToken, DispatchId, RunId
from agentloom_worker.leases.fast_path import CancelListener, ClaimPair, Rate, Subscription, Waiter, WatchedRuns


@dataclass(frozen=True, slots=True)
class _Noted:
    token: ClaimToken
    until_s: float


@dataclass(frozen=True, slots=True)
class _Entered:
    tokens: int
    until_s: float


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What somebody needs who was not let into a window, since when, and until when it is waited for."""

    tokens: int
    since_s: float
    until_s: float


class _LocalSubscription:
    def __init__(self, store: "LocalFastPath", listener: CancelListener) -> None:
        self._store = store
        self._listener = listener

    def close(self) -> None:
        self._store.unsubscribe(self._listener)


class LocalFastPath:
    """As FastPath says. Never fails; cancellations are heard in the pushing thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # The newest last. Times to live differ little, so what has expired stands in front.
        self._claims: OrderedDict[DispatchId, _Noted] = OrderedDict()
        self._cancels: OrderedDict[RunId, float] = OrderedDict()
        self._slots: dict[str, dict[str, float]] = {}
        self._windows: dict[str, dict[str, _Entered]] = {}
        self._waiting: dict[str, dict[str, _Waiting]] = {}
        self._listeners: list[CancelListener] = []

    def note_claim(self, dispatch_id: DispatchId, token: ClaimToken, ttl_ms: int) -> None:
        """As FastPath says."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._claims[dispatch_id] = _Noted(token, now_s + ttl_ms / 1000)
            self._claims.move_to_end(dispatch_id)
            while self._claims and next(iter(self._claims.values())).until_s <= now_s:
                self._claims.popitem(last=False)
            while len(self._claims) > limits.FAST_PATH_ENTRIES_MAX:
                self._claims.popitem(last=False)

    def renew_claims(self, claims: Sequence[ClaimPair], ttl_ms: int) -> None:
        """As FastPath says."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            for dispatch_id, token in claims:
                noted = self._claims.get(dispatch_id)
                if noted is not None and noted.until_s > now_s:
                    self._claims[dispatch_id] = _Noted(token, now_s + ttl_ms / 1000)
                    self._claims.move_to_end(dispatch_id)

    def is_held(self, dispatch_id: DispatchId) -> bool:
        """As FastPath says."""
        noted = self._claims.get(dispatch_id)
        return noted is not None and noted.until_s > self._clock.monotonic_s()

    def drop_claim(self, dispatch_id: DispatchId, token: ClaimToken) -> None:
        """As FastPath says."""
        with self._lock:
            noted = self._claims.get(dispatch_id)
            if noted is not None and noted.token == token:
                del self._claims[dispatch_id]

    def push_cancel(self, run_id: RunId) -> None:
        """As FastPath says."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._cancels[run_id] = now_s + limits.CANCEL_KEPT_S
            self._cancels.move_to_end(run_id)
            while next(iter(self._cancels.values())) <= now_s or len(self._cancels) > limits.FAST_PATH_ENTRIES_MAX:
                self._cancels.popitem(last=False)
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener(run_id)

    def pushed(self, run_ids: Sequence[RunId]) -> frozenset[RunId]:
        """As FastPath says."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            return frozenset(run_id for run_id in run_ids if self._cancels.get(run_id, now_s) > now_s)

    def subscribe(self, listener: CancelListener, watched: WatchedRuns) -> Subscription:
        """As FastPath says. Nothing is missed here but what was pushed before."""
        with self._lock:
            self._listeners.append(listener)
        for run_id in self.pushed(tuple(watched())):
            listener(run_id)
        return _LocalSubscription(self, listener)

    def unsubscribe(self, listener: CancelListener) -> None:
        """Forget a listener."""
        with self._lock:
            self._listeners = [other for other in self._listeners if other != listener]

    def take_slot(self, name: str, limit: int, owner: str, ttl_ms: int) -> bool:
        """As FastPath says."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            owners = self._alive(name, now_s)
            if owner not in owners and len(owners) >= limit:
                return False
            owners[owner] = now_s + ttl_ms / 1000
            self._slots[name] = owners
            return True

    def give_slot(self, name: str, owner: str) -> None:
        """As FastPath says."""
        with self._lock:
            owners = self._slots.get(name, {})
            owners.pop(owner, None)
            if not owners:
                self._slots.pop(name, None)

    def enter_window(
        self, name: str, rate: Rate, owner: str, tokens: int, window_ms: int, waiter: Waiter | None = None
    ) -> int:
        """As FastPath says."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            entries = {who: one for who, one in self._windows.get(name, {}).items() if one.until_s > now_s}
            self._windows[name] = entries
            if owner in entries:
                return 0
            me = "" if waiter is None else waiter.name
            waiting = {who: one for who, one in self._waiting.get(name, {}).items() if who == me or one.until_s > now_s}
            self._waiting[name] = waiting
            since_s = now_s - (0 if waiter is None else waiter.waited_ms / 1000)
            if me in waiting:
                since_s = min(since_s, waiting[me].since_s)
            first = min(waiting, key=lambda who: waiting[who].since_s, default=me)
            behind = first != me and waiting[first].since_s <= since_s
            tokens_s = _tokens_fit_s(entries, rate, tokens, waiting[first] if behind else None)
            free_s = max(_requests_fit_s(entries, rate), tokens_s)
            if free_s <= now_s:
                entries[owner] = _Entered(tokens, now_s + window_ms / 1000)
                waiting.pop(me, None)
                return 0
            wait_ms = min(max(1, math.ceil(1000 * (free_s - now_s))), window_ms)
            if waiter is not None and (tokens_s > now_s or me in waiting):
                waiting[me] = _Waiting(tokens, since_s, now_s + (wait_ms + waiter.late_ms) / 1000)
                _shorten(waiting)
            return wait_ms

    def correct_window(self, name: str, owner: str, before: int, tokens: int) -> None:
        """As FastPath says."""
        with self._lock:
            entry = self._windows.get(name, {}).get(owner)
            if entry is not None and entry.tokens == before:
                self._windows[name][owner] = _Entered(tokens, entry.until_s)

    def leave_window(self, name: str, owner: str, before: int, waiter: Waiter | None = None, wait_ms: int = 0) -> None:
        """As FastPath says."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            entry = self._windows.get(name, {}).get(owner)
            if entry is None or entry.tokens != before:
                return
            del self._windows[name][owner]
            waiting = self._waiting.setdefault(name, {})
            if waiter is not None:
                since_s, until_s = now_s - waiter.waited_ms / 1000, now_s + (wait_ms + waiter.late_ms) / 1000
                waiting[waiter.name] = _Waiting(before, since_s, until_s)
                _shorten(waiting)

    def close(self) -> None:
        """As FastPath says."""
        with self._lock:
            self._listeners.clear()

    def _alive(self, name: str, now_s: float) -> dict[str, float]:
        return {owner: until_s for owner, until_s in self._slots.get(name, {}).items() if until_s > now_s}


def _shorten(waiting: dict[str, _Waiting]) -> None:
    """Let the last of a line go that has grown too long by one."""
    if len(waiting) > limits.WAITERS_MAX:
        del waiting[max(reversed(waiting), key=lambda who: waiting[who].since_s)]


def _requests_fit_s(entries: Mapping[str, _Entered], rate: Rate) -> float:
    """When one more request fits; 0: now. The entries stand in the order in which they leave."""
    if rate.requests is None or len(entries) < rate.requests:
        return 0.0
    return list(entries.values())[len(entries) - rate.requests].until_s


def _tokens_fit_s(entries: Mapping[str, _Entered], rate: Rate, tokens: int, first: _Waiting | None) -> float:
    """When so many tokens fit, beside those of the first waiter; 0: now."""
    if rate.tokens is None:
        return 0.0
    held = 0 if first is None else first.tokens
    over = sum(entry.tokens for entry in entries.values()) + held + tokens - rate.tokens
    until_s = 0.0
    for entry in entries.values():
        if over <= 0:
            break
        over -= entry.tokens
        until_s = entry.until_s
    # All have left, and beside the first one there is no room still.
    return until_s if first is None or over <= 0 else max(until_s, first.until_s)
