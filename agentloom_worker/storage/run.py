"""The run: its row, and what is written to and read from it.

The Run row is the mutex of its tree (tree.py): each commit's first statement is an UPDATE of it, which is also the
status fence, the quota check and the source of run_seq (RULINGS T2).
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.clock import US
from agentloom_worker.domain.run import (
    LIVE,
    CleanupState,
    EndCause,
    Run,
    RunStanding,
    RunStatus,
)
from agentloom_worker.ids import (
    OperationId,
    OwnerId,
    ReleaseId,
    RunId,
    SessionId,
)
from agentloom_worker.limits import RUN_LEASE_TTL_S
from agentloom_worker.storage.tables import HOT, Bytes, Instant, metadata, one_of
from agentloom_worker.storage.template import Miss, Template

_LIVE_LIST = ", ".join(f"'{status}'" for status in sorted(LIVE))

run = sa.Table(
    "run",
    metadata,
    sa.Column("run_id", sa.Uuid, primary_key=True),
    sa.Column("owner_id", sa.Uuid, nullable=False),
    sa.Column("session_id", sa.Uuid, sa.ForeignKey("session.session_id"), nullable=False),
    sa.Column("release_id", sa.Uuid, nullable=False),
    *one_of("status", "run_status", RunStatus),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("lease_expires_at", Instant),
    sa.Column("event_head", sa.BigInteger, nullable=False),
    sa.Column("input_head", sa.BigInteger, nullable=False),
    sa.Column("loops_used", sa.Integer, nullable=False),
    sa.Column("loops_reserved", sa.Integer, nullable=False),
    sa.Column("max_loops", sa.Integer, nullable=False),
    sa.Column("deadline_at", Instant, nullable=False),
    sa.Column("binding", Bytes, nullable=False),
    sa.Column("run_no", sa.BigInteger, nullable=False),
    sa.Column("question_seq", sa.BigInteger, nullable=False),
    *one_of("end_cause", "run_end_cause", EndCause, nullable=True),
    sa.Column("end_code", sa.Text),
    sa.Column("end_detail", sa.Text),
    sa.Column("answer_operation_id", sa.Uuid),
    *one_of("cleanup_state", "run_cleanup_state", CleanupState),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("started_at", Instant),
    sa.Column("ended_at", Instant),
    sa.CheckConstraint("loops_used >= 0 AND loops_reserved >= 0", name="loops"),
    # A session has at most one run that has not ended. The status is in the predicate only, so that an
    # update from queued to running still stays on its page.
    sa.Index(
        "run_live_session_key",
        "session_id",
        unique=True,
        postgresql_where=sa.text(f"status IN ({_LIVE_LIST})"),
        sqlite_where=sa.text(f"status IN ({_LIVE_LIST})"),
    ),
    # Serves the listing of a session's runs, and its history in the order of the questions.
    sa.Index("run_session_ix", "session_id", "run_id"),
    sa.Index("run_question_key", "session_id", "question_seq", unique=True),
    **HOT,
)

RUN_INSERT = Template(
    "run_insert",
    "run_id:uuid owner_id:uuid session_id:uuid release_id:uuid max_loops:int deadline_us:int events:int binding:bytes"
    " input_id:uuid",
    "INSERT INTO run (run_id, owner_id, session_id, release_id, status, epoch, event_head, input_head, loops_used,"
    " loops_reserved, max_loops, deadline_at, binding, run_no, question_seq, cleanup_state, created_at)"
    " SELECT :run_id, :owner_id, s.session_id, :release_id, 'queued', 1, :events, s.input_head, 0, 0, :max_loops,"
    " {now} + :deadline_us, :binding, s.run_head, i.input_seq, 'none', {now}"
    " FROM session s JOIN user_input i ON i.session_id = s.session_id AND i.input_id = :input_id"
    " WHERE s.session_id = :session_id",
)
_FENCE_SET = "UPDATE run SET event_head = event_head + :events"
# The commit of a run that goes on extends its lease, if it holds one (R7); without one the column stays as it is.
_EXTEND = (
    f", lease_expires_at = CASE WHEN lease_expires_at IS NULL THEN NULL ELSE {{now}} + {int(RUN_LEASE_TTL_S * US)} END"
)
RUN_FENCE = Template(
    "run_fence",
    "run_id:uuid events:int consumed:int reserved:int",
    _FENCE_SET + _EXTEND + ", loops_used = loops_used + :consumed, loops_reserved = loops_reserved + :reserved"
    " WHERE run_id = :run_id AND status IN ('queued', 'running')"
    " AND (:consumed + :reserved <= 0"
    " OR loops_used + :consumed + loops_reserved + :reserved <= max_loops)",
    entity="run",
    miss=Miss.LEASE_LOST,
)
RUN_START = Template(
    "run_start",
    "run_id:uuid events:int consumed:int reserved:int",
    _FENCE_SET + _EXTEND + ", loops_used = loops_used + :consumed, loops_reserved = loops_reserved + :reserved,"
    " status = 'running', started_at = coalesce(started_at, {now})"
    " WHERE run_id = :run_id AND status IN ('queued', 'running')"
    " AND (:consumed + :reserved <= 0"
    " OR loops_used + :consumed + loops_reserved + :reserved <= max_loops)",
    entity="run",
    miss=Miss.LEASE_LOST,
)
RUN_INPUTS = Template(
    "run_inputs",
    "run_id:uuid input_head:int",
    "SELECT 1 FROM run WHERE run_id = :run_id AND input_head = :input_head",
    entity="run.input_head",
    miss=Miss.REVISION_CONFLICT,
    reads=True,
)
RUN_END = Template(
    "run_end",
    "run_id:uuid events:int consumed:int reserved:int status:text cause:text code:text detail:text answer:uuid"
    " started:bool",
    _FENCE_SET + ", loops_used = loops_used + :consumed, loops_reserved = loops_reserved + :reserved,"
    " status = :status, end_cause = coalesce(end_cause, :cause), end_code = coalesce(end_code, :code),"
    " end_detail = coalesce(:detail, end_detail), answer_operation_id = :answer, ended_at = {now},"
    " started_at = CASE WHEN :started THEN coalesce(started_at, {now}) ELSE started_at END,"
    " cleanup_state = 'pending'"
    f" WHERE run_id = :run_id AND status IN ({_LIVE_LIST}) AND (end_cause IS NULL OR end_cause = :cause)",
    entity="run",
    miss=Miss.LEASE_LOST,
)
RUN_STOP = Template(
    "run_stop",
    "run_id:uuid events:int cause:text code:text detail:text",
    _FENCE_SET + ", status = 'stopping', epoch = epoch + 1, end_cause = :cause, end_code = :code,"
    " end_detail = :detail WHERE run_id = :run_id AND status IN ('queued', 'running')",
    entity="run",
    miss=Miss.LEASE_LOST,
)
# A run that takes a new input, or makes room for the next question, knows its input_seq: a prepare or an end that
# was built without it is built again (RULINGS A6). The commit gives that number later on, under the same lock.
_NEXT_INPUT = _FENCE_SET + ", input_head = (SELECT s.input_head + 1 FROM session s WHERE s.session_id = run.session_id)"
RUN_TAKE = Template(
    "run_take",
    "run_id:uuid events:int",
    _NEXT_INPUT + " WHERE run_id = :run_id AND status IN ('queued', 'running')",
    entity="run",
    miss=Miss.LEASE_LOST,
)
RUN_QUEUE = Template(
    "run_queue",
    "run_id:uuid events:int",
    _NEXT_INPUT + f" WHERE run_id = :run_id AND status IN ({_LIVE_LIST})",
    entity="run",
    miss=Miss.LEASE_LOST,
)
RUN_CLEANED = Template(
    "run_cleaned",
    "run_id:uuid events:int",
    _FENCE_SET + f", cleanup_state = 'done' WHERE run_id = :run_id AND status NOT IN ({_LIVE_LIST})",
    entity="run",
    miss=Miss.LEASE_LOST,
)
# A run holds a lease from the moment a step that can write an environment sets its end; nothing else does, so
# without such a step this meets no row. Only runs with nothing claimed: the keeper of a claim renews the others (R7).
RUN_LEASES_RENEW = Template(
    "run_leases_renew",
    "ttl_us:int limit:int",
    "UPDATE run SET lease_expires_at = {now} + :ttl_us WHERE run_id IN (SELECT r.run_id FROM run r"
    f" WHERE r.lease_expires_at IS NOT NULL AND r.status IN ({_LIVE_LIST}) AND NOT EXISTS"
    " (SELECT 1 FROM pending_dispatch d WHERE d.scope_id = r.run_id AND d.claim_token IS NOT NULL)"
    " ORDER BY r.lease_expires_at LIMIT :limit {lock} {skip}) RETURNING run_id",
)
TEMPLATES = (
    RUN_INSERT,
    RUN_FENCE,
    RUN_START,
    RUN_INPUTS,
    RUN_END,
    RUN_STOP,
    RUN_TAKE,
    RUN_QUEUE,
    RUN_CLEANED,
    RUN_LEASES_RENEW,
)


def _to_run(row: Any) -> Run:
    return Run(
        run_id=RunId(row.run_id),
        owner_id=OwnerId(row.owner_id),
        session_id=SessionId(row.session_id),
        release_id=ReleaseId(row.release_id),
        status=RunStatus(row.status),
        epoch=row.epoch,
        event_head=row.event_head,
        input_head=row.input_head,
        loops_used=row.loops_used,
        loops_reserved=row.loops_reserved,
        max_loops=row.max_loops,
        deadline_at=row.deadline_at,
        binding=bytes(row.binding),
        created_at=row.created_at,
        run_no=row.run_no,
        question_seq=row.question_seq,
        started_at=row.started_at,
        ended_at=row.ended_at,
        end_cause=EndCause(row.end_cause) if row.end_cause else None,
        end_code=row.end_code,
        end_detail=row.end_detail,
        answer_operation_id=OperationId(row.answer_operation_id) if row.answer_operation_id else None,
        cleanup_state=CleanupState(row.cleanup_state),
    )


# What every step reads is written once: putting a statement together costs as much again as sending it.
_RUN_ID = sa.bindparam("run_id", type_=sa.Uuid)
_RUN = sa.select(run).where(run.c.run_id == _RUN_ID)


def load_run(conn: sa.Connection, run_id: UUID) -> Run | None:
    """One run."""
    row = conn.execute(_RUN, {"run_id": run_id}).one_or_none()
    return None if row is None else _to_run(row)


def list_runs(conn: sa.Connection, *, limit: int, live_only: bool, session_id: UUID | None) -> list[Run]:
    """Newest first."""
    query = sa.select(run).order_by(run.c.run_id.desc()).limit(limit)
    if live_only:
        query = query.where(run.c.status.in_([str(status) for status in sorted(LIVE)]))
    if session_id is not None:
        query = query.where(run.c.session_id == session_id)
    return [_to_run(row) for row in conn.execute(query)]


def find_live_run(conn: sa.Connection, session_id: UUID) -> Run | None:
    """The session's one run that has not ended, if there is one."""
    live = run.c.status.in_([str(status) for status in sorted(LIVE)])
    row = conn.execute(sa.select(run).where(run.c.session_id == session_id, live)).one_or_none()
    return None if row is None else _to_run(row)


