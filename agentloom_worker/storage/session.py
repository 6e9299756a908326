"""Sessions, user inputs and their deliveries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker import limits
from agentloom_worker.domain.operation import Payload
from agentloom_worker.domain.session import (
    DeliveryState,
    InputKind,
    OnBusy,
    QueuedQuestion,
    QueueState,
    Session,
    UserInput,
    UserInputDelivery,
)
from agentloom_worker.ids import BlobId, DeliveryId, InputId, OperationId, OwnerId, ReleaseId, RunId, SessionId
from agentloom_worker.limits import QUEUED_QUESTIONS_MAX
from agentloom_worker.storage.owner import owner
from agentloom_worker.storage.tables import HOT, Bytes, Instant, metadata, one_of
from agentloom_worker.storage.template import Miss, Statement, Template

session = sa.Table(
    "session",
    metadata,
    sa.Column("session_id", sa.Uuid, primary_key=True),
    sa.Column("owner_id", sa.Uuid, sa.ForeignKey("owner.owner_id"), nullable=False),
    sa.Column("input_head", sa.BigInteger, nullable=False),
    sa.Column("run_head", sa.BigInteger, nullable=False),
    *one_of("on_busy", "session_on_busy", OnBusy),
    sa.Column("created_at", Instant, nullable=False),
    # Serves the listing of sessions, whose ids a platform makes and which therefore tell no order.
    sa.Index("session_created_ix", "created_at"),
    **HOT,
)

user_input = sa.Table(
    "user_input",
    metadata,
    sa.Column("input_id", sa.Uuid, primary_key=True),
    sa.Column("session_id", sa.Uuid, sa.ForeignKey("session.session_id"), nullable=False),
    sa.Column("input_seq", sa.BigInteger, nullable=False),
    sa.Column("origin_run_id", sa.Uuid),
    *one_of("kind", "user_input_kind", InputKind),
    sa.Column("body", Bytes),
    sa.Column("blob_id", sa.Uuid, sa.ForeignKey("blob.blob_id")),
    sa.Column("received_at", Instant, nullable=False),
    sa.CheckConstraint("(body IS NULL) <> (blob_id IS NULL)", name="one_body"),
    sa.UniqueConstraint("session_id", "input_seq"),
    # Serves "does anything refer to this blob"; a row without one has no entry.
    sa.Index(
        "user_input_blob_ix",
        "blob_id",
        postgresql_where=sa.text("blob_id IS NOT NULL"),
        sqlite_where=sa.text("blob_id IS NOT NULL"),
    ),
)

user_input_delivery = sa.Table(
    "user_input_delivery",
    metadata,
    sa.Column("delivery_id", sa.Uuid, primary_key=True),
    sa.Column("input_id", sa.Uuid, sa.ForeignKey("user_input.input_id"), nullable=False),
    sa.Column("session_id", sa.Uuid, nullable=False),
    sa.Column("target_run_id", sa.Uuid),
    sa.Column("operation_id", sa.Uuid),
    sa.Column("previous_delivery_id", sa.Uuid),
    *one_of("state", "user_input_delivery_state", DeliveryState),
    sa.Column("context_seq", sa.BigInteger),
    sa.Column("first_output_receipt", sa.Text),
    sa.Column("delivered_at", Instant),
    sa.Column("revision", sa.Integer, nullable=False),
    # Serves "the deliveries of this run" at every first load of a slice.
    sa.Index("user_input_delivery_target_ix", "target_run_id"),
    # Serves "what waits for the session's next run", and the deliveries of one input.
    sa.Index(
        "user_input_delivery_waiting_ix",
        "session_id",
        postgresql_where=sa.text("target_run_id IS NULL"),
        sqlite_where=sa.text("target_run_id IS NULL"),
    ),
    sa.Index("user_input_delivery_input_ix", "input_id"),
    # An input is carried on from a delivery at most once (seed 004, 3.2).
    sa.Index(
        "user_input_delivery_carry_key",
        "input_id",
        "previous_delivery_id",
        unique=True,
        postgresql_where=sa.text("previous_delivery_id IS NOT NULL"),
        sqlite_where=sa.text("previous_delivery_id IS NOT NULL"),
    ),
    # A request claims an input at most once (RULINGS A7).
    sa.Index(
        "user_input_delivery_claim_key",
        "operation_id",
        "input_id",
        unique=True,
        postgresql_where=sa.text("operation_id IS NOT NULL"),
        sqlite_where=sa.text("operation_id IS NOT NULL"),
    ),
    **HOT,
)

queued_question = sa.Table(
    "queued_question",
    metadata,
    sa.Column("input_id", sa.Uuid, sa.ForeignKey("user_input.input_id"), primary_key=True),
    sa.Column("session_id", sa.Uuid, nullable=False),
    sa.Column("place", sa.BigInteger, nullable=False),
    sa.Column("release_id", sa.Uuid, nullable=False),
    *one_of("state", "queued_question_state", QueueState),
    sa.Column("run_id", sa.Uuid),
    # Serves "the session's next question" at the end of each run.
    sa.Index(
        "queued_question_next_ix",
        "session_id",
        "place",
        postgresql_where=sa.text("state = 'queued'"),
        sqlite_where=sa.text("state = 'queued'"),
    ),
)

# The id is fresh, so a conflict can only be this very statement, sent again after a lost answer (RULINGS T6).
SESSION_INSERT = Template(
    "session_insert",
    "session_id:uuid owner_id:uuid on_busy:text",
    "INSERT INTO session (session_id, owner_id, input_head, run_head, on_busy, created_at)"
    " VALUES (:session_id, :owner_id, 0, 0, :on_busy, {now})"
    " ON CONFLICT (session_id) DO NOTHING",
)
# The session's lock comes before any run's (RULINGS T2). On SQLite the writer's lock already holds.
SESSION_LOCK = Template(
    "session_lock", "session_id:uuid", "SELECT 1 FROM session WHERE session_id = :session_id {lock}"
)
SESSION_NEXT_INPUT = Template(
    "session_next_input",
    "session_id:uuid",
    "UPDATE session SET input_head = input_head + 1 WHERE session_id = :session_id",
    entity="session",
    miss=Miss.REVISION_CONFLICT,
)
SESSION_NEXT_RUN = Template(
    "session_next_run",
    "session_id:uuid",
    "UPDATE session SET run_head = run_head + 1 WHERE session_id = :session_id",
    entity="session",
    miss=Miss.REVISION_CONFLICT,
)
INPUT_INSERT = Template(
    "user_input_insert",
    "input_id:uuid session_id:uuid run_id:uuid kind:text body:bytes blob_id:uuid",
    "INSERT INTO user_input (input_id, session_id, input_seq, origin_run_id, kind, body, blob_id, received_at)"
    " SELECT :input_id, session_id, input_head, :run_id, :kind, :body, :blob_id, {now}"
    " FROM session WHERE session_id = :session_id",
)
DELIVERY_INSERT = Template(
    "user_input_delivery_insert",
    "delivery_id:uuid input_id:uuid session_id:uuid run_id:uuid previous:uuid",
    "INSERT INTO user_input_delivery (delivery_id, input_id, session_id, target_run_id, previous_delivery_id, state,"
    " revision) VALUES (:delivery_id, :input_id, :session_id, :run_id, :previous, 'pending', 1)",
)
DELIVERY_MOVE = Template(
    "user_input_delivery_move",
    "delivery_id:uuid before:int after:int state:text operation_id:uuid context_seq:int receipt:text delivered_at:int",
    "UPDATE user_input_delivery SET state = :state, operation_id = :operation_id, context_seq = :context_seq,"
    " first_output_receipt = :receipt, delivered_at = :delivered_at, revision = :after"
    " WHERE delivery_id = :delivery_id AND revision = :before",
    entity="user_input_delivery",
    miss=Miss.REVISION_CONFLICT,
)
# The commit that makes a run binds everything that waits for one (seed 004, 3.2): one statement under the
# session's lock, so that nothing is bound twice and nothing is forgotten.
DELIVERY_BIND = Template(
    "user_input_delivery_bind",
    "session_id:uuid run_id:uuid",
    "UPDATE user_input_delivery SET target_run_id = :run_id, revision = revision + 1"
    " WHERE session_id = :session_id AND target_run_id IS NULL AND state = 'pending'",
)
# An input waits for the next run only where no run can take it: asked under the session's lock, so that none begins.
SESSION_UNTAKEN = Template(
    "session_untaken",
    "session_id:uuid",
    "SELECT 1 FROM session s WHERE s.session_id = :session_id AND NOT EXISTS"
    " (SELECT 1 FROM run r WHERE r.session_id = s.session_id AND r.status IN ('queued', 'running'))",
    entity="session.run",
    miss=Miss.REVISION_CONFLICT,
    reads=True,
)
# What a session's live run has not delivered, what waits for the next one, and one that is about to be either; the
# queue has its own bound. An ended run's own question is done with.
_UNDELIVERED = (
    "SELECT count(*) AS inputs, coalesce(sum(coalesce(length(i.body), b.size_bytes)), 0) AS bytes FROM ("
    "SELECT d.input_id FROM run r JOIN user_input_delivery d ON d.target_run_id = r.run_id"
    " WHERE r.session_id = :session_id AND r.status IN ('queued', 'running', 'stopping')"
    " AND d.state IN ('pending', 'claimed')"
    " UNION ALL SELECT w.input_id FROM user_input_delivery w"
    " WHERE w.session_id = :session_id AND w.target_run_id IS NULL AND w.state = 'pending'"
    " UNION ALL SELECT :input_id"
    ") u JOIN user_input i ON i.input_id = u.input_id LEFT JOIN blob b ON b.blob_id = i.blob_id"
)
# Asked under the session's lock, so that a flood ends at the bound whoever sends it.
SUPPLEMENT_ROOM = Template(
    "user_input_supplement_room",
    "session_id:uuid input_id:uuid inputs_max:int bytes_max:int",
    f"SELECT 1 FROM ({_UNDELIVERED}) found WHERE found.inputs <= :inputs_max AND found.bytes <= :bytes_max",
    entity="session.undelivered",
    miss=Miss.REVISION_CONFLICT,
    reads=True,
)
QUEUE_ROOM = Template(
    "queued_question_room",
    "session_id:uuid limit:int",
    "SELECT 1 FROM session s WHERE s.session_id = :session_id AND"
    " (SELECT count(*) FROM queued_question q WHERE q.session_id = s.session_id AND q.state = 'queued') < :limit",
    entity="session.queue",
    miss=Miss.REVISION_CONFLICT,
    reads=True,
)
QUEUE_INSERT = Template(
    "queued_question_insert",
    "input_id:uuid session_id:uuid front:bool release_id:uuid",
    # The newest interruption comes first of all; the others in the order of their arrival.
    "INSERT INTO queued_question (input_id, session_id, place, release_id, state)"
    " SELECT :input_id, session_id, CASE WHEN :front THEN -input_seq ELSE input_seq END, :release_id, 'queued'"
    " FROM user_input WHERE input_id = :input_id AND session_id = :session_id",
)
QUEUE_MOVE = Template(
    "queued_question_move",
    "input_id:uuid state:text run_id:uuid",
    "UPDATE queued_question SET state = :state, run_id = :run_id WHERE input_id = :input_id AND state = 'queued'",
    entity="queued_question",
    miss=Miss.REVISION_CONFLICT,
)
TEMPLATES = (
    SESSION_INSERT,
    SESSION_LOCK,
    SESSION_NEXT_INPUT,
    SESSION_NEXT_RUN,
    INPUT_INSERT,
    DELIVERY_INSERT,
    DELIVERY_MOVE,
    DELIVERY_BIND,
    SESSION_UNTAKEN,
    SUPPLEMENT_ROOM,
    QUEUE_ROOM,
    QUEUE_INSERT,
    QUEUE_MOVE,
)


def write_input(before: UserInput | None, after: UserInput) -> list[Statement]:
    """A new input takes the session's next input_seq inside the commit; a supplement needs room."""
    assert before is None, "a user input is never changed"
    body = after.body
    statements = [
        SESSION_NEXT_INPUT(after.session_id),
        INPUT_INSERT(after.input_id, after.session_id, after.origin_run_id, str(after.kind), body.inline, body.blob_id),
    ]
    if after.kind is InputKind.SUPPLEMENT:
        bounds = (limits.UNDELIVERED_INPUTS_MAX, limits.UNDELIVERED_BYTES_MAX)
        statements.append(SUPPLEMENT_ROOM(after.session_id, after.input_id, *bounds))
    return statements


