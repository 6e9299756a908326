"""One claimed row becomes one commit, and perhaps the next row inline. Owns the control flow and the errors.

claim → load the slice → the effect, if the step has one → its record and the pure steps that may fuse with
it → one RuntimeCommit → publish, or go on inline.
"""

import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from agentloom_worker import faults, limits, telemetry
from agentloom_worker.cancellation import CancelReason
from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.capabilities.result import encode_result
from agentloom_worker.domain.commit import CommitReceipt, OutboxRow, RunMove, RuntimeCommit
from agentloom_worker.domain.dispatch import Claim, Queue, Successor, WakeUp
from agentloom_worker.domain.model import Cancelled, Completed, Executed, Failed
from agentloom_worker.domain.operation import Attempt
from agentloom_worker.domain.response import encode_partial, encode_response
from agentloom_worker.errors import (
    AgentloomError,
    InvariantError,
    LeaseLostError,
    PersistenceUnavailableError,
    RevisionConflictError,
    SupersededError,
)
from agentloom_worker.frozen import replace
from agentloom_worker.ids import ClaimToken, DispatchId, ProcessId
from agentloom_worker.runtime.commit import commit, save_late
from agentloom_worker.runtime.dispatch import outbox_row, wake_up
from agentloom_worker.runtime.lease import Keeper
from agentloom_worker.runtime.live import Live
from agentloom_worker.runtime.outcome import ModelEnded, Outcome, ToolEnded
from agentloom_worker.runtime.ports import US, Ports
from agentloom_worker.runtime.release import load_owned_release
from agentloom_worker.runtime.result import (
    StepResult,
    locks_session,
    merge_fence,
    merge_parts,
    merge_puts,
)
from agentloom_worker.runtime.slice import Slice, load_slice
from agentloom_worker.runtime.table import STEPS, EffectStep, PureStep
from agentloom_worker.runtime.view import remember_view

_UNKNOWN_STEP_DELAY_US = 5 * US
_FUSED_PARTS_MAX = 16
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Inline:
    """The next step of this slot: already claimed, with the slice that the commit left, where it is whole."""

    claim: Claim
    claimed_s: float
    slice: Slice | None


@dataclass(slots=True)
class _Budget:
    """Fairness: how long one wake-up may carry a run through inline steps (RULINGS T13)."""

    hops: int
    until_s: float


@dataclass(frozen=True, slots=True)
class _Plan:
    """A commit ready to be sent, and what follows it."""

    commit: RuntimeCommit
    slice: Slice
    inline: OutboxRow | None
    publish: tuple[WakeUp, ...]


