"""The databases under measurement: a durable PostgreSQL, and SQLite files."""

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psycopg2
from sqlalchemy.engine import make_url

from agentloom_worker.storage.schema import migrate
from bench.process import family_cpu_ms, parent_of
from tests.servers import DURABLE, Origin, PostgresServer, open_postgres

# An own server comes first: nobody else writes its WAL, and its settings may be changed.
WAYS = (Origin.INSTALLED, Origin.WHEEL, Origin.FOUND)
SETTINGS = {**DURABLE, "wal_keep_size": "1GB", "track_wal_io_timing": "on"}
SHOWN_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "wal_level", "max_wal_size")


@dataclass(frozen=True, slots=True)
class WalCount:
    """A reading of the server's counters."""

    records: int
    images: int
    size_bytes: int


class Database(Protocol):
    """One kind of database that can be had fresh, again and again."""

    name: str

    def fresh(self) -> str:
        """The URL of a new, migrated database."""
        ...

    def cpu_ms(self) -> float | None:
        """CPU time of the server so far; None where there is none to be seen."""
        ...


class Sqlite:
    """Files in a temporary directory."""

    name = "sqlite"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made = 0

    def fresh(self) -> str:
        """A new file."""
        self._made += 1
        url = f"sqlite:///{self._directory}/{self._made}.sqlite"
        migrate(url)
        return url

    def cpu_ms(self) -> float | None:
        """SQLite runs inside the workers."""
        return None


class Postgres:
    """Databases on one server."""

    name = "postgresql"

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.version = server.version
        with closing(self.connect(server.admin_url)) as connection, connection.cursor() as cursor:
            self.settings = {name: _show(cursor, name) for name in SHOWN_SETTINGS}
            self.postmaster = parent_of(connection.get_backend_pid())
            try:
                self._data: Path | None = Path(_show(cursor, "data_directory"))
            except psycopg2.Error:
                self._data = None

    def fresh(self) -> str:
        """A new database of the server."""
        url = self.server.create_database()
        migrate(url)
        return url

    def cpu_ms(self) -> float | None:
        """The postmaster and all its children; other users' work counts where the server is not our own."""
        return None if self.postmaster is None else family_cpu_ms(self.postmaster)

    @staticmethod
    def connect(url: str) -> "psycopg2.extensions.connection":
        """A plain connection in autocommit mode."""
        plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        connection = psycopg2.connect(plain)
        connection.autocommit = True
        return connection

    def wal_count(self) -> WalCount:
        """Counters of the whole server, after every idle backend has reported its own."""
        with closing(self.connect(self.server.admin_url)) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT wal_records, wal_fpi, wal_bytes FROM pg_stat_wal")
            row = cursor.fetchone()
        assert row is not None, "the view has one row"
        return WalCount(*map(int, row))

    def checkpoint(self) -> None:
        """Begin every part with the same distance to the last checkpoint."""
        with closing(self.connect(self.server.admin_url)) as connection, connection.cursor() as cursor:
            cursor.execute("CHECKPOINT")

    @contextmanager
    def without_images(self) -> Iterator[bool]:
        """Full-page images off on an own server; True if they are."""
        if not self.server.is_own:
            yield False
            return
        self._set_images("off")
        try:
            yield True
        finally:
            self._set_images("on")

    def _set_images(self, value: str) -> None:
        with closing(self.connect(self.server.admin_url)) as connection, connection.cursor() as cursor:
            cursor.execute(f"ALTER SYSTEM SET full_page_writes = {value}")
            cursor.execute("SELECT pg_reload_conf()")
            cursor.execute("CHECKPOINT")

    def waldump(self) -> tuple[Path, Path] | None:
        """(pg_waldump, the directory of the WAL) where both can be read from here."""
        if self.postmaster is None or self._data is None:
            return None
        try:
            program = Path(f"/proc/{self.postmaster}/exe").resolve(strict=True).with_name("pg_waldump")
            wal = self._data / "pg_wal"
            return (program, wal) if program.exists() and any(wal.iterdir()) else None
        except OSError:
            return None


def _show(cursor: "psycopg2.extensions.cursor", name: str) -> str:
    cursor.execute("SELECT current_setting(%s)", (name,))
    row = cursor.fetchone()
    assert row is not None, "a setting has a value"
    return str(row[0])


@contextmanager
def open_sqlite() -> Iterator[Sqlite]:
    """SQLite on the disk of the temporary directory."""
    with tempfile.TemporaryDirectory(prefix="agentloom-bench-", ignore_cleanup_errors=True) as directory:
        yield Sqlite(Path(directory))


@contextmanager
def open_durable_postgres(url: str | None) -> Iterator[Postgres]:
    """An own durable server, else a found one; or the given one."""
    ways = (Origin.GIVEN,) if url else WAYS
    with closing(open_postgres(ways, wish=url or "", settings=SETTINGS)) as server:
        yield Postgres(server)