def write_delivery(before: UserInputDelivery | None, after: UserInputDelivery) -> list[Statement]:
    """Insert (one that is to wait only where no run can take it), or move by compare-and-set on the revision."""
    if before is None:
        insert = DELIVERY_INSERT(
            after.delivery_id, after.input_id, after.session_id, after.target_run_id, after.previous_delivery_id
        )
        new = after.target_run_id is None and after.previous_delivery_id is None
        return [SESSION_UNTAKEN(after.session_id), insert] if new else [insert]
    return [
        DELIVERY_MOVE(
            after.delivery_id,
            before.revision,
            after.revision,
            str(after.state),
            after.operation_id,
            after.context_seq,
            after.first_output_receipt,
            after.delivered_at,
        )
    ]


def write_queued(before: QueuedQuestion | None, after: QueuedQuestion) -> list[Statement]:
    """Queue behind the others, or before them all (`place` < 0), while there is room; leave the queue once."""
    if before is None:
        return [
            QUEUE_ROOM(after.session_id, QUEUED_QUESTIONS_MAX),
            QUEUE_INSERT(after.input_id, after.session_id, after.place < 0, after.release_id),
        ]
    return [QUEUE_MOVE(after.input_id, str(after.state), after.run_id)]


_SESSION = sa.select(
    session.c.session_id,
    session.c.owner_id,
    owner.c.slug,
    session.c.input_head,
    session.c.run_head,
    session.c.on_busy,
    session.c.created_at,
).join(owner, owner.c.owner_id == session.c.owner_id)


