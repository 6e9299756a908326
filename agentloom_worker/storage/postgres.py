"""PostgreSQL: a commit is one simple-query message of EXECUTEs (COMMIT-SQL).

The message is its own transaction: any error undoes all of it and leaves the connection clean. Templates
are prepared when a connection is made, which rules out transaction pooling between us and the server.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import psycopg2
import psycopg2.extensions
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import QueuePool

from agentloom_worker import telemetry
from agentloom_worker.clock import Clock
from agentloom_worker.errors import Code, PersistenceUnavailableError
from agentloom_worker.limits import COMMIT_RESENDS_MAX
from agentloom_worker.storage.driver import KEEPER_CONNECTIONS, NotAppliedError, RefusedError, Row
from agentloom_worker.storage.template import Miss, Statement, Template

_SESSION = (
    "SET lock_timeout='2s'; SET statement_timeout='10s'; SET idle_in_transaction_session_timeout='5s';"
    "SET client_connection_check_interval='1s'; SET plan_cache_mode=force_generic_plan; SET synchronous_commit=on;"
    "SET standard_conforming_strings=on;"
)
# Every template names its rows by a key. A plan is kept until somebody analyzes the table: one that was made while
# a table was small would read it from end to end at each commit, however large it grows meanwhile. Compiling a plan
# (JIT) pays for reports, never for these.
_PLANS = "SET enable_seqscan=off; SET jit=off;"
_CONNECT = {
    "connect_timeout": 3,
    "tcp_user_timeout": 5000,
    "keepalives_idle": 10,
    "application_name": "agentloom",
}
_OVERFLOW = 4
_POOL_TIMEOUT_S = 10
_CODES = {Miss.LEASE_LOST.value: Code.LEASE_LOST, Miss.REVISION_CONFLICT.value: Code.REVISION_CONFLICT}
# Rolled back for certain: the same bytes may be sent again at once (RULINGS T6).
_ROLLED_BACK = {"40001", "40P01", "55P03", "57014"}
# What libpq and a server say of one that is away, starting or full: a failed connection has no SQLSTATE in psycopg2.
_UNREACHABLE = (
    "connection refused",
    "connection reset",
    "timeout expired",
    "timed out",
    "could not translate host name",
    "no route to host",
    "network is unreachable",
    "no such file or directory",
    "server closed the connection",
    "eof detected",
    "connection already closed",
    "the database system is",
    "too many clients",
    "remaining connection slots",
)
# This server, not this commit: a standby or one that was demoted (25006), one that ended the transaction for its time
# (25P03, 25P04), a disk or the system under it (class 58). Another connection may lead to one that takes it.
_ELSEWHERE = {"25006", "25P03", "25P04"}
_ELSEWHERE_CLASSES = ("08", "53", "58")
# A template that is missing after a reconnect through a pooler, or an object that a migration replaced.
_UNPREPARED = {"26000"}


def is_unreachable(error: BaseException | None) -> bool:
    """Whether a database error says that nobody answers, or not yet: neither a refusal nor a wrong name."""
    if not isinstance(error, psycopg2.Error):
        return False
    if error.pgcode is not None:
        return error.pgcode.startswith(("08", "57P", "53"))
    # libpq tells of each address that it tried; the last one decides.
    last = str(error).casefold().rpartition("failed:")[2]
    return any(words in last for words in _UNREACHABLE)


def render(statements: Sequence[Statement], now: int | None) -> bytes:
    """The message of a commit. Raises ValueError for a text with a NUL, which PostgreSQL does not have."""
    commands = []
    for statement in statements:
        template, arguments = statement.template, statement.arguments
        commands.append(template.execute(*arguments, now) if template.needs_now else template.execute(*arguments))
    message = ";".join(commands)
    if "\0" in message:
        raise ValueError("a text with a NUL cannot be stored")
    return message.encode()


class _Connections:
    """Connections with prepared templates, the newest idle one first. Safe for use by many threads.

    `busy_max` bounds how many are lent at once, `idle_max` how many are kept.
    """

    def __init__(self, url: str, prepare: Sequence[str], *, idle_max: int, busy_max: int) -> None:
        address = sa.make_url(url)
        arguments, keywords = address.get_dialect()().create_connect_args(address)
        self._arguments, self._keywords = arguments, {**keywords, **_CONNECT}
        self._prepare = prepare
        self._idle_max, self._busy_max = idle_max, busy_max
        self._idle: deque[psycopg2.extensions.connection] = deque()
        self._free = threading.Semaphore(busy_max)
        self._pid = os.getpid()

    def take(self) -> psycopg2.extensions.connection:
        """An idle connection, or a new one. Raises psycopg2.OperationalError where none is to be had in time."""
        if self._pid != os.getpid():
            # A fork shares its parent's sockets; psycopg2 closes none that another process has opened.
            self._idle, self._free, self._pid = deque(), threading.Semaphore(self._busy_max), os.getpid()
        if not self._free.acquire(timeout=_POOL_TIMEOUT_S):
            raise psycopg2.OperationalError(f"{self._busy_max} connections were busy for {_POOL_TIMEOUT_S} s")
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()

    def give_back(self, connection: psycopg2.extensions.connection) -> None:
        """Keep it for the next commit."""
        if len(self._idle) < self._idle_max:
            self._idle.append(connection)
        else:
            connection.close()
        self._free.release()

    def discard(self, connection: psycopg2.extensions.connection) -> None:
        """Close one that broke, and the idle ones: what broke it (a restart, a failover) broke them too."""
        connection.close()
        self.close()
        self._free.release()

    def close(self) -> None:
        """Close the idle ones."""
        while True:
            try:
                self._idle.pop().close()
            except IndexError:
                return

    def _connect(self) -> psycopg2.extensions.connection:
        try:
            connection: psycopg2.extensions.connection = psycopg2.connect(*self._arguments, **self._keywords)
            _configure(connection, self._prepare)
        except BaseException:
            self._free.release()
            raise
        return connection


def _configure(connection: psycopg2.extensions.connection, prepare: Sequence[str] = ()) -> None:
    connection.autocommit = True
    connection.set_client_encoding("UTF8")  # see literal.py
    with connection.cursor() as cursor:
        cursor.execute(_SESSION)
        # One message each: a prepared statement keeps the text of its whole message, and every EXECUTE copies it.
        for statement in prepare:
            cursor.execute(statement)


class PostgresDriver:
    """A pool for commits with prepared templates, an engine for reads, and one for the keeper."""

    dialect = "postgresql"

    def __init__(self, url: str, clock: Clock, templates: Sequence[Template], pool_size: int) -> None:
        self._clock = clock
        self.engine = _make_engine(url, pool_size, _OVERFLOW)
        self.keeper_engine = _make_engine(url, 1, KEEPER_CONNECTIONS - 1)
        prepare = (_PLANS, *(template.postgres_prepare for template in templates))
        self._commits = _Connections(url, prepare, idle_max=pool_size, busy_max=pool_size + _OVERFLOW)
        self._wait = threading.Event()

    def apply(self, statements: Sequence[Statement]) -> Row | None:
        row: Row | None = self._send(statements, lambda cursor: cursor.fetchone() if cursor.description else None)
        return row

    def returning(self, statement: Statement) -> list[Row]:
        rows: list[Row] = self._send([statement], lambda cursor: cursor.fetchall())
        return rows

    def _send(self, statements: Sequence[Statement], fetch: Callable[[Any], Any]) -> Any:
        """Send until the outcome is known: the same bytes, on a new connection after a broken one."""
        try:
            query = render(statements, self._clock.database_now_us())
        except ValueError as error:
            raise RefusedError(str(error)) from error
        last = ""
        for attempt in range(COMMIT_RESENDS_MAX):
            if attempt:
                telemetry.count("commit_resent")
                self._wait.wait(min(0.05 * 2**attempt, 1.0))
            try:
                connection = self._commits.take()
            except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
                last = type(error).__name__
                continue
            try:
                with connection.cursor() as cursor:
                    cursor.execute(query)
                    rows = fetch(cursor)
            except psycopg2.Error as error:
                last = error.pgcode or type(error).__name__
                if self._definite(error) or error.pgcode in _ROLLED_BACK:
                    self._commits.give_back(connection)
                else:
                    self._commits.discard(connection)
                if self._definite(error):
                    raise self._refusal(error) from error
            else:
                self._commits.give_back(connection)
                return rows
        raise PersistenceUnavailableError(f"PostgreSQL gave no outcome after {COMMIT_RESENDS_MAX} tries ({last})")

    @staticmethod
    def _definite(error: psycopg2.Error) -> bool:
        code = error.pgcode
        if code is None or code[:2] in _ELSEWHERE_CLASSES or code[:3] == "57P":
            return False
        return code not in _ROLLED_BACK | _UNPREPARED | _ELSEWHERE

    @staticmethod
    def _refusal(error: psycopg2.Error) -> Exception:
        code = _CODES.get(error.pgcode or "")
        if code is not None:
            return NotAppliedError(code, error.diag.message_detail or "")
        if error.pgcode == "23505":
            return NotAppliedError(Code.REVISION_CONFLICT, "", error.diag.constraint_name)
        # The names only: what the server says besides may quote the row.
        named = (type(error).__name__, error.pgcode, error.diag.table_name, error.diag.constraint_name)
        return RefusedError(" ".join(name for name in named if name))

    def close(self) -> None:
        self._commits.close()
        self.engine.dispose()
        self.keeper_engine.dispose()


def _make_engine(url: str, pool_size: int, overflow: int) -> sa.Engine:
    engine = sa.create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        poolclass=QueuePool,
        pool_size=pool_size,
        max_overflow=overflow,
        pool_timeout=_POOL_TIMEOUT_S,
        pool_reset_on_return=None,
        connect_args=_CONNECT,
    )
    event.listen(engine, "connect", lambda connection, _record: _configure(connection))
    event.listen(engine, "handle_error", _leave_read_only)
    return engine


def _leave_read_only(context: sa.engine.ExceptionContext) -> None:
    """A connection to a server that takes no writes is not kept, nor are those beside it: they lead there as well."""
    if getattr(context.original_exception, "pgcode", None) in _ELSEWHERE:
        context.is_disconnect = True
