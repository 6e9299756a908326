"""One process of the fleet, without what brings its wake-ups."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agentloom_worker import telemetry
from agentloom_worker.bootstrap import FleetPorts, make_ports, migrate_database
from agentloom_worker.capabilities.threads import ToolThreads
from agentloom_worker.clock import ManualClock
from agentloom_worker.domain.dispatch import WakeUp
from agentloom_worker.errors import PersistenceUnavailableError, PersistenceUnreachableError, RequestError
from agentloom_worker.fleet import FleetProcess, begin_when_reachable
from agentloom_worker.ids import DispatchId, ProcessId, RunId
from agentloom_worker.limits import START_LOOK_S
from agentloom_worker.llm.adapters.scripted import ScriptedRequest, TextTurn
from agentloom_worker.runtime.ports import Settings
from agentloom_worker.runtime.relay import Relay
from tests.acceptance.harness import ask, wait_for
from tests.factories import release_document


class Broker:
    """Takes every message and brings none: all of them are lost."""

    def __init__(self) -> None:
        self.available = True
        self.sent: list[WakeUp] = []

    def wake(self, due: list[WakeUp]) -> list[WakeUp]:
        self.sent += due
        return []

    def backlog(self, queue: str) -> int | None:
        return 0

    def close(self) -> None: ...


class Model:
    """Answers when the gate is open; notes how many wait there at once."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.waiting = 0
        self.most = 0
        self._lock = threading.Lock()

    def __call__(self, request: ScriptedRequest) -> TextTurn:
        with self._lock:
            self.waiting += 1
            self.most = max(self.most, self.waiting)
        assert self.gate.wait(60)
        with self._lock:
            self.waiting -= 1
        return TextTurn("done")


@contextmanager
def fleet_process(folder: Path, model: Model, *, slots: int = 2, **options: object) -> Iterator[FleetProcess]:
    url = f"sqlite:///{folder}/store.sqlite"
    migrate_database(url)
    settings = Settings(control_poll_s=0.05, drain_s=20)
    ports = make_ports(url, scripts={"main": model}, settings=settings, pool_size=8)
    broker = Broker()
    relay = Relay(ports.store, broker)
    ports = replace(ports, publish=relay.publish)
    process = FleetProcess(FleetPorts(ports, relay, broker), slots=slots, **options)
    process.start()
    try:
        yield process
    finally:
        model.gate.set()
        assert process.stop(30)


@pytest.fixture
def model() -> Model:
    return Model()


def status(process: FleetProcess, run: RunId) -> str:
    found = process.ports.store.load_run(run)
    assert found is not None
    return found.status


def test_rows_whose_wake_ups_are_lost_are_found_in_the_table(tmp_path: Path, model: Model) -> None:
    model.gate.set()
    with fleet_process(tmp_path, model) as process:
        runs = [ask(process.ports, release_document()) for _ in range(5)]
        broker: object = process.publisher
        assert isinstance(broker, Broker) and len(broker.sent) >= 5
        wait_for(lambda: all(status(process, run) == "succeeded" for run in runs), "all runs end")


def test_no_more_steps_run_at_once_than_there_are_slots(tmp_path: Path, model: Model) -> None:
    with fleet_process(tmp_path, model, slots=2) as process:
        runs = [ask(process.ports, release_document()) for _ in range(6)]
        wait_for(lambda: model.waiting == 2, "both slots are taken")
        assert process.busy == 2
        # A wake-up that comes now is left to the table.
        free = process.ports.store.list_due(("control",), 10)
        assert free and process.run(DispatchId(free[0])) is False
        model.gate.set()
        wait_for(lambda: all(status(process, run) == "succeeded" for run in runs), "all runs end")
        assert model.most <= 2


