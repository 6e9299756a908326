"""A provider that fails for a while: attempts, waits and what is held meanwhile, read from rows and from its log."""

import json
from typing import Any

import pytest

from agentloom_worker.clock import ManualClock
from agentloom_worker.domain.operation import AttemptState
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.errors import Code
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.ports import US, Ports
from tests.acceptance.harness import (
    answer,
    ask,
    attempts,
    dev_model,
    http_release,
    model_operations,
    over,
    rows,
    run_of,
    simulated,
)
from tests.simulator import Worker

FAILURES = 5


def _policy(**rules: Any) -> dict[str, Any]:
    return {"models": {"main": {"retry": {"max_attempts": FAILURES + 1, **rules}}}}


def _failing(status: int, **headers: str) -> dict[str, Any]:
    # Only for these words, so that other runs are answered meanwhile.
    error = {"http_error": {"status": status, "headers": headers}}
    return {"when": {"user_text_contains": "unlucky"}, "first": FAILURES, "answer": error}


def _waits(worker: Worker, run_id: RunId) -> list[int]:
    """Drive to the end; in microseconds, how long each row of a next attempt had to wait, counted from its failure."""
    waits: list[int] = []
    for failed in range(1, FAILURES + 1):
        worker.drive(until=lambda count=failed: len(attempts(worker.ports, run_id)) == count + 1)  # type: ignore[misc]
        (row,) = rows(worker.ports, run_id, "attempt_model")
        assert row.claimed_by is None and worker.keeper.held() == []
        ended_at = attempts(worker.ports, run_id)[failed - 1].ended_at
        assert ended_at is not None
        waits.append(row.not_before - ended_at)
    worker.drive()
    return waits


def _assert_one_request_an_attempt(ports: Ports, run_id: RunId, arrivals: list[int]) -> None:
    made = attempts(ports, run_id)
    assert [attempt.state for attempt in made] == [AttemptState.FAILED] * FAILURES + [AttemptState.COMPLETE]
    assert {attempt.http_status for attempt in made[:-1]} <= {500, 503, 429}
    assert arrivals == list(range(1, FAILURES + 2))


def test_D23_each_attempt_is_one_request_and_the_wait_grows_with_jitter(database_url: str) -> None:
    caps_us = [1000 * 1000 * 2**n for n in range(FAILURES)]
    seen: set[tuple[int, ...]] = set()
    clock = ManualClock()
    for seed in (1, 2):
        with (
            dev_model(_failing(500), {"answer": {"text": "at last"}}) as model,
            simulated(database_url, seed=seed, clock=clock) as worker,
        ):
            run_id = ask(worker.ports, http_release(model, **_policy()), "unlucky")
            waits = _waits(worker, run_id)
            assert all(0 <= wait <= cap + 1000 for wait, cap in zip(waits, caps_us, strict=True))
            assert answer(worker.ports, run_id) == "at last"
            _assert_one_request_an_attempt(worker.ports, run_id, [request.arrival for request in model.requests])
            seen.add(tuple(waits))
    assert len(seen) == 2


@pytest.mark.parametrize("status", [429, 503])
def test_D23_retry_after_is_kept_exactly_plus_at_most_the_first_delay(database_url: str, status: int) -> None:
    policy = _policy(initial_ms=500)
    with (
        dev_model(_failing(status, **{"Retry-After": "7"}), {"answer": {"text": "at last"}}) as model,
        simulated(database_url) as worker,
    ):
        run_id = ask(worker.ports, http_release(model, **policy), "unlucky")
        waits = _waits(worker, run_id)
        assert all(7 * US <= wait <= 7 * US + 500_000 for wait in waits)
        assert len(set(waits)) > 1
        assert answer(worker.ports, run_id) == "at last"
        _assert_one_request_an_attempt(worker.ports, run_id, [request.arrival for request in model.requests])


# What the provider says → the bounds of the wait before the second attempt, in milliseconds, without the jitter.
ODD_WISHES: dict[str, tuple[dict[str, str], int]] = {
    "fraction": ({"Retry-After": "1.5"}, 1_500),
    "milliseconds": ({"retry-after-ms": "250", "Retry-After": "9"}, 250),
    "milliseconds that are none": ({"retry-after-ms": "-250", "Retry-After": "9"}, 9_000),
    "a date that has passed": ({"Retry-After": "Fri, 15 Jan 2016 08:01:00 GMT"}, 0),
    "a date of another clock": (
        {"Date": "Fri, 15 Jan 2016 08:00:00 GMT", "Retry-After": "Fri, 15 Jan 2016 08:01:00 GMT"},
        60_000,
    ),
    "negative": ({"Retry-After": "-7"}, 1_000),
    "words": ({"Retry-After": "soon"}, 1_000),
    "a number of no base": ({"Retry-After": "0x10"}, 1_000),
}


