"""What the audit reads across runs and owners: references without a foreign key, blobs, releases, commits.

Each statement is one consistent look by itself. A scan walks its table in ranges of the key, so that no
statement reads more than a page of it.
"""

import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.ids import BlobId, OwnerId, ReleaseId, RunId, SessionId
from agentloom_worker.limits import AUDIT_BLOBS_PAGE, AUDIT_PAGE_ROWS
from agentloom_worker.storage.blob import blob, unpack
from agentloom_worker.storage.commit_log import scope_commit
from agentloom_worker.storage.context import context_record, effective_entry, role_context
from agentloom_worker.storage.operation import attempt, operation
from agentloom_worker.storage.owner import owner, release
from agentloom_worker.storage.run import run
from agentloom_worker.storage.session import queued_question, session, user_input
from agentloom_worker.storage.tables import metadata


@dataclass(frozen=True, slots=True)
class Reference:
    """A column that names a row of another table without a foreign key, for the sake of speed.

    `parents` are `table.column`; the row stands in one of them.
    """

    table: str
    column: str
    parents: tuple[str, ...]


REFERENCES = (
    Reference("run", "owner_id", ("owner.owner_id",)),
    Reference("run", "release_id", ("release.release_id",)),
    Reference("agent_invocation", "graph_id", ("graph_execution.graph_id",)),
    Reference("node_task", "invocation_id", ("agent_invocation.invocation_id",)),
    Reference("role_context", "invocation_id", ("agent_invocation.invocation_id",)),
    Reference("role_context", "node_id", ("node_task.node_id",)),
    Reference("loop_ticket", "run_id", ("run.run_id",)),
    Reference("loop_ticket", "operation_id", ("operation.operation_id",)),
    Reference("call_batch", "run_id", ("run.run_id",)),
    Reference("call_batch", "node_id", ("node_task.node_id",)),
    Reference("call_batch", "model_operation_id", ("operation.operation_id",)),
    Reference("operation", "run_id", ("run.run_id",)),
    Reference("operation", "node_id", ("node_task.node_id",)),
    Reference("operation", "batch_id", ("call_batch.batch_id",)),
    Reference("operation", "model_operation_id", ("operation.operation_id",)),
    Reference("attempt", "operation_id", ("operation.operation_id",)),
    Reference("context_record", "context_id", ("role_context.context_id",)),
    Reference("context_record", "run_id", ("run.run_id",)),
    Reference("context_record", "operation_id", ("operation.operation_id",)),
    Reference("context_record", "origin_input_id", ("user_input.input_id",)),
    Reference("effective_entry", "context_id", ("role_context.context_id",)),
    Reference("effective_revision", "context_id", ("role_context.context_id",)),
    Reference("user_input", "origin_run_id", ("run.run_id",)),
    Reference("user_input_delivery", "session_id", ("session.session_id",)),
    Reference("user_input_delivery", "target_run_id", ("run.run_id",)),
    Reference("user_input_delivery", "operation_id", ("operation.operation_id",)),
    Reference("user_input_delivery", "previous_delivery_id", ("user_input_delivery.delivery_id",)),
    Reference("queued_question", "session_id", ("session.session_id",)),
    Reference("queued_question", "release_id", ("release.release_id",)),
    Reference("queued_question", "run_id", ("run.run_id",)),
    Reference("run_event", "run_id", ("run.run_id",)),
    Reference("pending_dispatch", "run_id", ("run.run_id",)),
    Reference("pending_dispatch", "scope_id", ("run.run_id",)),
    Reference("scope_commit", "scope_id", ("run.run_id", "session.session_id")),
)


def _ranges(conn: sa.Connection, key: sa.Column[UUID]) -> Iterator[sa.ColumnElement[bool]]:
    """Conditions that cut a table into ranges of its key, up to the newest key that there was at the start."""
    newest = conn.execute(sa.select(key).order_by(key.desc()).limit(1)).scalar()
    after: UUID | None = None
    while newest is not None:
        query = sa.select(key).where(key <= newest).order_by(key).offset(AUDIT_PAGE_ROWS - 1).limit(1)
        last = conn.execute(query if after is None else query.where(key > after)).scalar()
        upto = key <= (newest if last is None else last)
        yield upto if after is None else sa.and_(key > after, upto)
        if last is None:
            return
        after = last


