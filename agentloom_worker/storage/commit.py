"""Turns a RuntimeCommit into its list of statements, in the one order that both databases run."""

from collections.abc import Callable
from typing import Any

from agentloom_worker.canonical import canonical_bytes, sha256
from agentloom_worker.domain.commit import Event, OutboxRow, Part, Put, RunAccept, RunFence, RunMove, RuntimeCommit
from agentloom_worker.domain.context import ContextRecord, EffectiveEntry, EffectiveRevision, RoleContext
from agentloom_worker.domain.operation import Attempt, Operation
from agentloom_worker.domain.run import AgentInvocation, CallBatch, GraphExecution, LoopTicket, NodeTask
from agentloom_worker.domain.session import QueuedQuestion, UserInput, UserInputDelivery
from agentloom_worker.ids import ProcessId, RunId
from agentloom_worker.limits import WAKE_AFTER_S
from agentloom_worker.storage import blob, commit_log, context, dispatch, operation, run, session, tree
from agentloom_worker.storage.template import Statement

WRITERS: dict[type, Callable[[Any, Any], list[Statement]]] = {
    UserInput: session.write_input,
    UserInputDelivery: session.write_delivery,
    QueuedQuestion: session.write_queued,
    GraphExecution: tree.write_graph,
    AgentInvocation: tree.write_invocation,
    NodeTask: tree.write_node,
    LoopTicket: tree.write_ticket,
    CallBatch: tree.write_batch,
    Operation: operation.write_operation,
    Attempt: operation.write_attempt,
    RoleContext: context.write_context,
    ContextRecord: context.write_record,
    EffectiveEntry: context.write_entry,
    EffectiveRevision: context.write_revision,
}

_WAKE_US = int(WAKE_AFTER_S * 1_000_000)
_NO_FIELDS = b"{}"


def command_hash(parts: tuple[Part, ...]) -> bytes:
    """The hash of a commit: over the parts' keys and hashes, so fused and single commits agree on parts."""
    if len(parts) == 1:
        return parts[0].command_hash
    return sha256(b"\0".join(part.key.encode() + b"=" + part.command_hash for part in parts))[:16]


def _fence(fence: RunFence, events: int) -> list[Statement]:
    match fence.move:
        case RunMove.FENCE:
            first = run.RUN_FENCE(fence.run_id, events, fence.consumed, fence.reserved)
        case RunMove.START:
            first = run.RUN_START(fence.run_id, events, fence.consumed, fence.reserved)
        case RunMove.END:
            first = run.RUN_END(
                fence.run_id,
                events,
                fence.consumed,
                fence.reserved,
                str(fence.status),
                str(fence.cause),
                fence.code,
                fence.detail,
                fence.answer_operation_id,
                fence.started,
            )
        case RunMove.STOP:
            first = run.RUN_STOP(fence.run_id, events, str(fence.cause), fence.code, fence.detail)
            if fence.interrupted:
                return [first, run.RUN_QUEUE(fence.run_id, 0)]
        case RunMove.TAKE:
            first = run.RUN_TAKE(fence.run_id, events)
        case RunMove.QUEUE:
            first = run.RUN_QUEUE(fence.run_id, events)
        case RunMove.CLEANED:
            first = run.RUN_CLEANED(fence.run_id, events)
    if fence.input_head is None:
        return [first]
    return [first, run.RUN_INPUTS(fence.run_id, fence.input_head)]


def _outbox(row: OutboxRow, run_id: RunId, owner: ProcessId | None, ttl_us: int) -> Statement:
    todo = row.successor
    head = (
        row.dispatch_id,
        run_id,
        todo.step,
        row.version,
        todo.subject_id,
        todo.key,
        row.queue,
        row.priority,
    )
    if row.inline_token is not None:
        return dispatch.DISPATCH_INSERT_CLAIMED(*head, row.inline_token, owner, ttl_us)
    if todo.due_at is not None:
        return dispatch.DISPATCH_INSERT_AT(*head, todo.due_at)
    # A row that is published at once is looked at again after a while; a timer when it is due.
    return dispatch.DISPATCH_INSERT(*head, todo.delay_us, 0 if todo.delay_us else _WAKE_US)