class StepRunner:
    """Runs rows for one process. Safe for use by many threads, one row each at a time."""

    def __init__(self, ports: Ports, process_id: ProcessId, keeper: Keeper, *, solitary: bool = False) -> None:
        self._ports = ports
        self._keeper = keeper
        self._solitary = solitary
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
        except PersistenceUnavailableError as error:
            telemetry.log(logging.WARNING, "claim_failed", dispatch_id=dispatch_id, error=error.message)
            self._keeper.leave(dispatch_id, token, began=False)
            return False
        if claim is None:
            telemetry.count("claims_missed")
            return False
        if isinstance(STEPS.get(claim.step), EffectStep):
            # A pure step is over before a duplicate comes. Never dropped where a commit consumes the row: a
            # duplicate that comes late then costs no claim either.
            fast.note_claim(dispatch_id, claim.token, settings.claim_ttl_ms)
        faults.hit("claim.after", claim.step)
        hops = 0 if self._solitary else settings.inline_hops
        budget = _Budget(hops, claimed_s + settings.inline_ms / 1000)
        todo: Inline | None = self._guarded(claim, claimed_s, None, budget)
        while todo is not None:
            budget.hops -= 1
            todo = self._guarded(todo.claim, todo.claimed_s, todo.slice, budget)
        return True

    def _guarded(self, claim: Claim, claimed_s: float, slice_: Slice | None, budget: _Budget) -> Inline | None:
        live = self._keeper.hold(claim, claimed_s)
        try:
            return self._advance(live, slice_, budget)
        except SupersededError as error:
            self._superseded(live, error)
        except PersistenceUnavailableError as error:
            # The row stays as it is until the store is back (RUNTIME 3).
            telemetry.log(logging.ERROR, "store_unavailable", dispatch_id=claim.dispatch_id, error=error.message)
            self._keeper.leave(claim.dispatch_id, claim.token, began=live.effect_began)
        except Exception as error:  # noqa: BLE001 - the last line of defence of a slot: see _failed
            self._failed(live, error)
        finally:
            self._keeper.drop(live)
            telemetry.observe("step", claim.step, self._ports.clock.monotonic_s() - claimed_s)
        return None

    def _advance(self, live: Live, slice_: Slice | None, budget: _Budget) -> Inline | None:
        claim = live.claim
        entry = STEPS.get(claim.step)
        # A row of an older version is this code's to run; one of a newer version waits for newer code.
        if entry is None or entry.version < claim.step_version:
            telemetry.count("task_unknown")
            self._hand_back(
                live,
                delay_us=_UNKNOWN_STEP_DELAY_US,
                error=f"unknown step {claim.step} v{claim.step_version}",
            )
            return None
        if claim.run_id is None:
            raise InvariantError(f"dispatch {claim.dispatch_id} names no run")
        slice_ = slice_ or load_slice(self._ports, claim.run_id)
        faults.hit("step.loaded", claim.step)
        if isinstance(entry, PureStep):
            return self._settle(live, slice_, entry, None, budget)
        live.deadline_us = slice_.run.deadline_at
        if live.cancellation.reason is CancelReason.DRAIN:
            self._hand_back(live, delay_us=0, error=None)
            return None
        slice_, outcome = entry.perform(self._ports, slice_, live)
        return self._record(live, slice_, entry, outcome, budget)

    def _record(self, live: Live, slice_: Slice, entry: EffectStep, outcome: Outcome, budget: _Budget) -> Inline | None:
        """Commit an outcome; one that comes too late is kept on its attempt, once (RULINGS R3)."""
        if live.cancellation.reason in (CancelReason.STOP, CancelReason.SUPERSEDED):
            self._late(live, slice_, outcome)
            return None
        if live.cancellation.reason is CancelReason.DRAIN and not _began(outcome):
            self._hand_back(live, delay_us=0, error=None)
            return None
        fresh = slice_
        try:
            if live.claim.step == "attempt_call" and slice_.batch is not None and slice_.batch.size > 1:
                # Siblings settle meanwhile; whether this one is the last is decided on fresh rows.
                fresh = self._reload(live, slice_, outcome)
            return self._settle(live, fresh, entry, outcome, budget)
        except SupersededError:
            self._late(live, slice_, outcome)
            return None

    def _settle(
        self,
        live: Live,
        slice_: Slice,
        entry: PureStep | EffectStep,
        outcome: Outcome | None,
        budget: _Budget,
    ) -> Inline | None:
        """Build and commit; on a conflict reload, rebuild and try again, never repeating the effect (T3)."""
        fused = self._ports.settings.fusion
        tries = limits.REBUILD_TRIES if outcome is None else limits.OUTCOME_TRIES
        for attempt in range(tries):
            build = partial(self._plan, live, slice_, entry, outcome, budget)
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
                continue
            faults.hit("commit.after", live.claim.step)
            assert receipt is not None, "a step's commit names its run"
            return self._follow(live, plan, receipt, sent_s)
        raise RevisionConflictError(f"dispatch {live.claim.dispatch_id} after {tries} tries: a row")

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

    def _plan(
        self,
        live: Live,
        slice_: Slice,
        entry: PureStep | EffectStep,
        outcome: Outcome | None,
        budget: _Budget,
        *,
        fused: bool,
    ) -> _Plan:
        if isinstance(entry, EffectStep):
            assert outcome is not None, "an effect step records an outcome"
            results = [entry.record(self._ports, slice_, live, outcome)]
        else:
            faults.hit("tail.raise", live.claim.step)
            results = [entry.run(self._ports, slice_)]
        alone = isinstance(entry, PureStep) and entry.alone
        if fused and not alone:
            results = self._fuse(live, results)
        return self._build(live, results, budget)

    def _fuse(self, live: Live, first: list[StepResult]) -> list[StepResult]:
        """Run the pure steps that follow on the slice in memory; what raises leaves the outcome alone (R1)."""
        results = list(first)
        try:
            while len(results) < _FUSED_PARTS_MAX:
                successor = self._fusible(results[-1])
                if successor is None:
                    return results
                entry = STEPS[successor.step]
                assert isinstance(entry, PureStep), "only pure steps fuse"
                faults.hit("tail.raise", successor.step)
                before = results[-1].slice
                if unsaved := tuple(put for result in results for put in result.blobs):
                    before = replace(before, unsaved=unsaved)
                results.append(entry.run(self._ports, before))
        except Exception as error:  # noqa: BLE001 - the tail runs again as its own step
            telemetry.count("tails_raised")
            telemetry.log(logging.WARNING, "tail_raised", dispatch_id=live.claim.dispatch_id, error=_describe(error))
            return list(first)
        return results

    def _fusible(self, result: StepResult) -> Successor | None:
        """The single pure successor that is due now; a batch's delivery only where this member is the last."""
        if result.settles is not None:
            batch = result.slice.batch
            assert batch is not None, "a member settles in a batch"
            return result.settles if batch.settled == batch.size else None
        if len(result.successors) != 1:
            return None
        successor = result.successors[0]
        entry = STEPS[successor.step]
        due = successor.delay_us == 0 and successor.due_at is None
        return successor if due and isinstance(entry, PureStep) and not entry.alone else None

    def _build(self, live: Live, results: Sequence[StepResult], budget: _Budget) -> _Plan:
        ports, last = self._ports, results[-1]
        rows: list[OutboxRow] = []
        inline: OutboxRow | None = None
        # A fused result's only successor is the result after it, so the last one's are all that is left.
        for successor in last.successors:
            token: ClaimToken | None = None
            if inline is None and self._may_inline(successor, budget):
                token = ClaimToken(ports.ids.token())
            row = outbox_row(ports, successor, token)
            inline = row if token else inline
            rows.append(row)
        delivery = None
        if last.settles is not None:
            assert last.slice.batch is not None
            delivery = (outbox_row(ports, last.settles), last.slice.batch.batch_id)
        run = results[0].slice.run
        publish = [wake_up(row) for row in rows if row.inline_token is None and not row.successor.delay_us]
        if delivery is not None:
            publish.append(wake_up(delivery[0]))
        todo = RuntimeCommit(
            scope_id=run.run_id,
            key=live.claim.token.bytes,
            parts=merge_parts(results),
            session_id=run.session_id if locks_session(results) else None,
            claim=live.claim,
            fence=merge_fence(run.run_id, results, run.input_head),
            blobs=tuple(put for result in results for put in result.blobs),
            puts=merge_puts(results),
            events=tuple(event for result in results for event in result.events),
            delete_run_rows=any(result.deletes_run_rows for result in results),
            outbox=tuple(rows),
            delivery=delivery,
        )
        return _Plan(todo, last.slice, inline, tuple(publish))

    def _may_inline(self, successor: Successor, budget: _Budget) -> bool:
        if successor.delay_us or successor.due_at is not None or self._keeper.draining:
            return False
        queue = successor.queue or STEPS[successor.step].queue
        if queue is not Queue.CONTROL and queue.value not in self._ports.settings.queues:
            return False
        return budget.hops > 0 and self._ports.clock.monotonic_s() < budget.until_s

    def _follow(self, live: Live, plan: _Plan, receipt: CommitReceipt, sent_s: float) -> Inline | None:
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
        stale = isinstance(entry, PureStep) and entry.alone
        return Inline(claim, sent_s, None if stale else slice_)

    def _hand_back(self, live: Live, *, delay_us: int, error: str | None) -> None:
        """Give the row back before the effect began; it does not count as an attempt (RULINGS A1)."""
        self._ports.store.hand_back(live.claim, delay_us=delay_us, failed=False, failures_max=1, error=error)
        self._release(live)
        telemetry.count("hand_backs")
        if delay_us == 0:
            entry = STEPS.get(live.claim.step)
            if entry is not None:
                row = WakeUp(live.claim.dispatch_id, live.claim.step, entry.queue.value, entry.version)
                self._ports.publish([row])

    def _release(self, live: Live) -> None:
        """The row lives on and is free: nobody may be told that it is held."""
        self._ports.fast.drop_claim(live.claim.dispatch_id, live.claim.token)

    def _superseded(self, live: Live, error: SupersededError) -> None:
        """Another has it or did it; before the effect a live claim is only handed back."""
        telemetry.count("superseded")
        telemetry.log(logging.INFO, "superseded", dispatch_id=live.claim.dispatch_id, error=error.message)
        if live.effect_began:
            return
        try:
            if isinstance(STEPS.get(live.claim.step), PureStep):
                # Its commit was refused. A row that is still ours then belongs to a run that does not take it:
                # it must not come back at once, again and again.
                self._back_off(live, error.message)
            else:
                self._hand_back(live, delay_us=0, error=None)
        except AgentloomError as failed:
            self._leave(live, failed)

    def _failed(self, live: Live, error: Exception) -> None:
        """An exception that is nobody's answer: back off while nothing began, else park with the evidence."""
        described = _describe(error)
        telemetry.count("step_failures")
        telemetry.log(
            logging.ERROR,
            "step_failed",
            dispatch_id=live.claim.dispatch_id,
            step=live.claim.step,
            error=described,
            traceback=telemetry.frames_of(error),
        )
        try:
            if live.effect_began or _parks(error):
                parked = self._ports.store.park(live.claim, described)
                self._release(live)
            else:
                parked = self._back_off(live, described)
            if parked:
                telemetry.count("steps_parked")
                if live.claim.run_id is not None:
                    self._ports.store.note_event(live.claim.run_id, "step.parked", {"step": live.claim.step})
        except AgentloomError as failed:
            self._leave(live, failed)

    def _back_off(self, live: Live, error: str) -> bool:
        """Hand back a row whose step failed before its effect; True if that parked it (RULINGS U2)."""
        delay_s = min(limits.STEP_BACKOFF_INITIAL_S * 2.0**live.claim.failures, limits.STEP_BACKOFF_MAX_S)
        jittered_us = int(US * delay_s * (0.5 + self._ports.chance.random() / 2))
        parked = self._ports.store.hand_back(
            live.claim, delay_us=jittered_us, failed=True, failures_max=self._failures_max(live), error=error
        )
        self._release(live)
        return parked

    def _failures_max(self, live: Live) -> int:
        """The release's `max_step_attempts`; the default where even the release cannot be read."""
        try:
            run = self._ports.store.load_run(live.claim.scope_id)
            if run is not None:
                return load_owned_release(self._ports, run.release_id).release.limits.max_step_attempts
        except AgentloomError as error:
            telemetry.log(logging.WARNING, "release_unreadable", code=error.code)
        return limits.STEP_FAILURES_MAX

    def _leave(self, live: Live, error: AgentloomError) -> None:
        """The row could not be handed back or parked now: the keeper gives it up later."""
        telemetry.log(logging.WARNING, "hand_back_failed", code=error.code)
        self._keeper.leave(live.claim.dispatch_id, live.claim.token, began=live.effect_began)

    def _late(self, live: Live, slice_: Slice, outcome: Outcome) -> None:
        attempt, fact = _late_fact(live, slice_, outcome)
        if attempt is None or fact is None:
            return
        try:
            save_late(self._ports, attempt, fact)
        except AgentloomError as error:
            telemetry.log(logging.WARNING, "late_fact_failed", code=error.code)


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


