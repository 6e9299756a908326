"""One claim in the hands of a thread: its cancellation, its share of the database's time, its right to begin."""

import threading
from dataclasses import dataclass, field

from agentloom_worker.cancellation import Cancellation, CancelReason
from agentloom_worker.clock import US, Clock
from agentloom_worker.domain.dispatch import Claim
from agentloom_worker.errors import LeaseLostError
from agentloom_worker.runtime.lane import Lane


@dataclass
class Live:
    """Registered with the keeper while the step runs. Instants are the database's, read at the claim.

    `renewed_sent_s` is the monotonic reading when the newest successful renewal was sent: the holder's
    window is never longer than the database's (RUNTIME 4).
    """

    claim: Claim
    clock: Clock
    ttl_s: float
    claimed_s: float
    cancellation: Cancellation = field(default_factory=Cancellation)
    renewed_sent_s: float = 0.0
    deadline_us: int | None = None
    effect_began: bool = False
    lanes: tuple[Lane, ...] = ()
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.renewed_sent_s = self.claimed_s

    def now_us(self) -> int:
        """The database's clock, carried on by this process's monotonic one; no other clock is compared."""
        return self.claim.now_us + int((self.clock.monotonic_s() - self.claimed_s) * US)

    def remaining_s(self, deadline_us: int) -> float:
        """Seconds until an instant of the database."""
        return (deadline_us - self.now_us()) / US

    def begin_effect(self) -> None:
        """Take the right to begin an effect. Raises LeaseLostError where the claim may no longer hold (R9)."""
        if self.cancellation.cancelled:
            raise LeaseLostError(f"dispatch {self.claim.dispatch_id} was cancelled before its effect began")
        if self.clock.monotonic_s() - self.renewed_sent_s > self.ttl_s:
            raise LeaseLostError(f"dispatch {self.claim.dispatch_id} was not renewed in time to begin an effect")
        self.effect_began = True

    def cancel(self, reason: CancelReason) -> None:
        """Tell the step to end."""
        self.cancellation.cancel(reason)
