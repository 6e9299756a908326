"""One claimed row becomes one commit, and perhaps the next row inline. Owns the control flow and the errors.

claim → load the slice → the effect, if the step has one → its record and the pure steps that may fuse with
it → one RuntimeCommit → publish, or go on inline.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeVar

from agentloom_worker import faults, limits, telemetry
from agentloom_worker.cancellation import CancelReason
from agentloom_worker.domain.commit import CommitReceipt, RunMove
from agentloom_worker.domain.damage import DAMAGED
from agentloom_worker.domain.dispatch import Claim
from agentloom_worker.domain.model import Cancelled, Executed
from agentloom_worker.errors import (
    AgentloomError,
    ContentionError,
    InvariantError,
    LeaseLostError,
    PersistenceUnavailableError,
    RevisionConflictError,
    SupersededError,
)
from agentloom_worker.frozen import replace
from agentloom_worker.ids import ClaimToken, DispatchId, ProcessId, RunId
from agentloom_worker.runtime.commit import commit
from agentloom_worker.runtime.dispatch import wake_up
from agentloom_worker.runtime.failing import Failing
from agentloom_worker.runtime.late import keep_late
from agentloom_worker.runtime.lease import Keeper
from agentloom_worker.runtime.live import Live
from agentloom_worker.runtime.outcome import Bound, LaneFull, ModelEnded, Outcome, ToolEnded
from agentloom_worker.runtime.plan import Budget, Plan, Planner
from agentloom_worker.runtime.ports import US, Ports
from agentloom_worker.runtime.salvage import Salvaged, salvage
from agentloom_worker.runtime.slice import Slice, load_slice
from agentloom_worker.runtime.table import STEPS, EffectStep, PureStep
from agentloom_worker.runtime.view import remember_view
from agentloom_worker.storage.driver import RefusedError

_UNKNOWN_STEP_DELAY_US = 5 * US
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Inline:
    """The next step of this slot: already claimed, with the slice that the commit left, where it is whole."""

    claim: Claim
    claimed_s: float
    slice: Slice | None


class StepRunner:
    """Runs rows for one process. Safe for use by many threads, one row each at a time."""

    def __init__(self, ports: Ports, process_id: ProcessId, keeper: Keeper, *, solitary: bool = False) -> None:
        self._ports = ports
        self._keeper = keeper
        self._solitary = solitary
        self._planner = Planner(ports, keeper)
        self._failing = Failing(ports, keeper)
        self.process_id = process_id

    def run(self, dispatch_id: DispatchId, *, force: bool = False) -> bool:
        """Claim a row and carry its run on as far as the slot's budget goes; False if it was not to be had.

        A wake-up for a row that somebody seems to hold ends here, without asking the database; one that is
        forced asks in any case (RULINGS T11).

        Leaves no exception but what ends the process: every other is logged and turned into a hand-back,
        a park, or silence.
        """
        settings, fast = self._ports.settings, self._ports.fast
        if self._keeper.draining:
            return False
        if not force and fast.is_held(dispatch_id):
            telemetry.count("wake_ups_skipped")
            return False
        claimed_s, token = self._ports.clock.monotonic_s(), ClaimToken(self._ports.ids.token())
        try:
            claim = self._ports.store.claim(
                dispatch_id,
                token,
                self.process_id,
                ttl_us=settings.claim_ttl_us,
                grace_us=settings.grace_us,
                solitary=self._solitary,
            )
        except AgentloomError as error:
            # The store is away, or refuses: a later look finds the row as it is.
            telemetry.log(logging.WARNING, "claim_failed", dispatch_id=dispatch_id, error=error.message)
            self._keeper.leave(dispatch_id, token, began=False)
            return False
        if claim is None:
            telemetry.count("claims_missed")
            return False
        if claim.took_over:
            telemetry.count("claims_lost")
            telemetry.log(logging.INFO, "claim_taken_over", dispatch_id=dispatch_id, step=claim.step)
        if isinstance(STEPS.get(claim.step), EffectStep):
            # A pure step is over before a duplicate comes. Never dropped where a commit consumes the row: a
            # duplicate that comes late then costs no claim either.
            fast.note_claim(dispatch_id, claim.token, settings.claim_ttl_ms)
        faults.hit("claim.after", claim.step)
        hops = 0 if self._solitary else settings.inline_hops
        budget = Budget(hops, claimed_s + settings.inline_ms / 1000)
        todo: Inline | None = self._guarded(claim, claimed_s, None, budget)
        while todo is not None:
            budget.hops -= 1
            todo = self._guarded(todo.claim, todo.claimed_s, todo.slice, budget)
        return True

    def _guarded(self, claim: Claim, claimed_s: float, slice_: Slice | None, budget: Budget) -> Inline | None:
        live = self._keeper.hold(claim, claimed_s)
        try:
            return self._advance(live, slice_, budget)
        except SupersededError as error:
            self._failing.superseded(live, error)
        except PersistenceUnavailableError as error:
            # The row stays as it is until the store is back (RUNTIME 3).
            telemetry.log(logging.ERROR, "store_unavailable", dispatch_id=claim.dispatch_id, error=error.message)
            self._keeper.leave(claim.dispatch_id, claim.token, began=live.effect_began)
        except ContentionError as error:
            self._failing.contended(live, error)
        except Exception as error:  # noqa: BLE001 - the last line of defence of a slot: see failing.py
            self._failing.failed(live, error)
        finally:
            self._keeper.drop(live)
            telemetry.observe("step", claim.step, self._ports.clock.monotonic_s() - claimed_s)
        return None

    def _advance(self, live: Live, slice_: Slice | None, budget: Budget) -> Inline | None:
        claim = live.claim
        entry = STEPS.get(claim.step)
        # A row of an older version is this code's to run; one of a newer version waits for newer code.
        if entry is None or entry.version < claim.step_version:
            telemetry.count("task_unknown")
            self._failing.hand_back(
                live,
                delay_us=_UNKNOWN_STEP_DELAY_US,
                error=f"unknown step {claim.step} v{claim.step_version}",
            )
            return None
        if claim.run_id is None:
            raise InvariantError(f"dispatch {claim.dispatch_id} names no run")
        try:
            slice_ = slice_ or load_slice(self._ports, claim.run_id)
            faults.hit("step.loaded", claim.step)
            if isinstance(entry, PureStep):
                return self._settle(live, slice_, entry, None, budget)
        except DAMAGED as error:
            if not self._salvage(live, claim.run_id, error, loaded=slice_ is not None):
                raise
            return None
        live.deadline_us = slice_.run.deadline_at
        if live.cancellation.reason is CancelReason.DRAIN:
            self._failing.hand_back(live, delay_us=0, error=None)
            return None
        slice_, outcome = entry.perform(self._ports, slice_, live)
        return self._record(live, slice_, entry, outcome, budget)

    def _salvage(self, live: Live, run_id: RunId, error: Exception, *, loaded: bool) -> bool:
        """End a run without the rows that cannot be read; False if this step is none of its end, or can read them."""
        seen: list[object] = []
        for _ in range(limits.REBUILD_TRIES):
            saved = salvage(self._ports, live.claim, run_id, error, loaded=loaded)
            if saved is None:
                return False
            faults.hit("commit.before", live.claim.step)
            try:
                commit(self._ports, saved.commit, self.process_id)
            except RevisionConflictError:
                telemetry.count("rebuilds")
                seen.append(saved.commit.fence and saved.commit.fence.input_head)
                continue
            faults.hit("commit.after", live.claim.step)
            self._tell_salvaged(live, run_id, saved)
            return True
        raise _given_up(live.claim, seen)

    def _tell_salvaged(self, live: Live, run_id: RunId, saved: Salvaged) -> None:
        """What was left as it is goes to the log, what others may take or hear of to them."""
        telemetry.count("steps_salvaged")
        for row in saved.unreadable:
            telemetry.log(logging.ERROR, "row_unreadable", run_id=run_id, step=live.claim.step, row=row)
        if saved.commit.events:
            self._ports.on_event(run_id)
        if saved.commit.accept is not None:
            self._ports.on_event(saved.commit.accept.run_id)
        if saved.commit.fence is not None and saved.commit.fence.move is RunMove.STOP:
            self._ports.fast.push_cancel(run_id)
        first = (saved.commit.first,) if saved.commit.first is not None else ()
        self._ports.publish([wake_up(row) for row in (*saved.commit.outbox, *first)])
        faults.hit("publish.after", live.claim.step)

    def _record(self, live: Live, slice_: Slice, entry: EffectStep, outcome: Outcome, budget: Budget) -> Inline | None:
        """Commit an outcome; one that comes too late is kept on its attempt, once (RULINGS R3)."""
        if live.cancellation.reason in (CancelReason.STOP, CancelReason.SUPERSEDED):
            keep_late(self._ports, live, slice_, outcome)
            return None
        if isinstance(outcome, LaneFull):
            if outcome.bound is Bound.LANE:
                telemetry.count("lanes_full")
            else:
                telemetry.count("windows_full")
            error = f"the {outcome.bound} of {outcome.name} is full"
            self._failing.hand_back(live, delay_us=outcome.pause_us, error=error)
            return None
        if live.cancellation.reason is CancelReason.DRAIN and not _began(outcome):
            self._failing.hand_back(live, delay_us=0, error=None)
            return None
        fresh = slice_
        try:
            siblings = live.claim.step == "attempt_call" and slice_.batch is not None and slice_.batch.size > 1
            if siblings or (isinstance(outcome, ModelEnded) and outcome.unsaved is not None):
                # Siblings settle meanwhile: whether this one is the last is decided on fresh rows. A receipt that
                # was not saved may have been all the same, where its answer was lost.
                fresh = self._reload(live, slice_, outcome)
            return self._settle(live, fresh, entry, outcome, budget)
        except SupersededError:
            keep_late(self._ports, live, slice_, outcome)
            return None

    def _settle(
        self,
        live: Live,
        slice_: Slice,
        entry: PureStep | EffectStep,
        outcome: Outcome | None,
        budget: Budget,
    ) -> Inline | None:
        """Build and commit; on a conflict reload, rebuild and try again, never repeating the effect (T3)."""
        fused = self._ports.settings.fusion
        tries = limits.REBUILD_TRIES if outcome is None else limits.OUTCOME_TRIES
        seen: list[object] = []
        for attempt in range(tries):
            build = partial(self._planner.plan, live, slice_, entry, outcome, budget)
            plan = self._patiently(live, outcome, partial(build, fused=fused and attempt < limits.FUSED_TRIES))
            faults.hit("commit.before", live.claim.step)
            sent_s = self._ports.clock.monotonic_s()
            try:
                send = partial(commit, self._ports, plan.commit, self.process_id)
                receipt = self._patiently(live, outcome, send)
            except PersistenceUnavailableError:
                # It may have been applied: then the next row is claimed by this process, and nobody holds it.
                if plan.inline is not None and plan.inline.inline_token is not None:
                    self._keeper.leave(plan.inline.dispatch_id, plan.inline.inline_token, began=False)
                raise
            except RevisionConflictError as conflict:
                telemetry.count("rebuilds")
                telemetry.log(logging.DEBUG, "rebuild", dispatch_id=live.claim.dispatch_id, entity=conflict.entity)
                if attempt >= limits.FUSED_TRIES:
                    pause_s = 0.02 * attempt * self._ports.chance.random()
                    self._ports.clock.wait(live.cancellation.event, pause_s)
                slice_ = self._reload(live, slice_, outcome)
                seen.append(slice_.decided_on)
                continue
            except RefusedError as error:
                # It would be refused again. What its first part recorded need not fall with the parts behind (R1).
                if len(plan.commit.parts) == 1:
                    raise
                telemetry.count("tails_refused")
                telemetry.log(logging.ERROR, "tail_refused", dispatch_id=live.claim.dispatch_id, error=error.message)
                fused, slice_ = False, self._reload(live, slice_, outcome)
                continue
            faults.hit("commit.after", live.claim.step)
            assert receipt is not None, "a step's commit names its run"
            return self._follow(live, plan, receipt, sent_s)
        raise _given_up(live.claim, seen)

    def _patiently(self, live: Live, outcome: Outcome | None, call: Callable[[], _Value]) -> _Value:
        """Call the store; with the outcome of an effect in hand, again and again while the claim may hold (T3)."""
        for _ in range(limits.OUTCOME_TRIES):
            try:
                return call()
            except PersistenceUnavailableError:
                superseded = live.cancellation.reason in (CancelReason.STOP, CancelReason.SUPERSEDED)
                if outcome is None or superseded:
                    raise
                telemetry.count("outcomes_waiting")
                self._ports.clock.wait(self._keeper.stopped, 1.0)
        return call()

    def _reload(self, live: Live, slice_: Slice, outcome: Outcome | None) -> Slice:
        """Fresh rows; a first output that is only in memory stays with its attempt.

        Raises LeaseLostError where another worker has taken the effect's operation on.
        """
        load = partial(load_slice, self._ports, slice_.run.run_id)
        fresh = self._patiently(live, outcome, load)
        if outcome is not None and _moved_on(fresh, live.claim):
            raise LeaseLostError(f"dispatch {live.claim.dispatch_id}: its operation was settled by another")
        kept, found = slice_.attempt, fresh.attempt
        if (
            kept is not None
            and found is not None
            and kept.first_output is not None
            and found.first_output is None
            and (kept.operation_id, kept.attempt_no) == (found.operation_id, found.attempt_no)
        ):
            noted = replace(found, first_output=kept.first_output, first_output_at=kept.first_output_at)
            fresh = replace(fresh, attempt=noted)
        return fresh

    def _follow(self, live: Live, plan: Plan, receipt: CommitReceipt, sent_s: float) -> Inline | None:
        """After the commit: publish what others may take, go on with what is ours.

        The next claim's time counts from when the commit was sent, as a renewal's does (RUNTIME 4).
        """
        run = replace(
            plan.slice.run,
            status=receipt.status,
            event_head=receipt.event_head,
            input_head=receipt.input_head,
            epoch=receipt.epoch,
        )
        slice_ = replace(plan.slice, run=run, unsaved=())
        remember_view(self._ports, slice_.context, slice_.view)
        telemetry.log(
            logging.DEBUG,
            "step_committed",
            run_id=run.run_id,
            dispatch_id=live.claim.dispatch_id,
            step=live.claim.step,
            subject_id=live.claim.subject_id,
            attempts=live.claim.attempts,
            process_id=self.process_id,
        )
        if plan.commit.events:
            self._ports.on_event(run.run_id)
        if plan.commit.accept is not None:
            self._ports.on_event(plan.commit.accept.run_id)
        if plan.commit.fence is not None and plan.commit.fence.move is RunMove.STOP:
            self._ports.fast.push_cancel(run.run_id)
        if plan.publish:
            self._ports.publish(list(plan.publish))
        faults.hit("publish.after", live.claim.step)
        row = plan.inline
        if row is None or row.inline_token is None:
            return None
        if receipt.epoch != plan.slice.run.epoch:
            # The answer was lost, and a stop came before the receipt was read: the row is gone.
            return None
        claim = Claim(
            dispatch_id=row.dispatch_id,
            token=row.inline_token,
            scope_id=run.run_id,
            run_id=run.run_id,
            step=row.successor.step,
            step_version=row.version,
            subject_id=row.successor.subject_id,
            key=row.successor.key,
            epoch=receipt.epoch,
            attempts=1,
            failures=0,
            now_us=receipt.now_us,
        )
        entry = STEPS[live.claim.step]
        # An input that came meanwhile is in no slice yet (RULINGS T13).
        stale = receipt.input_head != plan.slice.run.input_head or (isinstance(entry, PureStep) and entry.alone)
        return Inline(claim, sent_s, None if stale else slice_)


def _given_up(claim: Claim, seen: list[object]) -> Exception:
    """After the last try: contention where the rows moved between the tries, else a conflict that is ours alone."""
    tries = f"dispatch {claim.dispatch_id} after {len(seen)} tries: a row"
    if any(before != after for before, after in pairwise(seen)):
        return ContentionError(f"{tries} moved on before each commit")
    return RevisionConflictError(tries)


def _moved_on(slice_: Slice, claim: Claim) -> bool:
    """Whether the operation of an effect is settled, or no longer one that the run is at."""
    current = [operation for operation in (slice_.operation, *slice_.members) if operation is not None]
    return not any(each.operation_id == claim.subject_id and not each.status.settled for each in current)


def _began(outcome: Outcome) -> bool:
    """Whether the effect of an ended attempt may have begun."""
    match outcome:
        case ModelEnded(outcome=Cancelled(sent=sent)):
            return sent
        case ToolEnded(result=result):
            failure = result.failure
            return failure is None or failure.external_outcome is not Executed.NOT_EXECUTED
        case _:
            return True
