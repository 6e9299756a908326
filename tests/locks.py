"""Forcing an interleaving on PostgreSQL: who holds a lock, who waits for it, looked up with a bound."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg2

from agentloom_worker.clock import SystemClock
from agentloom_worker.storage.postgres import render
from agentloom_worker.storage.template import Statement
from tests.databases import connect

WAIT_S = 20.0


class Session:
    """One connection whose transaction a test opens, holds and ends."""

    def __init__(self, url: str) -> None:
        self.connection = connect(url)

    def run(self, sql: str, *values: object) -> list[tuple]:
        """One statement in the open transaction; the first one opens it."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, [str(value) for value in values])
            return list(cursor.fetchall()) if cursor.description else []

    def apply(self, statement: Statement, now_us: int | None) -> list[tuple]:
        """One of the store's own statements, in the open transaction."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement.template.postgres_prepare)
            cursor.execute(render([statement], now_us))
            return list(cursor.fetchall()) if cursor.description else []

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def close(self) -> None:
        self.connection.close()


@contextmanager
def holding(url: str, sql: str, *values: object) -> Iterator[Session]:
    """A transaction that has run one statement and holds its locks until the block ends."""
    with closing(Session(url)) as session:
        session.run(sql, *values)
        yield session
        session.rollback()


def lockable(url: str, sql: str, *values: object) -> bool:
    """Whether a `SELECT … NOWAIT` gets its row at once."""
    with closing(Session(url)) as session:
        try:
            session.run(sql, *values)
        except psycopg2.errors.LockNotAvailable:
            return False
        session.rollback()
        return True


def wait_until(met: Callable[[], bool], what: str, *, timeout_s: float = WAIT_S) -> None:
    """Look again and again until it is so; fails after the bound."""
    clock, pause = SystemClock(), threading.Event()
    until_s = clock.monotonic_s() + timeout_s
    while clock.monotonic_s() < until_s:
        if met():
            return
        pause.wait(0.01)
    raise AssertionError(f"waited {timeout_s} s in vain: {what}")


def waiters(url: str) -> list[int]:
    """The backends of this database that wait for a lock."""
    sql = """
        SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock' AND state = 'active'
    """
    with closing(Session(url)) as session:
        return [row[0] for row in session.run(sql)]


def wait_for_waiters(url: str, count: int = 1) -> list[int]:
    """The backends that wait for a lock, as soon as there are so many."""
    wait_until(lambda: len(waiters(url)) >= count, f"{count} backend(s) waiting for a lock")
    return waiters(url)


class Running:
    """A call in a thread of its own; `result` joins it with a bound and gives what it gave."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call, *arguments), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            self._value = call(*arguments)
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, timeout_s: float = WAIT_S) -> Any:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the call has not returned"
        if self._error is not None:
            raise self._error
        return self._value


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """Run calls in threads that begin at one barrier; their results in order."""
    begin = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        begin.wait(timeout=WAIT_S)
        return call()

    running = [Running(run, call) for call in calls]
    return [each.result(60.0) for each in running]
