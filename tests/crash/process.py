"""One life: a process that opens the store, drives the run to rest, and may be struck on the way.

Everything here runs in a forked child, after the fork: connections, clocks and ports are its own. Only the
compiled queries of an engine without connections are its parent's.
"""

import logging
import os
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg2
import psycopg2.extensions
import sqlalchemy as sa

from agentloom_worker import faults
from agentloom_worker.bootstrap import make_ports
from agentloom_worker.canonical import sha256_hex
from agentloom_worker.clock import US, ManualClock
from agentloom_worker.domain.dispatch import Claim
from agentloom_worker.domain.operation import OperationKind
from agentloom_worker.domain.session import OnBusy
from agentloom_worker.ids import DispatchId, ProcessId, RunId, SessionId
from agentloom_worker.llm.adapters.scripted import ScriptedRequest, ScriptedTurn
from agentloom_worker.runtime.accept import Sending, accept_input, accept_question, stop_run
from agentloom_worker.runtime.ports import Ports, Settings
from agentloom_worker.runtime.publish import publish_release
from agentloom_worker.runtime.step import StepRunner
from agentloom_worker.runtime.table import STEPS, EffectStep
from agentloom_worker.storage.schema import metadata
from agentloom_worker.storage.store import Store
from tests.crash.case import Case, Hit, Outcome, Setup, Strike, Work
from tests.crash.scenarios import SCENARIOS, Mischief, Scenario, View
from tests.crash.sight import see_outcome
from tests.crash.tools import Ledger, open_ledger
from tests.crash.verdict import audit_findings
from tests.crash.wire import Endpoint
from tests.simulator import Worker, make_worker

START_US = 1_800_000_000 * US
OPERATOR_VISITS_MAX = 3
SESSION = SessionId(UUID("01900000-0000-7000-8000-000000000005"))
QUESTION = "What is the answer?"

_engines: dict[str, sa.Engine] = {}


class InjectedError(Exception):
    """What a strike or a mischief raises; no part of the runtime knows it."""


@dataclass(frozen=True)
class Stead:
    """The files of a case, which outlive its processes."""

    directory: Path

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.directory / "case.sqlite"

    @property
    def ledger(self) -> Ledger:
        """Effects, arrivals and mischief."""
        return Ledger(self.directory / "ledger")

    @property
    def last_words(self) -> Path:
        """The instant at which a process was struck."""
        return self.directory / "last_words"

    @property
    def report(self) -> Path:
        """The outcome of the last life."""
        return self.directory / "report"

    @property
    def operator(self) -> Path:
        """There since an operator stepped in."""
        return self.directory / "operator"


class _Slots:
    """Both kinds of slots that a fleet has: ordinary ones, and the solitary process (RULINGS T8)."""

    def __init__(self, ordinary: StepRunner, solitary: StepRunner) -> None:
        self._ordinary = ordinary
        self._solitary = solitary

    def run(self, dispatch_id: DispatchId) -> bool:
        """Claim and run; what the ordinary slots may not have is the solitary one's."""
        return self._ordinary.run(dispatch_id) or self._solitary.run(dispatch_id)


class Trigger:
    """Counts the hits of a process, remembers what it held, and strikes."""

    def __init__(
        self, worker: Worker, stead: Stead, scenario: Scenario, strike: Strike | None, endpoint: Endpoint
    ) -> None:
        self._worker = worker
        self._endpoint = endpoint
        self._stead = stead
        self._scenario = scenario
        self._strike = strike
        self._counts: Counter[tuple[str, str]] = Counter()
        self._claim: Claim | None = None
        self.hits: list[tuple[str, str, int, Claim | None]] = []
        self.struck = False

    def __call__(self, point: str, detail: str) -> None:
        self._counts[point, detail] += 1
        nth = self._counts[point, detail]
        if point == "step.loaded":
            (live,) = self._worker.keeper.held()
            self._claim = live.claim
        self.hits.append((point, detail, nth, self._claim))
        strike = self._strike
        if strike is not None and (strike.point, strike.detail, strike.nth) == (point, detail, nth):
            self.struck = True
            if strike.raises:
                raise InjectedError(f"{point} {detail}")
            self._stead.last_words.write_text(str(self._worker.clock.database_now_us()))
            os.kill(os.getpid(), signal.SIGKILL)
        if point == "first_output.saved":
            self._endpoint.first_output_saved()
        if point == "tail.raise" and self._scenario.mischief is not None:
            self._misbehave(detail, self._scenario.mischief)

    def _misbehave(self, step: str, mischief: Mischief) -> None:
        effect = self._claim is not None and isinstance(STEPS[self._claim.step], EffectStep)
        before = self._stead.ledger.count("mischief", step)
        if mischief(step, effect, before, self._stead.operator.exists()):
            self._stead.ledger.note("mischief", step)
            raise InjectedError(f"tail.raise {step}")


