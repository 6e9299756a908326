"""The store: what the runtime asks of the database, in domain values. Safe for use by many threads.

Commits and how a store is opened stand here; what claims, steps, clients and upkeep ask in `store_*.py`.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
import sqlalchemy as sa

from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.clock import Clock
from agentloom_worker.domain.commit import BlobPut, CommitReceipt, RuntimeCommit
from agentloom_worker.domain.operation import Attempt, Payload
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.errors import (
    AgentloomError,
    Code,
    PersistenceUnavailableError,
    PersistenceUnreachableError,
    RequestError,
)
from agentloom_worker.ids import ProcessId, RunId
from agentloom_worker.limits import AUDIT_SNAPSHOT_IDLE_S
from agentloom_worker.storage import blob, commit_log, operation, run, schema
from agentloom_worker.storage.commit import build
from agentloom_worker.storage.driver import Driver, NotAppliedError
from agentloom_worker.storage.postgres import PostgresDriver, is_unreachable
from agentloom_worker.storage.probe import reason_of
from agentloom_worker.storage.sqlite import SqliteDriver
from agentloom_worker.storage.store_claims import Claims, SweptRow
from agentloom_worker.storage.store_clients import Clients, FrozenBody
from agentloom_worker.storage.store_history import History
from agentloom_worker.storage.store_slices import SliceRows, Slices
from agentloom_worker.storage.store_upkeep import Upkeep
from agentloom_worker.storage.template import Statement

_POSTGRES = ("postgresql", "postgresql+psycopg2")
# The reader may think between two reads for longer than a commit may, which holds locks.
_SNAPSHOT = {
    "sqlite": ("BEGIN",),
    "postgresql": (
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        f"SET LOCAL idle_in_transaction_session_timeout = '{int(AUDIT_SNAPSHOT_IDLE_S)}s'",
    ),
}


class Store(Claims, Slices, Clients, History, Upkeep):
    """Opened by `open_store`. Every method is one transaction or one plain read."""

    @contextmanager
    def snapshot(self) -> Iterator["Store"]:
        """A store whose reads all see the database as of one instant, on one connection: for one thread, and
        for reading only. The instant is that of its first read.
        """
        with self.read() as conn:
            for statement in _SNAPSHOT[self.driver.dialect]:
                conn.execute(sa.text(statement))
            try:
                yield _Snapshot(self.driver, self._clock, self.url, conn)
            finally:
                conn.execute(sa.text("ROLLBACK"))

    def close(self) -> None:
        """Close every connection."""
        self.driver.close()

    # -- commits -------------------------------------------------------------------------------------

    def commit(self, commit: RuntimeCommit, process_id: ProcessId | None, ttl_us: int) -> CommitReceipt | None:
        """Apply one RuntimeCommit; the receipt is of the run that it is about, None where it is about none.

        Raises NotAppliedError or PersistenceUnavailableError (driver.py).
        """
        row = self.driver.apply(build(commit, process_id, ttl_us))
        if row is None or (commit.fence is None and commit.accept is None):
            return None
        status, event_head, input_head, epoch, now = row
        return CommitReceipt(RunStatus(str(status)), int(event_head), int(input_head), int(epoch), int(now))  # type: ignore[call-overload]

    def apply(self, statements: list[Statement]) -> None:
        """Run rare statements in one transaction (sessions, releases, operators' commands)."""
        self.driver.apply(statements)

    def put_blob(self, put: BlobPut) -> None:
        """Store a body above BLOB_IN_COMMIT_BYTES ahead of the commit that will refer to it (RULINGS T14)."""
        self.driver.apply([blob.put(put.blob_id, put.owner_id, put.body, put.media_type)])

    def save_late(self, attempt: Attempt, late: bytes) -> bool:
        """`late:<attempt>`: a fact of a voided claim, written once, fenced by nothing (RULINGS R3)."""
        first, transport = attempt.first_output, attempt.transport or Payload()
        statement = operation.ATTEMPT_LATE(
            attempt.operation_id,
            attempt.attempt_no,
            late,
            attempt.first_output_at,
            first.kind.value if first else None,
            first.has_display_content if first else None,
            transport.inline,
            transport.blob_id,
        )
        try:
            self.driver.apply([statement])
        except AgentloomError as error:
            if error.code is Code.REVISION_CONFLICT:
                return False
            raise
        return True

    def note_event(self, run_id: RunId, key: str, kind: str, fields: dict[str, object]) -> None:
        """One event that no step's commit carries, once under its key; a terminal run takes none (RULINGS T6)."""
        statements = [
            run.RUN_FENCE(run_id, 1, 0, 0),
            commit_log.note(run_id, key),
            commit_log.EVENT_INSERT(run_id, 0, kind, canonical_bytes(fields)),
        ]
        try:
            self.driver.apply(statements)
        except NotAppliedError:
            return

    def check_schema(self) -> None:
        """Refuse a database whose schema is not the one that this code needs (CASES D16).

        Raises RequestError(SCHEMA_BEHIND) and PersistenceUnavailableError, both naming the remedy; of the latter
        PersistenceUnreachableError where the database may only be away for a while.
        """
        try:
            found = schema.current_revision(self.driver.engine)
        except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
            original = getattr(error, "orig", None)
            kind = PersistenceUnreachableError if is_unreachable(original) else PersistenceUnavailableError
            raise kind(f"{self.shown_url} cannot be read ({_reason(original or error)}): {self._remedy}") from error
        needed = schema.newest_revision()
        schema.refuse_newer(found)
        if found != needed:
            raise RequestError(
                Code.SCHEMA_BEHIND,
                f"the schema of {self.shown_url} is {found or 'empty'}, this version needs {needed}:"
                " run `agentloom migrate`",
            )

    @property
    def shown_url(self) -> str:
        """The URL for people: without password and without parameters, which may hold one."""
        url = sa.engine.make_url(self.url)
        return url.set(drivername=url.get_backend_name(), query={}).render_as_string(hide_password=True)

    @property
    def _remedy(self) -> str:
        if self.url.startswith("sqlite"):
            return "check that the file is a store of this program and that its folder can be written"
        return "check that the database is up, that the URL is right and that its user may read it"


def _reason(error: BaseException) -> str:
    """Why the database could not be asked, without a password."""
    match error:
        case psycopg2.Error():
            return reason_of(error)
        case sqlite3.Error():
            return str(error)
        case _:
            return type(error).__name__


class _Snapshot(Store):
    """Reads on the connection of a transaction that somebody else began and will end."""

    def __init__(self, driver: Driver, clock: Clock, url: str, conn: sa.Connection) -> None:
        super().__init__(driver, clock, url)
        self._conn = conn

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        yield self._conn


def check_url(url: str) -> sa.URL:
    """A URL that `open_store` takes, parsed. Raises RequestError without it, since it may hold a password."""
    try:
        parsed = sa.engine.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        # Without its cause, whose message quotes the URL with its password.
        raise RequestError(
            Code.INPUT_INVALID, "this is no database URL: use postgresql://… or sqlite:///path/to/file"
        ) from None
    if parsed.drivername in _POSTGRES or (parsed.get_backend_name() == "sqlite" and parsed.database):
        return parsed
    raise RequestError(
        Code.INPUT_INVALID,
        f"database URL of kind {parsed.drivername!r}: use postgresql://… or sqlite:///path/to/file",
    )


def open_store(url: str, clock: Clock, *, pool_size: int = 12) -> Store:
    """Open `postgresql+psycopg2://…` or `sqlite:///path`. Opens no connection yet."""
    parsed = check_url(url)
    if parsed.drivername in _POSTGRES:
        text = parsed.set(drivername="postgresql+psycopg2").render_as_string(hide_password=False)
        return Store(PostgresDriver(text, clock, schema.TEMPLATES, pool_size), clock, text)
    return Store(SqliteDriver(Path(str(parsed.database)), clock), clock, url)


__all__ = ["FrozenBody", "SliceRows", "Store", "SweptRow", "check_url", "open_store"]