def find_live_runs(conn: sa.Connection, session_ids: Sequence[UUID]) -> dict[UUID, Run]:
    """The run that has not ended of each of some sessions that has one."""
    live = run.c.status.in_([str(status) for status in sorted(LIVE)])
    found = [_to_run(row) for row in conn.execute(sa.select(run).where(run.c.session_id.in_(session_ids), live))]
    return {one.session_id: one for one in found}


def list_ended(
    conn: sa.Connection,
    session_id: UUID,
    *,
    run_no_max: int,
    after_seq: int = 0,
    before_seq: int | None = None,
    newest: bool = False,
    limit: int,
) -> list[Run]:
    """Ended runs of a session up to a run_no, by their questions' places; `newest` takes the last ones of them.

    Since one run of a session lives at a time, every run before another has ended when that one is made.
    """
    query = sa.select(run).where(
        run.c.session_id == session_id,
        run.c.run_no <= run_no_max,
        run.c.question_seq > after_seq,
        run.c.status.not_in([str(status) for status in sorted(LIVE)]),
    )
    if before_seq is not None:
        query = query.where(run.c.question_seq < before_seq)
    order = run.c.question_seq.desc() if newest else run.c.question_seq
    found = [_to_run(row) for row in conn.execute(query.order_by(order).limit(limit))]
    return found[::-1] if newest else found


