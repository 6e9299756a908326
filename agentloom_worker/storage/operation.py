"""Operations and attempts."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.domain.model import Category, Executed, FirstOutput, FirstOutputKind
from agentloom_worker.domain.operation import (
    Attempt,
    AttemptState,
    Operation,
    OperationKind,
    OperationStatus,
    Payload,
)
from agentloom_worker.ids import BatchId, BlobId, CallId, NodeId, OperationId, RunId
from agentloom_worker.storage.tables import HOT, Bytes, Instant, metadata, one_of
from agentloom_worker.storage.template import Miss, Statement, Template

operation = sa.Table(
    "operation",
    metadata,
    # What never changes after the freeze stands first: an update logs only what follows the first difference.
    sa.Column("operation_id", sa.Uuid, primary_key=True),
    sa.Column("run_id", sa.Uuid, nullable=False),
    sa.Column("node_id", sa.Uuid, nullable=False),
    sa.Column("batch_id", sa.Uuid),
    sa.Column("call_id", sa.Uuid),
    sa.Column("model_operation_id", sa.Uuid),
    sa.Column("loop_no", sa.Integer, nullable=False),
    sa.Column("ordinal", sa.Integer),
    *one_of("kind", "operation_kind", OperationKind),
    sa.Column("capability", sa.Text, nullable=False),
    sa.Column("request_hash", Bytes),
    sa.Column("request", Bytes),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("attempts_made", sa.SmallInteger, nullable=False),
    sa.Column("unknown_attempts", sa.SmallInteger, nullable=False),
    sa.Column("drain_interrupts", sa.SmallInteger, nullable=False),
    *one_of("status", "operation_status", OperationStatus),
    *one_of("executed", "operation_executed", Executed, nullable=True),
    sa.Column("code", sa.Text),
    sa.Column("raw", Bytes),
    sa.Column("raw_blob_id", sa.Uuid, sa.ForeignKey("blob.blob_id")),
    sa.Column("effective", Bytes),
    sa.Column("effective_blob_id", sa.Uuid, sa.ForeignKey("blob.blob_id")),
    # Serves a run's operations in order, and the members of a batch.
    sa.Index("operation_run_ix", "run_id", "batch_id"),
    # Serves "does anything refer to this blob"; a row without one has no entry, and its updates stay in their page.
    sa.Index(
        "operation_raw_blob_ix",
        "raw_blob_id",
        postgresql_where=sa.text("raw_blob_id IS NOT NULL"),
        sqlite_where=sa.text("raw_blob_id IS NOT NULL"),
    ),
    sa.Index(
        "operation_effective_blob_ix",
        "effective_blob_id",
        postgresql_where=sa.text("effective_blob_id IS NOT NULL"),
        sqlite_where=sa.text("effective_blob_id IS NOT NULL"),
    ),
    **HOT,
)

attempt = sa.Table(
    "attempt",
    metadata,
    sa.Column("operation_id", sa.Uuid, primary_key=True),
    sa.Column("attempt_no", sa.Integer, primary_key=True),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("started_at", Instant, nullable=False),
    sa.Column("ended_at", Instant),
    sa.Column("first_output_at", Instant),
    sa.Column("late_at", Instant),
    sa.Column("http_status", sa.Integer),
    sa.Column("maybe_sent", sa.Boolean, nullable=False),
    sa.Column("first_output_display", sa.Boolean),
    *one_of("state", "attempt_state", AttemptState),
    *one_of("first_output_kind", "attempt_first_output_kind", FirstOutputKind, nullable=True),
    sa.Column("code", sa.Text),
    *one_of("category", "attempt_category", Category, nullable=True),
    sa.Column("reason", sa.Text),
    sa.Column("detail", sa.Text),
    sa.Column("partial", Bytes),
    sa.Column("late_ref", Bytes),
    sa.Column("transport", Bytes),
    sa.Column("transport_blob_id", sa.Uuid, sa.ForeignKey("blob.blob_id")),
    # Serves the collection of blobs; most attempts have none.
    sa.Index(
        "attempt_transport_blob_ix",
        "transport_blob_id",
        postgresql_where=sa.text("transport_blob_id IS NOT NULL"),
        sqlite_where=sa.text("transport_blob_id IS NOT NULL"),
    ),
    **HOT,
)

OPERATION_INSERT = Template(
    "operation_insert",
    "operation_id:uuid run_id:uuid node_id:uuid kind:text status:text revision:int loop_no:int capability:text"
    " batch_id:uuid ordinal:int call_id:uuid model_operation_id:uuid attempts_made:int request_hash:bytes"
    " request:bytes",
    "INSERT INTO operation (operation_id, run_id, node_id, kind, status, revision, loop_no, capability, batch_id,"
    " ordinal, call_id, model_operation_id, attempts_made, unknown_attempts, drain_interrupts, request_hash, request)"
    " VALUES (:operation_id, :run_id, :node_id, :kind, :status, :revision, :loop_no, :capability, :batch_id,"
    " :ordinal, :call_id, :model_operation_id, :attempts_made, 0, 0, :request_hash, :request)",
)
OPERATION_FREEZE = Template(
    "operation_freeze",
    "operation_id:uuid before:int after:int status:text attempts_made:int request_hash:bytes request:bytes",
    "UPDATE operation SET status = :status, attempts_made = :attempts_made, request_hash = :request_hash,"
    " request = :request, revision = :after WHERE operation_id = :operation_id AND revision = :before",
    entity="operation",
    miss=Miss.REVISION_CONFLICT,
)
OPERATION_MOVE = Template(
    "operation_move",
    "operation_id:uuid before:int after:int status:text attempts_made:int unknown_attempts:int drain_interrupts:int"
    " executed:text code:text raw:bytes raw_blob_id:uuid effective:bytes effective_blob_id:uuid",
    "UPDATE operation SET status = :status, attempts_made = :attempts_made, unknown_attempts = :unknown_attempts,"
    " drain_interrupts = :drain_interrupts, executed = :executed, code = :code, raw = :raw,"
    " raw_blob_id = :raw_blob_id, effective = :effective, effective_blob_id = :effective_blob_id, revision = :after"
    " WHERE operation_id = :operation_id AND revision = :before",
    entity="operation",
    miss=Miss.REVISION_CONFLICT,
)
ATTEMPT_INSERT = Template(
    "attempt_insert",
    "operation_id:uuid attempt_no:int epoch:int",
    "INSERT INTO attempt (operation_id, attempt_no, state, maybe_sent, epoch, started_at)"
    " VALUES (:operation_id, :attempt_no, 'intent', FALSE, :epoch, {now})",
)
ATTEMPT_END = Template(
    "attempt_end",
    "operation_id:uuid attempt_no:int state:text maybe_sent:bool first_at:int first_kind:text first_display:bool"
    " http_status:int code:text category:text reason:text detail:text partial:bytes transport:bytes"
    " transport_blob_id:uuid",
    "UPDATE attempt SET state = :state, maybe_sent = :maybe_sent, ended_at = {now},"
    " first_output_at = coalesce(first_output_at, :first_at),"
    " first_output_kind = coalesce(first_output_kind, :first_kind),"
    " first_output_display = coalesce(first_output_display, :first_display), http_status = :http_status,"
    " code = :code, category = :category, reason = :reason, detail = :detail, partial = :partial,"
    " transport = :transport, transport_blob_id = :transport_blob_id"
    " WHERE operation_id = :operation_id AND attempt_no = :attempt_no AND state = 'intent'",
    entity="attempt",
    miss=Miss.REVISION_CONFLICT,
)
ATTEMPT_FIRST_OUTPUT = Template(
    "attempt_first_output",
    "operation_id:uuid attempt_no:int at:int kind:text display:bool",
    "UPDATE attempt SET first_output_at = :at, first_output_kind = :kind, first_output_display = :display"
    " WHERE operation_id = :operation_id AND attempt_no = :attempt_no AND state = 'intent'"
    " AND first_output_at IS NULL",
    entity="attempt",
    miss=Miss.REVISION_CONFLICT,
)
ATTEMPT_LATE = Template(
    "attempt_late",
    "operation_id:uuid attempt_no:int late:bytes first_at:int first_kind:text first_display:bool transport:bytes"
    " transport_blob_id:uuid",
    "UPDATE attempt SET late_ref = :late, late_at = {now},"
    " first_output_at = coalesce(first_output_at, :first_at),"
    " first_output_kind = coalesce(first_output_kind, :first_kind),"
    " first_output_display = coalesce(first_output_display, :first_display),"
    " transport = coalesce(transport, :transport), transport_blob_id = coalesce(transport_blob_id, :transport_blob_id)"
    " WHERE operation_id = :operation_id AND attempt_no = :attempt_no AND late_ref IS NULL",
    entity="attempt.late",
    miss=Miss.REVISION_CONFLICT,
)
# Part of a stop (RULINGS R3): a voided claim may have begun its effect.
ATTEMPT_MARK_SENT = Template(
    "attempt_mark_sent",
    "run_id:uuid",
    "UPDATE attempt SET maybe_sent = TRUE WHERE state = 'intent' AND operation_id IN"
    " (SELECT subject_id FROM pending_dispatch WHERE scope_id = :run_id AND attempts >= 1"
    " AND step IN ('attempt_model', 'attempt_call'))",
)
# Part of an operator's retry: the counters of the row start again, what its intent may have done does not.
ATTEMPT_MARK_ROW_SENT = Template(
    "attempt_mark_row_sent",
    "dispatch_id:uuid",
    "UPDATE attempt SET maybe_sent = TRUE WHERE state = 'intent' AND operation_id IN"
    " (SELECT subject_id FROM pending_dispatch WHERE dispatch_id = :dispatch_id AND attempts >= 1"
    " AND step IN ('attempt_model', 'attempt_call'))",
)
TEMPLATES = (
    OPERATION_INSERT,
    OPERATION_FREEZE,
    OPERATION_MOVE,
    ATTEMPT_INSERT,
    ATTEMPT_END,
    ATTEMPT_FIRST_OUTPUT,
    ATTEMPT_LATE,
    ATTEMPT_MARK_SENT,
    ATTEMPT_MARK_ROW_SENT,
)


def _insert(op: Operation) -> Statement:
    return OPERATION_INSERT(
        op.operation_id,
        op.run_id,
        op.node_id,
        op.kind.value,
        op.status.value,
        op.revision,
        op.loop_no,
        op.capability,
        op.batch_id,
        op.ordinal,
        op.call_id,
        op.model_operation_id,
        op.attempts_made,
        op.request_hash,
        op.request,
    )


def _move(before: int, op: Operation) -> Statement:
    raw, effective = op.raw or Payload(), op.effective or Payload()
    return OPERATION_MOVE(
        op.operation_id,
        before,
        op.revision,
        op.status.value,
        op.attempts_made,
        op.unknown_attempts,
        op.drain_interrupts,
        op.executed.value if op.executed else None,
        op.code,
        raw.inline,
        raw.blob_id,
        effective.inline,
        effective.blob_id,
    )


def write_operation(before: Operation | None, after: Operation) -> list[Statement]:
    """Insert (settled at once where the call was invalid or the request too large), freeze, or move by CAS."""
    if before is None:
        statements = [_insert(after)]
        if after.status.settled:
            statements.append(_move(after.revision, after))
        return statements
    if before.request_hash is None and after.request_hash is not None and after.raw is None:
        return [
            OPERATION_FREEZE(
                after.operation_id,
                before.revision,
                after.revision,
                after.status.value,
                after.attempts_made,
                after.request_hash,
                after.request,
            )
        ]
    return [_move(before.revision, after)]


def write_attempt(before: Attempt | None, after: Attempt) -> list[Statement]:
    """Insert an intent, note its first output, or end it once."""
    if before is None:
        return [ATTEMPT_INSERT(after.operation_id, after.attempt_no, after.epoch)]
    first = after.first_output
    kind = first.kind.value if first else None
    display = first.has_display_content if first else None
    if after.state is AttemptState.INTENT:
        return [ATTEMPT_FIRST_OUTPUT(after.operation_id, after.attempt_no, after.first_output_at, kind, display)]
    transport = after.transport or Payload()
    return [
        ATTEMPT_END(
            after.operation_id,
            after.attempt_no,
            after.state.value,
            after.maybe_sent,
            after.first_output_at,
            kind,
            display,
            after.http_status,
            after.code,
            after.category,
            after.reason,
            after.detail,
            after.partial,
            transport.inline,
            transport.blob_id,
        )
    ]


def _payload(inline: bytes | None, blob_id: UUID | None) -> Payload | None:
    if inline is None and blob_id is None:
        return None
    return Payload(bytes(inline) if inline is not None else None, BlobId(blob_id) if blob_id else None)


def to_operation(row: Any) -> Operation:
    """An operation from a row with all of its columns."""
    return Operation(
        operation_id=OperationId(row.operation_id),
        run_id=RunId(row.run_id),
        node_id=NodeId(row.node_id),
        kind=OperationKind(row.kind),
        status=OperationStatus(row.status),
        revision=row.revision,
        loop_no=row.loop_no,
        capability=row.capability,
        request=bytes(row.request) if row.request is not None else None,
        request_hash=bytes(row.request_hash) if row.request_hash is not None else None,
        batch_id=BatchId(row.batch_id) if row.batch_id else None,
        ordinal=row.ordinal,
        call_id=CallId(row.call_id) if row.call_id else None,
        model_operation_id=OperationId(row.model_operation_id) if row.model_operation_id else None,
        raw=_payload(row.raw, row.raw_blob_id),
        effective=_payload(row.effective, row.effective_blob_id),
        code=row.code,
        executed=Executed(row.executed) if row.executed else None,
        attempts_made=row.attempts_made,
        unknown_attempts=row.unknown_attempts,
        drain_interrupts=row.drain_interrupts,
    )


# What every step reads is written once: putting a statement together costs as much again as sending it.
_OPERATION_ID = sa.bindparam("operation_id", type_=sa.Uuid)
_OPERATION = sa.select(operation).where(operation.c.operation_id == _OPERATION_ID)
_MEMBERS = (
    sa.select(operation)
    .where(operation.c.run_id == sa.bindparam("run_id", type_=sa.Uuid))
    .where(operation.c.batch_id == sa.bindparam("batch_id", type_=sa.Uuid))
    .order_by(operation.c.ordinal)
)
_ATTEMPT = sa.select(attempt).where(
    attempt.c.operation_id == _OPERATION_ID, attempt.c.attempt_no == sa.bindparam("attempt_no", type_=sa.Integer)
)
_ATTEMPTS = (
    sa.select(attempt)
    .where(attempt.c.operation_id.in_(sa.bindparam("operation_ids", type_=sa.Uuid, expanding=True)))
    .order_by(attempt.c.operation_id, attempt.c.attempt_no)
)


def load_operation(conn: sa.Connection, operation_id: UUID) -> Operation | None:
    """One operation."""
    row = conn.execute(_OPERATION, {"operation_id": operation_id}).one_or_none()
    return None if row is None else to_operation(row)


def load_operations(conn: sa.Connection, operation_ids: Sequence[UUID]) -> dict[OperationId, Operation]:
    """Some operations by id."""
    if not operation_ids:
        return {}
    query = sa.select(operation).where(operation.c.operation_id.in_(operation_ids))
    return {OperationId(row.operation_id): to_operation(row) for row in conn.execute(query)}


def load_calls(conn: sa.Connection, run_id: UUID, model_operation_id: UUID) -> tuple[Operation, ...]:
    """The calls of one model operation by ordinal."""
    query = (
        sa.select(operation)
        .where(operation.c.run_id == run_id, operation.c.model_operation_id == model_operation_id)
        .order_by(operation.c.ordinal)
    )
    return tuple(to_operation(row) for row in conn.execute(query))


def load_members(conn: sa.Connection, run_id: UUID, batch_id: UUID) -> tuple[Operation, ...]:
    """The members of a batch by ordinal."""
    found = conn.execute(_MEMBERS, {"run_id": run_id, "batch_id": batch_id})
    return tuple(to_operation(row) for row in found)


def list_operations(conn: sa.Connection, run_id: UUID) -> list[Operation]:
    """Every operation of a run, in the order in which they were made."""
    query = (
        sa.select(operation)
        .where(operation.c.run_id == run_id)
        .order_by(operation.c.loop_no, operation.c.batch_id.is_not(None), operation.c.ordinal)
    )
    return [to_operation(row) for row in conn.execute(query)]


def to_attempt(row: Any) -> Attempt:
    """An attempt from a row with all of its columns."""
    first = None
    if row.first_output_kind is not None:
        first = FirstOutput(FirstOutputKind(row.first_output_kind), row.first_output_display)
    return Attempt(
        operation_id=OperationId(row.operation_id),
        attempt_no=row.attempt_no,
        state=AttemptState(row.state),
        epoch=row.epoch,
        maybe_sent=row.maybe_sent,
        first_output=first,
        first_output_at=row.first_output_at,
        code=row.code,
        category=row.category,
        detail=row.detail,
        http_status=row.http_status,
        reason=row.reason,
        partial=bytes(row.partial) if row.partial is not None else None,
        late=bytes(row.late_ref) if row.late_ref is not None else None,
        transport=_payload(row.transport, row.transport_blob_id),
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def load_attempt(conn: sa.Connection, operation_id: UUID, attempt_no: int) -> Attempt | None:
    """One attempt."""
    row = conn.execute(_ATTEMPT, {"operation_id": operation_id, "attempt_no": attempt_no}).one_or_none()
    return None if row is None else to_attempt(row)


def load_attempts(conn: sa.Connection, operation_ids: Sequence[UUID]) -> list[Attempt]:
    """The attempts of some operations, by operation and number."""
    if not operation_ids:
        return []
    return [to_attempt(row) for row in conn.execute(_ATTEMPTS, {"operation_ids": list(operation_ids)})]