@pytest.mark.parametrize("wish", sorted(ODD_WISHES))
@pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses"])
def test_D23_an_odd_wish_is_kept_as_far_as_it_is_one_and_is_the_policys_wait_otherwise(
    clean_sqlite: str, protocol: str, wish: str
) -> None:
    headers, expected_ms = ODD_WISHES[wish]
    main = {"protocol": protocol, "retry": {"max_attempts": 2, "initial_ms": 1_000, "jitter": "none"}}
    failing = {"first": 1, "answer": {"http_error": {"status": 503, "headers": headers}}}
    with dev_model(failing, {"answer": {"text": "at last"}}) as model, simulated(clean_sqlite) as worker:
        run_id = ask(worker.ports, http_release(model, models={"main": main}), "unlucky")
        worker.drive(until=lambda: len(attempts(worker.ports, run_id)) == 2)
        (row,) = rows(worker.ports, run_id, "attempt_model")
        ended_at = attempts(worker.ports, run_id)[0].ended_at
        assert ended_at is not None
        # A wish is spread over the first delay of the policy, so that not all come back at once.
        spread_ms = 0 if expected_ms == 1_000 else 1_000
        wait_ms = (row.not_before - ended_at) / 1000
        assert expected_ms <= wait_ms <= expected_ms + spread_ms + 1
        worker.drive()
        assert answer(worker.ports, run_id) == "at last"


@pytest.mark.parametrize("huge", ["999999999", "9" * 400])
def test_D23_a_wish_beyond_all_bounds_ends_the_run_at_once(clean_sqlite: str, huge: str) -> None:
    with (
        dev_model(_failing(503, **{"Retry-After": huge}), {"answer": {"text": "too late"}}) as model,
        simulated(clean_sqlite) as worker,
    ):
        run_id = ask(worker.ports, http_release(model), "unlucky")
        worker.drive()
        run = run_of(worker.ports, run_id)
        assert (run.status, run.end_code) == (RunStatus.FAILED, Code.MODEL_PROVIDER_ERROR)
        assert len(model.requests) == 1


def test_D23_no_slot_is_held_while_a_run_waits_for_its_provider(database_url: str) -> None:
    with (
        dev_model(_failing(500), {"answer": {"text": "at last"}}) as model,
        simulated(database_url) as worker,
    ):
        ports = worker.ports
        run_id = ask(ports, http_release(model, **_policy(jitter="none", initial_ms=60_000)), "unlucky")
        worker.drive(until=lambda: len(attempts(ports, run_id)) == 2)
        (row,) = rows(ports, run_id, "attempt_model")
        # Neither a wake-up that comes early nor a sweep starts it, and the only slot is free for another run.
        assert not worker.runner.run(row.dispatch_id)
        other = ask(ports, http_release(model), "lucky")
        worker.drive(until=over(ports, other))
        assert answer(ports, other) == "at last"
        assert rows(ports, run_id, "attempt_model") == [row]
        assert ports.store.now_us() < row.not_before
        assert len(model.requests) == 2


def test_D23_a_wait_beyond_the_deadline_ends_the_run_at_once(database_url: str) -> None:
    limits = {"agent": {"limits": {"deadline_s": 60}}}
    with (
        dev_model(_failing(429, **{"Retry-After": "3600"}), {"answer": {"text": "too late"}}) as model,
        simulated(database_url) as worker,
    ):
        ports = worker.ports
        run_id = ask(ports, http_release(model, **limits), "unlucky")
        worker.drive(until=over(ports, run_id))
        run = run_of(ports, run_id)
        assert (run.status, run.end_code) == (RunStatus.FAILED, Code.MODEL_RATE_LIMITED)
        assert run.ended_at is not None and run.ended_at < run.deadline_at
        assert len(model.requests) == len(attempts(ports, run_id)) == 1


def test_an_answered_failure_is_asked_anew_under_another_key_and_an_unknown_outcome_under_the_same(
    database_url: str,
) -> None:
    """Who keeps what a key was answered with would say the same failure again; a key that stays is never paid twice."""
    role = {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}}]}
    begun = f"data: {json.dumps(role)}\n\n"
    overloaded = {"error": {"message": "overloaded", "type": "server_error", "code": None}}
    turns: tuple[dict[str, Any], ...] = (
        {"raw": {"text": begun, "then": "hang_up"}},
        {"http_error": {"status": 409}},  # the request before is still at work: nothing is kept yet
        {"http_error": {"status": 503}},
        {"raw": {"text": begun, "then": "end"}},
        {"raw": {"text": f"data: {json.dumps(overloaded)}\n\n"}},
        {"http_error": {"status": 429}},
        {"text": "at last"},
    )
    told = [{"first": number, "answer": turn} for number, turn in enumerate(turns, 1)]
    with dev_model(*told) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, http_release(model, **_policy(max_attempts=7)))
        worker.drive()
        assert answer(worker.ports, run_id) == "at last"
        assert [request.arrival for request in model.requests] == list(range(1, 8))
        keys = [dict(request.headers)["idempotency-key"] for request in model.requests]
        (operation,) = model_operations(worker.ports, run_id)
        first = str(operation.operation_id)
        assert keys == [first, first, first, f"{first}-1", f"{first}-1", f"{first}-2", f"{first}-3"]
