"""A provider that fails for a while: attempts, waits and what is held meanwhile, read from rows and from its log."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from agentloom_worker import telemetry
from agentloom_worker.audit import run_audit
from agentloom_worker.clock import ManualClock
from agentloom_worker.domain.model import Executed
from agentloom_worker.domain.operation import Attempt, AttemptState, OperationStatus
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.errors import Code, PersistenceUnreachableError
from agentloom_worker.ids import OperationId, RunId
from agentloom_worker.leases.local import LocalFastPath
from agentloom_worker.runtime.connection import endpoint_of
from agentloom_worker.runtime.ports import US, Ports, Settings
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
from tests.factories import python_tool, release_document
from tests.simulator import Worker
from tests.unit.http.raw_server import STREAM_HEAD, Exchange, serving
from tests.unit.llm.streams import S01

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


class _Dice:
    """Dice that always show the same."""

    def __init__(self, shown: float) -> None:
        self._shown = shown

    def random(self) -> float:
        return self._shown


def _delays(ports: Ports, run_id: RunId) -> list[object]:
    """What the run's events say of the waits, in milliseconds."""
    return [event.fields["delay_ms"] for event in ports.store.list_events(run_id) if event.kind == "attempt.retrying"]


def _assert_waits(worker: Worker, run_id: RunId, expected_ms: list[int]) -> None:
    """Drive to the end. The rows have waited so long, but for the microseconds of a commit, and the events say so."""
    waits = _waits(worker, run_id)
    assert [wait // 1000 for wait in waits] == expected_ms
    assert _delays(worker.ports, run_id) == expected_ms
    assert answer(worker.ports, run_id) == "at last"


# 400 ms, three times as long each time, but never above 10 s.
GROWTH = {"initial_ms": 400, "multiplier": 3.0, "max_ms": 10_000}


@pytest.mark.parametrize(
    ("jitter", "shown", "expected_ms"),
    [
        ("none", 0.0, [400, 1_200, 3_600, 10_000, 10_000]),
        ("none", 0.999, [400, 1_200, 3_600, 10_000, 10_000]),
        ("full", 0.0, [0, 0, 0, 0, 0]),
        ("full", 0.5, [200, 600, 1_800, 5_000, 5_000]),
        ("full", 0.999, [399, 1_198, 3_596, 9_990, 9_990]),
    ],
)
def test_D23_the_wait_grows_by_the_multiplier_up_to_its_longest_and_jitter_only_shortens_it(
    database_url: str, jitter: str, shown: float, expected_ms: list[int]
) -> None:
    with (
        dev_model(_failing(500), {"answer": {"text": "at last"}}) as model,
        simulated(database_url, chance=_Dice(shown)) as worker,
    ):
        run_id = ask(worker.ports, http_release(model, **_policy(jitter=jitter, **GROWTH)), "unlucky")
        _assert_waits(worker, run_id, expected_ms)
        _assert_one_request_an_attempt(worker.ports, run_id, [request.arrival for request in model.requests])


def test_D23_the_wait_of_a_release_that_says_nothing_is_one_second_doubled_with_full_jitter(database_url: str) -> None:
    with (
        dev_model(_failing(500), {"answer": {"text": "at last"}}) as model,
        simulated(database_url, chance=_Dice(0.75)) as worker,
    ):
        run_id = ask(worker.ports, http_release(model, **_policy()), "unlucky")
        _assert_waits(worker, run_id, [750, 1_500, 3_000, 6_000, 12_000])


def test_D23_the_dice_of_two_processes_differ(database_url: str) -> None:
    seen = []
    clock = ManualClock()
    for seed in (1, 2):
        with (
            dev_model(_failing(500), {"answer": {"text": "at last"}}) as model,
            simulated(database_url, seed=seed, clock=clock) as worker,
        ):
            run_id = ask(worker.ports, http_release(model, **_policy()), "unlucky")
            seen.append(tuple(_waits(worker, run_id)))
            _assert_one_request_an_attempt(worker.ports, run_id, [request.arrival for request in model.requests])
    assert len(set(seen)) == 2


# An endpoint that is broken for 20 s → attempts, and how the run ends: after 0, 1, 3, 7, 15 and 31 s, or no more.
BROKEN_S = 20


@pytest.mark.parametrize(("attempts_max", "status"), [(6, RunStatus.SUCCEEDED), (5, RunStatus.FAILED)])
def test_D23_a_provider_that_is_broken_for_20_s_is_asked_once_an_attempt(
    database_url: str, attempts_max: int, status: RunStatus
) -> None:
    with simulated(database_url) as worker:
        began_us = worker.clock.wall_us()
        asked_s: list[int] = []

        def broken(exchange: Exchange) -> None:
            asked_s.append((worker.clock.wall_us() - began_us) // US)
            works = asked_s[-1] >= BROKEN_S
            exchange.send(STREAM_HEAD + S01 if works else b"HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n")

        with serving(broken) as server:
            retry = {"max_attempts": attempts_max, "jitter": "none"}
            run_id = ask(worker.ports, release_document(base_url=server.base_url, models={"main": {"retry": retry}}))
            worker.drive()
            assert server.served == len(attempts(worker.ports, run_id)) == attempts_max
        assert asked_s == [0, 1, 3, 7, 15, 31][:attempts_max]
        assert run_of(worker.ports, run_id).status is status


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("wish_s", "initial_ms", "max_ms", "expected_ms"),
    [
        # Longer than the policy's longest wait, shorter than its first one, and none at all.
        ("7", 500, 1_000, 7_250),
        ("1", 8_000, 60_000, 5_000),
        ("0", 8_000, 60_000, 4_000),
    ],
)
def test_D23_retry_after_wins_over_the_policy_and_is_spread_over_at_most_the_first_delay(
    database_url: str, status: int, wish_s: str, initial_ms: int, max_ms: int, expected_ms: int
) -> None:
    policy = _policy(initial_ms=initial_ms, max_ms=max_ms)
    with (
        dev_model(_failing(status, **{"Retry-After": wish_s}), {"answer": {"text": "at last"}}) as model,
        simulated(database_url, chance=_Dice(0.5)) as worker,
    ):
        run_id = ask(worker.ports, http_release(model, **policy), "unlucky")
        _assert_waits(worker, run_id, [expected_ms] * FAILURES)
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
    with (
        dev_model(failing, {"answer": {"text": "at last"}}) as model,
        simulated(clean_sqlite, chance=_Dice(0.5)) as worker,
    ):
        run_id = ask(worker.ports, http_release(model, models={"main": main}), "unlucky")
        worker.drive(until=lambda: len(attempts(worker.ports, run_id)) == 2)
        (row,) = rows(worker.ports, run_id, "attempt_model")
        ended_at = attempts(worker.ports, run_id)[0].ended_at
        assert ended_at is not None
        # A wish is spread over the first delay of the policy, so that not all come back at once.
        spread_ms = 0 if expected_ms == 1_000 else 1_000
        wait_ms = (row.not_before - ended_at) / 1000
        assert expected_ms + spread_ms / 2 <= wait_ms < expected_ms + spread_ms / 2 + 1
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


def test_D23_neither_a_slot_nor_a_place_at_the_endpoint_is_held_while_a_run_waits_for_its_provider(
    database_url: str,
) -> None:
    clock = ManualClock()
    with (
        dev_model(_failing(500), {"answer": {"text": "at last"}}) as model,
        simulated(
            database_url,
            clock=clock,
            fast=LocalFastPath(clock),
            settings=Settings(model_lanes={endpoint_of(model.base_url): 1}),
        ) as worker,
    ):
        ports = worker.ports
        run_id = ask(ports, http_release(model, **_policy(jitter="none", initial_ms=60_000)), "unlucky")
        worker.drive(until=lambda: len(attempts(ports, run_id)) == 2)
        (row,) = rows(ports, run_id, "attempt_model")
        # Neither a wake-up that comes early nor a sweep starts it, and the only slot and the only place at the endpoint
        # are free for another run.
        assert worker.keeper.held() == []
        full = telemetry.counters().get("lanes_full", 0)
        assert not worker.runner.run(row.dispatch_id)
        other = ask(ports, http_release(model), "lucky")
        worker.drive(until=over(ports, other))
        assert answer(ports, other) == "at last"
        assert telemetry.counters().get("lanes_full", 0) == full
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


TOO_LONG = {"error": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}}


@pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses"])
@pytest.mark.parametrize(
    ("refusal", "executed"),
    [
        ({"http_error": {"status": 400, "body": TOO_LONG}}, Executed.NOT_EXECUTED),
        ({"http_error": {"status": 413, "body": TOO_LONG}}, Executed.NOT_EXECUTED),
        ({"raw": {"text": f"data: {json.dumps(TOO_LONG)}\n\ndata: [DONE]\n\n"}}, Executed.EXECUTED),
    ],
    ids=["400", "413", "inside of a 200"],
)
def test_a_request_that_is_too_long_for_its_provider_ends_the_role_without_another_attempt(
    database_url: str, protocol: str, refusal: dict[str, Any], executed: Executed
) -> None:
    main = {"protocol": protocol, "retry": {"max_attempts": 5, "initial_ms": 10}}
    with dev_model({"answer": refusal}) as model, simulated(database_url) as worker:
        ports = worker.ports
        run_id = ask(ports, http_release(model, models={"main": main}), "unlucky")
        worker.drive()
        run = run_of(ports, run_id)
        assert (run.status, run.end_code) == (RunStatus.FAILED, Code.MODEL_CONTEXT_LENGTH_EXCEEDED)
        (operation,) = model_operations(ports, run_id)
        assert (operation.status, operation.executed) == (OperationStatus.FAILED, executed)
        assert [attempt.code for attempt in attempts(ports, run_id)] == [Code.MODEL_CONTEXT_LENGTH_EXCEEDED]
        assert len(model.requests) == 1
        # A ticket comes back where nothing was generated.
        assert (run.loops_used, run.loops_reserved) == (int(executed is Executed.EXECUTED), 0)
        assert list(run_audit(ports)) == []


@pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses"])
def test_C09_nothing_of_a_broken_attempt_is_in_any_later_request(
    database_url: str, protocol: str, tool_calls: list[tuple[str, object]]
) -> None:
    stale = {
        "text": "stale words",
        "reasoning": "stale thoughts",
        "tool_calls": [{"name": "echo", "arguments": {"text": "stale call"}}],
        "cut": {"then": "hang_up"},
    }
    fresh = {"tool_calls": [{"name": "echo", "arguments": {"text": "fresh call"}}]}
    turns = (
        {"when": {"assistant_turns": 0}, "first": 1, "answer": stale},
        {"when": {"assistant_turns": 0}, "answer": fresh},
        {"answer": {"text": "fresh words"}},
    )
    main = {"protocol": protocol, "retry": {"initial_ms": 10}}
    with dev_model(*turns) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, http_release(model, {"echo": python_tool()}, models={"main": main}))
        worker.drive()
        assert answer(worker.ports, run_id) == "fresh words"
        first, second, third = [request.body or b"" for request in model.requests]
        assert first == second, "the same bytes"
        assert b"stale" not in third and b"fresh call" in third
        assert tool_calls == [("echo", "fresh call")]
        broken, whole, _ = attempts(worker.ports, run_id)
        assert b"stale words" in (broken.partial or b"") and b"stale call" in (broken.partial or b"")
        assert (broken.state, whole.state, whole.partial) == (AttemptState.FAILED, AttemptState.COMPLETE, None)


@pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses"])
def test_operations_and_attempts_behind_an_error_have_each_a_key_of_their_own(database_url: str, protocol: str) -> None:
    call = {"tool_calls": [{"name": "echo", "arguments": {"text": "a"}}]}
    turns = (
        {"when": {"assistant_turns": 0}, "first": 2, "answer": {"http_error": {"status": 503}}},
        {"when": {"assistant_turns": 0}, "answer": call},
        {"answer": {"text": "done"}},
    )
    main = {"protocol": protocol, "retry": {"initial_ms": 10}}
    with dev_model(*turns) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, http_release(model, {"echo": python_tool()}, models={"main": main}))
        worker.drive()
        assert answer(worker.ports, run_id) == "done"
        first, second = (str(one.operation_id) for one in model_operations(worker.ports, run_id))
        headers = [dict(request.headers) for request in model.requests]
        assert [one["idempotency-key"] for one in headers] == [first, f"{first}-1", f"{first}-2", second]
        assert {(one["accept"], one["accept-encoding"]) for one in headers} == {("text/event-stream", "identity")}


def test_A19_what_an_earlier_attempt_may_have_generated_is_paid_though_the_last_one_never_left(
    database_url: str,
) -> None:
    """A 503 may come after a generation. The deadline passes before the next attempt, whose row is met first."""
    limits = {"agent": {"limits": {"deadline_s": 60}}}
    with dev_model(_failing(503)) as model, simulated(database_url) as worker:
        ports = worker.ports
        run_id = ask(ports, http_release(model, **limits), "unlucky")
        worker.drive(until=lambda: len(attempts(ports, run_id)) == 2)
        (row,) = rows(ports, run_id, "attempt_model")
        worker.clock.advance(s=61)
        assert worker.runner.run(row.dispatch_id)
        (operation,) = model_operations(ports, run_id)
        assert (operation.status, operation.executed) == (OperationStatus.CANCELLED, Executed.UNKNOWN)
        worker.drive()
        run = run_of(ports, run_id)
        assert (run.status, run.loops_used, run.loops_reserved) == (RunStatus.TIMED_OUT, 1, 0)
        states = [(attempt.state, attempt.reason) for attempt in attempts(ports, run_id)]
        assert states == [(AttemptState.FAILED, None), (AttemptState.CANCELLED, "deadline")]
        assert len(model.requests) == 1
        assert list(run_audit(ports)) == []


def test_a_database_that_goes_away_before_a_retry_is_sent_makes_no_outcome_unknown(
    clean_sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = ({"first": 1, "answer": {"http_error": {"status": 503}}}, {"answer": {"text": "at last"}})
    with dev_model(*turns) as model, simulated(clean_sqlite) as worker:
        read, away = worker.ports.store.list_attempts, [True]

        def list_attempts(operation_ids: Sequence[OperationId]) -> list[Attempt]:
            if away and len(model.requests) == 1:
                away.pop()
                raise PersistenceUnreachableError("the database is away")
            return read(operation_ids)

        run_id = ask(worker.ports, http_release(model, **_policy()))
        monkeypatch.setattr(worker.ports.store, "list_attempts", list_attempts)
        worker.drive(until=lambda: not away)
        worker.keeper.release()
        worker.drive()
        assert answer(worker.ports, run_id) == "at last"
        assert len(model.requests) == 2
        states = [attempt.state for attempt in attempts(worker.ports, run_id)]
        assert states == [AttemptState.FAILED, AttemptState.COMPLETE]
        (operation,) = model_operations(worker.ports, run_id)
        assert operation.unknown_attempts == 0
