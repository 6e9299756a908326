"""Role contexts, their records, effective entries and revisions. Records are only ever appended."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.domain.context import (
    ContextRecord,
    EffectiveEntry,
    EffectiveRevision,
    MessageKind,
    RawRef,
    RoleContext,
)
from agentloom_worker.domain.model import Role
from agentloom_worker.domain.operation import Payload
from agentloom_worker.ids import BlobId, CallId, ContextId, InputId, InvocationId, NodeId, OperationId, RunId
from agentloom_worker.storage.commit_log import kind_of
from agentloom_worker.storage.operation import operation
from agentloom_worker.storage.session import user_input
from agentloom_worker.storage.tables import HOT, Bytes, Instant, metadata, one_of
from agentloom_worker.storage.template import Miss, Statement, Template

role_context = sa.Table(
    "role_context",
    metadata,
    sa.Column("context_id", sa.Uuid, primary_key=True),
    sa.Column("run_id", sa.Uuid, sa.ForeignKey("run.run_id"), nullable=False),
    sa.Column("invocation_id", sa.Uuid, nullable=False),
    sa.Column("node_id", sa.Uuid, nullable=False, unique=True),
    sa.Column("record_head", sa.BigInteger, nullable=False),
    sa.Column("effective_revision", sa.BigInteger, nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("manifest_hash", Bytes, nullable=False),
    sa.Column("last_model_operation_id", sa.Uuid),
    sa.Column("role_key", sa.Text, nullable=False),
    **HOT,
)

context_record = sa.Table(
    "context_record",
    metadata,
    sa.Column("context_id", sa.Uuid, primary_key=True),
    sa.Column("context_seq", sa.BigInteger, primary_key=True),
    sa.Column("record_id", sa.Uuid, nullable=False),
    sa.Column("run_id", sa.Uuid, nullable=False),
    *one_of("role", "context_record_role", Role),
    *one_of("message_kind", "context_record_message_kind", MessageKind),
    *one_of("raw_ref", "context_record_raw_ref", RawRef),
    sa.Column("logical_result_key", sa.Text, nullable=False),
    sa.Column("operation_id", sa.Uuid),
    sa.Column("call_id", sa.Uuid),
    sa.Column("origin_input_id", sa.Uuid),
    sa.Column("release_id", sa.Uuid),
    sa.Column("prompt_slot", sa.Text),
    sa.Column("body", Bytes),
    sa.Column("blob_id", sa.Uuid, sa.ForeignKey("blob.blob_id")),
    sa.Column("message_index", sa.BigInteger),
    sa.Column("window_id", sa.Text),
    sa.Column("input_run_id", sa.Uuid),
    sa.Index(
        "context_record_result_key",
        "operation_id",
        "message_kind",
        "logical_result_key",
        unique=True,
        postgresql_where=sa.text("operation_id IS NOT NULL"),
        sqlite_where=sa.text("operation_id IS NOT NULL"),
    ),
    sa.Index(
        "context_record_input_key",
        "context_id",
        "origin_input_id",
        "message_kind",
        unique=True,
        postgresql_where=sa.text("origin_input_id IS NOT NULL AND operation_id IS NULL"),
        sqlite_where=sa.text("origin_input_id IS NOT NULL AND operation_id IS NULL"),
    ),
    sa.Index(
        "context_record_prompt_key",
        "context_id",
        "release_id",
        "prompt_slot",
        unique=True,
        postgresql_where=sa.text("prompt_slot IS NOT NULL"),
        sqlite_where=sa.text("prompt_slot IS NOT NULL"),
    ),
    # Serves "does anything refer to this blob"; a row without one has no entry.
    sa.Index(
        "context_record_blob_ix",
        "blob_id",
        postgresql_where=sa.text("blob_id IS NOT NULL"),
        sqlite_where=sa.text("blob_id IS NOT NULL"),
    ),
)

effective_entry = sa.Table(
    "effective_entry",
    metadata,
    sa.Column("context_id", sa.Uuid, primary_key=True),
    sa.Column("context_seq", sa.BigInteger, primary_key=True),
    sa.Column("revision", sa.BigInteger, primary_key=True),
    sa.Column("tokens", sa.BigInteger, nullable=False),
    *one_of("raw_ref", "effective_entry_raw_ref", RawRef),
    sa.Column("effective_ref", sa.Text),
    sa.Column("effective_blob_id", sa.Uuid, sa.ForeignKey("blob.blob_id")),
    sa.Column("effective_hash", Bytes, nullable=False),
    sa.Column("estimator", sa.Text, nullable=False),
    sa.Column("source_refs", Bytes, nullable=False),
    sa.Column("visible_fields", Bytes, nullable=False),
    sa.Column("dependency_refs", Bytes, nullable=False),
    # Serves "does anything refer to this blob"; a row without one has no entry.
    sa.Index(
        "effective_entry_blob_ix",
        "effective_blob_id",
        postgresql_where=sa.text("effective_blob_id IS NOT NULL"),
        sqlite_where=sa.text("effective_blob_id IS NOT NULL"),
    ),
)

effective_revision = sa.Table(
    "effective_revision",
    metadata,
    sa.Column("context_id", sa.Uuid, primary_key=True),
    sa.Column("revision", sa.BigInteger, primary_key=True),
    sa.Column("record_watermark", sa.BigInteger, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("manifest_hash", Bytes, nullable=False),
    sa.Column("commit_ref", sa.Text, nullable=False),
)

CONTEXT_INSERT = Template(
    "context_insert",
    "context_id:uuid run_id:uuid invocation_id:uuid node_id:uuid role_key:text manifest_hash:bytes",
    "INSERT INTO role_context (context_id, run_id, invocation_id, node_id, role_key, record_head,"
    " effective_revision, manifest_hash, revision)"
    " VALUES (:context_id, :run_id, :invocation_id, :node_id, :role_key, 0, 0, :manifest_hash, 1)",
)
CONTEXT_MOVE = Template(
    "context_move",
    "context_id:uuid before:int after:int record_head:int effective_revision:int manifest_hash:bytes last_model:uuid",
    "UPDATE role_context SET record_head = :record_head, effective_revision = :effective_revision,"
    " manifest_hash = :manifest_hash, last_model_operation_id = :last_model, revision = :after"
    " WHERE context_id = :context_id AND revision = :before",
    entity="role_context",
    miss=Miss.REVISION_CONFLICT,
)
RECORD_INSERT = Template(
    "record_insert",
    "context_id:uuid context_seq:int record_id:uuid run_id:uuid role:text message_kind:text raw_ref:text"
    " logical_result_key:text operation_id:uuid call_id:uuid origin_input_id:uuid release_id:uuid prompt_slot:text"
    " body:bytes blob_id:uuid",
    "INSERT INTO context_record (context_id, context_seq, record_id, run_id, role, message_kind, raw_ref,"
    " logical_result_key, operation_id, call_id, origin_input_id, release_id, prompt_slot, body, blob_id)"
    " VALUES (:context_id, :context_seq, :record_id, :run_id, :role, :message_kind, :raw_ref,"
    " :logical_result_key, :operation_id, :call_id, :origin_input_id, :release_id, :prompt_slot, :body, :blob_id)",
)
ENTRY_INSERT = Template(
    "entry_insert",
    "context_id:uuid context_seq:int revision:int raw_ref:text effective_ref:text effective_blob_id:uuid"
    " effective_hash:bytes tokens:int estimator:text source_refs:bytes visible_fields:bytes dependency_refs:bytes",
    "INSERT INTO effective_entry (context_id, context_seq, revision, raw_ref, effective_ref, effective_blob_id,"
    " effective_hash, tokens, estimator, source_refs, visible_fields, dependency_refs)"
    " VALUES (:context_id, :context_seq, :revision, :raw_ref, :effective_ref, :effective_blob_id, :effective_hash,"
    " :tokens, :estimator, :source_refs, :visible_fields, :dependency_refs)",
)
REVISION_INSERT = Template(
    "revision_insert",
    "context_id:uuid revision:int record_watermark:int manifest_hash:bytes commit_ref:text",
    "INSERT INTO effective_revision (context_id, revision, record_watermark, manifest_hash, commit_ref, created_at)"
    " VALUES (:context_id, :revision, :record_watermark, :manifest_hash, :commit_ref, {now})",
)
TEMPLATES = (CONTEXT_INSERT, CONTEXT_MOVE, RECORD_INSERT, ENTRY_INSERT, REVISION_INSERT)

_EMPTY_LIST = b"[]"


def write_context(before: RoleContext | None, after: RoleContext) -> list[Statement]:
    """Insert at revision 0, or move the heads by compare-and-set."""
    if before is None:
        return [
            CONTEXT_INSERT(
                after.context_id,
                after.run_id,
                after.invocation_id,
                after.node_id,
                after.role_key,
                after.manifest_hash,
            )
        ]
    return [
        CONTEXT_MOVE(
            after.context_id,
            before.revision,
            after.revision,
            after.record_head,
            after.effective_revision,
            after.manifest_hash,
            after.last_model_operation_id,
        )
    ]


def write_record(before: ContextRecord | None, after: ContextRecord) -> list[Statement]:
    """Append one record."""
    assert before is None, "a context record is never changed"
    return [
        RECORD_INSERT(
            after.context_id,
            after.context_seq,
            after.record_id,
            after.run_id,
            after.role.value,
            after.message_kind.value,
            after.raw_ref.value,
            after.logical_result_key,
            after.operation_id,
            after.call_id,
            after.origin_input_id,
            after.release_id,
            after.prompt_slot,
            after.body.inline if after.body else None,
            after.body.blob_id if after.body else None,
        )
    ]


def _list(values: tuple[str, ...]) -> bytes:
    return canonical_bytes(list(values)) if values else _EMPTY_LIST


def write_entry(before: EffectiveEntry | None, after: EffectiveEntry) -> list[Statement]:
    """Append one version of a record's effective content."""
    assert before is None, "an effective entry is never changed"
    return [
        ENTRY_INSERT(
            after.context_id,
            after.context_seq,
            after.revision,
            after.raw_ref.value,
            after.effective_ref,
            after.effective_blob_id,
            after.effective_hash,
            after.tokens,
            after.estimator,
            _list(after.source_refs),
            _list(after.visible_fields),
            _list(after.dependency_refs),
        )
    ]


