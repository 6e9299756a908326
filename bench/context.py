"""What a loop's prepare and freeze cost beside a session's history of any size, in a process that has read it and anew.

Each step is a row of its own here (no fusion), so that its figures are its own: claim, load, work, commit. The cases
take turns, loop by loop, so that whatever else the machine does falls on all of them alike.
"""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import event

from agentloom_worker.bootstrap import invoke_inline, make_ports
from agentloom_worker.domain.operation import OperationKind
from agentloom_worker.domain.recipe import Recipe
from agentloom_worker.ids import ClaimToken, DispatchId, ProcessId, RunId, SessionId
from agentloom_worker.llm.adapters.scripted import CallsTurn, ScriptedCall, ScriptedRequest, TextTurn
from agentloom_worker.runtime.accept import accept_question
from agentloom_worker.runtime.lease import Keeper
from agentloom_worker.runtime.ports import Ports, Settings
from agentloom_worker.runtime.publish import publish_release
from agentloom_worker.runtime.step import StepRunner
from bench import prefix
from bench.database import Database
from bench.workload import TEXT, release

_UNBOUNDED = 10**9
FUSED = Settings(inline_hops=_UNBOUNDED, inline_ms=_UNBOUNDED)
STEPWISE = Settings(fusion=False, inline_hops=0)
MEASURED = {"prepare_context": "prepare", "freeze_request": "freeze"}
# A run of n loops leaves its input, n messages of the model and n - 1 results.
_RECORDS_PER_LOOP = 2
_QUESTION = "Go on until you are done."


@dataclass(frozen=True, slots=True)
class Past:
    """What a session holds before the measured run: so many runs of so many loops, with texts of so many bytes."""

    name: str
    runs: int
    loops: int
    text_bytes: int = len(TEXT)

    @property
    def records(self) -> int:
        """Records in the contexts of all of its runs, without their prompts."""
        return self.runs * self.loops * _RECORDS_PER_LOOP


@dataclass(frozen=True, slots=True)
class ContextSize:
    """The cases, how often each is measured, and how long the runs of the prefix part are."""

    pasts: tuple[Past, ...]
    warm_loops: int
    cold_loops: int
    prefix_loops: int
    session_runs: int
    session_loops: int


FULL = ContextSize(
    (
        Past("10 records", 1, 5),
        Past("1,000 records, 2 recent runs", 2, 250),
        Past("10,000 records, 2 recent runs", 2, 2_500),
        Past("10,000 records, 1,000 runs", 1_000, 5),
        Past("100K tokens, 2 recent runs", 2, 7, 3_450),
    ),
    warm_loops=100,
    cold_loops=5,
    prefix_loops=50,
    session_runs=10,
    session_loops=5,
)
QUICK = ContextSize(
    (
        Past("10 records", 1, 5),
        Past("400 records, 2 recent runs", 2, 100),
        Past("400 records, 40 runs", 40, 5),
        Past("100K tokens, 2 recent runs", 2, 7, 3_450),
    ),
    warm_loops=30,
    cold_loops=3,
    prefix_loops=20,
    session_runs=5,
    session_loops=3,
)


