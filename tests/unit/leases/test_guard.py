"""The guard: a store that is away costs nothing but speed, and is spoken of once."""

import logging
import threading
from collections.abc import Callable
from uuid import UUID

import pytest

from agentloom_worker import limits, telemetry
from agentloom_worker.clock import ManualClock
from agentloom_worker.ids import ClaimToken, DispatchId, RunId
from agentloom_worker.leases.fast_path import Rate
from agentloom_worker.leases.guard import GuardedFastPath
from tests.unit.leases.recording import AwayError, RecordingFastPath

DISPATCH, TOKEN, RUN = DispatchId(UUID(int=1)), ClaimToken(UUID(int=2)), RunId(UUID(int=3))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> RecordingFastPath:
    return RecordingFastPath(clock)


@pytest.fixture
def guarded(store: RecordingFastPath, clock: ManualClock) -> GuardedFastPath:
    return GuardedFastPath(store, (AwayError,), clock)


# every question, and its answer where the store is away
QUESTIONS: list[tuple[Callable[[GuardedFastPath], object], object]] = [
    (lambda guarded: guarded.note_claim(DISPATCH, TOKEN, 1000), None),
    (lambda guarded: guarded.renew_claims([(DISPATCH, TOKEN)], 1000), None),
    (lambda guarded: guarded.is_held(DISPATCH), False),
    (lambda guarded: guarded.drop_claim(DISPATCH, TOKEN), None),
    (lambda guarded: guarded.push_cancel(RUN), None),
    (lambda guarded: guarded.pushed([RUN]), frozenset()),
    (lambda guarded: guarded.take_slot("model", 1, "a", 1000), True),
    (lambda guarded: guarded.give_slot("model", "a"), None),
    (lambda guarded: guarded.enter_window("model", Rate(1, 1), "a", 1, 1000), 0),
    (lambda guarded: guarded.correct_window("model", "a", 1, 2), None),
    (lambda guarded: guarded.leave_window("model", "a", 1), None),
]


def ask_everything(guarded: GuardedFastPath) -> None:
    for ask, _ in QUESTIONS:
        ask(guarded)


@pytest.mark.parametrize(("ask", "unknown"), QUESTIONS)
def test_every_question_to_a_store_that_is_away_is_answered_with_nothing_known(
    store: RecordingFastPath, guarded: GuardedFastPath, ask: Callable[[GuardedFastPath], object], unknown: object
) -> None:
    store.away = True
    assert ask(guarded) == unknown, "the store was asked and failed"
    assert ask(guarded) == unknown, "the store was not asked any more"
    assert len(store.asked) == 1


def test_answers_of_a_store_that_is_there_pass_unchanged(guarded: GuardedFastPath) -> None:
    guarded.note_claim(DISPATCH, TOKEN, 1000)
    assert guarded.is_held(DISPATCH)
    assert guarded.take_slot("model", 1, "a", 1000)
    assert not guarded.take_slot("model", 1, "b", 1000)
    guarded.push_cancel(RUN)
    assert guarded.pushed([RUN]) == {RUN}


def test_after_a_failure_nothing_is_asked_until_a_single_trial(
    store: RecordingFastPath, guarded: GuardedFastPath, clock: ManualClock
) -> None:
    store.away = True
    before = telemetry.counters()
    ask_everything(guarded)
    ask_everything(guarded)
    assert len(store.asked) == 1
    clock.advance(s=limits.FAST_PATH_PAUSE_S)
    ask_everything(guarded)
    assert len(store.asked) == 2
    clock.advance(s=limits.FAST_PATH_PAUSE_S)
    ask_everything(guarded)
    assert len(store.asked) == 2, "the second pause is twice as long"
    clock.advance(s=limits.FAST_PATH_PAUSE_S)
    store.away = False
    ask_everything(guarded)
    assert len(store.asked) == 2 + len(QUESTIONS), "the trial succeeded, and all that follow are asked"
    after = telemetry.counters()
    assert after["fast_path_errors"] - before.get("fast_path_errors", 0) == 2
    assert after["fast_path_skipped"] - before.get("fast_path_skipped", 0) == 4 * len(QUESTIONS) - 2


def test_pause_grows_to_its_bound_and_no_further(
    store: RecordingFastPath, guarded: GuardedFastPath, clock: ManualClock
) -> None:
    store.away = True
    for _ in range(50):
        guarded.is_held(DISPATCH)
        clock.advance(s=limits.FAST_PATH_PAUSE_MAX_S)
    assert len(store.asked) == 50


def test_burst_of_failures_is_logged_once_without_the_text_of_the_error(
    store: RecordingFastPath, guarded: GuardedFastPath, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="agentloom")
    for _ in range(2):
        store.away = True
        for _ in range(5):
            guarded.is_held(DISPATCH)
            clock.advance(s=60)
        store.away = False
        guarded.is_held(DISPATCH)
    assert [record.getMessage() for record in caplog.records] == ["fast_path_lost", "fast_path_back"] * 2
    assert [record.__dict__["fields"] for record in caplog.records] == [{"error": "AwayError"}, {}] * 2


def test_only_one_thread_tries_a_store_that_may_be_back(
    store: RecordingFastPath, guarded: GuardedFastPath, clock: ManualClock
) -> None:
    store.away = True
    guarded.is_held(DISPATCH)
    clock.advance(s=60)
    inside, go_on = threading.Event(), threading.Event()

    def slow(dispatch_id: DispatchId) -> bool:
        inside.set()
        assert go_on.wait(10)
        return True

    store.is_held = slow  # type: ignore[method-assign]
    answers: list[bool] = []
    trial = threading.Thread(target=lambda: answers.append(guarded.is_held(DISPATCH)))
    trial.start()
    assert inside.wait(10)
    assert guarded.pushed([RUN]) == frozenset()
    assert "pushed" not in store.asked
    go_on.set()
    trial.join(10)
    assert answers == [True]


def test_error_that_nobody_expects_is_not_hidden_and_leaves_no_trial_open(
    store: RecordingFastPath, guarded: GuardedFastPath, clock: ManualClock
) -> None:
    store.away = True
    guarded.is_held(DISPATCH)
    store.away = False
    clock.advance(s=60)
    with pytest.raises(ZeroDivisionError):
        guarded._ask(lambda: 1 // 0, 0)
    assert not guarded.is_held(DISPATCH)
    assert store.asked[-1] == "is_held"