def write_revision(before: EffectiveRevision | None, after: EffectiveRevision) -> list[Statement]:
    """Append one link of the manifest chain."""
    assert before is None, "an effective revision is never changed"
    return [
        REVISION_INSERT(
            after.context_id,
            after.revision,
            after.record_watermark,
            after.manifest_hash,
            kind_of(after.cause_key),
        )
    ]


_CONTEXT = sa.select(role_context).where(role_context.c.node_id == sa.bindparam("node_id", type_=sa.Uuid))


def load_context(conn: sa.Connection, node_id: UUID) -> RoleContext | None:
    """The context of a node."""
    row = conn.execute(_CONTEXT, {"node_id": node_id}).one_or_none()
    return None if row is None else to_context(row)


def to_context(row: Any) -> RoleContext:
    """A context from a row with all of its columns."""
    last = row.last_model_operation_id
    return RoleContext(
        ContextId(row.context_id),
        RunId(row.run_id),
        InvocationId(row.invocation_id),
        NodeId(row.node_id),
        row.role_key,
        row.record_head,
        row.effective_revision,
        bytes(row.manifest_hash),
        OperationId(last) if last else None,
        row.revision,
    )


@dataclass(frozen=True, slots=True)
class ViewRow:
    """One record as a projection reads it: its newest entry up to a revision, and where its body stands."""

    context_seq: int
    role: Role
    message_kind: MessageKind
    operation_id: OperationId | None
    call_id: CallId | None
    effective_hash: bytes
    tokens: int
    source: Payload  # the effective body: the record's own, of the operation or of the input; empty for a prompt
    prompt_slot: str | None
    model_operation_id: OperationId | None  # for a tool result: the operation whose message holds the call
    ordinal: int | None
    input_id: InputId | None
    input_seq: int | None
    origin_run_id: RunId | None  # of an input: the run that took it when it came


