"""SQLite: the same list of statements, checked one by one under one writer (RULINGS T15)."""

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from agentloom_worker.clock import Clock
from agentloom_worker.errors import Code, PersistenceUnavailableError
from agentloom_worker.storage.driver import KEEPER_CONNECTIONS, NotAppliedError, RefusedError, Row
from agentloom_worker.storage.template import Miss, Statement

_BUSY_TIMEOUT_MS = 10_000
_WAL_TRIES = 100
_WAL_PAUSE_S = 0.02
_CODES = {Miss.LEASE_LOST: Code.LEASE_LOST, Miss.REVISION_CONFLICT: Code.REVISION_CONFLICT}


def _configure(connection: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
    _use_wal(cursor)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _use_wal(cursor: Any) -> None:
    """Switch a new file to WAL. SQLite asks no busy handler for that, so two processes at once retry here."""
    pause = threading.Event()
    for _ in range(_WAL_TRIES):
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            pause.wait(_WAL_PAUSE_S)
    cursor.execute("PRAGMA journal_mode=WAL")


class SqliteDriver:
    """One writer connection and its mutex per process; reads have connections of their own."""

    dialect = "sqlite"

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._path = path
        self._lock = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self.engine = _make_engine(path)
        self.keeper_engine = _make_engine(path, pool_size=1, max_overflow=KEEPER_CONNECTIONS - 1)

    def _connection(self) -> sqlite3.Connection:
        if self._writer is None:
            self._writer = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            _configure(self._writer)
        return self._writer

    def _bind(self, statement: Statement, now: int) -> tuple[object, ...]:
        arguments = list(statement.arguments)
        template = statement.template
        for position in template.uuid_positions:
            value = arguments[position]
            if value is not None:
                arguments[position] = value.hex  # type: ignore[attr-defined]
        if template.needs_now:
            arguments.append(now)
        return tuple(arguments)

    def _now(self) -> int:
        fixed = self._clock.database_now_us()
        return self._clock.wall_us() if fixed is None else fixed

    def apply(self, statements: Sequence[Statement]) -> Row | None:
        rows = self._transact(statements)
        return rows[0] if rows else None

    def returning(self, statement: Statement) -> list[Row]:
        return self._transact([statement])

    def _transact(self, statements: Sequence[Statement]) -> list[Row]:
        with self._lock:
            try:
                connection = self._connection()
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                raise PersistenceUnavailableError(f"SQLite {self._path.name}: {error}") from error
            try:
                rows = self._run(connection, statements)
                connection.execute("COMMIT")
                return rows
            except sqlite3.IntegrityError as error:
                connection.execute("ROLLBACK")
                if error.sqlite_errorname in ("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY"):
                    columns = str(error).partition("failed: ")[2]
                    raise NotAppliedError(Code.REVISION_CONFLICT, "", columns) from error
                raise RefusedError(error.sqlite_errorname) from error
            except sqlite3.OperationalError as error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise PersistenceUnavailableError(f"SQLite {self._path.name}: {error}") from error
            except (sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError, OverflowError) as error:
                connection.execute("ROLLBACK")
                raise RefusedError(type(error).__name__) from error
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _run(self, connection: sqlite3.Connection, statements: Sequence[Statement]) -> list[Row]:
        # Under the write lock, so that instants grow with the order of commits.
        now = self._now()
        rows: list[Row] = []
        for statement in statements:
            template = statement.template
            cursor = connection.execute(template.sqlite, self._bind(statement, now))
            rows = cursor.fetchall() if cursor.description is not None else []
            met = len(rows) if template.reads else cursor.rowcount
            if template.miss is not None and met != 1:
                raise NotAppliedError(_CODES[template.miss], template.entity)
        return rows

    def close(self) -> None:
        with self._lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None
        self.engine.dispose()
        self.keeper_engine.dispose()


def _make_engine(path: Path, **pool: int) -> sa.Engine:
    engine = sa.create_engine(
        f"sqlite:///{path}",
        isolation_level="AUTOCOMMIT",
        connect_args={"timeout": _BUSY_TIMEOUT_MS / 1000},
        **pool,
    )
    event.listen(engine, "connect", lambda connection, _record: _configure(connection))
    return engine