def test_the_process_is_listed_while_it_is_there(tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet_process(tmp_path, model, slots=3) as process:
        (listed,) = process.ports.store.list_workers()
        assert (listed.process_id, listed.slots) == (process.process_id, 3)
        store = process.ports.store
        gone: list[object] = []
        real = store.worker_gone

        def farewell(process_id: ProcessId) -> None:
            real(process_id)
            gone.append(store.list_workers())

        monkeypatch.setattr(store, "worker_gone", farewell)
    assert gone == [[]]


def test_a_drained_process_takes_nothing_new(tmp_path: Path, model: Model) -> None:
    with fleet_process(tmp_path, model) as process:
        process.drain()
        ask(process.ports, release_document())
        (row,) = process.ports.store.list_due(("control",), 10)
        assert process.run(row, force=True) is False
        assert process.ports.store.list_due(("control",), 10) == [row]


def test_D16_a_process_does_not_begin_on_a_database_without_a_schema(tmp_path: Path, model: Model) -> None:
    ports = make_ports(f"sqlite:///{tmp_path}/empty.sqlite")
    broker = Broker()
    process = FleetProcess(FleetPorts(ports, Relay(ports.store, broker), broker), slots=1)
    with pytest.raises(RequestError, match="agentloom migrate"):
        process.start()
    ports.store.close()


class Away:
    """A database that cannot be reached for so many looks."""

    def __init__(self, looks: int, error: Exception | None = None) -> None:
        self.left = looks
        self.looks = 0
        self.error = error or PersistenceUnreachableError("away")

    def __call__(self) -> None:
        self.looks += 1
        if self.looks <= self.left:
            raise self.error


def test_D16_a_database_that_cannot_be_reached_is_waited_for_within_the_bound() -> None:
    clock = ManualClock()
    back = Away(looks=20)
    begin_when_reachable(clock, back, wait_s=30)
    assert back.looks == 21
    for wait_s in (0.0, 7.0):
        began_s = clock.monotonic_s()
        gone = Away(looks=10**6)
        with pytest.raises(PersistenceUnreachableError):
            begin_when_reachable(clock, gone, wait_s=wait_s)
        assert clock.monotonic_s() == pytest.approx(began_s + wait_s)
    assert gone.looks == 7 / START_LOOK_S + 1


def test_D16_a_refusal_or_a_signal_ends_the_wait_for_a_database() -> None:
    refused = Away(looks=10**6, error=PersistenceUnavailableError("refused"))
    with pytest.raises(PersistenceUnavailableError):
        begin_when_reachable(ManualClock(), refused, wait_s=30)
    assert refused.looks == 1
    told = Away(looks=10**6)
    with pytest.raises(PersistenceUnreachableError):
        begin_when_reachable(ManualClock(), told, wait_s=30, given_up=lambda: told.looks == 3)
    assert told.looks == 3


def test_T9_a_process_whose_slots_are_held_past_every_deadline_asks_to_be_replaced(
    tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentloom_worker.runtime.lease.THREADS", ToolThreads())
    asked = threading.Event()
    with fleet_process(tmp_path, model, slots=2, worn_out=asked.set) as process:
        ask(process.ports, release_document())
        wait_for(lambda: model.waiting == 1, "the model is asked")
        assert not asked.is_set()
        (live,) = process.keeper.held()
        # As if its deadline had come long ago, and the step did not care.
        live.deadline_us = 0
        process._look_for_lost_slots()
        assert asked.is_set()


def test_T9_U11_tools_that_were_given_up_and_still_run_count_as_lost_slots(
    tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = ToolThreads()
    monkeypatch.setattr("agentloom_worker.runtime.lease.THREADS", tools)
    asked: list[str] = []
    returns = threading.Event()
    with fleet_process(tmp_path, model, slots=8, worn_out=lambda: asked.append("once")) as process:
        stuck = [tools.take() for _ in range(2)]
        for number, thread in enumerate(stuck):
            process._look_for_lost_slots()
            assert asked == [], number
            thread.submit(lambda: assert_set(returns))
            tools.abandon(thread)
        process._look_for_lost_slots()
        process._look_for_lost_slots()
        assert asked == ["once"]
        assert telemetry.gauges()["slots_lost"] == 2
        returns.set()
        wait_for(lambda: tools.stuck() == 0, "the tools return")
        process._look_for_lost_slots()
        assert telemetry.gauges()["slots_lost"] == 0


def assert_set(event: threading.Event) -> None:
    assert event.wait(60)


def test_a_process_that_stops_closes_what_it_opened(tmp_path: Path, model: Model) -> None:
    closed: list[str] = []
    with fleet_process(tmp_path, model) as process:
        for name, port in (("broker", process.publisher), ("fast", process.ports.fast), ("store", process.ports.store)):
            note_close(port, name, closed)
    assert closed == ["broker", "fast", "store"]


def note_close(port: object, name: str, closed: list[str]) -> None:
    real = port.close  # type: ignore[attr-defined]

    def close() -> None:
        closed.append(name)
        real()

    port.close = close  # type: ignore[attr-defined]