def list_orphans(conn: sa.Connection, reference: Reference) -> Iterator[tuple[UUID, UUID]]:
    """(key of the row, what it names) where no such row exists."""
    table = metadata.tables[reference.table]
    key, named = next(iter(table.primary_key.columns)), table.c[reference.column]
    query = sa.select(key, named).where(named.is_not(None)).limit(AUDIT_PAGE_ROWS)
    for parent in reference.parents:
        parent_name, _, column = parent.partition(".")
        found = metadata.tables[parent_name].alias()
        query = query.where(~sa.exists().where(found.c[column] == named))
    for condition in _ranges(conn, key):
        for row in conn.execute(query.where(condition)):
            yield row[0], row[1]


@dataclass(frozen=True, slots=True)
class BlobUse:
    """A row that refers to a blob of an owner who does not hold it."""

    table: str
    key: UUID
    blob_id: BlobId
    exists: bool


def list_foreign_blobs(conn: sa.Connection) -> Iterator[BlobUse]:
    """References to blobs that are missing, or that belong to another owner than the row does."""
    uses: tuple[tuple[sa.Table, sa.Column[UUID], sa.Column[UUID], sa.ColumnElement[UUID], sa.FromClause], ...] = (
        (release, release.c.release_id, release.c.blob_id, release.c.owner_id, release),
        (
            user_input,
            user_input.c.input_id,
            user_input.c.blob_id,
            session.c.owner_id,
            user_input.join(session, session.c.session_id == user_input.c.session_id),
        ),
        *(
            (
                operation,
                operation.c.operation_id,
                column,
                run.c.owner_id,
                operation.join(run, run.c.run_id == operation.c.run_id),
            )
            for column in (operation.c.raw_blob_id, operation.c.effective_blob_id)
        ),
        (
            attempt,
            attempt.c.operation_id,
            attempt.c.transport_blob_id,
            run.c.owner_id,
            attempt.join(operation, operation.c.operation_id == attempt.c.operation_id).join(
                run, run.c.run_id == operation.c.run_id
            ),
        ),
        (
            context_record,
            context_record.c.context_id,
            context_record.c.blob_id,
            run.c.owner_id,
            context_record.join(run, run.c.run_id == context_record.c.run_id),
        ),
        (
            effective_entry,
            effective_entry.c.context_id,
            effective_entry.c.effective_blob_id,
            run.c.owner_id,
            effective_entry.join(role_context, role_context.c.context_id == effective_entry.c.context_id).join(
                run, run.c.run_id == role_context.c.run_id
            ),
        ),
    )
    for table, key, column, owner_id, source in uses:
        query = (
            sa.select(key, column, blob.c.blob_id)
            .select_from(source.outerjoin(blob, blob.c.blob_id == column))
            .where(column.is_not(None), sa.or_(blob.c.blob_id.is_(None), blob.c.owner_id != owner_id))
            .limit(AUDIT_PAGE_ROWS)
        )
        for condition in _ranges(conn, key):
            for row in conn.execute(query.where(condition)):
                yield BlobUse(table.name, row[0], BlobId(row[1]), row[2] is not None)


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """A blob as stored; `body` is None where its content cannot be decompressed."""

    blob_id: BlobId
    owner_id: OwnerId
    sha256: bytes
    size_bytes: int
    body: bytes | None


def list_blobs(conn: sa.Connection) -> Iterator[StoredBlob]:
    """Every blob with its content, a few at a time."""
    query = sa.select(blob).order_by(blob.c.blob_id).limit(AUDIT_BLOBS_PAGE)
    after: UUID | None = None
    while True:
        rows = conn.execute(query if after is None else query.where(blob.c.blob_id > after)).all()
        for row in rows:
            body: bytes | None = None
            with suppress(zlib.error):
                body = unpack(row.encoding, bytes(row.content))
            yield StoredBlob(BlobId(row.blob_id), OwnerId(row.owner_id), bytes(row.sha256), row.size_bytes, body)
        if len(rows) < AUDIT_BLOBS_PAGE:
            return
        after = rows[-1].blob_id