def build(commit: RuntimeCommit, owner: ProcessId | None, ttl_us: int) -> list[Statement]:
    """Lock, fence, claim, key, rows, events, successors, a new run, receipt (COMMIT-SQL).

    A new run follows what the fence does to the one before it: a session has at most one that lives.
    """
    statements: list[Statement] = []
    if commit.session_id is not None:
        statements.append(session.SESSION_LOCK(commit.session_id))
    if commit.fence is not None:
        statements.extend(_fence(commit.fence, len(commit.events)))
    if commit.claim is not None:
        held = dispatch.CONSUME if commit.consume else dispatch.HOLD
        statements.append(held(commit.claim.dispatch_id, commit.claim.token))
    keys = " ".join(commit_log.kind_of(part.key) for part in commit.parts)
    statements.append(
        commit_log.COMMIT_INSERT(commit.scope_id, commit.key, command_hash(commit.parts), keys, commit.receipt)
    )
    statements.extend(blob.put(put.blob_id, put.owner_id, put.body, put.media_type) for put in commit.blobs)
    statements.extend(_puts(commit.puts))
    run_id: RunId | None = None
    if commit.fence is not None:
        run_id = commit.fence.run_id
        statements.extend(_tail(commit, run_id, owner, ttl_us))
    if commit.accept is not None:
        assert commit.first is not None and commit.deadline is not None, "a new run has rows that move it"
        statements.extend(_accept(commit.accept, commit.first, commit.deadline))
        run_id = run_id or commit.accept.run_id
    if run_id is not None:
        statements.append(commit_log.RECEIPT(run_id))
    return statements


def _puts(puts: tuple[Put, ...]) -> list[Statement]:
    return [statement for put in puts for statement in WRITERS[type(put.after)](put.before, put.after)]


def _accept(accept: RunAccept, first: OutboxRow, deadline: OutboxRow) -> list[Statement]:
    """The question must precede the run, which reads its place; the tree's rows and what waits follow the run."""
    return [
        session.SESSION_NEXT_RUN(accept.session_id),
        run.RUN_INSERT(
            accept.run_id,
            accept.owner_id,
            accept.session_id,
            accept.release_id,
            accept.max_loops,
            accept.deadline_us,
            len(accept.events),
            accept.binding,
            accept.input_id,
        ),
        *_puts(accept.puts),
        session.DELIVERY_BIND(accept.session_id, accept.run_id),
        *_events(accept.events, accept.run_id),
        _outbox(first, accept.run_id, None, 0),
        dispatch.DISPATCH_INSERT_DEADLINE(
            deadline.dispatch_id,
            accept.run_id,
            deadline.successor.step,
            deadline.version,
            deadline.successor.key,
            deadline.queue,
            deadline.priority,
        ),
    ]


def _events(events: tuple[Event, ...], run_id: RunId) -> list[Statement]:
    head = len(events)
    return [
        commit_log.EVENT_INSERT(
            run_id,
            head - 1 - position,
            event.kind,
            canonical_bytes(dict(event.fields)) if event.fields else _NO_FIELDS,
        )
        for position, event in enumerate(events)
    ]


def _tail(commit: RuntimeCommit, run_id: RunId, owner: ProcessId | None, ttl_us: int) -> list[Statement]:
    statements: list[Statement] = []
    if commit.fence is not None and commit.fence.move is RunMove.STOP:
        statements.extend((dispatch.LOCK_RUN_ROWS(run_id), operation.ATTEMPT_MARK_SENT(run_id)))
    if commit.delete_run_rows:
        statements.append(dispatch.DELETE_RUN_ROWS(run_id))
    statements.extend(_events(commit.events, run_id))
    statements.extend(_outbox(row, run_id, owner, ttl_us) for row in commit.outbox)
    if commit.delivery is not None:
        row, batch_id = commit.delivery
        todo = row.successor
        statements.append(
            dispatch.DISPATCH_INSERT_DELIVERY(
                row.dispatch_id,
                run_id,
                batch_id,
                todo.step,
                row.version,
                todo.key,
                row.queue,
                row.priority,
                _WAKE_US,
            )
        )
    return statements
