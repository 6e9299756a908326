"""How every part of the store reaches its database: connections for reads, and the clock that counts."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.clock import Clock
from agentloom_worker.errors import PersistenceUnavailableError
from agentloom_worker.storage import blob, commit_log
from agentloom_worker.storage.driver import Driver


class Access:
    """One database. Every method is one transaction or one plain read. Safe for use by many threads."""

    def __init__(self, driver: Driver, clock: Clock, url: str) -> None:
        self.driver = driver
        self.url = url
        self._clock = clock

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection for reads, each statement by itself; a broken one is PERSISTENCE_UNAVAILABLE."""
        with unavailable("read"), self.driver.engine.connect() as conn:
            yield conn

    @contextmanager
    def keep(self) -> Iterator[sa.Connection]:
        """A connection that nobody but the keeper takes, so that a pool that has run dry costs no claim (T9)."""
        with unavailable("keep claims"), self.driver.keeper_engine.connect() as conn:
            yield conn

    def now_argument(self) -> int | None:
        """What `now` binds to in reads: SQLite has no clock of its own worth reading."""
        fixed = self._clock.database_now_us()
        return self._clock.wall_us() if fixed is None and self.driver.dialect == "sqlite" else fixed

    def now_us(self) -> int:
        """The database's clock."""
        argument = self.now_argument()
        if argument is not None:
            return argument
        with self.read() as conn:
            now = conn.execute(sa.select(sa.func.al_now(None))).scalar()
        assert isinstance(now, int)
        return now

    def find_commit(self, scope_id: UUID, key: bytes) -> tuple[bytes, bytes | None] | None:
        """(command_hash, receipt) under a key."""
        with self.read() as conn:
            return commit_log.find_commit(conn, scope_id, key)

    @staticmethod
    def read_blob(conn: sa.Connection, owner_id: UUID, blob_id: UUID) -> bytes:
        """A body that must be there."""
        body = blob.read(conn, owner_id, blob_id)
        assert body is not None, f"blob {blob_id} of owner {owner_id} is missing"
        return body


@contextmanager
def unavailable(what: str) -> Iterator[None]:
    """A broken connection, or none to be had, is PERSISTENCE_UNAVAILABLE."""
    try:
        yield
    except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError) as error:
        raise PersistenceUnavailableError(f"cannot {what}: {type(error).__name__}") from error
