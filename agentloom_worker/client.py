"""The client: publish a release, open a session, ask, wait, stop, look.

    with Agentloom.embedded("state") as loom:
        release = loom.publish(Path("release.yaml"))
        session = loom.open_session(release.agent_id)
        receipt = loom.ask(session, "What broke checkout?")
        print(loom.wait(receipt, timeout_s=60).answer)

`embedded` keeps everything in one SQLite file and runs the steps on threads of this process; `connect` takes
a database that other processes may serve too; `fleet` is `connect` with a fleet's broker and Redis, so that its
workers hear of a question or a stop at once. All are durable or refuse to start: there is no other way.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID

from agentloom_worker import limits, telemetry
from agentloom_worker.bootstrap import make_fleet_ports, make_ports, migrate_database
from agentloom_worker.domain.authority import ReadAuthority
from agentloom_worker.domain.dispatch import DispatchRow
from agentloom_worker.domain.operation import Operation
from agentloom_worker.domain.process import WorkerProcess
from agentloom_worker.domain.run import RunEvent, RunStatus
from agentloom_worker.domain.session import InputKind, OnBusy, Session
from agentloom_worker.domain.transport import Transport
from agentloom_worker.embedded import POLL_LONGEST_S, Dispatcher, RunSignal, RunWatch, make_dispatcher
from agentloom_worker.errors import Code, RequestError, TransientError
from agentloom_worker.ids import DispatchId, InputId, OperationId, ReleaseId, RunId, SessionId
from agentloom_worker.llm.adapters.scripted import Script
from agentloom_worker.runtime import reading
from agentloom_worker.runtime.accept import Sending, StopReceipt, accept_input, stop_run
from agentloom_worker.runtime.inputs import (
    InputReceipt,
    InputState,
    InputView,
    find_receipt,
    withdraw_input,
)
from agentloom_worker.runtime.inspect import (
    RunResult,
    RunSummary,
    SessionSummary,
    StepRow,
    list_sessions,
    list_steps,
    list_summaries,
    read_result,
    require_operation,
    require_run,
)
from agentloom_worker.runtime.named import (
    InputLike,
    ReleaseLike,
    RunLike,
    SessionLike,
    run_id_of,
    session_id_of,
    to_uuid,
)
from agentloom_worker.runtime.parking import fail_parked, retry_parked
from agentloom_worker.runtime.ports import Ports, Settings
from agentloom_worker.runtime.publish import ReleaseRef, publish_release
from agentloom_worker.runtime.queues import QueueState, list_queues
from agentloom_worker.runtime.reading import Materialized, SessionRound
from agentloom_worker.runtime.request import rebuild_request, served_model
from agentloom_worker.runtime.transport import read_transport
from agentloom_worker.settings import FleetSettings, load_settings

FILE_NAME = "agentloom.sqlite"
FILE_SUFFIXES = frozenset({".sqlite", ".sqlite3", ".db"})
EVENTS_PAGE = 500
TERMINAL_EVENTS = frozenset(f"run.{status.value}" for status in RunStatus if status.terminal)


def database_file(path: str | os.PathLike[str]) -> Path:
    """The SQLite file that a path means: the path itself if it is or is named like a file, else one inside."""
    found = Path(path).expanduser().absolute()
    if "?" in str(found):
        raise RequestError(Code.INPUT_INVALID, f"the path {found} holds a question mark: choose another")
    return found if found.is_file() or found.suffix in FILE_SUFFIXES else found / FILE_NAME


def database_url(path: str | os.PathLike[str]) -> str:
    """The database URL of an embedded store, for `connect` and for other processes."""
    return f"sqlite:///{database_file(path)}"


class Agentloom:
    """Made by `embedded`, `connect` or `fleet`. Safe for use by many threads; close it, or use it in a `with`.

    Every id may be given as UUID, as text, or as the receipt or session that holds it. Errors are
    AgentloomError with a stable code; RequestError says what to change, and then nothing was written.
    """

    def __init__(
        self,
        ports: Ports,
        dispatcher: Dispatcher | None,
        signal: RunSignal,
        hang_up: Callable[[], None] = lambda: None,
    ) -> None:
        self.ports = ports
        self._dispatcher = dispatcher
        self._signal = signal
        self._hang_up = hang_up
        self._closed = threading.Event()

    @classmethod
    def embedded(
        cls,
        path: str | os.PathLike[str],
        *,
        threads: int = limits.EMBEDDED_THREADS,
        settings: Settings | None = None,
        scripts: Mapping[str, Script] | None = None,
    ) -> Self:
        """Open or make a store in a folder, or in a file named *.sqlite, *.sqlite3 or *.db, and run its steps here.

        Runs that a killed process left go on. Several processes may open one store on one machine.
        """
        file = database_file(path)
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RequestError(Code.INPUT_INVALID, f"cannot make the folder {file.parent}: {error.strerror}") from error
        url = database_url(file)
        migrate_database(url)
        return cls.connect(url, run_workers=True, threads=threads, settings=settings, scripts=scripts)

    @classmethod
    def connect(
        cls,
        database_url: str,
        run_workers: bool = False,
        *,
        broker: str | None = None,
        redis: str | None = None,
        threads: int = limits.EMBEDDED_THREADS,
        settings: Settings | None = None,
        scripts: Mapping[str, Script] | None = None,
    ) -> Self:
        """Use a migrated database; with `run_workers` this process runs steps too, on so many threads.

        With `broker` a fleet does, as `fleet` says; `redis` belongs to it. Without either, whoever serves the
        database finds new work in the table. Raises RequestError(INPUT_INVALID, SCHEMA_BEHIND) and
        PersistenceUnavailableError, naming the remedy (CASES D16).
        """
        if broker is not None:
            if run_workers or settings is not None or scripts is not None:
                raise RequestError(Code.INPUT_INVALID, "steps are run by the fleet of the broker, not in this process")
            return cls.fleet(load_settings({"database": database_url, "broker": broker, "redis": redis}))
        if redis is not None:
            raise RequestError(
                Code.INPUT_INVALID, "the Redis of a fleet's leases goes with the fleet's broker: name it"
            )
        try:
            settings = None if settings is None else settings.spelt()
        except ValueError as error:
            raise RequestError(Code.INPUT_INVALID, str(error)) from None
        signal = RunSignal()
        if not run_workers:
            ports = make_ports(database_url, settings=settings, scripts=scripts)
            _check_schema(ports)
            return cls(ports, None, signal)
        dispatcher = make_dispatcher(
            database_url, settings=settings, threads=threads, scripts=scripts, on_event=signal.notify
        )
        _check_schema(dispatcher.ports)
        dispatcher.start()
        return cls(dispatcher.ports, dispatcher, signal)

    @classmethod
    def fleet(cls, settings: FleetSettings | None = None) -> Self:
        """Use a fleet: its database for everything, its broker for wake-ups, its Redis to push stops.

        The settings are the environment's unless given. Only the database has to answer: what the broker or
        Redis does not take, workers find in the table and at their next poll. Raises as `connect` does.
        """
        made = make_fleet_ports(settings or load_settings(), (), limits.EMBEDDED_THREADS)
        _check_schema(made.ports)

        return cls(made.ports, None, RunSignal(), made.publisher.close)

    @property
    def runs_steps(self) -> bool:
        """Whether this process runs steps, or leaves them to others."""
        return self._dispatcher is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, timeout_s: float | None = None) -> None:
        """Drain: end every effect of this process cooperatively, within `Settings.drain_s` or the given time.

        What is unfinished goes on in another process, or at the next start. Harmless when called again.
        """
        if self._closed.is_set():
            return
        self._closed.set()
        self._signal.wake()
        drained = self._dispatcher is None or self._dispatcher.drain(timeout_s)
        self.ports.adapters.close()
        self._hang_up()
        self.ports.fast.close()
        if drained:
            self.ports.store.close()
        else:
            # A slot is still inside a tool; its connection stays, so that what it brings back can be recorded.
            telemetry.log(logging.WARNING, "drain_timed_out")

    # -- asking --------------------------------------------------------------------------------------

    def publish(self, release: dict[str, object] | str | bytes | Path) -> ReleaseRef:
        """Check and store a release: a mapping, YAML or JSON text, or the path of a file (a Path, not a string).

        Raises ReleaseInvalidError with every problem. The same document again is the same release, and the
        newest one.
        """
        self._require_open()
        return publish_release(self.ports, read_release(release) if isinstance(release, Path) else release)

    def open_session(self, agent: ReleaseRef | str, *, on_busy: OnBusy | str = OnBusy.REJECT) -> Session:
        """Begin a conversation with an agent, by its id.

        `on_busy` says what becomes of a question while a run of the session lives: `reject` refuses it, `supplement`
        hands it to the run, `enqueue` lets it wait for the run's end, `interrupt` stops the run and comes next.
        Raises RequestError: AGENT_NOT_FOUND, INPUT_INVALID.
        """
        self._require_open()
        if on_busy not in list(OnBusy):
            raise RequestError(Code.INPUT_INVALID, f"on_busy is one of {', '.join(OnBusy)}, not {on_busy!r}")
        agent_id = agent.agent_id if isinstance(agent, ReleaseRef) else agent
        owner_id = self.ports.store.find_owner(agent_id)
        if owner_id is None:
            raise RequestError(Code.AGENT_NOT_FOUND, f"there is no agent {agent_id!r}: publish a release of it first")
        session_id = SessionId(self.ports.ids.new())
        self.ports.store.open_session(session_id, owner_id, OnBusy(on_busy))
        return Session(session_id, owner_id, agent_id, 0, on_busy=OnBusy(on_busy))

    def ask(
        self,
        session: SessionLike,
        text: str,
        release: ReleaseLike | None = None,
        idempotency_key: str | None = None,
    ) -> InputReceipt:
        """Make a question durable and start its run; without a release the agent's newest one answers.

        What waits for the session's next run goes with it. While another run lives, the session's `on_busy` decides;
        the receipt's `kind`, `state` and `run_id` say what became of it, and a queued question's run is None.

        Asking again with the same key returns the receipt of the same input, with where it is now: a caller that saw
        no answer repeats it. Without a key one is made, and a repetition is another question. Raises RequestError:
        SESSION_NOT_FOUND, SESSION_BUSY, RUN_STOPPING, SESSION_QUEUE_FULL, RELEASE_NOT_FOUND, RELEASE_AGENT_MISMATCH,
        IDEMPOTENCY_CONFLICT, INPUT_INVALID.
        """
        return self._accept(Sending.QUESTION, session, text, release, idempotency_key)

    def supplement(self, session: SessionLike, text: str, idempotency_key: str | None = None) -> InputReceipt:
        """Add words to what the session's run is doing: its next loop reads them.

        Without a run that can take them they wait for the next one, state `pending_next_run`; nothing starts by
        itself. Raises RequestError: SESSION_NOT_FOUND, SESSION_QUEUE_FULL, IDEMPOTENCY_CONFLICT, INPUT_INVALID.
        """
        return self._accept(Sending.SUPPLEMENT, session, text, None, idempotency_key)

    def send(
        self,
        session: SessionLike,
        text: str,
        release: ReleaseLike | None = None,
        idempotency_key: str | None = None,
    ) -> InputReceipt:
        """`supplement` where a run can take it, else `ask`; the receipt's `kind` says which. Raises as `ask` does."""
        return self._accept(Sending.SEND, session, text, release, idempotency_key)

    def withdraw(self, session: SessionLike, input: InputLike) -> InputReceipt:
        """Take a queued question back before it becomes a run; again changes nothing.

        Raises RequestError: SESSION_NOT_FOUND, INPUT_NOT_FOUND, INPUT_NOT_QUEUED.
        """
        self._require_open()
        named: UUID | str = input.input_id if isinstance(input, InputReceipt | InputView) else input
        return withdraw_input(self.ports, self._session(session), InputId(to_uuid(named, "input")))

    def _accept(
        self, sending: Sending, session: SessionLike, text: str, release: ReleaseLike | None, key: str | None
    ) -> InputReceipt:
        self._require_open()
        found = self._session(session)
        release_id = None
        if release is not None:
            chosen = release.release_id if isinstance(release, ReleaseRef) else to_uuid(release, "release")
            release_id = ReleaseId(chosen)
        key = str(self.ports.ids.new()) if key is None else key
        return accept_input(self.ports, found, sending, text, release_id, key)

    def receipt(self, session: SessionLike, idempotency_key: str) -> InputReceipt | None:
        """The receipt of what was sent under this key, with where it is now; None if nothing was."""
        self._require_open()
        return find_receipt(self.ports, self._session(session).session_id, idempotency_key)

    def stop(self, run: RunLike) -> StopReceipt:
        """Stop a run now. One that is stopping or over keeps its first cause, and `applied` is False."""
        self._require_open()
        return stop_run(self.ports, run_id_of(run))

    # -- following -----------------------------------------------------------------------------------

    def wait(self, run: RunLike, timeout_s: float) -> RunResult:
        """Wait until a run has ended. Raises RequestError(WAIT_TIMEOUT); the run goes on then.

        A database that is away for a while is waited for like the run.
        """
        run_id = run_id_of(run)
        until_s = self.ports.clock.monotonic_s() + timeout_s
        watch = RunWatch(self.ports, self._signal, self._closed, local=self._dispatcher is not None)
        while True:
            self._require_open()
            watch.look()
            status, trouble = "unknown", None
            try:
                current = require_run(self.ports, run_id)
                if current.status.terminal:
                    return read_result(self.ports, run_id)
                status = current.status.value
            except TransientError as error:
                trouble = error
            remaining_s = until_s - self.ports.clock.monotonic_s()
            if remaining_s <= 0:
                raise trouble or _timed_out(run_id, status, timeout_s)
            watch.wait(remaining_s)

    def events(
        self, run: RunLike, after: int = 0, follow: bool = True, *, timeout_s: float | None = None
    ) -> Iterator[RunEvent]:
        """A run's events with a `run_seq` above `after`, in order and without gaps.

        With `follow` it waits for more and ends after the run's terminal event; without, it ends with the
        newest one. To go on after a break, pass the last `run_seq`. `timeout_s` bounds the whole iteration:
        RequestError(WAIT_TIMEOUT).
        """
        self._require_open()
        run_id = run_id_of(run)
        require_run(self.ports, run_id)
        return self._events(run_id, after, follow=follow, timeout_s=timeout_s)

    def _events(self, run_id: RunId, after: int, *, follow: bool, timeout_s: float | None) -> Iterator[RunEvent]:
        clock = self.ports.clock
        until_s = None if timeout_s is None else clock.monotonic_s() + timeout_s
        watch = RunWatch(self.ports, self._signal, self._closed, local=self._dispatcher is not None)
        while True:
            self._require_open()
            watch.look()
            page = self.ports.store.list_events(run_id, after=after, limit=EVENTS_PAGE)
            for event in page:
                after = event.run_seq
                yield event
                if event.kind in TERMINAL_EVENTS:
                    return
            if len(page) == EVENTS_PAGE:
                continue
            if not follow:
                return
            current = require_run(self.ports, run_id)
            if current.status.terminal:
                if after >= current.event_head:
                    return
                continue
            remaining_s = POLL_LONGEST_S if until_s is None else until_s - clock.monotonic_s()
            if remaining_s <= 0:
                raise _timed_out(run_id, current.status.value, timeout_s or 0.0)
            watch.wait(remaining_s)

    # -- reading a session ---------------------------------------------------------------------------
    #
    # Each of these names its session, and a role: that of the agent's newest release unless it is given. A foreign
    # session, another role and an id that does not exist are refused by one error, CONTEXT_FORBIDDEN, which tells
    # nothing of either (seed 000, 12, row L25).

    def inputs(
        self, session: SessionLike, after: int = 0, *, limit: int = limits.INPUTS_PAGE, role: str | None = None
    ) -> tuple[InputView, ...]:
        """A page of what the user has sent in a session with an `input_seq` above `after`, in order, and where it is.

        To go on, pass the last `input_seq`; an empty page is the end. Raises RequestError: CONTEXT_FORBIDDEN,
        INPUT_INVALID.
        """
        authority = self._authority(session, role)
        _check_page(limit, limits.INPUTS_PAGE, "inputs")
        return reading.inputs(self.ports, authority, after_seq=after, limit=limit)

    def waiting(self, session: SessionLike, *, role: str | None = None) -> tuple[InputView, ...]:
        """What waits in a session: inputs for its next run (`pending_next_run`), and its queue (`queued`), in order.

        Raises RequestError(CONTEXT_FORBIDDEN).
        """
        return reading.waiting_inputs(self.ports, self._authority(session, role))

    def history(
        self, session: SessionLike, after: int = 0, *, limit: int = limits.HISTORY_RUNS_PAGE, role: str | None = None
    ) -> tuple[SessionRound, ...]:
        """A page of a session's ended runs with a `question_seq` above `after`: inputs, answer, how each ended.

        To go on, pass the last `question_seq`; an empty page is the end. Raises RequestError: CONTEXT_FORBIDDEN,
        INPUT_INVALID.
        """
        authority = self._authority(session, role)
        _check_page(limit, limits.HISTORY_RUNS_PAGE, "runs")
        return reading.history(self.ports, authority, after_seq=after, limit=limit)

    def context(self, session: SessionLike, operation: UUID | str, *, role: str | None = None) -> Materialized:
        """A model operation's request item by item: raw, effective and as sent, with tokens, source and reason.

        It holds texts whether or not the run has ended. Raises RequestError: CONTEXT_FORBIDDEN, OPERATION_NOT_FOUND
        (an operation of this role without a frozen request), InvariantError(REQUEST_HASH_MISMATCH).
        """
        operation_id = OperationId(to_uuid(operation, "operation"))
        return reading.materialize(self.ports, self._authority(session, role), operation_id)

    def _authority(self, session: SessionLike, role: str | None) -> ReadAuthority:
        self._require_open()
        return reading.authority_of(self.ports, session_id_of(session), role)

    # -- looking -------------------------------------------------------------------------------------

    def session(self, session: SessionLike) -> Session:
        """A session as it stands. Raises RequestError(SESSION_NOT_FOUND)."""
        self._require_open()
        return self._session(session)

    def sessions(self, *, limit: int = 50) -> tuple[SessionSummary, ...]:
        """Sessions of every agent, newest first, without their texts."""
        self._require_open()
        return list_sessions(self.ports, limit=limit)

    def run(self, run: RunLike) -> RunResult:
        """A run as it stands; its answer is None until it has succeeded. Raises RequestError(RUN_NOT_FOUND)."""
        self._require_open()
        return read_result(self.ports, run_id_of(run))

    def runs(
        self, *, limit: int = 50, live_only: bool = False, session: SessionLike | None = None
    ) -> tuple[RunSummary, ...]:
        """Runs, newest first, without their texts."""
        self._require_open()
        session_id = None if session is None else self._session(session).session_id
        return list_summaries(self.ports, limit=limit, live_only=live_only, session_id=session_id)

    def steps(self, run: RunLike) -> tuple[StepRow, ...]:
        """What a run did: each operation with its attempts, times and codes; no texts."""
        self._require_open()
        return list_steps(self.ports, run_id_of(run))

    def request(self, operation: UUID | str) -> bytes:
        """The request of a model operation, byte for byte as it was frozen, built again and its hash proven.

        For operators, who have the whole database: it asks for no session, and it holds texts whether or not the
        run has ended. What serves users calls `context`. Raises RequestError(OPERATION_NOT_FOUND),
        InvariantError(REQUEST_HASH_MISMATCH).
        """
        return rebuild_request(self.ports, self._operation(operation))

    def served_model(self, operation: UUID | str) -> str | None:
        """The model that the provider says answered a model operation, where the request names another one.

        A dated snapshot of an alias, mostly. None where it said the same name or none, and while there is no answer.
        Raises RequestError(OPERATION_NOT_FOUND).
        """
        found = self._operation(operation)
        return served_model(self.ports, require_run(self.ports, found.run_id), found)

    def received(self, operation: UUID | str, attempt: int | None = None) -> tuple[int, Transport]:
        """What an attempt of a model operation received, byte for byte and without its credential, and its number.

        Without a number the newest attempt that kept anything. An inspection command, as `request` is. Raises
        RequestError(OPERATION_NOT_FOUND, ATTEMPT_NOT_FOUND, TRANSPORT_NOT_KEPT).
        """
        self._require_open()
        return read_transport(self.ports, to_uuid(operation, "operation"), attempt)

    # -- operating -----------------------------------------------------------------------------------

    def dispatches(
        self, *, run: RunLike | None = None, parked_only: bool = False, limit: int = 1000
    ) -> tuple[DispatchRow, ...]:
        """Rows of work that is due, under way, waiting for its time, or parked; oldest first."""
        self._require_open()
        run_id = None if run is None else run_id_of(run)
        return tuple(self.ports.store.list_dispatches(run_id=run_id, parked_only=parked_only, limit=limit))

    def workers(self) -> tuple[WorkerProcess, ...]:
        """The processes that serve this database, oldest first; those that died are forgotten after a while."""
        self._require_open()
        return tuple(self.ports.store.list_workers())

    def queues(self) -> tuple[QueueState, ...]:
        """Every queue: what is due, waits, is claimed or parked, and who serves it."""
        self._require_open()
        return list_queues(self.ports)

    def retry_dispatch(self, dispatch: UUID | str) -> DispatchRow:
        """Let a parked step run again; returns the row as it was. Raises RequestError."""
        self._require_open()
        return retry_parked(self.ports, DispatchId(to_uuid(dispatch, "dispatch")))

    def fail_dispatch(self, dispatch: UUID | str) -> StopReceipt:
        """End the run of a parked step as failed, code STEP_FAILED_BY_OPERATOR. Raises RequestError."""
        self._require_open()
        return fail_parked(self.ports, DispatchId(to_uuid(dispatch, "dispatch")))

    def _operation(self, operation: UUID | str) -> Operation:
        self._require_open()
        return require_operation(self.ports, to_uuid(operation, "operation"))

    def _session(self, session: SessionLike) -> Session:
        session_id = session_id_of(session)
        found = self.ports.store.load_session(session_id)
        if found is None:
            raise RequestError(Code.SESSION_NOT_FOUND, f"there is no session {session_id}")
        return found

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise RequestError(Code.INPUT_INVALID, "this client is closed: open another one")


