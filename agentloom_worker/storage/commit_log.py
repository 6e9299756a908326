"""scope_commit, run_event and worker_process: what was committed, what clients may hear, who is there."""

import json
import re
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.canonical import sha256
from agentloom_worker.domain.process import WorkerProcess
from agentloom_worker.domain.run import RunEvent
from agentloom_worker.ids import ProcessId, RunId
from agentloom_worker.storage.tables import Bytes, Instant, metadata
from agentloom_worker.storage.template import Statement, Template

_IDS = re.compile(r":(?:[0-9a-f]{8}-[^:]*|\d+)(?=:|$)")

# One row a commit: its key is the client's key, the consumed claim's token (16 bytes), or the part's key
# where the claim is only held or void. `parts` lists the seed keys that the commit carried (RULINGS A24).
scope_commit = sa.Table(
    "scope_commit",
    metadata,
    sa.Column("scope_id", sa.Uuid, primary_key=True),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("key", Bytes, primary_key=True),
    sa.Column("command_hash", Bytes, nullable=False),
    sa.Column("parts", sa.Text, nullable=False),
    sa.Column("receipt", Bytes),
)

run_event = sa.Table(
    "run_event",
    metadata,
    sa.Column("run_id", sa.Uuid, primary_key=True),
    sa.Column("run_seq", sa.BigInteger, primary_key=True),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("fields", Bytes, nullable=False),
)

worker_process = sa.Table(
    "worker_process",
    metadata,
    sa.Column("process_id", sa.Uuid, primary_key=True),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("queues", sa.Text, nullable=False),
    sa.Column("slots", sa.Integer, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("draining", sa.Boolean, nullable=False),
    sa.Column("started_at", Instant, nullable=False),
    sa.Column("seen_at", Instant, nullable=False),
)

COMMIT_INSERT = Template(
    "commit_insert",
    "scope_id:uuid key:bytes command_hash:bytes parts:text receipt:bytes",
    "INSERT INTO scope_commit (scope_id, key, command_hash, parts, receipt, created_at)"
    " VALUES (:scope_id, :key, :command_hash, :parts, :receipt, {now})",
)
# The key of what an operator or the upkeep wrote for a run; a run that is missing leaves none.
COMMIT_NOTE = Template(
    "commit_note",
    "run_id:uuid key:bytes command_hash:bytes parts:text",
    "INSERT INTO scope_commit (scope_id, key, command_hash, parts, created_at)"
    " SELECT run_id, :key, :command_hash, :parts, {now} FROM run WHERE run_id = :run_id",
)
# `back` counts from the new head: the first of n events has back = n - 1.
EVENT_INSERT = Template(
    "event_insert",
    "run_id:uuid back:int kind:text fields:bytes",
    "INSERT INTO run_event (run_id, run_seq, kind, fields, created_at)"
    " SELECT run_id, event_head - :back, :kind, :fields, {now} FROM run WHERE run_id = :run_id",
)
RECEIPT = Template(
    "commit_receipt",
    "run_id:uuid",
    "SELECT status, event_head, input_head, epoch, {now} FROM run WHERE run_id = :run_id",
    returns=True,
)
WORKER_SEEN = Template(
    "worker_seen",
    "process_id:uuid host:text pid:int queues:text slots:int version:text draining:bool",
    "INSERT INTO worker_process (process_id, host, pid, queues, slots, version, draining, started_at, seen_at)"
    " VALUES (:process_id, :host, :pid, :queues, :slots, :version, :draining, {now}, {now})"
    " ON CONFLICT (process_id) DO UPDATE SET draining = excluded.draining, seen_at = excluded.seen_at",
)
WORKER_GONE = Template("worker_gone", "process_id:uuid", "DELETE FROM worker_process WHERE process_id = :process_id")
WORKER_PRUNE = Template(
    "worker_prune",
    "age_us:int",
    "DELETE FROM worker_process WHERE seen_at < {now} - :age_us RETURNING process_id",
)
TEMPLATES = (COMMIT_INSERT, COMMIT_NOTE, EVENT_INSERT, RECEIPT, WORKER_SEEN, WORKER_GONE, WORKER_PRUNE)


def kind_of(key: str) -> str:
    """A seed key without its ids: what scope_commit lists, since the rows of a part carry its ids already."""
    return _IDS.sub("", ":" + key)[1:]


def note(run_id: UUID, key: str) -> Statement:
    """Refuse to be applied twice under one key, which names all that the transaction does."""
    return COMMIT_NOTE(run_id, key.encode(), sha256(key.encode())[:16], kind_of(key))


def find_commit(conn: sa.Connection, scope_id: UUID, key: bytes) -> tuple[bytes, bytes | None] | None:
    """(command_hash, receipt) of a committed key."""
    query = sa.select(scope_commit.c.command_hash, scope_commit.c.receipt)
    row = conn.execute(query.where(scope_commit.c.scope_id == scope_id, scope_commit.c.key == key)).one_or_none()
    return None if row is None else (bytes(row[0]), bytes(row[1]) if row[1] is not None else None)


def list_events(conn: sa.Connection, run_id: UUID, *, after: int, limit: int) -> list[RunEvent]:
    """A run's events in run_seq order, after a sequence number."""
    query = (
        sa.select(run_event)
        .where(run_event.c.run_id == run_id, run_event.c.run_seq > after)
        .order_by(run_event.c.run_seq)
        .limit(limit)
    )
    return [
        RunEvent(RunId(row.run_id), row.run_seq, row.kind, json.loads(row.fields), row.created_at)
        for row in conn.execute(query)
    ]


def list_workers(conn: sa.Connection, now: int) -> list[WorkerProcess]:
    """Every process that has said it is there and has not been pruned, oldest first."""
    query = sa.select(worker_process).order_by(worker_process.c.started_at, worker_process.c.process_id)
    return [
        WorkerProcess(
            ProcessId(row.process_id),
            row.host,
            row.pid,
            tuple(row.queues.split(",")) if row.queues else (),
            row.slots,
            row.version,
            bool(row.draining),
            row.started_at,
            row.seen_at,
            max(0, now - row.seen_at),
        )
        for row in conn.execute(query)
    ]