def _to_session(row: Any) -> Session:
    return Session(SessionId(row[0]), OwnerId(row[1]), row[2], row[3], row[4], OnBusy(row[5]))


def load_session(conn: sa.Connection, session_id: UUID) -> Session | None:
    """A session with its agent id."""
    row = conn.execute(_SESSION.where(session.c.session_id == session_id)).one_or_none()
    return None if row is None else _to_session(row)


@dataclass(frozen=True, slots=True)
class Undelivered:
    """What of a session no model has begun to answer, and the size of its bodies."""

    inputs: int
    size_bytes: int


def measure_undelivered(conn: sa.Connection, session_id: UUID) -> Undelivered:
    """What stands between a supplement and the session's bound, as SUPPLEMENT_ROOM will see it."""
    query = sa.text(_UNDELIVERED).bindparams(
        sa.bindparam("session_id", session_id, type_=sa.Uuid), sa.bindparam("input_id", None, type_=sa.Uuid)
    )
    row = conn.execute(query).one()
    return Undelivered(row[0], int(row[1]))


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session, when it was opened (microseconds), and how many inputs and queued questions wait in it."""

    session: Session
    created_at: int
    waiting: int
    queued: int


def list_sessions(conn: sa.Connection, *, limit: int) -> list[StoredSession]:
    """The newest first."""
    rows = list(conn.execute(_SESSION.order_by(session.c.created_at.desc(), session.c.session_id.desc()).limit(limit)))
    ids = [row.session_id for row in rows]
    delivery, queue = user_input_delivery.c, queued_question.c
    waiting = _count(conn, delivery.session_id, ids, delivery.target_run_id.is_(None), delivery.state == "pending")
    queued = _count(conn, queue.session_id, ids, queue.state == str(QueueState.QUEUED))
    return [
        StoredSession(_to_session(row), row.created_at, waiting.get(row.session_id, 0), queued.get(row.session_id, 0))
        for row in rows
    ]


def _count(
    conn: sa.Connection, column: sa.ColumnElement[UUID], ids: Sequence[UUID], *conditions: sa.ColumnElement[bool]
) -> dict[UUID, int]:
    query = sa.select(column, sa.func.count()).where(column.in_(ids), *conditions).group_by(column)
    return {row[0]: row[1] for row in conn.execute(query)}


@dataclass(frozen=True, slots=True)
class StoredInput:
    """An input as it came, with the time in microseconds."""

    input: UserInput
    received_at: int


def load_input(conn: sa.Connection, input_id: UUID) -> StoredInput | None:
    """One input."""
    row = conn.execute(sa.select(user_input).where(user_input.c.input_id == input_id)).one_or_none()
    return None if row is None else _to_input(row)


def load_inputs(conn: sa.Connection, input_ids: Sequence[UUID]) -> list[StoredInput]:
    """Some inputs, in the order in which they came."""
    query = sa.select(user_input).where(user_input.c.input_id.in_(input_ids)).order_by(user_input.c.input_seq)
    return [_to_input(row) for row in conn.execute(query)]


def list_inputs(conn: sa.Connection, session_id: UUID, *, after: int, limit: int) -> list[StoredInput]:
    """A page of a session's inputs above an input_seq, in order."""
    query = (
        sa.select(user_input)
        .where(user_input.c.session_id == session_id, user_input.c.input_seq > after)
        .order_by(user_input.c.input_seq)
        .limit(limit)
    )
    return [_to_input(row) for row in conn.execute(query)]


