"""pending_dispatch: every run that lives can move, and no row is left of one that is over."""

from collections.abc import Iterator

from agentloom_worker.audit.facts import RunFacts
from agentloom_worker.audit.fault import Fault
from agentloom_worker.domain.operation import AttemptState, OperationKind, OperationStatus
from agentloom_worker.domain.run import BatchState, CleanupState, Phase, RunStatus, TicketState
from agentloom_worker.errors import Code
from agentloom_worker.ids import BatchId, NodeId, OperationId
from agentloom_worker.storage.audit_rows import QueueRow

_ATTEMPTS = ("attempt_model", "attempt_call")


def _subject(row: QueueRow) -> str:
    return f"dispatch {row.dispatch_id}"


def check_live_runs(facts: RunFacts) -> Iterator[Fault]:
    """A live run has its timer and a row that moves it; a stopping one has finalize.

    Where the deadline ended the model's attempt, the timer itself is what moves the run.
    """
    status, steps = facts.run.status, [row.step for row in facts.rows.dispatches]
    if status is RunStatus.STOPPING:
        if "finalize_run" not in steps:
            yield Fault(facts.subject, "is stopping and has no row to finalize it")
    elif not status.terminal:
        if "expire_run" not in steps:
            yield Fault(facts.subject, f"is {status} and has no row for its deadline")
        expired = any(
            row.status is OperationStatus.CANCELLED and row.code == Code.RUN_DEADLINE_EXCEEDED
            for row in facts.rows.operations
        )
        if not expired and all(step == "expire_run" for step in steps):
            yield Fault(facts.subject, f"is {status} and has no row that moves it")


def check_terminal_runs(facts: RunFacts) -> Iterator[Fault]:
    """A run that is over has no row but that of its cleanup, and that one until the cleanup is done."""
    if not facts.run.status.terminal:
        return
    steps = [row.step for row in facts.rows.dispatches]
    left = sorted(step for step in steps if step != "clean_up")
    if left:
        yield Fault(facts.subject, f"is {facts.run.status} and has rows of {', '.join(left)}")
    if ("clean_up" in steps) is (facts.run.cleanup_state is CleanupState.DONE):
        yield Fault(
            facts.subject, f"has {steps.count('clean_up')} cleanup row(s) and cleanup {facts.run.cleanup_state}"
        )


def check_epochs(facts: RunFacts) -> Iterator[Fault]:
    """A row's epoch always equals its run's (R4)."""
    for row in facts.rows.dispatches:
        if row.epoch != facts.run.epoch:
            yield Fault(_subject(row), f"has epoch {row.epoch}, its run {facts.run.epoch}")


def check_scopes(facts: RunFacts) -> Iterator[Fault]:
    """A row of a run stands in the run's own scope."""
    for row in facts.rows.dispatches:
        if not row.scope_id == row.run_id == facts.run.run_id:
            yield Fault(_subject(row), f"is of run {row.run_id} in scope {row.scope_id}")


def check_claims(facts: RunFacts) -> Iterator[Fault]:
    """A claim is a token, its holder and its end: all of them or none."""
    for row in facts.rows.dispatches:
        parts = {row.claim_token is None, row.claimed_by is None, row.claimed_until is None}
        if len(parts) != 1:
            yield Fault(_subject(row), "holds a part of a claim: token, holder and end belong together")


def check_parked(facts: RunFacts) -> Iterator[Fault]:
    """A parked row says why, for the operator who has to decide."""
    for row in facts.rows.dispatches:
        if row.parked_at is not None and not row.last_error:
            yield Fault(_subject(row), "is parked without an error")


def check_intents(facts: RunFacts) -> Iterator[Fault]:
    """While a run is not stopping, somebody can come for each open intent."""
    if facts.run.status not in (RunStatus.QUEUED, RunStatus.RUNNING):
        return
    awaited = {row.subject_id for row in facts.rows.dispatches if row.step in _ATTEMPTS}
    for attempt in facts.rows.attempts:
        if attempt.state is AttemptState.INTENT and attempt.operation_id not in awaited:
            yield Fault(f"attempt {attempt.operation_id}/{attempt.attempt_no}", "is open and no row will come for it")


def check_subjects(facts: RunFacts) -> Iterator[Fault]:
    """A row's subject exists in its run and stands where the row's step takes it up."""
    for row in facts.rows.dispatches:
        misfit = _misfit(facts, row)
        if misfit is not None:
            yield Fault(_subject(row), f"{row.step} of {row.subject_id}: {misfit}")


def _misfit(facts: RunFacts, row: QueueRow) -> str | None:
    match row.step:
        case "prepare_context":
            return _of_node(facts, row, Phase.PREPARE_CONTEXT)
        case "validate_output":
            return _of_node(facts, row, Phase.VALIDATE_OUTPUT)
        case "settle_node":
            return _of_node(facts, row, Phase.SETTLE)
        case "freeze_request" | "attempt_model" | "attempt_call" | "accept_model":
            return _of_operation(facts, row)
        case "deliver_batch":
            batch = facts.batches.get(BatchId(row.subject_id))
            if batch is None:
                return "no such batch in its run"
            ready = batch.state is BatchState.OPEN and batch.settled == batch.size
            return None if ready else f"the batch is {batch.state} with {batch.settled} of {batch.size} settled"
        case "finalize_run" | "expire_run" | "clean_up":
            return _of_run(facts, row)
        case _:
            # A row of a newer version of this program; what it may look like is not known here.
            return None


def _of_node(facts: RunFacts, row: QueueRow, phase: Phase) -> str | None:
    node = facts.nodes.get(NodeId(row.subject_id))
    if node is None:
        return "no such node in its run"
    return None if node.phase is phase else f"the node is in phase {node.phase}"


def _of_operation(facts: RunFacts, row: QueueRow) -> str | None:
    operation = facts.operations.get(OperationId(row.subject_id))
    if operation is None:
        return "no such operation in its run"
    wanted = {"freeze_request": OperationStatus.PREPARED, "accept_model": OperationStatus.COMPLETED}.get(
        row.step, OperationStatus.ATTEMPTING
    )
    if operation.status is not wanted:
        return f"the operation is {operation.status}"
    if row.step in _ATTEMPTS and operation.kind is not OperationKind.INTERNAL:
        attempts = facts.attempts_of(operation.operation_id)
        if not attempts or attempts[-1].state is not AttemptState.INTENT:
            return "the operation has no open intent"
    if row.step == "accept_model" and not any(
        ticket.operation_id == operation.operation_id and ticket.state is TicketState.RESERVED
        for ticket in facts.rows.tickets
    ):
        return "the operation holds no reserved ticket: it was accepted already"
    return None


def _of_run(facts: RunFacts, row: QueueRow) -> str | None:
    run = facts.run
    if row.subject_id != run.run_id:
        return "not the run itself"
    if row.step == "clean_up":
        return None if run.status.terminal else f"the run is {run.status}"
    if row.step == "expire_run":
        return None if run.status in (RunStatus.QUEUED, RunStatus.RUNNING) else f"the run is {run.status}"
    settled = all(node.phase is Phase.SETTLED for node in facts.rows.nodes)
    ready = run.status is RunStatus.STOPPING or (not run.status.terminal and settled)
    return None if ready else f"the run is {run.status} and its node is not settled"