class Script:
    """The scripted model: answers by the scenario, notes each arrival, and can stop the run as a client would."""

    def __init__(self, scenario: Scenario, stead: Stead) -> None:
        self._scenario = scenario
        self._ledger = stead.ledger
        self.worker: Worker | None = None
        self.run_id: RunId | None = None

    def __call__(self, request: ScriptedRequest) -> ScriptedTurn:
        return self.answer(request.body["messages"], request.call.body.join())

    def answer(self, messages: Sequence[dict[str, Any]], body: bytes) -> ScriptedTurn:
        """The turn for a request, whichever way it came."""
        digest = hash_of(body)
        view = View(messages, 1 + self._ledger.count("bytes", digest), *self._place())
        self._ledger.note("bytes", digest)
        self._ledger.note("arrival", view.run_no, view.loop_no)
        return self._scenario.answer(view, self)

    def _place(self) -> tuple[int, int | None]:
        """The run and the loop that ask, where the session has several runs."""
        if self._scenario.on_busy is None:
            return 1, None
        store = self._store()
        run = store.find_live_run(self._session_id())
        assert run is not None
        rows = store.load_slice(run.run_id)
        assert rows is not None
        return run.run_no, rows.node.continuation.loop_no

    def _store(self) -> Store:
        assert self.worker is not None
        return self.worker.ports.store

    def _session_id(self) -> SessionId:
        assert self.run_id is not None
        first = self._store().load_run(self.run_id)
        assert first is not None
        return first.session_id

    def say(self, sending: Sending, text: str) -> None:
        """As a client would, and then this process hears of a stop, as its keeper would within 500 ms."""
        assert self.worker is not None
        client = make_ports(self._store().url, clock=self.worker.clock, pool_size=2)
        session = client.store.load_session(self._session_id())
        assert session is not None
        accept_input(client, session, sending, text, None, text)
        client.store.close()
        self.worker.keeper.poll_control()

    def stop(self) -> None:
        """Over a store of its own; then this process hears of it, as its keeper would within 500 ms."""
        assert self.worker is not None and self.run_id is not None
        client = make_ports(self.worker.ports.store.url, clock=self.worker.clock, pool_size=2)
        stop_run(client, self.run_id)
        client.store.close()
        self.worker.keeper.poll_control()


def hash_of(body: bytes) -> str:
    """A short name of a request's bytes."""
    return sha256_hex(body)[:16]


def seed(ports: Ports, setup: Setup) -> None:
    """A database as it is when the question has been accepted and nobody has begun; empty where a life asks it."""
    if not SCENARIOS[setup.scenario].asks:
        ask(ports, setup)


def ask(ports: Ports, setup: Setup) -> None:
    """The client: what it has done before is done once more and changes nothing."""
    publish_release(ports, SCENARIOS[setup.scenario].document(setup.model_unknown, setup.protocol, setup.profile))
    session = ports.store.load_session(SESSION)
    if session is None:
        owner = ports.store.find_owner("assistant")
        assert owner is not None
        ports.store.open_session(SESSION, owner, SCENARIOS[setup.scenario].on_busy or OnBusy.REJECT)
        session = ports.store.load_session(SESSION)
    assert session is not None
    accept_question(ports, session, QUESTION, None, "question")


