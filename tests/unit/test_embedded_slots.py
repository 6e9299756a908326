"""The threads of an in-process dispatcher: those that a step holds past its end are made up for, within a bound."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentloom_worker import Agentloom, telemetry
from agentloom_worker.bootstrap import migrate_database
from agentloom_worker.capabilities.threads import ToolThreads
from agentloom_worker.client import RunStatus, database_url
from agentloom_worker.embedded import IDLE_POLL_S, POLL_S, Dispatcher, make_dispatcher
from agentloom_worker.llm.adapters.scripted import ScriptedRequest, TextTurn
from agentloom_worker.runtime.ports import Settings
from tests.acceptance.harness import ask, over, run_of, wait_for
from tests.factories import release_document

THREADS = 2


class Model:
    """Holds whoever asks until the gate is open; while `held` is False it answers at once."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.held = True
        self.waiting = 0

    def __call__(self, _request: ScriptedRequest) -> TextTurn:
        if self.held:
            self.waiting += 1
            assert self.gate.wait(60)
        return TextTurn("done")


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def dispatcher(tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dispatcher]:
    monkeypatch.setattr("agentloom_worker.runtime.lease.THREADS", ToolThreads())
    url = database_url(tmp_path)
    migrate_database(url)
    opened = make_dispatcher(url, settings=Settings(control_poll_s=0.05), threads=THREADS, scripts={"main": model})
    opened.start()
    yield opened
    model.gate.set()
    assert opened.drain(30)
    opened.ports.store.close()


def lose_every_slot(dispatcher: Dispatcher, model: Model) -> list[object]:
    """As if the deadline of each step had come long ago, and none of them cared."""
    runs = [ask(dispatcher.ports, release_document()) for _ in range(THREADS)]
    wait_for(lambda: model.waiting == THREADS, "every slot is held")
    for live in dispatcher.keeper.held():
        live.deadline_us = 0
    model.held = False
    return list(runs)


def test_T9_lost_slots_are_made_up_for_and_those_that_come_back_are_too_many(
    dispatcher: Dispatcher, model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    lost = lose_every_slot(dispatcher, model)
    run = ask(dispatcher.ports, release_document())
    for _ in range(3):
        dispatcher._replace_lost()
    assert len(dispatcher._slots) == 2 * THREADS
    assert telemetry.gauges()["slots_lost"] == THREADS
    assert [record.message for record in caplog.records if record.message == "worn_out"] == ["worn_out"]
    wait_for(over(dispatcher.ports, run), "another run ends meanwhile")
    assert run_of(dispatcher.ports, run).status == "succeeded"
    assert all(run_of(dispatcher.ports, one).status == "running" for one in lost)  # type: ignore[arg-type]
    model.gate.set()
    wait_for(lambda: len(dispatcher._slots) == THREADS, "as many slots as before are left")
    wait_for(over(dispatcher.ports, *lost), "the lost ones end too")  # type: ignore[arg-type]
    again = ask(dispatcher.ports, release_document())
    wait_for(over(dispatcher.ports, again), "the slots that are left work")


def test_no_slot_is_opened_while_none_is_lost(dispatcher: Dispatcher, model: Model) -> None:
    model.held = False
    run = ask(dispatcher.ports, release_document())
    dispatcher._replace_lost()
    wait_for(over(dispatcher.ports, run), "the run ends")
    assert len(dispatcher._slots) == THREADS


def test_a_process_without_work_looks_at_the_table_four_times_a_second(dispatcher: Dispatcher, model: Model) -> None:
    """Twenty times while it holds a row or has found one: then more may be due than it has queued."""

    def pauses(count: int) -> list[float]:
        found, pause_s = [], POLL_S
        for _ in range(count):
            pause_s = dispatcher._take_due(pause_s)
            found.append(pause_s)
        return found

    assert pauses(4) == [0.1, 0.2, 0.25, 0.25]
    run = ask(dispatcher.ports, release_document())
    wait_for(lambda: model.waiting == 1, "a slot holds the row that nobody published")
    assert pauses(2) == [POLL_S, POLL_S]
    model.gate.set()
    wait_for(over(dispatcher.ports, run), "the run ends")
    wait_for(lambda: not dispatcher.keeper.held(), "nothing is held")
    assert pauses(3)[-1] == IDLE_POLL_S


def test_a_client_that_closes_ends_its_fast_path_and_hears_no_more(tmp_path: Path) -> None:
    with Agentloom.embedded(tmp_path, threads=1, scripts={"main": lambda _request: TextTurn("done")}) as loom:
        closed: list[str] = []
        real = loom.ports.fast.close

        def close() -> None:
            closed.append("fast")
            real()

        loom.ports.fast.close = close  # type: ignore[method-assign]
        release = loom.publish(release_document())
        run = loom.ask(loom.open_session(release.agent_id), "hello?")
        assert loom.wait(run, 30).status is RunStatus.SUCCEEDED
        assert closed == []
    assert closed == ["fast"]
