"""Two versions of the code on one database: the other one is this code with other versions in its table of steps."""

from dataclasses import replace

import pytest

from agentloom_worker.domain.dispatch import Queue, Successor
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.runtime.ports import US, Ports, Settings
from agentloom_worker.runtime.result import StepResult, hash_command
from agentloom_worker.runtime.slice import Slice
from agentloom_worker.runtime.steps.settle_node import settle_node
from agentloom_worker.runtime.table import STEPS, EffectStep, PureStep
from tests.acceptance.harness import (
    FUSED,
    ONE_BY_ONE,
    answer,
    ask,
    assert_paired,
    at_fault,
    attempts,
    dev_model,
    events,
    frozen_bodies,
    frozen_requests,
    http_release,
    kinds,
    rows,
    run_of,
    simulated,
    tool_texts,
)
from tests.factories import python_tool

BUSY = {
    "when": {"assistant_turns": 1},
    "first": 1,
    "answer": {"http_error": {"status": 503, "headers": {"Retry-After": "60"}}},
}
CALL = {"when": {"assistant_turns": 0}, "answer": {"tool_calls": [{"name": "echo", "arguments": {"text": "a"}}]}}
ANSWER = {"answer": {"text": "done"}}


def _announce(_ports: Ports, slice_: Slice) -> StepResult:
    """A step that the older code does not have."""
    run_id = slice_.run.run_id
    key = f"announce:{run_id}"
    successors = (Successor("finalize_run", run_id, f"finalize:{run_id}"),)
    return StepResult(slice_, key, hash_command(key), successors=successors)


def _settle_then_announce(ports: Ports, slice_: Slice) -> StepResult:
    run_id = slice_.run.run_id
    return replace(settle_node(ports, slice_), successors=(Successor("announce", run_id, f"announce:{run_id}"),))


def _newer() -> dict[str, PureStep | EffectStep]:
    """Every step a version on and in another order, and one more between two of them."""
    raised = {name: replace(entry, version=entry.version + 1) for name, entry in reversed(STEPS.items())}
    settle, announce = PureStep(Queue.CONTROL, _settle_then_announce, 2), PureStep(Queue.CONTROL, _announce)
    return {**raised, "settle_node": settle, "announce": announce}


def _deploy(patch: pytest.MonkeyPatch, steps: dict[str, PureStep | EffectStep]) -> None:
    """From now on this process has these steps."""
    for name in list(STEPS):
        patch.delitem(STEPS, name)
    for name, entry in steps.items():
        patch.setitem(STEPS, name, entry)


@pytest.mark.parametrize("settings", [ONE_BY_ONE, FUSED], ids=["one_by_one", "fused"])
def test_D13_a_run_that_waits_is_resumed_by_newer_code_and_nothing_is_done_again(
    database_url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch, tool_calls: list[tuple[str, object]]
) -> None:
    with dev_model(CALL, BUSY, ANSWER) as model:
        with simulated(database_url, settings=settings) as old:
            run_id = ask(old.ports, http_release(model, {"echo": python_tool()}))
            old.drive(until=lambda: len(model.requests) == 2)
            (waiting,) = rows(old.ports, run_id, "attempt_model")
            assert waiting.claimed_by is None and waiting.not_before > old.ports.store.now_us() + 59 * US
            before, sent = frozen_bodies(old.ports, run_id), [request.body for request in model.requests]
            seen, records = events(old.ports, run_id), kinds(old.ports, run_id)
        _deploy(monkeypatch, _newer())
        with (
            simulated(database_url, settings=settings, clock=old.clock) as new,
            at_fault("tail.raise", "announce", lambda: None) as announced,
        ):
            new.drive()
            assert (run_of(new.ports, run_id).status, answer(new.ports, run_id)) == (RunStatus.SUCCEEDED, "done")
            assert len(announced) == 1
            assert frozen_bodies(new.ports, run_id) == before
            assert [request.body for request in model.requests] == [*sent, sent[-1]]
            assert kinds(new.ports, run_id) == [*records, "assistant"]
            assert events(new.ports, run_id) == [*seen, "model.completed", "run.succeeded"]
            assert [attempt.attempt_no for attempt in attempts(new.ports, run_id)] == [1, 1, 2]
            last = frozen_requests(new.ports, run_id)[-1]
            assert_paired(last)
            assert tool_texts(last) == ["echo: a"]
        assert tool_calls == [("echo", "a")]


def test_D10_a_row_of_a_newer_step_or_version_is_put_back_by_older_code_and_costs_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = dict(STEPS)
    with dev_model(ANSWER) as model, simulated(database_url, settings=ONE_BY_ONE) as worker:
        ports = worker.ports
        with monkeypatch.context() as newer:
            _deploy(newer, _newer())
            run_id = ask(ports, http_release(model))
            (row,) = rows(ports, run_id, "prepare_context")
        assert older == STEPS
        for _ in range(20):
            worker.clock.advance(s=30)
            assert worker.runner.run(row.dispatch_id)
            (found,) = rows(ports, run_id, "prepare_context")
            assert (found.attempts, found.failures, found.losses, found.parked_at) == (0, 0, 0, None)
            assert "unknown step prepare_context v2" in (found.last_error or "")
        assert events(ports, run_id) == ["run.accepted"]
        with monkeypatch.context() as newer:
            _deploy(newer, _newer())
            worker.drive(until=lambda: bool(rows(ports, run_id, "announce")))
        (row,) = rows(ports, run_id, "announce")
        for _ in range(20):
            worker.clock.advance(s=30)
            assert worker.runner.run(row.dispatch_id)
            (found,) = rows(ports, run_id, "announce")
            assert (found.attempts, found.failures, found.losses, found.parked_at) == (0, 0, 0, None)
        with monkeypatch.context() as newer:
            _deploy(newer, _newer())
            worker.drive()
        assert answer(ports, run_id) == "done"
        assert len(model.requests) == 1
