"""pending_dispatch: the outbox, the claims on it, their renewal and the sweep (RUNTIME 4; COMMIT-SQL).

Nouns first, then verbs in the order of a row's life: insert, claim, hand back, consume, renew, sweep,
take over, park, retry.
"""

from typing import Any
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.domain.dispatch import Claim, DispatchRow, QueueDepth
from agentloom_worker.ids import ClaimToken, DispatchId, ProcessId, RunId
from agentloom_worker.storage.tables import Instant, metadata
from agentloom_worker.storage.template import Miss, Template

pending_dispatch = sa.Table(
    "pending_dispatch",
    metadata,
    sa.Column("dispatch_id", sa.Uuid, primary_key=True),
    sa.Column("scope_id", sa.Uuid, nullable=False),
    sa.Column("run_id", sa.Uuid),
    sa.Column("subject_id", sa.Uuid, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("not_before", Instant, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("wake_at", Instant, nullable=False),
    sa.Column("claimed_until", Instant),
    sa.Column("suspect_at", Instant),
    sa.Column("parked_at", Instant),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("losses", sa.Integer, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("wakes", sa.SmallInteger, nullable=False),
    sa.Column("step_version", sa.SmallInteger, nullable=False),
    sa.Column("priority", sa.SmallInteger, nullable=False),
    sa.Column("claim_token", sa.Uuid),
    sa.Column("claimed_by", sa.Uuid),
    sa.Column("step", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("queue", sa.Text, nullable=False),
    sa.Column("last_error", sa.Text),
    # Also serves "all rows of this run". Subjects are younger from loop to loop, so that the index grows at one place.
    sa.UniqueConstraint("scope_id", "subject_id", "step", "key"),
    # Serves the sweep's range scan.
    sa.Index(
        "pending_dispatch_wake_ix",
        "wake_at",
        postgresql_where=sa.text("parked_at IS NULL"),
        sqlite_where=sa.text("parked_at IS NULL"),
    ),
    postgresql_with={
        "fillfactor": 70,
        "vacuum_truncate": "off",
        "vacuum_index_cleanup": "on",
        "autovacuum_vacuum_scale_factor": 0,
        "autovacuum_vacuum_threshold": 2000,
        "autovacuum_vacuum_cost_delay": 0,
    },
)

_COLUMNS = (
    "(dispatch_id, scope_id, run_id, step, step_version, subject_id, key, queue, priority, not_before, wake_at,"
    " epoch, claim_token, claimed_by, claimed_until, attempts, losses, failures, wakes, created_at)"
)

# A successor takes its epoch from the run in the same transaction, so that it always equals the run's (R4).
DISPATCH_INSERT = Template(
    "dispatch_insert",
    "dispatch_id:uuid run_id:uuid step:text version:int subject_id:uuid key:text queue:text priority:int"
    " delay_us:int wake_us:int",
    f"INSERT INTO pending_dispatch {_COLUMNS}"
    " SELECT :dispatch_id, run_id, run_id, :step, :version, :subject_id, :key, :queue, :priority,"
    " {now} + :delay_us, {now} + :delay_us + :wake_us, epoch, NULL, NULL, NULL, 0, 0, 0, 0, {now}"
    " FROM run WHERE run_id = :run_id",
)
DISPATCH_INSERT_AT = Template(
    "dispatch_insert_at",
    "dispatch_id:uuid run_id:uuid step:text version:int subject_id:uuid key:text queue:text priority:int due_at:int",
    f"INSERT INTO pending_dispatch {_COLUMNS}"
    " SELECT :dispatch_id, run_id, run_id, :step, :version, :subject_id, :key, :queue, :priority,"
    " :due_at, :due_at, epoch, NULL, NULL, NULL, 0, 0, 0, 0, {now} FROM run WHERE run_id = :run_id",
)
# The deadline's row takes its instant from the run that the same commit inserts.
DISPATCH_INSERT_DEADLINE = Template(
    "dispatch_insert_deadline",
    "dispatch_id:uuid run_id:uuid step:text version:int key:text queue:text priority:int",
    f"INSERT INTO pending_dispatch {_COLUMNS}"
    " SELECT :dispatch_id, run_id, run_id, :step, :version, run_id, :key, :queue, :priority,"
    " deadline_at, deadline_at, epoch, NULL, NULL, NULL, 0, 0, 0, 0, {now} FROM run WHERE run_id = :run_id",
)
# A successor that will run inline in this slot is inserted already claimed (RULINGS T13).
DISPATCH_INSERT_CLAIMED = Template(
    "dispatch_insert_claimed",
    "dispatch_id:uuid run_id:uuid step:text version:int subject_id:uuid key:text queue:text priority:int"
    " token:uuid owner:uuid ttl_us:int",
    f"INSERT INTO pending_dispatch {_COLUMNS}"
    " SELECT :dispatch_id, run_id, run_id, :step, :version, :subject_id, :key, :queue, :priority,"
    " {now}, {now} + :ttl_us, epoch, :token, :owner, {now} + :ttl_us, 1, 0, 0, 0, {now}"
    " FROM run WHERE run_id = :run_id",
)
# The row of a batch's delivery comes from the commit that makes settled equal to size (RULINGS A8).
DISPATCH_INSERT_DELIVERY = Template(
    "dispatch_insert_delivery",
    "dispatch_id:uuid run_id:uuid batch_id:uuid step:text version:int key:text queue:text priority:int wake_us:int",
    f"INSERT INTO pending_dispatch {_COLUMNS}"
    " SELECT :dispatch_id, r.run_id, r.run_id, :step, :version, b.batch_id, :key, :queue, :priority,"
    " {now}, {now} + :wake_us, r.epoch, NULL, NULL, NULL, 0, 0, 0, 0, {now}"
    " FROM run r JOIN call_batch b ON b.run_id = r.run_id"
    " WHERE r.run_id = :run_id AND b.batch_id = :batch_id AND b.settled = b.size AND b.state = 'open'",
)
# One UPDATE by id. The same token again is a re-sent claim and does not count. A claim of another can be
# taken over only when it has expired and a sweep has suspected it for the grace time (RULINGS T10). The last
# loss before the solitary queue and the last one in it are the sweep's, which moves or parks the row: until it
# has come, nobody takes the row over (T8, U3). Nobody takes over a claim of its own.
CLAIM = Template(
    "dispatch_claim",
    "dispatch_id:uuid token:uuid owner:uuid ttl_us:int grace_us:int solitary:bool losses_before_solitary:int",
    # `wakes` is -1 while the holder has taken the row over: RETURNING knows no value of before.
    "UPDATE pending_dispatch SET"
    " losses = losses + CASE WHEN claim_token IS NOT NULL AND claim_token <> :token THEN 1 ELSE 0 END,"
    " attempts = attempts + CASE WHEN claim_token = :token THEN 0 ELSE 1 END,"
    " claim_token = :token, claimed_by = :owner, claimed_until = {now} + :ttl_us, wake_at = {now} + :ttl_us,"
    " suspect_at = NULL, wakes = CASE WHEN claim_token = :token THEN wakes WHEN claim_token IS NULL THEN 0 ELSE -1 END"
    " WHERE dispatch_id = :dispatch_id AND parked_at IS NULL AND not_before <= {now}"
    " AND (queue <> 'solitary' OR :solitary)"
    " AND (claim_token IS NULL OR claim_token = :token"
    " OR (claimed_by <> :owner AND suspect_at < {now} - :grace_us"
    " AND losses + 1 < :losses_before_solitary + CASE WHEN queue = 'solitary' THEN 1 ELSE 0 END"
    " AND (claimed_until < {now} OR claimed_until > {now} + 2 * :ttl_us)))"
    " RETURNING scope_id, run_id, step, step_version, subject_id, key, epoch, attempts, failures, {now}, wakes",
)
# Allowed only to a holder that has not begun the effect (RULINGS A1). `failures` counts exceptions (U2).
HAND_BACK = Template(
    "dispatch_hand_back",
    "dispatch_id:uuid token:uuid delay_us:int failed:int failures_max:int error:text",
    "UPDATE pending_dispatch SET claim_token = NULL, claimed_by = NULL, claimed_until = NULL, suspect_at = NULL,"
    " attempts = attempts - 1, failures = failures + :failed, not_before = {now} + :delay_us,"
    " wake_at = {now} + :delay_us, wakes = 0, last_error = coalesce(:error, last_error),"
    " parked_at = CASE WHEN :failed > 0 AND failures + :failed >= :failures_max THEN {now} ELSE parked_at END"
    " WHERE dispatch_id = :dispatch_id AND claim_token = :token RETURNING parked_at",
)
# A claim that its process gave up while the store was away. Where the effect may have begun, the claim counts
# (RULINGS A1); it is no loss, since the process lives (T8).
RELEASE = Template(
    "dispatch_release",
    "dispatch_id:uuid token:uuid began:bool",
    "UPDATE pending_dispatch SET claim_token = NULL, claimed_by = NULL, claimed_until = NULL, suspect_at = NULL,"
    " attempts = attempts - CASE WHEN :began THEN 0 ELSE 1 END, wake_at = {now}, wakes = 0"
    " WHERE dispatch_id = :dispatch_id AND claim_token = :token RETURNING dispatch_id",
)
# Parks at once, keeping the count of claims: an effect may have begun (a broken invariant, RULINGS U2).
PARK = Template(
    "dispatch_park",
    "dispatch_id:uuid token:uuid error:text",
    "UPDATE pending_dispatch SET claim_token = NULL, claimed_by = NULL, claimed_until = NULL, suspect_at = NULL,"
    " last_error = :error, parked_at = {now} WHERE dispatch_id = :dispatch_id AND claim_token = :token"
    " RETURNING parked_at",
)
CONSUME = Template(
    "dispatch_consume",
    "dispatch_id:uuid token:uuid",
    "DELETE FROM pending_dispatch WHERE dispatch_id = :dispatch_id AND claim_token = :token",
    entity="pending_dispatch",
    miss=Miss.LEASE_LOST,
)
HOLD = Template(
    "dispatch_hold",
    "dispatch_id:uuid token:uuid",
    "SELECT 1 FROM pending_dispatch WHERE dispatch_id = :dispatch_id AND claim_token = :token {lock}",
    entity="pending_dispatch",
    miss=Miss.LEASE_LOST,
    reads=True,
)
# Part of a stop, before it reads who may have begun: a claim that is just being made is waited for, and none
# is made afterwards. Rows by id, like every lock of several (RULINGS T2, R3).
LOCK_RUN_ROWS = Template(
    "dispatch_lock_run_rows",
    "run_id:uuid",
    "SELECT 1 FROM pending_dispatch WHERE scope_id = :run_id ORDER BY dispatch_id {lock}",
)
# Part of a stop, an expiry or a terminal commit: every other row of the run goes, parked ones too (R3, A4).
DELETE_RUN_ROWS = Template(
    "dispatch_delete_run_rows",
    "run_id:uuid",
    "DELETE FROM pending_dispatch WHERE scope_id = :run_id",
)
# Says when a row must be looked at again, suspects expired claims, and hands back what to publish. The
# second loss of a row sends it to the solitary queue, the third parks it (RULINGS T8, U3).
SWEEP = Template(
    "dispatch_sweep",
    "low:int batch:int grace_us:int again_us:int again_max_us:int losses_before_solitary:int ttl_us:int",
    "UPDATE pending_dispatch SET"
    " wakes = CASE WHEN wakes < 100 THEN wakes + 1 ELSE wakes END,"
    " queue = CASE WHEN claim_token IS NOT NULL AND suspect_at < {now} - :grace_us"
    " AND losses + 1 >= :losses_before_solitary THEN 'solitary' ELSE queue END,"
    " parked_at = CASE WHEN claim_token IS NOT NULL AND suspect_at < {now} - :grace_us"
    " AND losses + 1 > :losses_before_solitary AND queue = 'solitary' THEN {now} ELSE parked_at END,"
    " last_error = CASE WHEN claim_token IS NOT NULL AND suspect_at < {now} - :grace_us"
    " AND losses + 1 > :losses_before_solitary AND queue = 'solitary'"
    " THEN 'the process that ran this step died three times' ELSE last_error END,"
    " suspect_at = CASE WHEN claim_token IS NOT NULL THEN coalesce(suspect_at, {now}) ELSE NULL END,"
    " wake_at = {now} + CASE WHEN claim_token IS NOT NULL AND suspect_at IS NULL THEN :grace_us + 1"
    " WHEN :again_us * (1 << (CASE WHEN wakes < 5 THEN wakes ELSE 5 END)) < :again_max_us"
    " THEN :again_us * (1 << (CASE WHEN wakes < 5 THEN wakes ELSE 5 END)) ELSE :again_max_us END"
    " WHERE dispatch_id IN (SELECT dispatch_id FROM pending_dispatch WHERE parked_at IS NULL AND wake_at > :low"
    " AND wake_at <= (SELECT {now}) ORDER BY wake_at LIMIT :batch {lock} {skip})"
    " AND (claim_token IS NULL OR claimed_until < {now} OR claimed_until > {now} + 2 * :ttl_us)"
    # Values and no `IS NULL` of them: SQLite 3.40 answers false to that here, whatever the column holds.
    " RETURNING dispatch_id, queue, claim_token, run_id, step, parked_at, step_version, suspect_at, {now}",
)
# A claim from a time when the database's clock was ahead would be looked at only when the clock comes there.
SWEEP_AHEAD = Template(
    "dispatch_sweep_ahead",
    "batch:int ttl_us:int",
    "UPDATE pending_dispatch SET wake_at = {now} WHERE dispatch_id IN"
    " (SELECT dispatch_id FROM pending_dispatch WHERE parked_at IS NULL AND wake_at > (SELECT {now}) + 2 * :ttl_us"
    " AND claimed_until > {now} + 2 * :ttl_us ORDER BY wake_at LIMIT :batch {lock} {skip})"
    " AND claimed_until > {now} + 2 * :ttl_us RETURNING dispatch_id",
)
# A published row is looked at again after a while; only a failed publish makes it due at once.
WAKE = Template(
    "dispatch_wake",
    "dispatch_id:uuid",
    "UPDATE pending_dispatch SET wake_at = {now} WHERE dispatch_id = :dispatch_id AND claim_token IS NULL"
    " RETURNING dispatch_id",
)
# An operator's retry: the counters start again, the epoch and the attempts' facts do not (RULINGS U13).
RETRY = Template(
    "dispatch_retry",
    "dispatch_id:uuid parked_at:int queue:text",
    "UPDATE pending_dispatch SET parked_at = NULL, attempts = 0, failures = 0, losses = 0, wakes = 0,"
    " claim_token = NULL, claimed_by = NULL, claimed_until = NULL, suspect_at = NULL, not_before = {now},"
    " wake_at = {now}, queue = :queue WHERE dispatch_id = :dispatch_id AND parked_at = :parked_at",
    entity="pending_dispatch",
    miss=Miss.REVISION_CONFLICT,
)
TEMPLATES = (
    DISPATCH_INSERT,
    DISPATCH_INSERT_AT,
    DISPATCH_INSERT_DEADLINE,
    DISPATCH_INSERT_CLAIMED,
    DISPATCH_INSERT_DELIVERY,
    CLAIM,
    HAND_BACK,
    RELEASE,
    PARK,
    CONSUME,
    HOLD,
    LOCK_RUN_ROWS,
    DELETE_RUN_ROWS,
    SWEEP,
    SWEEP_AHEAD,
    WAKE,
    RETRY,
)


def to_claim(dispatch_id: DispatchId, token: ClaimToken, row: tuple[object, ...]) -> Claim:
    """A claim from what the claim statement returned."""
    scope, run_id, step, version, subject, key, epoch, attempts, failures, now, wakes = row
    return Claim(
        dispatch_id=dispatch_id,
        token=token,
        scope_id=as_uuid(scope),
        run_id=RunId(as_uuid(run_id)) if run_id else None,
        step=str(step),
        step_version=int(version),  # type: ignore[call-overload]
        subject_id=as_uuid(subject),
        key=str(key),
        epoch=int(epoch),  # type: ignore[call-overload]
        attempts=int(attempts),  # type: ignore[call-overload]
        failures=int(failures),  # type: ignore[call-overload]
        now_us=int(now),  # type: ignore[call-overload]
        took_over=int(wakes) < 0,  # type: ignore[call-overload]
    )


def as_uuid(value: object) -> UUID:
    """The identity that a raw row holds: a UUID or its text."""
    return value if isinstance(value, UUID) else UUID(str(value))


def list_due(
    conn: sa.Connection, now: int | None, *, queues: tuple[str, ...], limit: int, patience_us: int = 0
) -> list[DispatchId]:
    """Ids of free rows that have been due for `patience_us`, oldest first. A plain read: the claim decides."""
    clock = sa.literal(now, sa.BigInteger) if now is not None else sa.select(sa.func.al_now(None)).scalar_subquery()
    table = pending_dispatch
    query = (
        sa.select(table.c.dispatch_id)
        .where(table.c.parked_at.is_(None), table.c.claim_token.is_(None), table.c.not_before <= clock - patience_us)
        .where(table.c.queue.in_(queues))
        # Rows of one commit are due at the same instant: the calls of a batch begin in their order.
        .order_by(table.c.wake_at, table.c.dispatch_id)
        .limit(limit)
    )
    return [DispatchId(row[0]) for row in conn.execute(query)]


def list_suspect(
    conn: sa.Connection, now: int | None, *, queues: tuple[str, ...], grace_us: int, limit: int
) -> list[DispatchId]:
    """Ids of rows that are free and due, or whose claim may be taken over."""
    clock = sa.literal(now, sa.BigInteger) if now is not None else sa.select(sa.func.al_now(None)).scalar_subquery()
    table = pending_dispatch
    free = sa.and_(table.c.claim_token.is_(None), table.c.not_before <= clock)
    gone = sa.and_(table.c.claimed_until < clock, table.c.suspect_at < clock - grace_us)
    query = (
        sa.select(table.c.dispatch_id)
        .where(table.c.parked_at.is_(None), table.c.queue.in_(queues), sa.or_(free, gone))
        .order_by(table.c.wake_at)
        .limit(limit)
    )
    return [DispatchId(row[0]) for row in conn.execute(query)]


def renew(conn: sa.Connection, now: int | None, pairs: list[tuple[UUID, UUID]], ttl_us: int) -> set[DispatchId]:
    """Extend the claims that are still held by these tokens; in id order, never waiting for a lock (T9)."""
    clock = sa.literal(now, sa.BigInteger) if now is not None else sa.func.al_now(None)
    table = pending_dispatch
    held = (
        sa.select(table.c.dispatch_id)
        .where(sa.tuple_(table.c.dispatch_id, table.c.claim_token).in_(pairs))
        .order_by(table.c.dispatch_id)
        .with_for_update(key_share=True, skip_locked=True)
    )
    statement = (
        sa.update(table)
        .where(table.c.dispatch_id.in_(held))
        .values(claimed_until=clock + ttl_us, wake_at=clock + ttl_us, suspect_at=None)
        .returning(table.c.dispatch_id)
    )
    return {DispatchId(row[0]) for row in conn.execute(statement)}


def next_wake(conn: sa.Connection) -> int | None:
    """The earliest instant at which anybody has to look at a row."""
    query = sa.select(sa.func.min(pending_dispatch.c.wake_at)).where(pending_dispatch.c.parked_at.is_(None))
    return conn.execute(query).scalar()


def load_tokens(conn: sa.Connection, dispatch_ids: list[UUID]) -> dict[DispatchId, ClaimToken | None]:
    """Who holds these rows now; the keeper's plain read about ids that did not come back."""
    query = sa.select(pending_dispatch.c.dispatch_id, pending_dispatch.c.claim_token)
    rows = conn.execute(query.where(pending_dispatch.c.dispatch_id.in_(dispatch_ids)))
    return {DispatchId(row[0]): ClaimToken(row[1]) if row[1] else None for row in rows}


def list_rows(
    conn: sa.Connection, *, run_id: UUID | None = None, parked_only: bool = False, limit: int = 1000
) -> list[DispatchRow]:
    """Rows for operators, oldest first."""
    table = pending_dispatch
    query = sa.select(table).order_by(table.c.created_at, table.c.dispatch_id).limit(limit)
    if run_id is not None:
        query = query.where(table.c.scope_id == run_id)
    if parked_only:
        query = query.where(table.c.parked_at.is_not(None))
    return [_to_row(row) for row in conn.execute(query)]


def load_row(conn: sa.Connection, dispatch_id: UUID) -> DispatchRow | None:
    """One row for operators."""
    query = sa.select(pending_dispatch).where(pending_dispatch.c.dispatch_id == dispatch_id)
    row = conn.execute(query).one_or_none()
    return None if row is None else _to_row(row)


def _to_row(row: Any) -> DispatchRow:
    return DispatchRow(
        DispatchId(row.dispatch_id),
        RunId(row.run_id) if row.run_id else None,
        row.step,
        row.subject_id,
        row.key,
        row.queue,
        row.not_before,
        row.wake_at,
        ProcessId(row.claimed_by) if row.claimed_by else None,
        row.claimed_until,
        row.suspect_at,
        row.attempts,
        row.losses,
        row.failures,
        max(0, row.wakes),
        row.last_error,
        row.parked_at,
        row.created_at,
    )


def count_queues(conn: sa.Connection, now: int) -> list[QueueDepth]:
    """How many rows of each queue are due, wait for their time, are claimed, are parked; the empty ones left out."""
    table = pending_dispatch
    parked, claimed = table.c.parked_at.is_not(None), table.c.claim_token.is_not(None)
    due = sa.and_(~parked, ~claimed, table.c.not_before <= now)
    waiting = sa.and_(~parked, ~claimed, table.c.not_before > now)
    since = sa.func.min(sa.case((due, table.c.not_before)))
    held = sa.and_(~parked, claimed)
    suspect = sa.and_(held, table.c.suspect_at.is_not(None))
    counts = [_count(where) for where in (due, waiting, held, suspect, parked, table.c.losses > 0)]
    query = sa.select(table.c.queue, *counts, since).group_by(table.c.queue).order_by(table.c.queue)
    return [
        QueueDepth(queue, due, waits, held, doubtful, stopped, lost, 0 if oldest is None else max(0, now - oldest))
        for queue, due, waits, held, doubtful, stopped, lost, oldest in conn.execute(query)
    ]


def _count(where: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((where, 1), else_=0))
