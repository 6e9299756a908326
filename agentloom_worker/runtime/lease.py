"""The keeper: one thread a process renews its claims, and hears which of its runs have ended (RULINGS T9).

It never waits for a lock, compares the database's clock only, and treats an id that did not come back as
unknown until a plain read says otherwise.
"""

import logging
import os
import socket
import threading
from dataclasses import dataclass

from agentloom_worker import telemetry
from agentloom_worker.cancellation import CancelReason
from agentloom_worker.capabilities.threads import THREADS
from agentloom_worker.domain.dispatch import Claim
from agentloom_worker.domain.run import EndCause, RunStatus
from agentloom_worker.errors import AgentloomError
from agentloom_worker.ids import ClaimToken, DispatchId, ProcessId, RunId
from agentloom_worker.leases.fast_path import Subscription
from agentloom_worker.limits import DEADLINE_GRACE_S, LOST_SLOT_FRACTION, RUN_LEASE_TTL_S
from agentloom_worker.runtime.live import Live
from agentloom_worker.runtime.ports import US, Ports
from agentloom_worker.version import __version__


@dataclass(frozen=True, slots=True)
class _Left:
    """A claim to be given up, and until when an answer that never came may still turn out to be one."""

    dispatch_id: DispatchId
    began: bool
    until_s: float