@dataclass(frozen=True, slots=True)
class StoredRelease:
    """A release beside the name of its owner; its body is read by id."""

    release_id: ReleaseId
    slug: str
    digest: bytes
    schema_version: int


def list_releases(conn: sa.Connection) -> Iterator[StoredRelease]:
    """Every release."""
    query = sa.select(release.c.release_id, owner.c.slug, release.c.digest, release.c.schema_version).join(
        owner, owner.c.owner_id == release.c.owner_id
    )
    for condition in _ranges(conn, release.c.release_id):
        for row in conn.execute(query.where(condition)):
            yield StoredRelease(ReleaseId(row.release_id), row.slug, bytes(row.digest), row.schema_version)


@dataclass(frozen=True, slots=True)
class StoredCommit:
    """A committed key with what it left for its sender."""

    scope_id: UUID
    key: bytes
    command_hash: bytes
    receipt: bytes | None


def list_odd_commits(conn: sa.Connection, *, hash_bytes: int) -> Iterator[StoredCommit]:
    """Commits whose key is empty or whose hash has another length."""
    table = scope_commit.c
    odd = sa.or_(sa.func.length(table.command_hash) != hash_bytes, sa.func.length(table.key) == 0)
    return _list_commits(conn, odd)


def list_client_commits(conn: sa.Connection, *, prefix: bytes) -> Iterator[StoredCommit]:
    """Commits under a client's own key."""
    return _list_commits(conn, sa.func.substr(scope_commit.c.key, 1, len(prefix)) == prefix)


def _list_commits(conn: sa.Connection, where: sa.ColumnElement[bool]) -> Iterator[StoredCommit]:
    table = scope_commit.c
    for condition in _ranges(conn, table.scope_id):
        for row in conn.execute(sa.select(scope_commit).where(where, condition)):
            receipt = bytes(row.receipt) if row.receipt is not None else None
            yield StoredCommit(row.scope_id, bytes(row.key), bytes(row.command_hash), receipt)


def has_receipt_rows(
    conn: sa.Connection, *, scope_id: UUID, input_id: UUID, kind: str, run_id: UUID | None, release_id: UUID | None
) -> bool:
    """Whether the input of a receipt is its session's, of its kind, and went to that run of that release.

    A question without a run waits in the queue with its release, a supplement without one waits for the next run.
    """
    query = sa.select(sa.literal(1)).where(
        user_input.c.input_id == input_id,
        user_input.c.session_id == scope_id,
        user_input.c.kind == kind,
        user_input.c.origin_run_id == run_id if run_id is not None else user_input.c.origin_run_id.is_(None),
    )
    if run_id is not None:
        query = query.select_from(user_input.join(run, run.c.run_id == user_input.c.origin_run_id))
    if release_id is not None and run_id is not None:
        query = query.where(run.c.release_id == release_id)
    elif release_id is not None:
        joined = user_input.join(queued_question, queued_question.c.input_id == user_input.c.input_id)
        query = query.select_from(joined).where(queued_question.c.release_id == release_id)
    return conn.execute(query).first() is not None


def list_run_ids(conn: sa.Connection) -> Iterator[RunId]:
    """Every run that exists now, session by session, each session's oldest first."""
    newest = conn.execute(sa.select(run.c.run_id).order_by(run.c.run_id.desc()).limit(1)).scalar()
    if newest is None:
        return
    key = (run.c.session_id, run.c.run_id)
    query = sa.select(*key).where(run.c.run_id <= newest).order_by(*key).limit(AUDIT_PAGE_ROWS)
    page = conn.execute(query).all()
    while page:
        for row in page:
            yield RunId(row.run_id)
        after = [sa.literal(value, sa.Uuid) for value in page[-1]]
        page = conn.execute(query.where(sa.tuple_(*key) > sa.tuple_(*after))).all()


def list_session_ids(conn: sa.Connection) -> Iterator[SessionId]:
    """Every session that exists now, oldest first."""
    for condition in _ranges(conn, session.c.session_id):
        rows = conn.execute(sa.select(session.c.session_id).where(condition).order_by(session.c.session_id)).all()
        for row in rows:
            yield SessionId(row[0])
