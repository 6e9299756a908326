"""What the database itself needs: whose turn a duty is, dead rows, the oldest snapshot (RULINGS T11, T12)."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

_IDLE_S = 60
# The age in transactions of the oldest xmin that a session, a prepared transaction or a slot holds, and for how long.
OLDEST_SNAPSHOT = (
    "SELECT coalesce(max(age), 0), coalesce(extract(epoch FROM max(clock_timestamp() - since)), 0) FROM ("
    " SELECT age(backend_xmin) AS age, xact_start AS since FROM pg_stat_activity"
    " WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()"
    " UNION ALL SELECT age(transaction), prepared FROM pg_prepared_xacts"
    " UNION ALL SELECT age(xmin), NULL FROM pg_replication_slots WHERE xmin IS NOT NULL) held"
)


@dataclass(frozen=True, slots=True)
class OldestSnapshot:
    """What keeps dead rows alive: the age of the oldest xmin in transactions, and for how long it has been held."""

    age_xids: int
    held_s: float


@contextmanager
def turn(engine: sa.Engine, duty: str) -> Iterator[bool]:
    """Hold a transaction-scoped advisory lock while the block runs; False if another process holds it.

    The transaction is idle meanwhile and holds no snapshot. If it is ended from outside, somebody else may
    begin the same duty: every duty bears that. Needs an engine in autocommit.
    """
    with engine.connect() as conn:
        try:
            conn.exec_driver_sql("BEGIN")
            conn.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{_IDLE_S}s'")
            key = int.from_bytes(hashlib.sha256(f"agentloom:{duty}".encode()).digest()[:8], signed=True)
            mine = bool(conn.execute(sa.select(sa.func.pg_try_advisory_xact_lock(key))).scalar())
            yield mine
        finally:
            _end(conn)


def _end(conn: sa.Connection) -> None:
    try:
        conn.exec_driver_sql("ROLLBACK")
    except sa.exc.DBAPIError:
        # The server ended the session, and with it the lock.
        conn.invalidate()


def vacuum(engine: sa.Engine) -> None:
    """Free what dead rows of pending_dispatch hold; never waits for a lock."""
    with engine.connect() as conn:
        conn.exec_driver_sql("VACUUM (SKIP_LOCKED, TRUNCATE false) pending_dispatch")


def oldest_snapshot(conn: sa.Connection) -> OldestSnapshot:
    """The oldest xmin that any session, prepared transaction or replication slot holds."""
    row = conn.exec_driver_sql(OLDEST_SNAPSHOT).one()
    return OldestSnapshot(int(row[0]), float(row[1]))
