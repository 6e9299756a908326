"""What the acceptance tests share: asking over the real runtime, and looking at what it left in the database.

Waits are bounded and look at rows; nothing here asserts how long anything took.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker import faults
from agentloom_worker.bootstrap import make_ports
from agentloom_worker.clock import SystemClock
from agentloom_worker.devmodel import DevModel, parse_script
from agentloom_worker.domain.dispatch import DispatchRow
from agentloom_worker.domain.operation import Attempt, Operation, OperationKind
from agentloom_worker.domain.run import Run
from agentloom_worker.domain.session import OnBusy
from agentloom_worker.embedded import Dispatcher, make_dispatcher
from agentloom_worker.ids import RunId, SessionId
from agentloom_worker.runtime.accept import accept_question
from agentloom_worker.runtime.ports import Ports, Settings
from agentloom_worker.runtime.publish import publish_release
from agentloom_worker.runtime.request import rebuild_request
from agentloom_worker.runtime.slice import load_owned_release, load_response
from tests.factories import release_document, run_of_receipt
from tests.simulator import Worker, make_worker

WAIT_S = 60.0
POLL_S = 0.02
CLOCK = SystemClock()

# Claims that pass on within a second or two, so that a takeover can be waited for.
FAST = Settings(
    claim_ttl_s=1.0, claim_renew_s=0.2, suspect_grace_s=0.3, sweep_tick_s=0.1, control_poll_s=0.05, drain_s=10.0
)
# Every step is a row of its own, and none is claimed before somebody comes for it.
ONE_BY_ONE = Settings(fusion=False, inline_hops=0)
FUSED = Settings()


class SimulatedCrashError(BaseException):
    """Ends a simulated worker on the spot: no handler of the runtime takes a BaseException."""


def wait_for(holds: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Look again and again until it holds; an AssertionError that says `what` after the bound."""
    until_s = CLOCK.monotonic_s() + timeout_s
    pause = threading.Event()
    while not holds():
        assert CLOCK.monotonic_s() < until_s, f"waited {timeout_s} s in vain until {what}"
        pause.wait(POLL_S)


def dev_model(*turns: dict[str, Any], **options: Any) -> DevModel:
    """A provider that answers by these turns; to be used in a `with`."""
    return DevModel(parse_script({"schema_version": 1, "turns": list(turns), **options}))


def ask(
    ports: Ports,
    document: dict[str, Any],
    text: str = "What now?",
    *,
    session_of: RunId | None = None,
    on_busy: OnBusy = OnBusy.REJECT,
) -> RunId:
    """Publish a release and ask, in the session of an earlier run or in a new one; nothing has run yet."""
    agent_id = publish_release(ports, document).agent_id
    owner = ports.store.find_owner(agent_id)
    assert owner is not None
    if session_of is not None:
        session_id = run_of(ports, session_of).session_id
    else:
        session_id = SessionId(ports.ids.new())
        ports.store.open_session(session_id, owner, on_busy)
    session = ports.store.load_session(session_id)
    assert session is not None
    return run_of_receipt(accept_question(ports, session, text, None, str(ports.ids.new())))


def http_release(model: DevModel, tools: dict[str, Any] | None = None, **overrides: Any) -> dict[str, Any]:
    """A release whose model is the dev-model, over HTTP."""
    return release_document(base_url=model.base_url, tools=tools, **overrides)


def run_of(ports: Ports, run_id: RunId) -> Run:
    """The run as it stands."""
    found = ports.store.load_run(run_id)
    assert found is not None
    return found


def over(ports: Ports, *run_ids: RunId) -> Callable[[], bool]:
    """Whether these runs have ended."""
    return lambda: all(run_of(ports, run_id).status.terminal for run_id in run_ids)


def operations(ports: Ports, run_id: RunId, kind: OperationKind | None = None) -> list[Operation]:
    """The run's operations in order, perhaps of one kind only."""
    return [one for one in ports.store.list_operations(run_id) if kind in (None, one.kind)]


def model_operations(ports: Ports, run_id: RunId) -> list[Operation]:
    """The model operations by loop."""
    return sorted(operations(ports, run_id, OperationKind.MODEL), key=lambda one: one.loop_no)


def attempts(ports: Ports, run_id: RunId, kind: OperationKind = OperationKind.MODEL) -> list[Attempt]:
    """Every attempt of the run's operations of a kind, in order."""
    return ports.store.list_attempts([one.operation_id for one in operations(ports, run_id, kind)])


def answer(ports: Ports, run_id: RunId) -> str:
    """The text with which the run ended."""
    run = run_of(ports, run_id)
    assert run.answer_operation_id is not None, f"no answer: {run.status}, {run.end_code}, {run.end_detail}"
    operation = ports.store.load_operation(run.answer_operation_id)
    assert operation is not None
    return load_response(ports, run, operation).text


def events(ports: Ports, run_id: RunId) -> list[str]:
    """The kinds of the run's events; asserts that their numbers have no gap."""
    found = ports.store.list_events(run_id)
    assert [event.run_seq for event in found] == list(range(1, len(found) + 1))
    return [event.kind for event in found]


