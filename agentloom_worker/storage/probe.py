"""What PostgreSQL says about itself, on connections of their own: versions, durability, pooling, clock."""

from contextlib import closing
from typing import Any

import psycopg2
import psycopg2.extensions
import sqlalchemy as sa

from agentloom_worker.clock import Clock, ClockOffset
from agentloom_worker.domain.health import DatabaseFacts, Unreachable
from agentloom_worker.storage.upkeep import OLDEST_SNAPSHOT

_SETTINGS = (
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "synchronous_standby_names",
    "autovacuum",
    "max_connections",
)
_CONNECT = {"connect_timeout": 3, "tcp_user_timeout": 5000, "application_name": "agentloom-doctor"}
# What libpq says in a sentence with the address -> what we say.
_FAILURES = {
    "connection refused": "connection refused",
    "timeout expired": "no answer in time",
    "could not translate host name": "the host's name is unknown",
    "password": "the password was refused",
    "does not exist": "the database or the user does not exist",
    "too many": "too many connections",
    "no pg_hba.conf entry": "the server lets nobody in from here",
    "ssl": "TLS failed",
}
_FACTS = f"""
    SELECT current_setting('server_version'), current_setting('server_version_num')::int,
           {", ".join(f"current_setting('{name}')" for name in _SETTINGS)},
           pg_is_in_recovery(), (SELECT count(*) FROM pg_stat_replication),
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')
"""


def probe_database(url: str, clock: Clock) -> DatabaseFacts | Unreachable:
    """Ask with two connections. `url` is one that `open_store` takes. Reads only, but for one prepared statement."""
    address = sa.make_url(url).set(drivername="postgresql")
    arguments, keywords = address.get_dialect()().create_connect_args(address)

    def connect() -> Any:
        connection = psycopg2.connect(*arguments, **{**keywords, **_CONNECT})
        connection.autocommit = True
        return closing(connection)

    try:
        with connect() as first, connect() as second:
            return _ask(first, clock, pooled=_is_pooled(first, second))
    except psycopg2.Error as error:
        return Unreachable(reason_of(error))


def _ask(connection: psycopg2.extensions.connection, clock: Clock, *, pooled: bool) -> DatabaseFacts:
    with connection.cursor() as cursor:
        before_us = clock.wall_us()
        cursor.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        offset = ClockOffset.between(before_us, _one(cursor)[0], clock.wall_us())
        cursor.execute(_FACTS)
        version, number, *values, standby, standbys, connections = _one(cursor)
        cursor.execute(OLDEST_SNAPSHOT)
        age, held = _one(cursor)
    settings = dict(zip(_SETTINGS, values, strict=True))
    return DatabaseFacts(
        version, number, settings, standby, standbys, connections, pooled, int(age), float(held), offset
    )


def _is_pooled(first: psycopg2.extensions.connection, second: psycopg2.extensions.connection) -> bool:
    """Whether a pooler lends out server sessions by the transaction.

    What the first client prepared is gone once the second one holds the session it was prepared in. A pooler
    hands out the session that was given back last, so the second one's open transaction takes just that.
    """
    with first.cursor() as one, second.cursor() as other:
        one.execute("PREPARE agentloom_doctor AS SELECT pg_backend_pid()")
        one.execute("SELECT pg_backend_pid()")
        before = _one(one)
        other.execute("BEGIN")
        try:
            other.execute("SELECT pg_backend_pid()")
            between = _one(other)
            try:
                one.execute("EXECUTE agentloom_doctor")
                after = _one(one)
            except psycopg2.errors.InvalidSqlStatementName:
                return True
        finally:
            other.execute("ROLLBACK")
        one.execute("DEALLOCATE agentloom_doctor")
    return bool(before != after or before == between)


def _one(cursor: psycopg2.extensions.cursor) -> Any:
    row = cursor.fetchone()
    assert row is not None, "a SELECT of values has a row"
    return row


def reason_of(error: psycopg2.Error) -> str:
    """Why PostgreSQL could not be asked, without a password or an address.

    The server's own code and words; a connection's failure by its kind, since its text holds the address.
    """
    if error.pgcode is not None:
        return f"{error.pgcode} {error.diag.message_primary or ''}".strip()
    text = str(error).casefold()
    return next((reason for words, reason in _FAILURES.items() if words in text), type(error).__name__)
