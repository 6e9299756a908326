"""What the audit reads: the rows of one run, and of one session, as they stand in a snapshot. Nothing is written.

Bodies are left out; a check that needs one reads it by page. What looks across runs and owners stands in
audit_scan.py.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import sqlalchemy as sa

from agentloom_worker.domain.context import RoleContext
from agentloom_worker.domain.model import Executed
from agentloom_worker.domain.operation import AttemptState, OperationKind, OperationStatus
from agentloom_worker.domain.run import (
    AgentInvocation,
    CallBatch,
    GraphExecution,
    LoopTicket,
    Phase,
    RunStatus,
)
from agentloom_worker.domain.session import DeliveryState, InputKind
from agentloom_worker.ids import (
    BatchId,
    BlobId,
    CallId,
    ContextId,
    DeliveryId,
    DispatchId,
    InputId,
    InvocationId,
    NodeId,
    OperationId,
    RecordId,
    ReleaseId,
    RunId,
    SessionId,
)
from agentloom_worker.limits import AUDIT_PAGE_ROWS
from agentloom_worker.storage import context as contexts
from agentloom_worker.storage import run as runs
from agentloom_worker.storage import tree as trees
from agentloom_worker.storage.audit_rows import (
    AttemptRow,
    BodyRow,
    DeliveryRow,
    EntryRow,
    EventRow,
    InputRow,
    NodeRow,
    OperationRow,
    QueueRow,
    RecordRow,
    RevisionRow,
    RunRows,
    SessionRows,
    SessionRunRow,
)
from agentloom_worker.storage.commit_log import run_event
from agentloom_worker.storage.context import context_record, effective_entry, effective_revision, role_context
from agentloom_worker.storage.dispatch import pending_dispatch
from agentloom_worker.storage.operation import attempt, operation
from agentloom_worker.storage.run import run
from agentloom_worker.storage.session import queued_question, session, to_queued, user_input, user_input_delivery
from agentloom_worker.storage.tree import agent_invocation, call_batch, graph_execution, loop_ticket, node_task

Made = TypeVar("Made")


def _pages(
    conn: sa.Connection, query: sa.Select[Any], order: tuple[sa.ColumnElement[Any], ...], make: Callable[[Any], Made]
) -> Iterator[Made]:
    """All rows of a query, a page at a time, by the key that orders them."""
    ordered = query.order_by(*order).limit(AUDIT_PAGE_ROWS)
    after: tuple[Any, ...] | None = None
    names = [column.key for column in order if column.key]
    while True:
        page = ordered if after is None else ordered.where(sa.tuple_(*order) > sa.tuple_(*after))
        found = conn.execute(page).all()
        yield from (make(row) for row in found)
        if len(found) < AUDIT_PAGE_ROWS:
            return
        last = found[-1]._mapping
        after = tuple(sa.literal(last[name], column.type) for name, column in zip(names, order, strict=True))


def load_run_rows(conn: sa.Connection, run_id: RunId) -> RunRows | None:
    """Everything of one run but its bodies, in one snapshot; None if there is no such run."""
    loaded = runs.load_run(conn, run_id)
    if loaded is None:
        return None
    heads = sa.select(session.c.input_head).where(session.c.session_id == loaded.session_id)
    held = tuple(_list_contexts(conn, run_id))
    context_ids = [context.context_id for context in held]
    operations = tuple(_list_operations(conn, operation.c.run_id == run_id))
    return RunRows(
        run=loaded,
        session_input_head=conn.execute(heads).scalar(),
        events=tuple(
            _pages(
                conn,
                sa.select(run_event.c.run_seq, run_event.c.kind).where(run_event.c.run_id == run_id),
                (run_event.c.run_seq,),
                lambda row: EventRow(row.run_seq, row.kind),
            )
        ),
        graphs=tuple(_list_graphs(conn, run_id)),
        invocations=tuple(_list_invocations(conn, run_id)),
        nodes=tuple(_list_nodes(conn, run_id)),
        contexts=held,
        tickets=tuple(_list_tickets(conn, run_id)),
        batches=tuple(_list_batches(conn, run_id)),
        operations=operations,
        attempts=tuple(_list_attempts(conn, operation.c.run_id == run_id)),
        records=tuple(row for context_id in context_ids for row in _list_records(conn, context_id)),
        entries=tuple(row for context_id in context_ids for row in _list_entries(conn, context_id)),
        revisions=tuple(row for context_id in context_ids for row in _list_revisions(conn, context_id)),
        deliveries=tuple(_list_deliveries(conn, user_input_delivery.c.target_run_id == run_id)),
        dispatches=tuple(_list_dispatches(conn, run_id)),
    )


def _list_graphs(conn: sa.Connection, run_id: RunId) -> Iterator[GraphExecution]:
    query = sa.select(graph_execution).where(graph_execution.c.run_id == run_id)
    return _pages(conn, query, (graph_execution.c.graph_id,), trees.to_graph)


def _list_invocations(conn: sa.Connection, run_id: RunId) -> Iterator[AgentInvocation]:
    query = sa.select(agent_invocation).where(agent_invocation.c.run_id == run_id)
    return _pages(conn, query, (agent_invocation.c.invocation_id,), trees.to_invocation)


def _list_nodes(conn: sa.Connection, run_id: RunId) -> Iterator[NodeRow]:
    query = sa.select(node_task).where(node_task.c.run_id == run_id)
    return _pages(
        conn,
        query,
        (node_task.c.node_id,),
        lambda row: NodeRow(
            NodeId(row.node_id), InvocationId(row.invocation_id), Phase(row.phase), bytes(row.continuation)
        ),
    )


def _list_contexts(conn: sa.Connection, run_id: RunId) -> Iterator[RoleContext]:
    query = sa.select(role_context).where(role_context.c.run_id == run_id)
    return _pages(conn, query, (role_context.c.context_id,), contexts.to_context)


def _list_tickets(conn: sa.Connection, run_id: RunId) -> Iterator[LoopTicket]:
    query = sa.select(loop_ticket).where(loop_ticket.c.run_id == run_id)
    return _pages(conn, query, (loop_ticket.c.loop_no,), trees.to_ticket)


def _list_batches(conn: sa.Connection, run_id: RunId) -> Iterator[CallBatch]:
    query = sa.select(call_batch).where(call_batch.c.run_id == run_id)
    return _pages(conn, query, (call_batch.c.batch_id,), trees.to_batch)


def _list_operations(conn: sa.Connection, where: sa.ColumnElement[bool]) -> Iterator[OperationRow]:
    table = operation.c
    has_raw = sa.or_(table.raw.is_not(None), table.raw_blob_id.is_not(None)).label("has_raw")
    columns = (
        table.operation_id,
        table.run_id,
        table.node_id,
        table.kind,
        table.status,
        table.loop_no,
        table.batch_id,
        table.ordinal,
        table.call_id,
        table.model_operation_id,
        table.request,
        table.request_hash,
        table.attempts_made,
        table.executed,
        table.code,
        has_raw,
    )
    return _pages(conn, sa.select(*columns).where(where), (table.operation_id,), to_operation)


def to_operation(row: Any) -> OperationRow:
    return OperationRow(
        operation_id=OperationId(row.operation_id),
        run_id=RunId(row.run_id),
        node_id=NodeId(row.node_id),
        kind=OperationKind(row.kind),
        status=OperationStatus(row.status),
        loop_no=row.loop_no,
        batch_id=BatchId(row.batch_id) if row.batch_id else None,
        ordinal=row.ordinal,
        call_id=CallId(row.call_id) if row.call_id else None,
        model_operation_id=OperationId(row.model_operation_id) if row.model_operation_id else None,
        request=bytes(row.request) if row.request is not None else None,
        request_hash=bytes(row.request_hash) if row.request_hash is not None else None,
        attempts_made=row.attempts_made,
        executed=Executed(row.executed) if row.executed else None,
        code=row.code,
        has_raw=bool(row.has_raw),
    )


def _list_attempts(conn: sa.Connection, where: sa.ColumnElement[bool]) -> Iterator[AttemptRow]:
    table = attempt.c
    query = (
        sa.select(
            table.operation_id,
            table.attempt_no,
            table.state,
            table.epoch,
            table.maybe_sent,
            table.first_output_at,
            table.ended_at,
            table.code,
        )
        .join(operation, operation.c.operation_id == table.operation_id)
        .where(where)
    )
    return _pages(
        conn,
        query,
        (table.operation_id, table.attempt_no),
        lambda row: AttemptRow(
            OperationId(row.operation_id),
            row.attempt_no,
            AttemptState(row.state),
            row.epoch,
            bool(row.maybe_sent),
            row.first_output_at,
            row.ended_at,
            row.code,
        ),
    )


def _list_records(conn: sa.Connection, context_id: ContextId) -> Iterator[RecordRow]:
    query = sa.select(context_record).where(context_record.c.context_id == context_id)
    return _pages(
        conn,
        query,
        (context_record.c.context_seq,),
        lambda row: RecordRow(
            ContextId(row.context_id),
            row.context_seq,
            RecordId(row.record_id),
            RunId(row.run_id),
            row.role,
            row.message_kind,
            row.raw_ref,
            OperationId(row.operation_id) if row.operation_id else None,
            CallId(row.call_id) if row.call_id else None,
            InputId(row.origin_input_id) if row.origin_input_id else None,
            ReleaseId(row.release_id) if row.release_id else None,
        ),
    )


def _list_entries(conn: sa.Connection, context_id: ContextId) -> Iterator[EntryRow]:
    query = sa.select(effective_entry).where(effective_entry.c.context_id == context_id)
    return _pages(
        conn,
        query,
        (effective_entry.c.revision, effective_entry.c.context_seq),
        lambda row: EntryRow(
            ContextId(row.context_id),
            row.context_seq,
            row.revision,
            row.raw_ref,
            bytes(row.effective_hash),
            row.tokens,
            bytes(row.source_refs),
            bytes(row.visible_fields),
            bytes(row.dependency_refs),
        ),
    )


def _list_revisions(conn: sa.Connection, context_id: ContextId) -> Iterator[RevisionRow]:
    query = sa.select(effective_revision).where(effective_revision.c.context_id == context_id)
    return _pages(
        conn,
        query,
        (effective_revision.c.revision,),
        lambda row: RevisionRow(
            ContextId(row.context_id), row.revision, row.record_watermark, bytes(row.manifest_hash)
        ),
    )


def _list_deliveries(conn: sa.Connection, where: sa.ColumnElement[bool]) -> Iterator[DeliveryRow]:
    query = (
        sa.select(user_input_delivery, user_input.c.input_seq)
        .join(user_input, user_input.c.input_id == user_input_delivery.c.input_id)
        .where(where)
    )
    return _pages(
        conn,
        query,
        (user_input.c.input_seq, user_input_delivery.c.delivery_id),
        lambda row: DeliveryRow(
            DeliveryId(row.delivery_id),
            InputId(row.input_id),
            row.input_seq,
            SessionId(row.session_id),
            RunId(row.target_run_id) if row.target_run_id else None,
            OperationId(row.operation_id) if row.operation_id else None,
            DeliveryId(row.previous_delivery_id) if row.previous_delivery_id else None,
            DeliveryState(row.state),
            row.context_seq,
            row.first_output_receipt,
            row.delivered_at,
        ),
    )


def _list_dispatches(conn: sa.Connection, run_id: RunId) -> Iterator[QueueRow]:
    table = pending_dispatch.c
    return _pages(
        conn,
        sa.select(pending_dispatch).where(sa.or_(table.scope_id == run_id, table.run_id == run_id)),
        (table.dispatch_id,),
        lambda row: QueueRow(
            DispatchId(row.dispatch_id),
            row.scope_id,
            RunId(row.run_id) if row.run_id else None,
            row.step,
            row.subject_id,
            row.epoch,
            row.claim_token,
            row.claimed_by,
            row.claimed_until,
            row.last_error,
            row.parked_at,
        ),
    )


def load_session_rows(conn: sa.Connection, session_id: SessionId) -> SessionRows | None:
    """One session with its inputs, in one snapshot; None if there is no such session."""
    heads = sa.select(session.c.input_head, session.c.run_head).where(session.c.session_id == session_id)
    found = conn.execute(heads).one_or_none()
    if found is None:
        return None
    named = sa.select(user_input_delivery.c.operation_id).where(user_input_delivery.c.session_id == session_id)
    return SessionRows(
        session_id=session_id,
        input_head=found[0],
        run_head=found[1],
        inputs=tuple(
            _pages(
                conn,
                sa.select(
                    user_input.c.input_id, user_input.c.input_seq, user_input.c.kind, user_input.c.origin_run_id
                ).where(user_input.c.session_id == session_id),
                (user_input.c.input_seq,),
                lambda row: InputRow(
                    InputId(row.input_id),
                    row.input_seq,
                    InputKind(row.kind),
                    RunId(row.origin_run_id) if row.origin_run_id else None,
                ),
            )
        ),
        queue=tuple(
            _pages(
                conn,
                sa.select(queued_question).where(queued_question.c.session_id == session_id),
                (queued_question.c.input_id,),
                to_queued,
            )
        ),
        deliveries=tuple(_list_deliveries(conn, user_input.c.session_id == session_id)),
        operations=tuple(_list_operations(conn, operation.c.operation_id.in_(named))),
        attempts=tuple(_list_attempts(conn, operation.c.operation_id.in_(named))),
        runs=tuple(
            _pages(
                conn,
                sa.select(run.c.run_id, run.c.run_no, run.c.status, run.c.question_seq, run.c.input_head).where(
                    run.c.session_id == session_id
                ),
                (run.c.run_no,),
                lambda row: SessionRunRow(
                    RunId(row.run_id), row.run_no, RunStatus(row.status), row.question_seq, row.input_head
                ),
            )
        ),
    )


def list_input_bodies(conn: sa.Connection, run_id: RunId) -> Iterator[BodyRow]:
    """The bodies of the inputs that a run was asked to deliver, by input_seq."""
    query = (
        sa.select(user_input.c.input_id, user_input.c.input_seq, user_input.c.body, user_input.c.blob_id)
        .join(user_input_delivery, user_input_delivery.c.input_id == user_input.c.input_id)
        .where(user_input_delivery.c.target_run_id == run_id)
    )
    return _pages(
        conn,
        query,
        (user_input.c.input_seq, user_input.c.input_id),
        lambda row: BodyRow(
            InputId(row.input_id),
            bytes(row.body) if row.body is not None else None,
            BlobId(row.blob_id) if row.blob_id else None,
        ),
    )
