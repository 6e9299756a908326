"""The store: what the runtime asks of the database, in domain values. Safe for use by many threads."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.clock import Clock
from agentloom_worker.domain.blob import blob_id_of
from agentloom_worker.domain.commit import BlobPut, CommitReceipt, RuntimeCommit
from agentloom_worker.domain.context import RoleContext
from agentloom_worker.domain.dispatch import Claim, DispatchRow, QueueDepth
from agentloom_worker.domain.operation import Attempt, Operation, Payload
from agentloom_worker.domain.process import WorkerProcess
from agentloom_worker.domain.run import (
    AgentInvocation,
    CallBatch,
    GraphExecution,
    LoopTicket,
    NodeTask,
    Run,
    RunEvent,
    RunStanding,
    RunStatus,
)
from agentloom_worker.domain.session import (
    DeliveryState,
    InputKind,
    PendingInput,
    Session,
    UserInput,
    UserInputDelivery,
)
from agentloom_worker.errors import (
    AgentloomError,
    Code,
    PersistenceUnavailableError,
    PersistenceUnreachableError,
    RequestError,
)
from agentloom_worker.ids import (
    ClaimToken,
    DeliveryId,
    DispatchId,
    InputId,
    OperationId,
    OwnerId,
    ProcessId,
    ReleaseId,
    RunId,
    SessionId,
)
from agentloom_worker.limits import AUDIT_SNAPSHOT_IDLE_S, LOSSES_BEFORE_SOLITARY
from agentloom_worker.storage import (
    blob,
    commit_log,
    context,
    dispatch,
    operation,
    owner,
    run,
    schema,
    session,
    upkeep,
)
from agentloom_worker.storage.commit import build
from agentloom_worker.storage.context import ViewRow
from agentloom_worker.storage.driver import Driver, NotAppliedError
from agentloom_worker.storage.postgres import PostgresDriver, is_unreachable
from agentloom_worker.storage.sqlite import SqliteDriver
from agentloom_worker.storage.template import Statement

US = 1_000_000

# The reader may think between two reads for longer than a commit may, which holds locks.
_SNAPSHOT = {
    "sqlite": ("BEGIN",),
    "postgresql": (
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        f"SET LOCAL idle_in_transaction_session_timeout = '{int(AUDIT_SNAPSHOT_IDLE_S)}s'",
    ),
}


@dataclass(frozen=True, slots=True)
class SliceRows:
    """What one load of a slice reads, in one round of plain reads."""

    run: Run
    node: NodeTask
    context: RoleContext
    operation: Operation | None
    attempt: Attempt | None
    ticket: LoopTicket | None
    batch: CallBatch | None
    members: tuple[Operation, ...]
    member_attempts: tuple[Attempt, ...]
    inputs: tuple[PendingInput, ...]


@dataclass(frozen=True, slots=True)
class SweptRow:
    """A row that the sweep touched."""

    dispatch_id: DispatchId
    queue: str
    publish: bool
    run_id: RunId | None
    step: str
    version: int
    parked: bool


@dataclass(frozen=True, slots=True)
class FrozenBody:
    """A release as stored."""

    release_id: ReleaseId
    owner_id: OwnerId
    digest: bytes
    body: bytes


class Store:
    """Opened by `open_store`. Every method is one transaction or one plain read."""

    def __init__(self, driver: Driver, clock: Clock, url: str) -> None:
        self.driver = driver
        self.url = url
        self._clock = clock

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection for reads, each statement by itself; a broken one is PERSISTENCE_UNAVAILABLE."""
        with _unavailable("read"), self.driver.engine.connect() as conn:
            yield conn

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
        """Apply one RuntimeCommit. Raises NotAppliedError or PersistenceUnavailableError (driver.py)."""
        row = self.driver.apply(build(commit, process_id, ttl_us))
        if row is None:
            return None
        status, event_head, input_head, epoch, now = row
        return CommitReceipt(RunStatus(str(status)), int(event_head), int(input_head), int(epoch), int(now))  # type: ignore[call-overload]

    def apply(self, statements: list[Statement]) -> None:
        """Run rare statements in one transaction (sessions, releases, operators' commands)."""
        self.driver.apply(statements)

    def put_blob(self, put: BlobPut) -> None:
        """Store a body above BLOB_IN_COMMIT_BYTES ahead of the commit that will refer to it (RULINGS T14)."""
        self.driver.apply([blob.put(put.blob_id, put.owner_id, put.body, put.media_type)])

    def find_commit(self, scope_id: UUID, key: bytes) -> tuple[bytes, bytes | None] | None:
        """(command_hash, receipt) under a key."""
        with self.read() as conn:
            return commit_log.find_commit(conn, scope_id, key)

    def save_late(self, attempt: Attempt, late: bytes) -> bool:
        """`late:<attempt>`: a fact of a voided claim, written once, fenced by nothing (RULINGS R3)."""
        first = attempt.first_output
        statement = operation.ATTEMPT_LATE(
            attempt.operation_id,
            attempt.attempt_no,
            late,
            attempt.first_output_at,
            first.kind.value if first else None,
            first.has_display_content if first else None,
        )
        try:
            self.driver.apply([statement])
        except AgentloomError as error:
            if error.code is Code.REVISION_CONFLICT:
                return False
            raise
        return True

    def note_event(self, run_id: RunId, kind: str, fields: dict[str, object]) -> None:
        """One event that no step's commit carries; a terminal run takes none."""
        statements = [
            run.RUN_FENCE(run_id, 1, 0, 0),
            commit_log.EVENT_INSERT(run_id, 0, kind, canonical_bytes(fields)),
        ]
        try:
            self.driver.apply(statements)
        except NotAppliedError:
            return

    # -- claims --------------------------------------------------------------------------------------

    def claim(
        self,
        dispatch_id: DispatchId,
        token: ClaimToken,
        process_id: ProcessId,
        *,
        ttl_us: int,
        grace_us: int,
        solitary: bool,
    ) -> Claim | None:
        """Take a free row, or one whose holder is gone (RULINGS T7, T10); None if it cannot be had."""
        rows = self.driver.returning(
            dispatch.CLAIM(dispatch_id, token, process_id, ttl_us, grace_us, solitary, LOSSES_BEFORE_SOLITARY)
        )
        return dispatch.to_claim(dispatch_id, token, rows[0]) if rows else None

    def hand_back(self, claim: Claim, *, delay_us: int, failed: bool, failures_max: int, error: str | None) -> bool:
        """Give a row back before its effect began; True if that parked it."""
        rows = self.driver.returning(
            dispatch.HAND_BACK(claim.dispatch_id, claim.token, delay_us, int(failed), failures_max, error)
        )
        return bool(rows and rows[0][0] is not None)

    def release(self, dispatch_id: DispatchId, token: ClaimToken, *, began: bool) -> bool:
        """Give up a claim that its step had to leave; False if it is not held by this token (any more)."""
        return bool(self.driver.returning(dispatch.RELEASE(dispatch_id, token, began)))

    def park(self, claim: Claim, error: str) -> bool:
        """Stop a row until an operator decides; False if the claim was lost."""
        return bool(self.driver.returning(dispatch.PARK(claim.dispatch_id, claim.token, error)))

    def renew(self, pairs: list[tuple[DispatchId, ClaimToken]], ttl_us: int) -> set[DispatchId]:
        """Extend the claims that are still ours; an id that does not come back is unknown."""
        with self.read() as conn:
            return dispatch.renew(conn, self.now_argument(), [(a, b) for a, b in pairs], ttl_us)

    def load_tokens(self, dispatch_ids: list[DispatchId]) -> dict[DispatchId, ClaimToken | None]:
        """Who holds these rows; a missing id has no row."""
        with self.read() as conn:
            return dispatch.load_tokens(conn, list(dispatch_ids))

    def list_due(self, queues: tuple[str, ...], limit: int, *, patience_us: int = 0) -> list[DispatchId]:
        """Free rows that have been due for so long."""
        with self.read() as conn:
            return dispatch.list_due(conn, self.now_argument(), queues=queues, limit=limit, patience_us=patience_us)

    def wake(self, dispatch_ids: list[DispatchId]) -> None:
        """Make rows whose wake-up could not be published due for the next sweep at once (RULINGS T13)."""
        self.driver.apply([dispatch.WAKE(dispatch_id) for dispatch_id in sorted(dispatch_ids)])

    def count_queues(self) -> list[QueueDepth]:
        """The depth of every queue that has rows."""
        now = self.now_us()
        with self.read() as conn:
            return dispatch.count_queues(conn, now)

    def sweep(
        self,
        *,
        low_us: int,
        batch: int,
        grace_us: int,
        ttl_us: int,
        again_us: int,
        again_max_us: int,
        losses_before_solitary: int,
    ) -> list[SweptRow]:
        """One batch of rows whose `wake_at` has come."""
        rows = self.driver.returning(
            dispatch.SWEEP(low_us, batch, grace_us, again_us, again_max_us, losses_before_solitary, ttl_us)
        )
        return [
            SweptRow(
                DispatchId(dispatch.as_uuid(row[0])),
                str(row[1]),
                row[5] is None and (row[2] is None or int(row[7]) < int(row[8]) - grace_us),  # type: ignore[call-overload]
                RunId(dispatch.as_uuid(row[3])) if row[3] else None,
                str(row[4]),
                int(row[6]),  # type: ignore[call-overload]
                row[5] is not None,
            )
            for row in rows
        ]

    def sweep_ahead(self, *, batch: int, ttl_us: int) -> int:
        """Let the next batch see claims that end later than any claim can; how many there were."""
        return len(self.driver.returning(dispatch.SWEEP_AHEAD(batch, ttl_us)))

    def list_suspect(self, queues: tuple[str, ...], grace_us: int, limit: int) -> list[DispatchId]:
        """Rows of these queues that may be claimed or taken over now."""
        with self.read() as conn:
            return dispatch.list_suspect(conn, self.now_argument(), queues=queues, grace_us=grace_us, limit=limit)

    def collect_blobs(self, *, grace_us: int, limit: int) -> int:
        """Delete unreferenced blobs older than the grace time."""
        return len(self.driver.returning(blob.BLOB_COLLECT(grace_us, limit)))

    def next_wake(self) -> int | None:
        """The earliest `wake_at` of any row that is not parked."""
        with self.read() as conn:
            return dispatch.next_wake(conn)

    def list_dispatches(
        self, *, run_id: UUID | None = None, parked_only: bool = False, limit: int = 1000
    ) -> list[DispatchRow]:
        """Rows for operators and for audit."""
        with self.read() as conn:
            return dispatch.list_rows(conn, run_id=run_id, parked_only=parked_only, limit=limit)

    def load_dispatch(self, dispatch_id: UUID) -> DispatchRow | None:
        """One row, for operators."""
        with self.read() as conn:
            return dispatch.load_row(conn, dispatch_id)

    def retry_dispatch(self, dispatch_id: UUID, queue: str) -> bool:
        """An operator's retry of a parked row; what may have been sent stays marked so (RULINGS U13)."""
        mark = operation.ATTEMPT_MARK_ROW_SENT(dispatch_id)
        retry = dispatch.RETRY(dispatch_id, queue)
        try:
            self.driver.apply([mark, retry])
        except AgentloomError as error:
            if error.code is Code.REVISION_CONFLICT:
                return False
            raise
        return True

    # -- slices --------------------------------------------------------------------------------------

    def load_run(self, run_id: UUID) -> Run | None:
        """One run."""
        with self.read() as conn:
            return run.load_run(conn, run_id)

    def load_standings(self, run_ids: list[RunId]) -> dict[RunId, RunStanding]:
        """How many runs stand."""
        with self.read() as conn:
            return run.load_standings(conn, list(run_ids))

    def load_slice(self, run_id: RunId) -> SliceRows | None:
        """Everything that a step of this run may look at, but its history."""
        with self.read() as conn:
            loaded = run.load_run(conn, run_id)
            node = run.load_node(conn, run_id)
            if loaded is None or node is None:
                return None
            held = context.load_context(conn, node.node_id)
            assert held is not None, f"run {run_id} has no context"
            todo = node.continuation
            op = attempt = ticket = batch = None
            members: tuple[Operation, ...] = ()
            member_attempts: tuple[Attempt, ...] = ()
            if todo.model_operation_id is not None:
                op = operation.load_operation(conn, todo.model_operation_id)
                if op is not None and op.attempts_made:
                    attempt = operation.load_attempt(conn, op.operation_id, op.attempts_made)
                ticket = run.load_ticket(conn, run_id, todo.loop_no)
            if todo.batch_id is not None:
                batch = run.load_batch(conn, todo.batch_id)
                members = operation.load_members(conn, run_id, todo.batch_id)
                newest = {member.operation_id: member.attempts_made for member in members}
                member_attempts = tuple(
                    row
                    for row in operation.load_attempts(conn, [member.operation_id for member in members])
                    if row.attempt_no == newest[row.operation_id]
                )
            inputs = self._load_inputs(conn, loaded)
        return SliceRows(loaded, node, held, op, attempt, ticket, batch, members, member_attempts, inputs)

    def _load_inputs(self, conn: sa.Connection, loaded: Run) -> tuple[PendingInput, ...]:
        delivery, user_input = session.user_input_delivery, session.user_input
        query = (
            sa.select(delivery, user_input.c.input_seq, user_input.c.body, user_input.c.blob_id)
            .join(user_input, user_input.c.input_id == delivery.c.input_id)
            .where(delivery.c.target_run_id == loaded.run_id)
            .order_by(user_input.c.input_seq)
        )
        found = []
        for row in conn.execute(query):
            held = UserInputDelivery(
                DeliveryId(row.delivery_id),
                InputId(row.input_id),
                SessionId(row.session_id),
                RunId(row.target_run_id),
                DeliveryState(row.state),
                row.revision,
                OperationId(row.operation_id) if row.operation_id else None,
                row.context_seq,
                row.first_output_receipt,
                row.delivered_at,
            )
            body = bytes(row.body) if row.body is not None else self._blob(conn, loaded.owner_id, row.blob_id)
            found.append(PendingInput(held, row.input_seq, body))
        return tuple(found)

    @staticmethod
    def _blob(conn: sa.Connection, owner_id: UUID, blob_id: UUID) -> bytes:
        body = blob.read(conn, owner_id, blob_id)
        assert body is not None, f"blob {blob_id} of owner {owner_id} is missing"
        return body

    def load_view_rows(self, context_id: UUID, *, after_seq: int, revision: int, limit: int) -> list[ViewRow]:
        """A page of records with their effective content."""
        with self.read() as conn:
            return context.load_view_rows(conn, context_id, after_seq=after_seq, revision=revision, limit=limit)

    def load_payload(self, owner_id: UUID, payload: Payload) -> bytes:
        """A body, inline or from its owner's blob."""
        if payload.inline is not None:
            return payload.inline
        assert payload.blob_id is not None, "an empty payload has no body"
        with self.read() as conn:
            return self._blob(conn, owner_id, payload.blob_id)

    def load_operation(self, operation_id: UUID) -> Operation | None:
        """One operation."""
        with self.read() as conn:
            return operation.load_operation(conn, operation_id)

    def list_operations(self, run_id: UUID) -> list[Operation]:
        """A run's operations in order."""
        with self.read() as conn:
            return operation.list_operations(conn, run_id)

    def list_attempts(self, operation_ids: list[OperationId]) -> list[Attempt]:
        """The attempts of some operations."""
        with self.read() as conn:
            return operation.load_attempts(conn, operation_ids)

    def load_scopes(self, node: NodeTask) -> tuple[GraphExecution | AgentInvocation, ...]:
        """The invocation of a node and its graph execution."""
        with self.read() as conn:
            invocation, graph = (
                run.load_invocation(conn, node.invocation_id),
                run.load_graph(conn, node.run_id),
            )
        assert invocation is not None and graph is not None, f"node {node.node_id} has no scopes"
        return invocation, graph

    # -- clients -------------------------------------------------------------------------------------

    def load_session(self, session_id: UUID) -> Session | None:
        """A session."""
        with self.read() as conn:
            return session.load_session(conn, session_id)

    def find_input_seq(self, input_id: UUID) -> int | None:
        """The input_seq that a commit gave to an input."""
        with self.read() as conn:
            return session.find_input_seq(conn, input_id)

    def open_session(self, session_id: SessionId, owner_id: OwnerId) -> None:
        """Insert a session."""
        self.driver.apply([session.SESSION_INSERT(session_id, owner_id)])

    def find_owner(self, slug: str) -> OwnerId | None:
        """The owner of an agent id."""
        with self.read() as conn:
            return owner.find_owner(conn, slug)

    def find_agent_id(self, owner_id: UUID) -> str | None:
        """The agent id of an owner."""
        with self.read() as conn:
            return owner.find_slug(conn, owner_id)

    def publish_release(
        self,
        agent_id: str,
        owner_id: OwnerId,
        release_id: ReleaseId,
        *,
        digest: bytes,
        body: bytes,
        version: int,
        inline_max: int,
    ) -> ReleaseId:
        """Store a frozen release once; publishing the same bytes again returns the same id."""
        self.driver.apply([owner.OWNER_ENSURE(owner_id, "agent", agent_id)])
        found = self.find_owner(agent_id)
        assert found is not None, f"owner of {agent_id} was not stored"
        statements = []
        inline: bytes | None = body
        stored_blob: UUID | None = None
        if len(body) > inline_max:
            inline, stored_blob = None, blob_id_of(found, body)
            statements.append(blob.put(stored_blob, found, body, "application/json"))
        statements.append(owner.RELEASE_PUBLISH(release_id, "agent", agent_id, digest, version, inline, stored_blob))
        self.driver.apply(statements)
        with self.read() as conn:
            stored = owner.find_release(conn, found, digest)
        assert stored is not None, "the release was not stored"
        return stored

    def newest_release(self, owner_id: UUID) -> ReleaseId | None:
        """The release of an owner that was published last."""
        with self.read() as conn:
            return owner.newest_release(conn, owner_id)

    def load_release(self, release_id: UUID) -> FrozenBody | None:
        """A release's frozen bytes."""
        with self.read() as conn:
            row = owner.load_release(conn, release_id)
            if row is None:
                return None
            owner_id, digest, body, blob_id = row
            if body is None:
                assert blob_id is not None, f"release {release_id} has no body"
                body = self._blob(conn, owner_id, blob_id)
            return FrozenBody(ReleaseId(release_id), OwnerId(owner_id), bytes(digest), bytes(body))

    def list_runs(self, *, limit: int = 100, live_only: bool = False, session_id: UUID | None = None) -> list[Run]:
        """Runs, newest first."""
        with self.read() as conn:
            return run.list_runs(conn, limit=limit, live_only=live_only, session_id=session_id)

    def list_events(self, run_id: UUID, *, after: int = 0, limit: int = 1000) -> list[RunEvent]:
        """A run's events after a sequence number."""
        with self.read() as conn:
            return commit_log.list_events(conn, run_id, after=after, limit=limit)

    # -- the process itself --------------------------------------------------------------------------

    def worker_seen(
        self,
        process_id: ProcessId,
        *,
        host: str,
        pid: int,
        queues: str,
        slots: int,
        version: str,
        draining: bool,
    ) -> None:
        """Say that a process is there; for people, and for the sweep's sense of how many slots there are."""
        self.driver.apply([commit_log.WORKER_SEEN(process_id, host, pid, queues, slots, version, draining)])

    def worker_gone(self, process_id: ProcessId) -> None:
        """Say that a process has left."""
        self.driver.apply([commit_log.WORKER_GONE(process_id)])

    def list_workers(self) -> list[WorkerProcess]:
        """The processes that are there, and those that fell silent within the prune time."""
        now = self.now_us()
        with self.read() as conn:
            return commit_log.list_workers(conn, now)

    def prune_workers(self, silent_us: int) -> int:
        """Forget processes that died without a farewell; how many."""
        return len(self.driver.returning(commit_log.WORKER_PRUNE(silent_us)))

    # -- upkeep --------------------------------------------------------------------------------------

    @contextmanager
    def turn(self, duty: str) -> Iterator[bool]:
        """Whether no other process does this duty now; SQLite's duties need no turns."""
        if self.driver.dialect == "sqlite":
            yield True
            return
        with _unavailable("take a turn"), upkeep.turn(self.driver.engine, duty) as mine:
            yield mine

    def renew_held_leases(self, run_ids: list[RunId], ttl_us: int) -> set[RunId]:
        """Extend the leases of these runs where they hold one; a run that a commit has locked is left to it (R7)."""
        with self.read() as conn:
            return run.renew_leases(conn, self.now_argument(), list(run_ids), ttl_us)

    def renew_run_leases(self, *, ttl_us: int, limit: int) -> int:
        """Extend the leases of runs that wait for a timer only; how many (RULINGS R7)."""
        return len(self.driver.returning(run.RUN_LEASES_RENEW(ttl_us, limit)))

    def vacuum(self) -> None:
        """Free what dead dispatch rows hold; SQLite frees its own."""
        if self.driver.dialect == "postgresql":
            with _unavailable("vacuum"):
                upkeep.vacuum(self.driver.engine)

    def oldest_snapshot(self) -> upkeep.OldestSnapshot | None:
        """What keeps dead rows from being freed; None on SQLite, which has nothing of the kind."""
        if self.driver.dialect == "sqlite":
            return None
        with self.read() as conn:
            return upkeep.oldest_snapshot(conn)

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

    def check_schema(self) -> None:
        """Refuse a database whose schema is not the one that this code needs (CASES D16).

        Raises RequestError(SCHEMA_BEHIND) and PersistenceUnavailableError, both naming the remedy; of the latter
        PersistenceUnreachableError where the database may only be away for a while.
        """
        try:
            found = schema.current_revision(self.driver.engine)
        except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
            original = getattr(error, "orig", None)
            cause = type(original or error).__name__
            kind = PersistenceUnreachableError if is_unreachable(original) else PersistenceUnavailableError
            raise kind(
                f"{self.shown_url} cannot be read ({cause}): check that the database is up, that the URL is right and"
                " that its user may read it"
            ) from error
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
        return sa.engine.make_url(self.url).set(query={}).render_as_string(hide_password=True)