class Keeper:
    """Holds the claims of this process. Safe for use by many threads."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._lock = threading.Lock()
        self._held: dict[DispatchId, Live] = {}
        self._left: dict[ClaimToken, _Left] = {}
        self._leased: set[RunId] = set()
        self.stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._subscription: Subscription | None = None
        self.draining = False
        self._worn = False

    def start(self) -> None:
        """Begin to renew, to poll, and to hear of cancellations as they are pushed."""
        self._subscription = self._ports.fast.subscribe(self.hear_cancel, self._held_runs)
        self._thread = threading.Thread(target=self._keep, name="agentloom-keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; call it after the last step has returned."""
        self.stopped.set()
        if self._subscription is not None:
            self._subscription.close()
        if self._thread is not None:
            self._thread.join()
        try:
            self.release()
        except AgentloomError as error:
            telemetry.log(logging.WARNING, "release_failed", code=error.code)

    def hold(self, claim: Claim, claimed_s: float) -> Live:
        """Register a claim; `claimed_s` is the monotonic reading from before it was asked for."""
        live = Live(claim, self._ports.clock, self._ports.settings.claim_ttl_s, claimed_s)
        with self._lock:
            self._held[claim.dispatch_id] = live
            draining = self.draining
        if draining:
            live.cancel(CancelReason.DRAIN)
        return live

    def drop(self, live: Live) -> None:
        """Forget a claim that was consumed, handed back or lost."""
        with self._lock:
            if self._held.get(live.claim.dispatch_id) is live:
                del self._held[live.claim.dispatch_id]

    def held(self) -> list[Live]:
        """The claims held now."""
        with self._lock:
            return list(self._held.values())

    def count_lost(self) -> int:
        """How many steps have outlived their deadline and the grace: each holds its slot until it returns (T9)."""
        return sum(not self._may_renew(live) for live in self.held())

    def is_worn_out(self, slots: int) -> bool:
        """Whether a quarter of the slots is lost: to such steps, or to tools that still run after they were given up.

        Only a new process helps, since a thread cannot be ended (RULINGS T9, U11).
        """
        lost = self.count_lost() + THREADS.stuck()
        telemetry.gauge("slots_lost", lost)
        worn = lost > 0 and lost >= slots * LOST_SLOT_FRACTION
        if worn and not self._worn:
            telemetry.log(logging.ERROR, "worn_out", lost=lost, slots=slots)
        self._worn = worn
        return worn

    def leave(self, dispatch_id: DispatchId, token: ClaimToken, *, began: bool) -> None:
        """Take over a claim whose step had to end while the store was away: it is given up when the store is back.

        Nobody takes over a claim of its own process (RULINGS T10), so in a deployment of one process nobody
        else would ever come for it.
        """
        until_s = self._ports.clock.monotonic_s() + self._ports.settings.claim_ttl_s
        with self._lock:
            self._left[token] = _Left(dispatch_id, began, until_s)

    def release(self) -> None:
        """Give up what was left. A claim that is not found may still be on its way: it is looked for again."""
        with self._lock:
            left = list(self._left.items())
        for token, row in left:
            released = self._ports.store.release(row.dispatch_id, token, began=row.began)
            if released or self._ports.clock.monotonic_s() > row.until_s:
                telemetry.count("claims_released", int(released))
                self._ports.fast.drop_claim(row.dispatch_id, token)
                with self._lock:
                    self._left.pop(token, None)

    def say_seen(self, process_id: ProcessId, slots: int) -> None:
        """Say that this process is there, what it serves and whether it drains (RULINGS U18)."""
        self._ports.store.worker_seen(
            process_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=",".join(self._ports.settings.queues),
            slots=slots,
            version=__version__,
            draining=self.draining,
        )

    def drain(self) -> None:
        """Tell every step to end its effect; the keeper itself goes on until they have returned."""
        with self._lock:
            self.draining = True
            held = list(self._held.values())
        for live in held:
            live.cancel(CancelReason.DRAIN)

    def _keep(self) -> None:
        settings = self._ports.settings
        renew_at = self._ports.clock.monotonic_s() + settings.claim_renew_s
        while not self._ports.clock.wait(self.stopped, settings.control_poll_s):
            try:
                self.poll_control()
                if self._ports.clock.monotonic_s() >= renew_at:
                    renew_at = self._ports.clock.monotonic_s() + settings.claim_renew_s
                    try:
                        self.renew()
                    finally:
                        # Streams go on while the database is away.
                        self.renew_lanes()
                self.release()
            except AgentloomError as error:
                # A store that is down is no news about our claims: unknown, not lost.
                telemetry.log(logging.WARNING, "keeper_failed", code=error.code)
            except Exception as error:  # noqa: BLE001 - without its keeper a process would lose every claim it holds
                telemetry.count("keeper_crashes")
                telemetry.log(logging.ERROR, "keeper_crashed", traceback=telemetry.frames_of(error))

    def renew(self) -> None:
        """Extend every claim whose step may still go on; cancel those that another worker has."""
        sent_s = self._ports.clock.monotonic_s()
        lives = {live.claim.dispatch_id: live for live in self.held() if self._may_renew(live)}
        if not lives:
            return
        pairs: list[tuple[DispatchId, ClaimToken]] = [
            (dispatch_id, live.claim.token) for dispatch_id, live in sorted(lives.items())
        ]
        renewed = self._ports.store.renew(pairs, self._ports.settings.claim_ttl_us)
        self._ports.fast.renew_claims([pair for pair in pairs if pair[0] in renewed], self._ports.settings.claim_ttl_ms)
        for dispatch_id in renewed:
            lives[dispatch_id].renewed_sent_s = sent_s
        missing = [dispatch_id for dispatch_id in lives if dispatch_id not in renewed]
        if missing:
            self._look(lives, missing)
        self._renew_run_leases({lives[dispatch_id].claim.run_id for dispatch_id in renewed})

    def renew_lanes(self) -> None:
        """Keep the places of attempts that are under way (runtime/lane.py)."""
        for live in self.held():
            lanes = live.lanes
            if lanes and self._may_renew(live):
                for lane in lanes:
                    lane.renew()

    def _renew_run_leases(self, run_ids: set[RunId | None]) -> None:
        """Extend the leases of the runs whose claims were renewed, in a transaction of its own (RULINGS R7).

        The poll says which runs hold one: no release can begin a lease yet, and then nothing is asked here.
        """
        with self._lock:
            leased = self._leased & {run_id for run_id in run_ids if run_id is not None}
        if leased:
            renewed = self._ports.store.renew_held_leases(sorted(leased), int(RUN_LEASE_TTL_S * US))
            telemetry.count("run_leases_renewed", len(renewed))

    def _look(self, lives: dict[DispatchId, Live], missing: list[DispatchId]) -> None:
        """Another token or no row is lost; the same token was only locked and is asked again."""
        tokens = self._ports.store.load_tokens(missing)
        for dispatch_id in missing:
            live = lives[dispatch_id]
            if tokens.get(dispatch_id) != live.claim.token and live in self.held():
                telemetry.count("claims_superseded")
                live.cancel(CancelReason.SUPERSEDED)

    def _may_renew(self, live: Live) -> bool:
        """A step that outlives its own hard deadline is abandoned: its claim may pass on (RULINGS T9)."""
        if live.deadline_us is None:
            return True
        return live.remaining_s(live.deadline_us) > -DEADLINE_GRACE_S

    def poll_control(self) -> None:
        """One query over the runs of this process: a run that was stopped or is over cancels its steps."""
        self._look_at_runs(self._held_runs())

    def hear_cancel(self, run_id: RunId) -> None:
        """Somebody says that a run has ended. Only a hint to look now and not at the next poll; never raises.

        A message alone cancels nothing: a step that is cancelled while its run goes on would keep its claim to
        the end of its time.
        """
        if run_id not in self._held_runs():
            return
        telemetry.count("cancels_heard")
        try:
            self._look_at_runs({run_id})
        except AgentloomError as error:
            telemetry.log(logging.WARNING, "cancel_not_checked", run_id=run_id, code=error.code)
        except Exception as error:  # noqa: BLE001 - the poll comes to it again; the thread belongs to somebody else
            telemetry.count("keeper_crashes")
            telemetry.log(logging.ERROR, "keeper_crashed", traceback=telemetry.frames_of(error))

    def _held_runs(self) -> set[RunId]:
        return {
            live.claim.run_id
            for live in self.held()
            if live.claim.run_id is not None and not live.cancellation.cancelled
        }

    def _look_at_runs(self, run_ids: set[RunId]) -> None:
        if not run_ids:
            return
        standings = self._ports.store.load_standings(sorted(run_ids))
        held = self._held_runs()
        with self._lock:
            leased = {run_id for run_id, found in standings.items() if found.leased}
            self._leased = held & ((self._leased - run_ids) | leased)
        for live in self.held():
            found = standings.get(live.claim.run_id) if live.claim.run_id is not None else None
            if found is None or found.status in (RunStatus.QUEUED, RunStatus.RUNNING):
                continue
            if live.claim.epoch < found.epoch:
                # Steps of the ending itself carry the new epoch and are not cancelled.
                live.cancel(CancelReason.DEADLINE if found.cause is EndCause.DEADLINE else CancelReason.STOP)