def rows(ports: Ports, run_id: RunId, step: str | None = None) -> list[DispatchRow]:
    """The run's rows in the table of dispatches."""
    return [row for row in ports.store.list_dispatches(run_id=run_id) if step in (None, row.step)]


def query(ports: Ports, statement: str, **values: Any) -> list[Any]:
    """Rows of a plain read; ids are given as UUIDs."""
    bound = sa.text(statement).bindparams(
        *(sa.bindparam(name, type_=sa.Uuid) for name, value in values.items() if isinstance(value, UUID))
    )
    with ports.store.read() as conn:
        return list(conn.execute(bound, values))


def execute(ports: Ports, statement: str, **values: Any) -> int:
    """Write behind the runtime's back; how many rows it met."""
    bound = sa.text(statement).bindparams(
        *(sa.bindparam(name, type_=sa.Uuid) for name, value in values.items() if isinstance(value, UUID))
    )
    with ports.store.driver.engine.connect() as conn:
        return conn.execute(bound, values).rowcount


def kinds(ports: Ports, run_id: RunId) -> list[str]:
    """What the records of the run's context are, in order; asserts that their numbers have no gap."""
    found = query(
        ports,
        "SELECT context_seq, message_kind FROM context_record WHERE run_id = :run ORDER BY context_seq",
        run=run_id,
    )
    assert [row[0] for row in found] == list(range(1, len(found) + 1))
    return [row[1] for row in found]


def frozen_bodies(ports: Ports, run_id: RunId) -> list[bytes]:
    """Every request that the run ever froze, built again from its recipe (which proves its hash), by loop."""
    frozen = [one for one in model_operations(ports, run_id) if one.request_hash is not None]
    return [rebuild_request(ports, one) for one in frozen]


def frozen_requests(ports: Ports, run_id: RunId) -> list[dict[str, Any]]:
    """The same, read as JSON."""
    return [json.loads(body) for body in frozen_bodies(ports, run_id)]


def tool_texts(request: dict[str, Any]) -> list[str]:
    """The contents of a request's tool messages."""
    return [message["content"] for message in request["messages"] if message["role"] == "tool"]


def assert_paired(request: dict[str, Any]) -> None:
    """Each call has exactly one result, right after its message and in its order; no result without a call."""
    messages = request["messages"]
    position = 0
    while position < len(messages):
        message = messages[position]
        assert message["role"] != "tool", f"message {position} is a result without a call"
        wanted = [call["id"] for call in message.get("tool_calls") or ()]
        results = messages[position + 1 : position + 1 + len(wanted)]
        assert [result["role"] for result in results] == ["tool"] * len(wanted)
        assert [result["tool_call_id"] for result in results] == wanted
        position += 1 + len(wanted)


def owner_of(ports: Ports, run_id: RunId) -> UUID:
    """Whose bodies the run's payloads are."""
    return load_owned_release(ports, run_of(ports, run_id).release_id).owner_id


@contextmanager
def simulated(
    url: str, *, scripts: Mapping[str, Any] | None = None, settings: Settings = FUSED, **options: Any
) -> Iterator[Worker]:
    """A worker of the simulator that is closed in the end, whatever became of it."""
    worker = make_worker(url, scripts=dict(scripts or {}), settings=settings, **options)
    try:
        yield worker
    finally:
        worker.close()


@contextmanager
def platform(url: str) -> Iterator[Ports]:
    """Ports of a process that asks and looks and runs nothing, on the real clock."""
    ports = make_ports(url)
    with closing(ports.store):
        yield ports


@contextmanager
def dispatching(url: str, *, settings: Settings = FAST, threads: int = 4, **options: Any) -> Iterator[Dispatcher]:
    """A running dispatcher of this process; it is drained and closed in the end."""
    dispatcher = make_dispatcher(url, settings=settings, threads=threads, **options)
    with closing(dispatcher.ports.store):
        dispatcher.start()
        try:
            yield dispatcher
        finally:
            dispatcher.drain(timeout_s=10)


@contextmanager
def at_fault(point: str, step: str, act: Callable[[], None], *, times: int = 1) -> Iterator[list[str]]:
    """Act at the first `times` hits of a fault point of a step; the list that comes holds what was hit."""
    hits: list[str] = []
    lock = threading.Lock()

    def trigger(found: str, detail: str) -> None:
        if (found, detail) != (point, step):
            return
        with lock:
            acts = len(hits) < times
            hits.append(f"{found} {detail}")
        if acts:
            act()

    faults.install(trigger)
    try:
        yield hits
    finally:
        faults.install(None)


def crash() -> None:
    """What `at_fault` does to end a simulated worker."""
    raise SimulatedCrashError


def crash_at(worker: Worker, point: str, step: str) -> None:
    """Drive a worker into its end at a fault point of a step; the database stays as it then is."""
    with at_fault(point, step, crash) as hits:
        try:
            worker.drive()
        except SimulatedCrashError:
            return
    raise AssertionError(f"nobody came to {point} of {step}: {hits}")