# Two walks along primary keys. As one query with its anti-join, both databases found plans that read the
# whole context for every row of a page. Built once: building them costs more than running them.
_CONTEXT_ID = sa.bindparam("context_id", type_=sa.Uuid)
_PAGE_OF_RECORDS = (
    sa.select(
        context_record.c.context_seq,
        context_record.c.role,
        context_record.c.message_kind,
        context_record.c.operation_id,
        context_record.c.call_id,
        sa.func.coalesce(operation.c.effective, operation.c.raw, user_input.c.body).label("inline"),
        context_record.c.body.label("record_body"),
        context_record.c.blob_id.label("record_blob_id"),
        operation.c.raw_blob_id,
        operation.c.effective_blob_id,
        user_input.c.blob_id,
        context_record.c.prompt_slot,
        operation.c.model_operation_id,
        operation.c.ordinal,
        context_record.c.origin_input_id,
        user_input.c.input_seq,
        user_input.c.origin_run_id,
    )
    .select_from(context_record)
    .outerjoin(operation, operation.c.operation_id == context_record.c.operation_id)
    .outerjoin(user_input, user_input.c.input_id == context_record.c.origin_input_id)
    .where(context_record.c.context_id == _CONTEXT_ID)
    .where(context_record.c.context_seq > sa.bindparam("after_seq", type_=sa.BigInteger))
    .order_by(context_record.c.context_seq)
    .limit(sa.bindparam("page", type_=sa.Integer))
)
_ENTRIES_OF_PAGE = (
    sa.select(
        effective_entry.c.context_seq,
        effective_entry.c.effective_hash,
        effective_entry.c.tokens,
    )
    .where(effective_entry.c.context_id == _CONTEXT_ID)
    .where(effective_entry.c.context_seq > sa.bindparam("after_seq", type_=sa.BigInteger))
    .where(effective_entry.c.context_seq <= sa.bindparam("last_seq", type_=sa.BigInteger))
    .where(effective_entry.c.revision <= sa.bindparam("as_of", type_=sa.BigInteger))
    .order_by(effective_entry.c.context_seq, effective_entry.c.revision)
)


