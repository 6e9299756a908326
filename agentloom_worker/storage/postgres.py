"""PostgreSQL: a commit is one simple-query message of EXECUTEs (COMMIT-SQL).

The message is its own transaction: any error undoes all of it and leaves the connection clean. Templates
are prepared when a connection is made, which rules out transaction pooling between us and the server.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import psycopg2
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import QueuePool

from agentloom_worker import telemetry
from agentloom_worker.clock import Clock
from agentloom_worker.errors import Code, PersistenceUnavailableError
from agentloom_worker.limits import COMMIT_RESENDS_MAX
from agentloom_worker.storage.driver import NotAppliedError, Row
from agentloom_worker.storage.template import Miss, Statement, Template

_SESSION = (
    "SET lock_timeout='2s'; SET statement_timeout='10s'; SET idle_in_transaction_session_timeout='5s';"
    "SET client_connection_check_interval='1s'; SET plan_cache_mode=force_generic_plan; SET synchronous_commit=on;"
)
_CONNECT = {
    "connect_timeout": 3,
    "tcp_user_timeout": 5000,
    "keepalives_idle": 10,
    "application_name": "agentloom",
}
_CODES = {Miss.LEASE_LOST.value: Code.LEASE_LOST, Miss.REVISION_CONFLICT.value: Code.REVISION_CONFLICT}
# Rolled back for certain: the same bytes may be sent again at once (RULINGS T6).
_ROLLED_BACK = {"40001", "40P01", "55P03", "57014"}
# A template that is missing after a reconnect through a pooler, or an object that a migration replaced.
_UNPREPARED = {"26000"}


def _as_uuid_texts(statement: Statement, now: int | None) -> tuple[object, ...]:
    arguments = list(statement.arguments)
    template = statement.template
    for position in template.uuid_positions:
        value = arguments[position]
        if value is not None:
            arguments[position] = str(value)
    if template.needs_now:
        arguments.append(now)
    return tuple(arguments)


class PostgresDriver:
    """A pool for commits with prepared templates, and an engine for reads."""

    dialect = "postgresql"

    def __init__(self, url: str, clock: Clock, templates: Sequence[Template], pool_size: int) -> None:
        self._clock = clock
        prepare = ";".join(template.postgres_prepare for template in templates)
        self.engine = self._make_engine(url, pool_size, None)
        self._commits = self._make_engine(url, pool_size, prepare)
        self._wait = threading.Event()

    @staticmethod
    def _make_engine(url: str, pool_size: int, prepare: str | None) -> sa.Engine:
        engine = sa.create_engine(
            url,
            isolation_level="AUTOCOMMIT",
            poolclass=QueuePool,
            pool_size=pool_size,
            max_overflow=4,
            pool_timeout=10,
            pool_reset_on_return=None,
            connect_args=_CONNECT,
        )

        @event.listens_for(engine, "connect")
        def connected(connection: Any, _record: object) -> None:
            connection.autocommit = True
            cursor = connection.cursor()
            cursor.execute(_SESSION)
            if prepare:
                cursor.execute(prepare)
            cursor.close()

        return engine

    def apply(self, statements: Sequence[Statement]) -> Row | None:
        row: Row | None = self._send(statements, lambda cursor: cursor.fetchone() if cursor.description else None)
        return row

    def returning(self, statement: Statement) -> list[Row]:
        rows: list[Row] = self._send([statement], lambda cursor: cursor.fetchall())
        return rows

    def _send(self, statements: Sequence[Statement], fetch: Callable[[Any], Any]) -> Any:
        """Send until the outcome is known: the same bytes, on a new connection after a broken one."""
        now = self._clock.database_now_us()
        text = ";".join(statement.template.postgres_execute for statement in statements)
        arguments = [value for statement in statements for value in _as_uuid_texts(statement, now)]
        query: bytes | None = None
        last = ""
        for attempt in range(COMMIT_RESENDS_MAX):
            if attempt:
                telemetry.count("commit_resent")
                self._wait.wait(min(0.05 * 2**attempt, 1.0))
            try:
                pooled = self._commits.raw_connection()
            except (psycopg2.OperationalError, psycopg2.InterfaceError, sa.exc.TimeoutError) as error:
                # The pool hands on the driver's own errors here; only its reads wrap them.
                last = type(error).__name__
                continue
            try:
                cursor = pooled.driver_connection.cursor()  # type: ignore[union-attr]
                if query is None:
                    query = cursor.mogrify(text, arguments)
                cursor.execute(query)
                rows = fetch(cursor)
                cursor.close()
                pooled.close()
                return rows
            except psycopg2.Error as error:
                last = error.pgcode or type(error).__name__
                if self._definite(error):
                    pooled.close()
                    raise self._refusal(error) from error
                if error.pgcode in _ROLLED_BACK:
                    pooled.close()
                else:
                    pooled.invalidate()
        raise PersistenceUnavailableError(f"PostgreSQL gave no outcome after {COMMIT_RESENDS_MAX} tries ({last})")

    @staticmethod
    def _definite(error: psycopg2.Error) -> bool:
        code = error.pgcode
        if code is None or code[:2] in ("08", "53") or code[:3] == "57P":
            return False
        return code not in _ROLLED_BACK and code not in _UNPREPARED

    @staticmethod
    def _refusal(error: psycopg2.Error) -> Exception:
        code = _CODES.get(error.pgcode or "")
        if code is not None:
            return NotAppliedError(code, error.diag.message_detail or "")
        if error.pgcode == "23505":
            return NotAppliedError(Code.REVISION_CONFLICT, "", error.diag.constraint_name)
        return error

    def close(self) -> None:
        self._commits.dispose()
        self.engine.dispose()