def _to_input(row: Any) -> StoredInput:
    body = Payload(bytes(row.body) if row.body is not None else None, BlobId(row.blob_id) if row.blob_id else None)
    origin = RunId(row.origin_run_id) if row.origin_run_id else None
    kind = InputKind(row.kind)
    stored = UserInput(InputId(row.input_id), SessionId(row.session_id), row.input_seq, origin, kind, body)
    return StoredInput(stored, row.received_at)


def to_delivery(row: Any) -> UserInputDelivery:
    """A row of the table."""
    return UserInputDelivery(
        DeliveryId(row.delivery_id),
        InputId(row.input_id),
        SessionId(row.session_id),
        RunId(row.target_run_id) if row.target_run_id else None,
        DeliveryState(row.state),
        row.revision,
        OperationId(row.operation_id) if row.operation_id else None,
        row.context_seq,
        row.first_output_receipt,
        row.delivered_at,
        DeliveryId(row.previous_delivery_id) if row.previous_delivery_id else None,
    )


def list_deliveries(conn: sa.Connection, input_ids: Sequence[UUID]) -> list[UserInputDelivery]:
    """Every delivery of some inputs, in no order: `previous_delivery_id` says which follows which."""
    table = user_input_delivery
    return [to_delivery(row) for row in conn.execute(sa.select(table).where(table.c.input_id.in_(input_ids)))]