def _parks(error: Exception) -> bool:
    """A broken invariant will not mend by repetition."""
    return isinstance(error, InvariantError)


def _describe(error: Exception) -> str:
    """The error with where it was raised; no values of variables, so no bodies and no secrets."""
    message = error.message if isinstance(error, AgentloomError) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    return f"{message[:600]} [{places}]"


def _late_fact(live: Live, slice_: Slice, outcome: Outcome) -> tuple[Attempt | None, bytes | None]:
    """What a voided claim brought back, as one document on its attempt."""
    match outcome:
        case ModelEnded(outcome=Completed(response=response)):
            return slice_.attempt, encode_response(response)
        case ModelEnded(outcome=Failed(failure=failure, partial=partial)):
            broken = {"code": failure.code, "partial": (encode_partial(partial) or b"").decode()}
            return slice_.attempt, canonical_bytes(broken)
        case ModelEnded(outcome=Cancelled(partial=partial, sent=sent), reason=reason):
            document: dict[str, object] = {
                "cancelled": reason.value if reason else "unknown",
                "sent": sent,
                "partial": (encode_partial(partial) or b"").decode(),
            }
            return slice_.attempt, canonical_bytes(document)
        case ToolEnded(result=result):
            return slice_.member_attempt(live.claim.subject_id), encode_result(result)
        case _:
            return None, None
