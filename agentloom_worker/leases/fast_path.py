"""The fast path: what makes the fleet quicker when it is there, and nothing worse than slower when it is not.

Truth stands in the database alone: every commit is fenced there by its claim's token. So every answer here
is a hint with a safe reading, nothing is ever waited for, and an emptied store costs speed only (RUNTIME 4).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentloom_worker.ids import ClaimToken, DispatchId, RunId

CancelListener = Callable[[RunId], None]
WatchedRuns = Callable[[], Iterable[RunId]]
ClaimPair = tuple[DispatchId, ClaimToken]


@dataclass(frozen=True, slots=True)
class Rate:
    """What a sliding window lets through: at most so many requests, and so many tokens; None: any number."""

    requests: int | None
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Waiter:
    """Who asks again where it is not let into a window: the name that it keeps, whatever becomes of its claim.

    `late_ms` is how long behind the instant that it is told it comes back at the latest. `waited_ms` is for how long it
    waits already: who waits longest is the first of a line.
    """

    name: str
    late_ms: int
    waited_ms: int = 0


class Subscription(Protocol):
    """Cancellations being listened for."""

    def close(self) -> None:
        """Stop listening; after it returned the listener is not called any more. May be called again."""
        ...


class FastPath(Protocol):
    """Safe for use by many threads. Through the guard (guard.py) no method raises or waits for long.

    Times to live are in milliseconds and above 0.
    """

    def note_claim(self, dispatch_id: DispatchId, token: ClaimToken, ttl_ms: int) -> None:
        """Say that a row is claimed; call it after the database has granted the claim."""
        ...

    def renew_claims(self, claims: Sequence[ClaimPair], ttl_ms: int) -> None:
        """Say again which of the noted claims the database has just renewed.

        One that was forgotten or dropped stays so: its row may be free by now.
        """
        ...

    def is_held(self, dispatch_id: DispatchId) -> bool:
        """Whether somebody seems to hold the row, so that a wake-up need not ask the database.

        True may be a little out of date (the row may be consumed already), so a wake-up that is skipped must
        be one that comes again. False says nothing.
        """
        ...

    def drop_claim(self, dispatch_id: DispatchId, token: ClaimToken) -> None:
        """Forget a claim whose row lives on and may be claimed at once; another token is left alone."""
        ...

    def push_cancel(self, run_id: RunId) -> None:
        """Tell every process that a run has ended. The hint is kept for a while for those who listen late."""
        ...

    def pushed(self, run_ids: Sequence[RunId]) -> frozenset[RunId]:
        """For which of these runs a cancellation was pushed lately."""
        ...

    def subscribe(self, listener: CancelListener, watched: WatchedRuns) -> Subscription:
        """Call `listener` for every run that is pushed, from a thread of the store or of the pusher.

        After each (re)connection the runs that `watched` names are looked up by their keys, since what was
        pushed meanwhile was not heard. `listener` and `watched` must be quick and must not raise.
        """
        ...

    def take_slot(self, name: str, limit: int, owner: str, ttl_ms: int) -> bool:
        """Take one of `limit` slots for an owner, or extend the one that it has. False: none is free.

        Renewing is taking again: so an owner whose slot was lost (an emptied store) has it back where one is free.

        A slot is a lease: one that its owner does not renew in time falls free by itself, and no counter can
        leak. One that a clock which was set back left far ahead ends, at the latest, `limits.SLOT_AHEAD_MAX_S` or the
        `ttl_ms` of whoever asks after it was asked for (T10). With the store away the answer is True: a limit protects
        others, and never stops us.
        """
        ...

    def give_slot(self, name: str, owner: str) -> None:
        """Give a slot back; one that has expired is no matter."""
        ...

    def enter_window(
        self, name: str, rate: Rate, owner: str, tokens: int, window_ms: int, waiter: Waiter | None = None
    ) -> int:
        """Enter a request of so many tokens into a sliding window: 0, or the milliseconds until one leaves it.

        Nothing is entered where the answer is not 0, and an owner that is in the window already is not entered
        twice. Each entry leaves by itself after `window_ms`, and no later than `window_ms` from now whatever became of
        the clock (T10): so no answer is above `window_ms`. What is used is the sum of the entries that are there, so no
        counter can leak. More tokens than `rate` has are let through by an empty window only.

        A `waiter` that too few tokens are left for stands in a line. The first of it, who waits longest, is waited for:
        until it comes back, or is late, others are let through only where its tokens fit beside theirs. So a large
        request finds room however many small ones come. With the store away the answer is 0.
        """
        ...

    def correct_window(self, name: str, owner: str, before: int, tokens: int) -> None:
        """Say how many tokens a request took that was entered with `before`; it leaves the window when it would have.

        One that has left it is no matter.
        """
        ...

    def leave_window(self, name: str, owner: str, before: int, waiter: Waiter | None = None, wait_ms: int = 0) -> None:
        """Take a request out that was entered with `before` tokens and never sent; one that has left is no matter.

        A `waiter` that another window holds up, and that comes back after `wait_ms`, keeps its place in the line.
        """
        ...

    def close(self) -> None:
        """Close connections and subscriptions. Nothing else may be called afterwards."""
        ...