def load_view_rows(
    conn: sa.Connection, context_id: UUID, *, after_seq: int, revision: int, limit: int
) -> list[ViewRow]:
    """A page of records in context_seq order as of a revision (HOUSE: read in pages, never whole).

    Records without an entry up to that revision are left out: what was appended later stands behind the rest.
    """
    place = {"context_id": context_id, "after_seq": after_seq}
    records = conn.execute(_PAGE_OF_RECORDS, {**place, "page": limit}).all()
    if not records:
        return []
    entries = conn.execute(_ENTRIES_OF_PAGE, {**place, "last_seq": records[-1].context_seq, "as_of": revision})
    newest = {entry.context_seq: entry for entry in entries}
    return [_to_view_row(row, newest[row.context_seq]) for row in records if row.context_seq in newest]


def _to_view_row(row: Any, entry: Any) -> ViewRow:
    if row.record_blob_id is not None:
        source = Payload(blob_id=BlobId(row.record_blob_id))
    elif row.record_body is not None:
        source = Payload(inline=bytes(row.record_body))
    elif row.effective_blob_id is not None:
        source = Payload(blob_id=BlobId(row.effective_blob_id))
    elif row.inline is not None:
        source = Payload(inline=bytes(row.inline))
    else:
        blob_id = row.raw_blob_id or row.blob_id
        source = Payload(blob_id=BlobId(blob_id) if blob_id else None)
    return ViewRow(
        row.context_seq,
        Role(row.role),
        MessageKind(row.message_kind),
        OperationId(row.operation_id) if row.operation_id else None,
        CallId(row.call_id) if row.call_id else None,
        bytes(entry.effective_hash),
        entry.tokens,
        source,
        row.prompt_slot,
        OperationId(row.model_operation_id) if row.model_operation_id else None,
        row.ordinal,
        InputId(row.origin_input_id) if row.origin_input_id else None,
        row.input_seq,
        RunId(row.origin_run_id) if row.origin_run_id else None,
    )