def reset_postgres(url: str, rows: Path) -> bool:
    """Empty the database, and put the rows of a seed there if they were kept; True if so.

    Deleting the few rows of a case is much cheaper than TRUNCATE or a new database.
    """
    kept = rows.read_bytes() if rows.exists() else b""
    text = ";".join(f'DELETE FROM "{table.name}"' for table in reversed(metadata.sorted_tables))
    with closing(_connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(text.encode() + b";" + kept)
    return bool(kept)


def keep_rows(url: str, rows: Path) -> None:
    """Write down every row of the database as INSERTs, parents first."""
    with closing(_connect(url)) as connection, connection.cursor() as cursor:
        kept = []
        for table in metadata.sorted_tables:
            names = ", ".join(column.name for column in table.columns)
            cursor.execute(f'SELECT {names} FROM "{table.name}"')
            for row in cursor.fetchall():
                marks = ", ".join(["%s"] * len(row))
                kept.append(cursor.mogrify(f'INSERT INTO "{table.name}" ({names}) VALUES ({marks})', row))
    making = rows.with_suffix(".making")
    making.write_bytes(b";".join(kept))
    making.rename(rows)


def _connect(url: str) -> psycopg2.extensions.connection:
    connection = psycopg2.connect(sa.engine.make_url(url).set(drivername="postgresql").render_as_string(False))
    connection.autocommit = True
    return connection


def live(case: Case, life: int, stead: Stead) -> Outcome:
    """Drive the run to rest, or die on the way. The returned outcome is the last life's."""
    last = stead.last_words
    start_us = int(last.read_text()) + case.pause_s * US if last.exists() else START_US
    scenario = SCENARIOS[case.setup.scenario]
    script = Script(scenario, stead)
    worker = _open(case, ManualClock(start_us), stead, script)
    if life == 0 and case.database is not None:
        rows = stead.directory.parent / f"{case.setup.seed}.rows"
        if not reset_postgres(case.database, rows):
            seed(worker.ports, case.setup)
            keep_rows(case.database, rows)
    errors = _listen()
    open_ledger(stead.ledger)
    script.worker = worker
    strike = case.strikes[life] if life < len(case.strikes) else None
    endpoint = Endpoint(script.answer)
    if case.setup.protocol != "scripted":
        endpoint.start()
    trigger = Trigger(worker, stead, scenario, strike, endpoint)
    faults.install(trigger)
    if scenario.asks:
        ask(worker.ports, case.setup)
    script.run_id = _run_ids(worker.ports)[0]
    _drive(worker, stead, case.operator or scenario.parks)
    faults.install(None)
    if strike is not None and not trigger.struck:
        raise AssertionError(f"life {life} never came to {strike}")
    run_ids = _run_ids(worker.ports)
    tape = _tape(worker.ports, run_ids, trigger)
    outcome = see_outcome(worker.ports, run_ids, stead.ledger, tape, findings=audit_findings(worker.ports))
    worker.close()
    return replace(outcome, errors=tuple(errors))


def _run_ids(ports: Ports) -> list[RunId]:
    """The runs of the one session, in the order of their creation."""
    return [run.run_id for run in sorted(ports.store.list_runs(), key=lambda run: run.run_no)]


class _Errors(logging.Handler):
    """Keeps what steps logged as errors, for a case that breaks its promise."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", {})
        self.lines.append(f"{record.getMessage()} {fields.get('step')}: {fields.get('error')}")


def _listen() -> list[str]:
    handler = _Errors()
    logging.getLogger("agentloom").handlers[:] = [handler]
    return handler.lines


def warm_up(case: Case, stead: Stead) -> None:
    """Live once in this process, so that the children find every query compiled; no connection stays open."""
    live(replace(case, strikes=()), 0, stead)


def _warm_engine(worker: Worker) -> None:
    """Give the store an engine that has compiled its queries before; its pool is empty at every fork."""
    store = worker.ports.store
    store.driver.engine = _engines.setdefault(store.url, store.driver.engine)


def _open(case: Case, clock: ManualClock, stead: Stead, script: Script) -> Worker:
    url = case.database or f"sqlite:///{stead.database}"
    setup = case.setup
    settings = Settings(fusion=setup.fusion, inline_hops=Settings().inline_hops if setup.inline else 0)
    worker = make_worker(url, clock=clock, scripts={"main": script}, settings=settings, solitary=False)
    lone = StepRunner(worker.ports, ProcessId(worker.ports.ids.new()), worker.keeper, solitary=True)
    _warm_engine(worker)
    worker.runner = _Slots(worker.runner, lone)  # type: ignore[assignment]
    return worker


def _drive(worker: Worker, stead: Stead, operator: bool) -> None:
    """To rest; an operator looks at parked rows and lets them be tried again."""
    store = worker.ports.store
    for _ in range(OPERATOR_VISITS_MAX):
        worker.drive(until=lambda: operator and bool(store.list_dispatches(parked_only=True)))
        parked = store.list_dispatches(parked_only=True)
        if not (operator and parked):
            return
        for row in parked:
            stead.ledger.note("parked", row.step, (row.last_error or "").partition(" [")[0])
            assert store.retry_dispatch(row, STEPS[row.step].queue.value)
        stead.operator.touch()
    raise AssertionError("rows park again and again")


def _tape(ports: Ports, run_ids: list[RunId], trigger: Trigger) -> tuple[Hit, ...]:
    """Each hit with what was claimed at that moment: the row held, or the successor that its commit claimed."""
    kinds: dict[UUID, tuple[OperationKind, int, int | None, int]] = {
        operation.operation_id: (operation.kind, operation.loop_no, operation.ordinal, run_no)
        for run_no, run_id in enumerate(run_ids, 1)
        for operation in ports.store.list_operations(run_id)
    }

    def work_of(claim: Claim | None) -> Work | None:
        if claim is None:
            return None
        if not isinstance(STEPS[claim.step], EffectStep):
            return Work(claim.step, "pure", first=claim.first)
        kind, loop_no, ordinal, run_no = kinds[claim.subject_id]
        number = int(claim.key.partition(":")[2])
        return Work(claim.step, kind.value, loop_no, ordinal, number, claim.first, run_no)

    tape: list[Hit] = []
    for index, (point, detail, nth, claim) in enumerate(trigger.hits):
        held, successor = claim, None
        if point == "claim.after":
            held = next((later[3] for later in trigger.hits[index + 1 :] if later[0] == "step.loaded"), None)
        if point in ("commit.after", "publish.after"):
            after = (later for later in trigger.hits[index + 1 :] if later[0] in ("claim.after", "step.loaded"))
            later = next(after, None)
            successor = later[3] if later is not None and later[0] == "step.loaded" else None
        tape.append(Hit(point, detail, nth, work_of(held), work_of(successor)))
    return tuple(tape)