class _Snapshot(Store):
    """Reads on the connection of a transaction that somebody else began and will end."""

    def __init__(self, driver: Driver, clock: Clock, url: str, conn: sa.Connection) -> None:
        super().__init__(driver, clock, url)
        self._conn = conn

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        yield self._conn


@contextmanager
def _unavailable(what: str) -> Iterator[None]:
    """A broken connection, or none to be had, is PERSISTENCE_UNAVAILABLE."""
    try:
        yield
    except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError) as error:
        raise PersistenceUnavailableError(f"cannot {what}: {type(error).__name__}") from error


def open_store(url: str, clock: Clock, *, pool_size: int = 12) -> Store:
    """Open `postgresql+psycopg2://…` or `sqlite:///path`. Opens no connection yet."""
    try:
        parsed = sa.engine.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        # Without its cause, whose message quotes the URL with its password.
        raise RequestError(
            Code.INPUT_INVALID, "this is no database URL: use postgresql://… or sqlite:///path/to/file"
        ) from None
    if parsed.drivername in ("postgresql", "postgresql+psycopg2"):
        parsed = parsed.set(drivername="postgresql+psycopg2")
        text = parsed.render_as_string(hide_password=False)
        return Store(PostgresDriver(text, clock, schema.TEMPLATES, pool_size), clock, text)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        return Store(SqliteDriver(Path(parsed.database), clock), clock, url)
    raise RequestError(
        Code.INPUT_INVALID,
        f"database URL of kind {parsed.drivername!r}: use postgresql://… or sqlite:///path/to/file",
    )


__all__ = ["FrozenBody", "InputKind", "SliceRows", "Store", "SweptRow", "UserInput", "open_store"]
