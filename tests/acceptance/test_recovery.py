"""What is saved is never asked for again: a worker dies just after a commit, and another goes on from there.

The worker dies by an exception that nothing catches; the crash suite does the same with real processes.
"""

import json

import pytest

from agentloom_worker.domain.model import Executed
from agentloom_worker.domain.operation import AttemptState, OperationKind, OperationStatus
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.ports import Ports, Settings
from tests.acceptance import tools
from tests.acceptance.harness import (
    FUSED,
    ONE_BY_ONE,
    answer,
    ask,
    assert_paired,
    attempts,
    crash_at,
    dev_model,
    events,
    frozen_requests,
    http_release,
    kinds,
    model_operations,
    operations,
    query,
    rows,
    run_of,
    simulated,
    tool_texts,
)
from tests.factories import python_tool

ECHO = {"echo": python_tool()}
BOTH = pytest.mark.parametrize("settings", [ONE_BY_ONE, FUSED], ids=["one_by_one", "fused"])


def _turns(*texts: str) -> tuple[dict[str, object], dict[str, object]]:
    calls = [{"name": "echo", "arguments": {"text": text}} for text in texts]
    return {"when": {"assistant_turns": 0}, "answer": {"tool_calls": calls}}, {"answer": {"text": "done"}}


def _assert_done_once(ports: Ports, run_id: RunId, texts: tuple[str, ...]) -> None:
    """The run of two loops ended well, with one message of each kind and one delivery."""
    run = run_of(ports, run_id)
    assert (run.status, answer(ports, run_id)) == (RunStatus.SUCCEEDED, "done")
    results = ["tool_result"] * len(texts)
    assert kinds(ports, run_id) == ["prompt", "user_ref", "assistant", *results, "assistant"]
    assert (run.loops_used, run.loops_reserved) == (2, 0)
    found = query(ports, "SELECT size, settled, state FROM call_batch WHERE run_id = :run", run=run_id)
    assert [tuple(row) for row in found] == [(len(texts), len(texts), "delivered")]
    assert events(ports, run_id).count("call.settled") == len(texts)
    requests = frozen_requests(ports, run_id)
    assert len(requests) == 2
    for request in requests:
        assert_paired(request)
    assert tool_texts(requests[-1]) == [f"echo: {text}" for text in texts]


@BOTH
def test_C15_L21_a_model_answer_that_was_saved_is_not_asked_for_again(
    database_url: str, settings: Settings, tool_calls: list[tuple[str, object]]
) -> None:
    with dev_model(*_turns("a")) as model, simulated(database_url, settings=settings) as first:
        run_id = ask(first.ports, http_release(model, ECHO))
        crash_at(first, "commit.after", "attempt_model")
        (saved,) = model_operations(first.ports, run_id)
        assert saved.status is OperationStatus.COMPLETED
        with simulated(database_url, settings=settings, clock=first.clock) as second:
            second.drive()
            _assert_done_once(second.ports, run_id, ("a",))
            assert [attempt.state for attempt in attempts(second.ports, run_id)] == [AttemptState.COMPLETE] * 2
            assert model_operations(second.ports, run_id)[0].raw == saved.raw
        assert [request.arrival for request in model.requests] == [1, 1]
        assert tool_calls == [("echo", "a")]


@BOTH
def test_C15_L21_a_tool_result_that_was_saved_is_not_called_for_again(
    database_url: str, settings: Settings, tool_calls: list[tuple[str, object]]
) -> None:
    with dev_model(*_turns("a")) as model, simulated(database_url, settings=settings) as first:
        run_id = ask(first.ports, http_release(model, ECHO))
        crash_at(first, "commit.after", "attempt_call")
        (saved,) = operations(first.ports, run_id, OperationKind.TOOL)
        assert saved.status is OperationStatus.COMPLETED
        assert tool_calls == [("echo", "a")]
        with simulated(database_url, settings=settings, clock=first.clock) as second:
            second.drive()
            _assert_done_once(second.ports, run_id, ("a",))
            assert operations(second.ports, run_id, OperationKind.TOOL) == [saved]
        assert tool_calls == [("echo", "a")]
        assert [request.arrival for request in model.requests] == [1, 1]


@BOTH
def test_L22_a_saved_member_is_reused_and_the_others_go_on_to_one_delivery(
    database_url: str, settings: Settings, tool_calls: list[tuple[str, object]]
) -> None:
    with dev_model(*_turns("a", "b", "c")) as model, simulated(database_url, settings=settings) as first:
        run_id = ask(first.ports, http_release(model, ECHO))
        crash_at(first, "commit.after", "attempt_call")
        members = operations(first.ports, run_id, OperationKind.TOOL)
        (saved,) = [member for member in members if member.status.settled]
        assert len(tool_calls) == 1
        assert kinds(first.ports, run_id) == ["prompt", "user_ref", "assistant"]
        assert len(model.requests) == 1
        with simulated(database_url, settings=settings, clock=first.clock) as second:
            second.drive()
            _assert_done_once(second.ports, run_id, ("a", "b", "c"))
            assert saved in operations(second.ports, run_id, OperationKind.TOOL)
            for member in operations(second.ports, run_id, OperationKind.TOOL):
                (attempt,) = second.ports.store.list_attempts([member.operation_id])
                assert attempt.state is AttemptState.COMPLETE
        assert sorted(tool_calls) == [("echo", "a"), ("echo", "b"), ("echo", "c")]
        assert len(model.requests) == 2