def read_release(path: Path) -> bytes:
    """A release document's bytes, bounded. Raises RequestError(INPUT_INVALID) for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            # One byte more than is allowed, so that the parser refuses it by its size.
            return file.read(limits.RELEASE_BYTES_MAX + 1)
    except OSError as error:
        raise RequestError(Code.INPUT_INVALID, f"cannot read {path}: {error.strerror}") from error


def _check_schema(ports: Ports) -> None:
    try:
        ports.store.check_schema()
    except BaseException:
        ports.store.close()
        raise


def _check_page(limit: int, most: int, noun: str) -> None:
    if not 1 <= limit <= most:
        raise RequestError(Code.INPUT_INVALID, f"a page has 1 to {most} {noun}, not {limit}")


def _timed_out(run_id: RunId, status: str, timeout_s: float) -> RequestError:
    return RequestError(
        Code.WAIT_TIMEOUT,
        f"run {run_id} is {status} after {timeout_s:g} s; it goes on: wait again, or `agentloom run --resume {run_id}`",
    )


__all__ = [
    "Agentloom",
    "DispatchRow",
    "FleetSettings",
    "InputKind",
    "InputReceipt",
    "InputState",
    "InputView",
    "Materialized",
    "OnBusy",
    "QueueState",
    "ReleaseRef",
    "RunEvent",
    "RunResult",
    "RunStatus",
    "RunSummary",
    "Session",
    "SessionRound",
    "SessionSummary",
    "Settings",
    "StepRow",
    "StopReceipt",
    "Transport",
    "WorkerProcess",
    "database_file",
    "database_url",
    "read_release",
]
