"""Who does the fleet's duties, how often, and what one that fails does to the others."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentloom_worker.bootstrap import migrate_database
from agentloom_worker.cleanup import upkeep as module
from agentloom_worker.cleanup.sweeps import REDISPATCH, SWEEPS, Sweep
from agentloom_worker.cleanup.upkeep import Upkeep
from agentloom_worker.errors import PersistenceUnavailableError
from agentloom_worker.limits import SWEEP_SPREAD_MAX_S
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.settings import FleetSettings
from beat.schedule import SweepScheduler, make_schedule
from config.application import make_app
from tests.simulator import Worker, make_worker


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    url = f"sqlite:///{tmp_path}/store.sqlite"
    migrate_database(url)
    made = make_worker(url)
    yield made
    made.close()


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of two duties were done; nothing else is due but the sweep of rows."""
    log: list[str] = []

    def crash(ports: Ports) -> None:
        log.append("crash")
        raise ZeroDivisionError

    sweeps = {"crash": Sweep(2.0, crash), "good": Sweep(2.0, lambda _ports: log.append("good"))}
    monkeypatch.setattr(module, "SWEEPS", sweeps)
    return log


def test_a_duty_that_crashes_keeps_no_other_from_being_done(worker: Worker, done: list[str]) -> None:
    upkeep = Upkeep(worker.ports)
    for _ in range(2):
        upkeep.do_due(1)
        worker.clock.advance(10.0)
    assert done == ["crash", "good"] * 2


def test_a_duty_that_another_process_is_at_is_left_to_it(
    worker: Worker, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def taken(duty: str) -> Iterator[bool]:
        yield duty != "good"

    monkeypatch.setattr(worker.ports.store, "turn", taken)
    upkeep = Upkeep(worker.ports)
    upkeep.do_due(1)
    assert done == ["crash"]
    assert upkeep.do("good") is False


def test_a_store_that_is_away_is_asked_again_later(
    worker: Worker, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(duty: str) -> None:
        raise PersistenceUnavailableError("away")

    monkeypatch.setattr(worker.ports.store, "turn", away)
    upkeep = Upkeep(worker.ports)
    upkeep.do_due(1)
    assert done == []
    monkeypatch.undo()


@pytest.mark.parametrize(("processes", "most", "least"), [(1, 8, 6), (4, 5, 3), (100, 2, 1)])
def test_more_processes_do_it_less_often_each_and_never_too_seldom(
    worker: Worker, done: list[str], processes: int, most: int, least: int
) -> None:
    upkeep = Upkeep(worker.ports)
    for _ in range(125):
        upkeep.do_due(processes)
        worker.clock.advance(0.1)
    assert least <= done.count("good") <= most
    assert SWEEP_SPREAD_MAX_S * 1.25 <= 12.5, "a hundred processes would else do nothing in this time"


def test_beat_does_every_sweep_itself_and_needs_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(FleetSettings(broker="redis://127.0.0.1:1/0"))
    app.conf.beat_schedule = make_schedule(FleetSettings(sweep_tick_s=3))
    scheduler = SweepScheduler(app, lazy=True)
    scheduler.setup_schedule()
    assert set(scheduler.schedule) == {REDISPATCH, *SWEEPS}
    assert scheduler.schedule[REDISPATCH].schedule.run_every.total_seconds() == 3
    log: list[str] = []

    class Noting:
        def do(self, name: str) -> None:
            log.append(name)

    monkeypatch.setattr(scheduler, "_upkeep", Noting())
    for entry in list(scheduler.schedule.values()):
        scheduler.apply_entry(entry, producer=scheduler.producer)
    assert set(log) == {REDISPATCH, *SWEEPS}
