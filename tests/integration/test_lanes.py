"""Lanes over two processes of a fleet, with a real Redis between them."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agentloom_worker import telemetry
from agentloom_worker.audit import run_audit
from agentloom_worker.bootstrap import FleetPorts, make_ports, migrate_database
from agentloom_worker.clock import SystemClock
from agentloom_worker.fleet import FleetProcess
from agentloom_worker.ids import RunId
from agentloom_worker.leases import open_fast_path
from agentloom_worker.llm.adapters.scripted import ScriptedRequest, TextTurn
from agentloom_worker.runtime.ports import Settings
from agentloom_worker.runtime.relay import Relay
from tests.acceptance.harness import ask, over, run_of, wait_for
from tests.factories import release_document
from tests.servers import OWN, RedisServer, open_redis
from tests.unit.test_fleet_process import Broker, Model

PLACES = 2
RUNS = 7
SETTINGS = Settings(control_poll_s=0.05, drain_s=20, model_lanes={"script:main": PLACES})


@contextmanager
def process(
    url: str, redis_url: str, prefix: str, model: Model, settings: Settings = SETTINGS
) -> Iterator[FleetProcess]:
    """One process of four slots; its publisher brings no message, so that everything comes from the table."""
    fast = open_fast_path(redis_url, SystemClock(), prefix=prefix)
    ports = make_ports(url, scripts={"main": model}, settings=settings, pool_size=8, fast=fast)
    broker = Broker()
    relay = Relay(ports.store, broker)
    opened = FleetProcess(FleetPorts(replace(ports, publish=relay.publish), relay, broker), slots=4)
    opened.start()
    try:
        yield opened
    finally:
        model.gate.set()
        assert opened.stop(30)


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/store.sqlite"
    migrate_database(url)
    return url


def ask_many(first: FleetProcess) -> list[RunId]:
    return [ask(first.ports, release_document()) for _ in range(RUNS)]


def test_no_more_attempts_than_places_are_under_way_in_the_whole_fleet(
    store_url: str, redis_url: str, redis_prefix: str
) -> None:
    model = Model()
    full = telemetry.counters().get("lanes_full", 0)
    with ExitStack() as stack:
        first, _ = (stack.enter_context(process(store_url, redis_url, redis_prefix, model)) for _ in range(2))
        runs = ask_many(first)
        # Everybody has asked for a place, more than once; five of seven found none.
        wait_for(lambda: telemetry.counters().get("lanes_full", 0) >= full + 2 * RUNS, "the lane is found full")
        assert model.waiting == PLACES
        model.gate.set()
        wait_for(over(first.ports, *runs), "all runs end")
        assert [run_of(first.ports, run).status for run in runs] == ["succeeded"] * RUNS
        assert model.most <= PLACES
        assert all(operation.attempts_made == 1 for run in runs for operation in first.ports.store.list_operations(run))
        assert run_audit(first.ports) == ()


class Named(Model):
    """Notes which model each of the attempts under way is for, as they came."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: list[str] = []

    def __call__(self, request: ScriptedRequest) -> TextTurn:
        self.under_way.append(request.body["model"])
        return super().__call__(request)


def test_limits_of_a_model_and_of_its_endpoint_hold_together_in_the_whole_fleet(
    store_url: str, redis_url: str, redis_prefix: str
) -> None:
    """One place for the model, three for its endpoint: of eight slots one speaks to it, and two to another model."""
    model = Named()
    settings = replace(SETTINGS, model_lanes={"script:main": 3, "script:main/vendor/narrow:free": 1})
    with ExitStack() as stack:
        first, _ = (stack.enter_context(process(store_url, redis_url, redis_prefix, model, settings)) for _ in range(2))

        def ask_all_of(name: str) -> list[RunId]:
            """Everybody has asked for a place, more than once."""
            full = telemetry.counters().get("lanes_full", 0)
            runs = [ask(first.ports, release_document(models={"main": {"model": name}})) for _ in range(RUNS)]
            wait_for(lambda: telemetry.counters().get("lanes_full", 0) >= full + 2 * RUNS, "the lane is found full")
            return runs

        runs = ask_all_of("vendor/narrow:free")
        assert model.under_way == ["vendor/narrow:free"]
        runs += ask_all_of("wide")
        wait_for(lambda: model.waiting == 3, "every place is taken")
        assert model.under_way == ["vendor/narrow:free", "wide", "wide"]
        model.gate.set()
        wait_for(over(first.ports, *runs), "all runs end")
        assert [run_of(first.ports, run).status for run in runs] == ["succeeded"] * 2 * RUNS
        assert model.most == 3
        assert run_audit(first.ports) == ()


def test_no_more_requests_than_the_window_takes_are_begun_in_the_whole_fleet(
    store_url: str, redis_url: str, redis_prefix: str
) -> None:
    """The window is a second here. A row that it does not let through waits in the table, and every run ends."""
    model = Model()
    model.gate.set()
    full = telemetry.counters().get("windows_full", 0)
    settings = replace(SETTINGS, model_lanes={}, model_requests={"script:main": PLACES}, model_window_s=1.0)
    with ExitStack() as stack:
        first, _ = (stack.enter_context(process(store_url, redis_url, redis_prefix, model, settings)) for _ in range(2))
        runs = ask_many(first)
        wait_for(over(first.ports, *runs), "all runs end")
        store = first.ports.store
        assert [run_of(first.ports, run).status for run in runs] == ["succeeded"] * RUNS
        made = [operation for run in runs for operation in store.list_operations(run)]
        assert all(operation.attempts_made == 1 for operation in made)
        assert telemetry.counters()["windows_full"] >= full + RUNS - PLACES
        assert run_audit(first.ports) == ()


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with closing(open_redis(OWN)) as server:
        yield server


def test_D04_a_redis_that_is_gone_limits_nobody(store_url: str, own_redis: RedisServer) -> None:
    model = Model()
    with process(store_url, own_redis.url, "agentloom:", model) as only:
        runs = ask_many(only)
        wait_for(lambda: model.waiting == PLACES, "every place is taken")
        own_redis.stop(signal.SIGKILL)
        wait_for(lambda: model.waiting == 4, "every slot works")
        model.gate.set()
        wait_for(over(only.ports, *runs), "all runs end")
        assert [run_of(only.ports, run).status for run in runs] == ["succeeded"] * RUNS