def list_waiting(conn: sa.Connection, session_id: UUID) -> list[UserInputDelivery]:
    """What waits for the session's next run, in the order in which it came."""
    table = user_input_delivery
    query = (
        sa.select(table)
        .join(user_input, user_input.c.input_id == table.c.input_id)
        .where(table.c.session_id == session_id, table.c.target_run_id.is_(None))
        .where(table.c.state == str(DeliveryState.PENDING))
        .order_by(user_input.c.input_seq)
    )
    return [to_delivery(row) for row in conn.execute(query)]


def to_queued(row: Any) -> QueuedQuestion:
    """A row of the table."""
    return QueuedQuestion(
        InputId(row.input_id),
        SessionId(row.session_id),
        row.place,
        ReleaseId(row.release_id),
        QueueState(row.state),
        RunId(row.run_id) if row.run_id else None,
    )


def list_queue(conn: sa.Connection, session_id: UUID, *, limit: int) -> list[QueuedQuestion]:
    """The questions that wait for the session's live run to end, the next one first."""
    table = queued_question
    query = (
        sa.select(table)
        .where(table.c.session_id == session_id, table.c.state == str(QueueState.QUEUED))
        .order_by(table.c.place)
        .limit(limit)
    )
    return [to_queued(row) for row in conn.execute(query)]


def find_queued(conn: sa.Connection, input_ids: Sequence[UUID]) -> list[QueuedQuestion]:
    """What became of those of some inputs that were ever queued."""
    query = sa.select(queued_question).where(queued_question.c.input_id.in_(input_ids))
    return [to_queued(row) for row in conn.execute(query)]
