"""How the runtime uses the fast path: wake-ups that need no database, and stops that are heard at once."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentloom_worker import faults, telemetry
from agentloom_worker.cancellation import CancelReason
from agentloom_worker.clock import ManualClock, SystemClock
from agentloom_worker.domain.dispatch import Claim
from agentloom_worker.ids import ClaimToken, DispatchId, ProcessId, RunId, SessionId
from agentloom_worker.llm.adapters.scripted import TextTurn
from agentloom_worker.runtime.accept import accept_question, stop_run
from agentloom_worker.runtime.lease import Keeper
from agentloom_worker.runtime.ports import Settings
from agentloom_worker.runtime.publish import publish_release
from agentloom_worker.storage.schema import migrate
from tests.factories import release_document, run_of_receipt
from tests.simulator import Worker, make_worker
from tests.unit.leases.recording import RecordingFastPath

LONG_MS = 60_000


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    url = f"sqlite:///{tmp_path}/test.sqlite"
    migrate(url)
    clock = ManualClock()
    worker = make_worker(
        url,
        clock=clock,
        scripts={"main": lambda _request: TextTurn("done")},
        settings=Settings(inline_hops=0, fusion=False, control_poll_s=3600),
        solitary=False,
        fast=RecordingFastPath(clock),
    )
    publish_release(worker.ports, release_document())
    yield worker
    worker.close()


def fast(worker: Worker) -> RecordingFastPath:
    assert isinstance(worker.ports.fast, RecordingFastPath)
    return worker.ports.fast


def ask(worker: Worker) -> tuple[RunId, DispatchId]:
    """Accept a question; the run and its first row."""
    store = worker.ports.store
    owner = store.find_owner("assistant")
    session_id = SessionId(worker.ports.ids.new())
    store.open_session(session_id, owner)
    receipt = accept_question(worker.ports, store.load_session(session_id), "hello?", None, "k")
    worker.published.clear()
    return run_of_receipt(receipt), due(worker)


def due(worker: Worker) -> DispatchId:
    (dispatch_id,) = worker.ports.store.list_due(worker.ports.settings.queues, 10)
    return dispatch_id


def effect_row(worker: Worker) -> DispatchId:
    """The row of the first question's model attempt; what led to it is forgotten."""
    ask(worker)
    for _ in range(2):
        assert worker.runner.run(due(worker))
    found = due(worker)
    (row,) = [one for one in worker.ports.store.list_dispatches() if one.dispatch_id == found]
    assert row.step == "attempt_model"
    fast(worker).asked.clear()
    return found


def claim(worker: Worker, dispatch_id: DispatchId) -> Claim:
    found = worker.ports.store.claim(
        dispatch_id,
        ClaimToken(worker.ports.ids.token()),
        ProcessId(worker.ports.ids.new()),
        ttl_us=60_000_000,
        grace_us=6_000_000,
        solitary=False,
    )
    assert found is not None
    return found