def load_standings(conn: sa.Connection, run_ids: list[UUID]) -> dict[RunId, RunStanding]:
    """How many runs stand, in one query; the control poll (RULINGS T9)."""
    leased = run.c.lease_expires_at.is_not(None)
    query = sa.select(run.c.run_id, run.c.status, run.c.epoch, run.c.end_cause, leased)
    return {
        RunId(row[0]): RunStanding(RunStatus(row[1]), row[2], EndCause(row[3]) if row[3] else None, bool(row[4]))
        for row in conn.execute(query.where(run.c.run_id.in_(run_ids)))
    }


def renew_leases(conn: sa.Connection, now: int | None, run_ids: list[UUID], ttl_us: int) -> set[RunId]:
    """Extend the leases of those runs that hold one; in id order, never waiting for a commit that has a run (R7)."""
    clock = sa.literal(now, sa.BigInteger) if now is not None else sa.func.al_now(None)
    holding = (
        sa.select(run.c.run_id)
        .where(run.c.run_id.in_(run_ids), run.c.lease_expires_at.is_not(None), run.c.status.in_(sorted(LIVE)))
        .order_by(run.c.run_id)
        .with_for_update(key_share=True, skip_locked=True)
    )
    statement = sa.update(run).where(run.c.run_id.in_(holding)).values(lease_expires_at=clock + ttl_us)
    return {RunId(row[0]) for row in conn.execute(statement.returning(run.c.run_id))}