@dataclass(slots=True)
class Counts:
    """What a process has asked of its database so far. `rows` are those that its reads were given."""

    reads: int = 0
    rows: int = 0
    writes: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of one step. CPU is that of this process."""

    cpu_ms: float
    wall_ms: float
    reads: int
    rows: int
    writes: int


@dataclass(slots=True)
class Script:
    """A model that calls the tool while `calls` are left, and then answers. For one thread."""

    calls: int = 0
    arguments: str = ""
    bodies: list[dict[str, Any]] | None = None

    def __call__(self, request: ScriptedRequest) -> CallsTurn | TextTurn:
        if self.bodies is not None:
            self.bodies.append(request.body)
        if not self.calls:
            return TextTurn("done")
        self.calls -= 1
        return CallsTurn((ScriptedCall("echo", self.arguments, f"call-{self.calls}"),))

    def begin(self, loops: int, text_bytes: int = len(TEXT)) -> None:
        """The next run has so many loops, with texts of so many bytes."""
        self.calls, self.arguments = loops - 1, f'{{"text":"{"x" * text_bytes}"}}'


class Station:
    """One process's ports and runner, used by one thread, and what it asks of the database."""

    def __init__(self, url: str, script: Script, settings: Settings) -> None:
        self.script = script
        self.ports = make_ports(
            url,
            pool_size=2,
            scripts={"main": script},
            settings=settings,
            tools=invoke_inline,
            publish=lambda _due: None,
        )
        self._process_id = ProcessId(self.ports.ids.new())
        self._runner = StepRunner(self.ports, self._process_id, Keeper(self.ports))
        self.counts = Counts()
        _count(self.ports, self.counts)

    def connect(self) -> None:
        """Open its connections, which a process does once, whatever it runs."""
        store, nobody = self.ports.store, self.ports.ids.new()
        store.load_run(RunId(nobody))
        token = ClaimToken(self.ports.ids.token())
        store.claim(DispatchId(nobody), token, self._process_id, ttl_us=1, grace_us=1, solitary=False)

    def next_row(self, run_id: RunId) -> tuple[DispatchId, str] | None:
        """The run's next row and its step; None when it has ended."""
        rows = self.ports.store.list_dispatches(run_id=run_id)
        return next(((row.dispatch_id, row.step) for row in rows if row.step not in ("expire_run", "clean_up")), None)

    def run(self, dispatch_id: DispatchId) -> None:
        """Run one row. Raises RuntimeError where it was not to be had."""
        if not self._runner.run(dispatch_id):
            raise RuntimeError(f"row {dispatch_id} is held by another process")

    def measure(self, dispatch_id: DispatchId) -> Sample:
        """Run one row and say what it cost."""
        before, cpu_s, wall_s = Counts(**asdict(self.counts)), time.process_time(), time.perf_counter()
        self.run(dispatch_id)
        cpu_ms, wall_ms = (time.process_time() - cpu_s) * 1000, (time.perf_counter() - wall_s) * 1000
        after = self.counts
        return Sample(
            cpu_ms, wall_ms, after.reads - before.reads, after.rows - before.rows, after.writes - before.writes
        )

    def ask(self, session_id: SessionId) -> RunId:
        """A question in a session without a live run."""
        session = self.ports.store.load_session(session_id)
        assert session is not None, "the session was opened"
        run_id = accept_question(self.ports, session, _QUESTION, None, str(self.ports.ids.new())).run_id
        assert run_id is not None, "nothing else runs in the session"
        return run_id

    def finish(self, run_id: RunId) -> None:
        """Run every row of the run."""
        while (row := self.next_row(run_id)) is not None:
            self.run(row[0])

    def close(self) -> None:
        """Close its connections."""
        self.ports.store.close()


def open_session(ports: Ports, document: dict[str, Any]) -> SessionId:
    """Publish a release and open a session of its agent."""
    owner_id = ports.store.find_owner(publish_release(ports, document).agent_id)
    assert owner_id is not None, "the release has an owner"
    session_id = SessionId(ports.ids.new())
    ports.store.open_session(session_id, owner_id)
    return session_id


@dataclass(slots=True)
class _Measured:
    """A case with its live run, and its samples by part and step."""

    past: Past
    run_id: RunId
    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)

    def note(self, part: str, step: str, sample: Sample) -> None:
        self.samples.setdefault(part, {}).setdefault(MEASURED[step], []).append(sample)


def measure(database: Database, size: ContextSize, say: Callable[[str], None]) -> dict[str, object]:
    """The cost of prepare and freeze in each case, then what requests repeat of earlier ones."""
    url = database.fresh()
    with ExitStack() as stack:
        builder = Station(url, Script(), FUSED)
        stack.callback(builder.close)
        cases = []
        for past in size.pasts:
            say(f"context, {database.name}, {past.name}")
            session_id = open_session(builder.ports, release("script:main"))
            for _ in range(past.runs):
                builder.script.begin(past.loops, past.text_bytes)
                builder.finish(builder.ask(session_id))
            cases.append(_Measured(past, builder.ask(session_id)))
        say(f"context, {database.name}, loops")
        script = Script()
        script.begin(_UNBOUNDED)
        warm = Station(url, script, STEPWISE)
        stack.callback(warm.close)
        warm.connect()
        _measure_loops(url, warm, cases, size)
        tokens = [_tokens(warm.ports, case.run_id) for case in cases]
        say(f"context, {database.name}, prefix")
        return {
            "database": database.name,
            "warm_loops": size.warm_loops,
            "cold_loops": size.cold_loops,
            "cases": [_describe(case, count) for case, count in zip(cases, tokens, strict=True)],
            "prefix": _measure_prefix(builder, size),
        }