def test_wake_up_for_a_row_that_somebody_holds_asks_no_database(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, dispatch_id = ask(worker)
    fast(worker).note_claim(dispatch_id, ClaimToken(worker.ports.ids.token()), LONG_MS)
    skipped = telemetry.counters().get("wake_ups_skipped", 0)
    with monkeypatch.context() as patched:
        patched.setattr(type(worker.ports.store), "claim", lambda *_args, **_options: pytest.fail("it was asked"))
        assert not worker.runner.run(dispatch_id)
    assert telemetry.counters()["wake_ups_skipped"] == skipped + 1
    assert worker.runner.run(dispatch_id, force=True), "a forced wake-up asks in any case"


def test_claim_of_an_effect_is_noted_once_and_its_consumed_row_costs_nothing_more(worker: Worker) -> None:
    dispatch_id = effect_row(worker)
    assert worker.runner.run(dispatch_id)
    assert fast(worker).asked == ["is_held", "note_claim"]
    assert fast(worker).is_held(dispatch_id), "a duplicate that comes late asks no database either"


def test_pure_step_is_over_before_it_would_be_noted(worker: Worker) -> None:
    _, dispatch_id = ask(worker)
    assert worker.runner.run(dispatch_id)
    assert fast(worker).asked == ["is_held"]


def test_inline_hops_ask_nothing_of_the_fast_path(worker: Worker) -> None:
    _, dispatch_id = ask(worker)
    ports = replace(worker.ports, settings=replace(worker.ports.settings, inline_hops=64))
    runner = type(worker.runner)(ports, worker.runner.process_id, worker.keeper)
    assert runner.run(dispatch_id)
    assert worker.ports.store.list_due(("control", "model", "tools"), 10) == []
    assert fast(worker).asked == ["is_held"]


def test_row_that_is_handed_back_is_free_for_the_next_wake_up(worker: Worker) -> None:
    dispatch_id = effect_row(worker)

    def fail_before_the_effect(point: str, _step: str) -> None:
        if point == "step.loaded":
            raise RuntimeError("before the effect")

    faults.install(fail_before_the_effect)
    try:
        assert worker.runner.run(dispatch_id)
    finally:
        faults.install(None)
    assert fast(worker).asked == ["is_held", "note_claim", "drop_claim"]
    assert not fast(worker).is_held(dispatch_id)


def test_claim_that_died_with_its_process_hides_the_row_no_longer_than_the_database_does(worker: Worker) -> None:
    run_id, dispatch_id = ask(worker)
    claimed = worker.ports.store.claim(
        dispatch_id,
        ClaimToken(worker.ports.ids.token()),
        ProcessId(worker.ports.ids.new()),
        ttl_us=worker.ports.settings.claim_ttl_us,
        grace_us=worker.ports.settings.grace_us,
        solitary=False,
    )
    fast(worker).note_claim(dispatch_id, claimed.token, worker.ports.settings.claim_ttl_ms)
    worker.drive()
    assert worker.ports.store.load_run(run_id).status == "succeeded"


def test_stop_is_pushed_and_cancels_the_live_steps_of_its_run_at_once(worker: Worker) -> None:
    keeper = Keeper(replace(worker.ports, clock=SystemClock()))
    keeper.start()  # its own poll would come in an hour
    run_id, dispatch_id = ask(worker)
    mine = keeper.hold(claim(worker, dispatch_id), 0.0)
    _, other = ask(worker)
    others = keeper.hold(claim(worker, other), 0.0)
    stop_run(worker.ports, run_id)
    assert mine.cancellation.reason is CancelReason.STOP
    assert others.cancellation.reason is None
    keeper.stop()


def test_pushed_word_alone_cancels_nothing_while_the_database_knows_of_no_stop(worker: Worker) -> None:
    keeper = Keeper(replace(worker.ports, clock=SystemClock()))
    keeper.start()
    run_id, dispatch_id = ask(worker)
    live = keeper.hold(claim(worker, dispatch_id), 0.0)
    fast(worker).push_cancel(run_id)
    assert not live.cancellation.cancelled
    keeper.stop()


def test_steps_of_the_ending_itself_are_not_cancelled_by_the_push(worker: Worker) -> None:
    keeper = Keeper(replace(worker.ports, clock=SystemClock()))
    keeper.start()
    run_id, _ = ask(worker)
    stop_run(worker.ports, run_id)
    finalize = keeper.hold(claim(worker, due(worker)), 0.0)
    assert finalize.claim.step == "finalize_run"
    fast(worker).push_cancel(run_id)
    assert not finalize.cancellation.cancelled
    keeper.stop()


def test_deadline_is_pushed_as_a_stop_is(worker: Worker) -> None:
    keeper = Keeper(replace(worker.ports, clock=SystemClock()))
    keeper.start()
    run_id, dispatch_id = ask(worker)
    live = keeper.hold(claim(worker, dispatch_id), 0.0)
    worker.clock.advance(s=3601)
    assert worker.runner.run(due(worker))
    assert live.cancellation.reason is CancelReason.DEADLINE
    assert worker.ports.store.load_run(run_id).status == "stopping"
    keeper.stop()


def test_keeper_renews_what_the_database_renewed(worker: Worker) -> None:
    _, dispatch_id = ask(worker)
    held = claim(worker, dispatch_id)
    worker.keeper.hold(held, worker.clock.monotonic_s())
    fast(worker).note_claim(dispatch_id, held.token, 1000)
    worker.keeper.renew()
    worker.clock.advance(s=2)
    assert fast(worker).is_held(dispatch_id)


def test_closed_keeper_hears_nothing_more(worker: Worker) -> None:
    keeper = Keeper(replace(worker.ports, clock=SystemClock()))
    keeper.start()
    run_id, dispatch_id = ask(worker)
    live = keeper.hold(claim(worker, dispatch_id), 0.0)
    keeper.stop()
    stop_run(worker.ports, run_id)
    assert not live.cancellation.cancelled
    assert not any(thread.name == "agentloom-keeper" for thread in threading.enumerate())
