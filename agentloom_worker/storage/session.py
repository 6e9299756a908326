"""Sessions, user inputs and their deliveries."""

from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.domain.session import DeliveryState, InputKind, Session, UserInput, UserInputDelivery
from agentloom_worker.ids import OwnerId, SessionId
from agentloom_worker.storage.owner import owner
from agentloom_worker.storage.tables import HOT, Bytes, Instant, metadata, one_of
from agentloom_worker.storage.template import Miss, Statement, Template

session = sa.Table(
    "session",
    metadata,
    sa.Column("session_id", sa.Uuid, primary_key=True),
    sa.Column("owner_id", sa.Uuid, sa.ForeignKey("owner.owner_id"), nullable=False),
    sa.Column("input_head", sa.BigInteger, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    **HOT,
)

user_input = sa.Table(
    "user_input",
    metadata,
    sa.Column("input_id", sa.Uuid, primary_key=True),
    sa.Column("session_id", sa.Uuid, sa.ForeignKey("session.session_id"), nullable=False),
    sa.Column("input_seq", sa.BigInteger, nullable=False),
    sa.Column("origin_run_id", sa.Uuid, nullable=False),
    *one_of("kind", "user_input_kind", InputKind),
    sa.Column("body", Bytes),
    sa.Column("blob_id", sa.Uuid, sa.ForeignKey("blob.blob_id")),
    sa.Column("received_at", Instant, nullable=False),
    sa.CheckConstraint("(body IS NULL) <> (blob_id IS NULL)", name="one_body"),
    sa.UniqueConstraint("session_id", "input_seq"),
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

# The id is fresh, so a conflict can only be this very statement, sent again after a lost answer (RULINGS T6).
SESSION_INSERT = Template(
    "session_insert",
    "session_id:uuid owner_id:uuid",
    "INSERT INTO session (session_id, owner_id, input_head, created_at) VALUES (:session_id, :owner_id, 0, {now})"
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
INPUT_INSERT = Template(
    "user_input_insert",
    "input_id:uuid session_id:uuid run_id:uuid kind:text body:bytes blob_id:uuid",
    "INSERT INTO user_input (input_id, session_id, input_seq, origin_run_id, kind, body, blob_id, received_at)"
    " SELECT :input_id, session_id, input_head, :run_id, :kind, :body, :blob_id, {now}"
    " FROM session WHERE session_id = :session_id",
)
DELIVERY_INSERT = Template(
    "user_input_delivery_insert",
    "delivery_id:uuid input_id:uuid session_id:uuid run_id:uuid",
    "INSERT INTO user_input_delivery (delivery_id, input_id, session_id, target_run_id, state, revision)"
    " VALUES (:delivery_id, :input_id, :session_id, :run_id, 'pending', 1)",
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
TEMPLATES = (SESSION_INSERT, SESSION_LOCK, SESSION_NEXT_INPUT, INPUT_INSERT, DELIVERY_INSERT, DELIVERY_MOVE)


# The deliveries of a run with what they deliver. Built once: building a query costs as much as running it.
INPUTS_OF_RUN = (
    sa.select(user_input_delivery, user_input.c.input_seq, user_input.c.body, user_input.c.blob_id)
    .join(user_input, user_input.c.input_id == user_input_delivery.c.input_id)
    .where(user_input_delivery.c.target_run_id == sa.bindparam("run_id"))
    .order_by(user_input.c.input_seq)
)


def write_input(before: UserInput | None, after: UserInput) -> list[Statement]:
    """A new input takes the session's next input_seq inside the commit."""
    assert before is None, "a user input is never changed"
    body = after.body
    return [
        SESSION_NEXT_INPUT(after.session_id),
        INPUT_INSERT(after.input_id, after.session_id, after.origin_run_id, str(after.kind), body.inline, body.blob_id),
    ]


def write_delivery(before: UserInputDelivery | None, after: UserInputDelivery) -> list[Statement]:
    """Insert, or move by compare-and-set on the revision."""
    if before is None:
        return [DELIVERY_INSERT(after.delivery_id, after.input_id, after.session_id, after.target_run_id)]
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


def load_session(conn: sa.Connection, session_id: UUID) -> Session | None:
    """A session with its agent id."""
    query = (
        sa.select(session.c.session_id, session.c.owner_id, owner.c.slug, session.c.input_head)
        .join(owner, owner.c.owner_id == session.c.owner_id)
        .where(session.c.session_id == session_id)
    )
    row = conn.execute(query).one_or_none()
    return None if row is None else Session(SessionId(row[0]), OwnerId(row[1]), row[2], row[3])


def find_input_seq(conn: sa.Connection, input_id: UUID) -> int | None:
    """The input_seq of an input."""
    return conn.execute(sa.select(user_input.c.input_seq).where(user_input.c.input_id == input_id)).scalar()