def _measure_loops(url: str, warm: Station, cases: Sequence[_Measured], size: ContextSize) -> None:
    """The first loop, those of a process that goes on, and those of processes that have just begun, case by case."""
    parts = ["first", *["warm"] * size.warm_loops, *["cold"] * size.cold_loops]
    gc.collect()
    for part in parts:
        for case in cases:
            # Up to and with the freeze, then what is left of the loop.
            while (row := warm.next_row(case.run_id)) is not None:
                dispatch_id, step = row
                if step not in MEASURED:
                    warm.run(dispatch_id)
                    continue
                sample = _measure_anew(url, dispatch_id) if part == "cold" else warm.measure(dispatch_id)
                case.note(part, step, sample)
                if step == "freeze_request":
                    break


def _measure_anew(url: str, dispatch_id: DispatchId) -> Sample:
    """Run a row in ports that have nothing in their caches, as a process does that has just begun."""
    station = Station(url, Script(), STEPWISE)
    try:
        station.connect()
        return station.measure(dispatch_id)
    finally:
        station.close()


def _measure_prefix(builder: Station, size: ContextSize) -> dict[str, object]:
    """One long run, and a session of several runs, with a system prompt of an ordinary size."""
    document = release("script:main")
    document["agent"] |= {"id": "prefix", "prompt": prefix.PROMPT}
    script = builder.script
    script.bodies = []

    def requests(runs: int, loops: int) -> list[list[prefix.Segments]]:
        session_id, found = open_session(builder.ports, document), []
        for _ in range(runs):
            script.bodies = []
            script.begin(loops)
            builder.finish(builder.ask(session_id))
            found.append(prefix.segments_of(script.bodies))
        script.bodies = None
        return found

    (one,) = requests(1, size.prefix_loops)
    several = requests(size.session_runs, size.session_loops)
    return {"run": prefix.summary([one]), "session": prefix.summary(several)}


def _tokens(ports: Ports, run_id: RunId) -> int:
    """The estimate of the run's newest request."""
    operations = [one for one in ports.store.list_operations(run_id) if one.kind is OperationKind.MODEL and one.request]
    newest = max(operations, key=lambda one: one.loop_no)
    return Recipe.from_bytes(newest.request or b"").tokens


def _describe(case: _Measured, tokens: int) -> dict[str, object]:
    parts = {part: {step: _summary(samples) for step, samples in steps.items()} for part, steps in case.samples.items()}
    return {"name": case.past.name, "records": case.past.records, "runs": case.past.runs, "tokens": tokens, **parts}


def _summary(samples: Sequence[Sample]) -> dict[str, float]:
    """Medians: a collection of garbage or another program falls on some of them only."""
    return {
        "samples": len(samples),
        "cpu_ms": statistics.median(sample.cpu_ms for sample in samples),
        "wall_ms": statistics.median(sample.wall_ms for sample in samples),
        "reads": statistics.median(sample.reads for sample in samples),
        "rows": statistics.median(sample.rows for sample in samples),
        "writes": statistics.median(sample.writes for sample in samples),
    }


def _count(ports: Ports, counts: Counts) -> None:
    """Count what these ports send. Rows: PostgreSQL says how many it gives, SQLite hands over each."""
    driver = ports.store.driver
    apply, returning = driver.apply, driver.returning

    def note(_conn: Any, cursor: Any, _statement: str, _parameters: Any, _context: Any, _many: bool) -> None:
        counts.reads += 1
        counts.rows += max(0, cursor.rowcount)

    def note_row(_cursor: Any, row: Any) -> Any:
        counts.rows += 1
        return row

    def count_rows(connection: Any, _record: Any) -> None:
        if driver.dialect == "sqlite":
            connection.row_factory = note_row

    def counted_apply(statements: Sequence[Any]) -> Any:
        counts.writes += len(statements)
        return apply(statements)

    def counted_returning(statement: Any) -> Any:
        counts.writes += 1
        return returning(statement)

    event.listen(driver.engine, "after_cursor_execute", note)
    event.listen(driver.engine, "connect", count_rows)
    driver.apply, driver.returning = counted_apply, counted_returning  # type: ignore[method-assign]