@BOTH
def test_L23_a_delivery_whose_successor_nobody_was_told_of_goes_on_and_adds_no_message(
    database_url: str, settings: Settings, tool_calls: list[tuple[str, object]]
) -> None:
    # Fused, the delivery is a part of the last member's commit.
    step = "attempt_call" if settings.fusion else "deliver_batch"
    with dev_model(*_turns("a")) as model, simulated(database_url, settings=settings) as first:
        run_id = ask(first.ports, http_release(model, ECHO))
        crash_at(first, "commit.after", step)
        delivered = kinds(first.ports, run_id)
        assert delivered == ["prompt", "user_ref", "assistant", "tool_result"]
        assert len(model.requests) == 1
        with simulated(database_url, settings=settings, clock=first.clock) as second:
            second.drive()
            _assert_done_once(second.ports, run_id, ("a",))
        assert tool_calls == [("echo", "a")]
        assert len(model.requests) == 2


PURE = ("prepare_context", "freeze_request", "accept_model", "deliver_batch", "settle_node", "finalize_run", "clean_up")
EFFECTS = ("attempt.before", "attempt.sent", "effect.done", "commit.before", "commit.after")
# How often the tool was entered before the crash.
ENTERED = {"attempt.before": 0, "attempt.sent": 0, "effect.done": 1, "commit.before": 1, "commit.after": 1}


@pytest.mark.parametrize("point", ["claim.after", "step.loaded", "commit.before", "commit.after", "publish.after"])
@pytest.mark.parametrize("step", PURE)
def test_D18_a_crash_in_a_step_without_an_effect_repeats_no_effect(
    clean_sqlite: str, step: str, point: str, tool_calls: list[tuple[str, object]]
) -> None:
    with dev_model(*_turns("a")) as model, simulated(clean_sqlite, settings=ONE_BY_ONE) as first:
        run_id = ask(first.ports, http_release(model, ECHO))
        crash_at(first, point, step)
        with simulated(clean_sqlite, settings=ONE_BY_ONE, clock=first.clock) as second:
            second.drive()
            _assert_done_once(second.ports, run_id, ("a",))
            assert len(attempts(second.ports, run_id)) == 2
            assert rows(second.ports, run_id) == []
        assert tool_calls == [("echo", "a")]
        assert len(model.requests) == 2


@pytest.mark.parametrize("settings", [ONE_BY_ONE, FUSED], ids=["one_by_one", "fused"])
@pytest.mark.parametrize("point", EFFECTS)
def test_D18_a_crash_around_a_call_that_must_not_be_repeated_makes_it_at_most_once_and_says_unknown(
    clean_sqlite: str, point: str, settings: Settings, tool_calls: list[tuple[str, object]]
) -> None:
    with dev_model(*_turns("a")) as model, simulated(clean_sqlite, settings=settings) as first:
        run_id = ask(first.ports, http_release(model, ECHO))
        crash_at(first, point, "attempt_call")
        with simulated(clean_sqlite, settings=settings, clock=first.clock) as second:
            second.drive()
            assert answer(second.ports, run_id) == "done"
            (call,) = operations(second.ports, run_id, OperationKind.TOOL)
            (result,) = tool_texts(frozen_requests(second.ports, run_id)[-1])
        assert len(tool_calls) == ENTERED[point]
        if point == "commit.after":
            assert (call.status, result) == (OperationStatus.COMPLETED, "echo: a")
        else:
            assert (call.status, call.executed) == (OperationStatus.UNKNOWN, Executed.UNKNOWN)
            assert json.loads(result)["error"]["executed"] == "unknown"
        assert len(model.requests) == 2


@pytest.mark.parametrize("point", EFFECTS)
def test_D18_a_crash_around_an_idempotent_call_has_its_effect_once(clean_sqlite: str, point: str) -> None:
    tools.forget()
    retry = {"on_unknown": {"action": "retry", "max": 1}}
    keyed = {"echo": python_tool(handler="tests.acceptance.tools:keyed", effect="write_external", retry=retry)}
    with dev_model(*_turns("a")) as model, simulated(clean_sqlite) as first:
        run_id = ask(first.ports, http_release(model, keyed))
        crash_at(first, point, "attempt_call")
        with simulated(clean_sqlite, clock=first.clock) as second:
            second.drive()
            assert answer(second.ports, run_id) == "done"
            assert tool_texts(frozen_requests(second.ports, run_id)[-1]) == ["keyed: a"]
            made = [attempt.state for attempt in attempts(second.ports, run_id, OperationKind.TOOL)]
        assert list(tools.DELIVERED.values()) == ["a"]
        unknown = [] if point == "commit.after" else [AttemptState.UNKNOWN]
        assert made == [*unknown, AttemptState.COMPLETE]


@pytest.mark.parametrize("point", [*EFFECTS, "first_output.saved"])
def test_D18_a_crash_around_a_model_attempt_sends_the_same_bytes_at_most_once_more(
    clean_sqlite: str, point: str, tool_calls: list[tuple[str, object]]
) -> None:
    with dev_model(*_turns("a")) as model, simulated(clean_sqlite) as first:
        run_id = ask(first.ports, http_release(model, ECHO))
        crash_at(first, point, "attempt_model")
        with simulated(clean_sqlite, clock=first.clock) as second:
            second.drive()
            _assert_done_once(second.ports, run_id, ("a",))
            states = [attempt.state for attempt in attempts(second.ports, run_id)]
        unknown = [] if point == "commit.after" else [AttemptState.UNKNOWN]
        assert states == [*unknown, AttemptState.COMPLETE, AttemptState.COMPLETE]
        assert 2 <= len(model.requests) <= 2 + len(unknown)
        assert len({request.sha256 for request in model.requests}) == 2
        assert tool_calls == [("echo", "a")]
