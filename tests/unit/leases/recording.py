"""A store for tests of what stands before it or uses it: it fails on demand and writes down what it is asked."""

from collections.abc import Sequence

from agentloom_worker.ids import ClaimToken, DispatchId
from agentloom_worker.leases.fast_path import ClaimPair
from agentloom_worker.leases.local import LocalFastPath


class AwayError(Exception):
    """The store is away."""


class RecordingFastPath(LocalFastPath):
    """The in-process store, seen from outside."""

    away = False

    def __init__(self, clock) -> None:
        super().__init__(clock)
        self.asked: list[str] = []

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.away:
            raise AwayError("redis://user:secret@host is away")

    def note_claim(self, dispatch_id: DispatchId, token: ClaimToken, ttl_ms: int) -> None:
        self._ask("note_claim")
        super().note_claim(dispatch_id, token, ttl_ms)

    def renew_claims(self, claims: Sequence[ClaimPair], ttl_ms: int) -> None:
        self._ask("renew_claims")
        super().renew_claims(claims, ttl_ms)

    def is_held(self, dispatch_id: DispatchId) -> bool:
        self._ask("is_held")
        return super().is_held(dispatch_id)

    def drop_claim(self, dispatch_id: DispatchId, token: ClaimToken) -> None:
        self._ask("drop_claim")
        super().drop_claim(dispatch_id, token)

    def push_cancel(self, run_id) -> None:
        self._ask("push_cancel")
        super().push_cancel(run_id)

    def pushed(self, run_ids):
        self._ask("pushed")
        return super().pushed(run_ids)

    def take_slot(self, name: str, limit: int, owner: str, ttl_ms: int) -> bool:
        self._ask("take_slot")
        return super().take_slot(name, limit, owner, ttl_ms)

    def give_slot(self, name: str, owner: str) -> None:
        self._ask("give_slot")
        super().give_slot(name, owner)

    def enter_window(self, name, rate, owner, tokens, window_ms, waiter=None) -> int:
        self._ask("enter_window")
        return super().enter_window(name, rate, owner, tokens, window_ms, waiter)

    def correct_window(self, name, owner, before, tokens) -> None:
        self._ask("correct_window")
        super().correct_window(name, owner, before, tokens)

    def leave_window(self, name, owner, before, waiter=None, wait_ms=0) -> None:
        self._ask("leave_window")
        super().leave_window(name, owner, before, waiter, wait_ms)
