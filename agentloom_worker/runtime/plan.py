"""What one commit of a step writes: its own result, the pure parts fused behind it, and its successors' rows."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from agentloom_worker import faults, telemetry
from agentloom_worker.domain.commit import OutboxRow, RuntimeCommit
from agentloom_worker.domain.dispatch import Queue, Successor, WakeUp
from agentloom_worker.frozen import replace
from agentloom_worker.ids import ClaimToken
from agentloom_worker.runtime.dispatch import outbox_row, wake_up
from agentloom_worker.runtime.failing import describe_error
from agentloom_worker.runtime.lease import Keeper
from agentloom_worker.runtime.live import Live
from agentloom_worker.runtime.outcome import Outcome
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.result import (
    StepResult,
    locks_session,
    merge_fence,
    merge_parts,
    merge_puts,
)
from agentloom_worker.runtime.slice import Slice
from agentloom_worker.runtime.table import STEPS, EffectStep, PureStep

_FUSED_PARTS_MAX = 16


@dataclass(slots=True)
class Budget:
    """Fairness: how long one wake-up may carry a run through inline steps (RULINGS T13)."""

    hops: int
    until_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A commit ready to be sent, and what follows it."""

    commit: RuntimeCommit
    slice: Slice
    inline: OutboxRow | None
    publish: tuple[WakeUp, ...]


class Planner:
    """Builds the commits of one process's steps. Safe for use by many threads."""

    def __init__(self, ports: Ports, keeper: Keeper) -> None:
        self._ports = ports
        self._keeper = keeper

    def plan(
        self,
        live: Live,
        slice_: Slice,
        entry: PureStep | EffectStep,
        outcome: Outcome | None,
        budget: Budget,
        *,
        fused: bool,
    ) -> Plan:
        """The commit of a step, and what follows it; `fused` with the pure parts that may go into it (RULINGS R1)."""
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
            telemetry.log(
                logging.WARNING, "tail_raised", dispatch_id=live.claim.dispatch_id, error=describe_error(error)
            )
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

    def _build(self, live: Live, results: Sequence[StepResult], budget: Budget) -> Plan:
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
        first = deadline = None
        if last.opens is not None:
            first, deadline = outbox_row(ports, last.opens.first), outbox_row(ports, last.opens.expiry)
            publish.append(wake_up(first))
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
            accept=last.opens,
            first=first,
            deadline=deadline,
        )
        return Plan(todo, last.slice, inline, tuple(publish))

    def _may_inline(self, successor: Successor, budget: Budget) -> bool:
        if successor.delay_us or successor.due_at is not None or self._keeper.draining:
            return False
        queue = successor.queue or STEPS[successor.step].queue
        if queue is not Queue.CONTROL and queue.value not in self._ports.settings.queues:
            return False
        return budget.hops > 0 and self._ports.clock.monotonic_s() < budget.until_s
