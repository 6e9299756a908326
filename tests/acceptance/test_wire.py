"""Messages and calls on the wire: what a strict provider takes, whatever the model wrote.

The dev-model refuses, as strict providers do, a call without its result and a result without its call.
"""

import json
from typing import Any

import pytest

from agentloom_worker.capabilities.result import decode_result
from agentloom_worker.devmodel import DevModel, Outcome
from agentloom_worker.domain.capability import ToolResult
from agentloom_worker.domain.operation import Operation, OperationKind, OperationStatus
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.errors import Code
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.slice import load_response
from tests.acceptance.harness import (
    answer,
    ask,
    assert_paired,
    attempts,
    dev_model,
    frozen_requests,
    http_release,
    kinds,
    model_operations,
    operations,
    owner_of,
    query,
    run_of,
    simulated,
    tool_texts,
)
from tests.factories import python_tool

TOOLS = {
    "echo": python_tool(),
    "add": python_tool(handler="tests.tools:add"),
    "ping": python_tool(handler="tests.acceptance.tools:ping"),
    "noise": python_tool(handler="tests.acceptance.tools:noise"),
}


def _once(*calls: dict[str, Any], **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """One message with these calls, then an answer."""
    return {"when": {"assistant_turns": 0}, "answer": {"tool_calls": list(calls), **more}}, {"answer": {"text": "done"}}


def _members(ports: Ports, run_id: RunId) -> list[Operation]:
    found = [one for one in operations(ports, run_id) if one.kind is not OperationKind.MODEL]
    return sorted(found, key=lambda one: one.ordinal or 0)


def _result(ports: Ports, run_id: RunId, member: Operation) -> ToolResult:
    assert member.raw is not None
    return decode_result(ports.store.load_payload(owner_of(ports, run_id), member.raw))


def _assert_all_paired(ports: Ports, run_id: RunId, model: DevModel) -> list[dict[str, Any]]:
    """Every request ever frozen is valid, is what was sent, and was taken; returns them."""
    requests = frozen_requests(ports, run_id)
    for request in requests:
        assert_paired(request)
    sent = [json.loads(record.body or b"") for record in model.requests]
    assert [request for request in requests if request in sent] == sent
    # The answer is whole here before its server has noted that it is.
    assert model.wait_until(lambda requests: all(record.outcome is not Outcome.OPEN for record in requests))
    assert {(record.status, record.outcome) for record in model.requests} == {(200, Outcome.COMPLETE)}
    return requests


def test_W01_every_request_that_was_ever_frozen_pairs_each_call_with_its_result(database_url: str) -> None:
    calls = [{"name": "echo", "arguments": {"text": text}} for text in "abc"]
    turns = (
        {"when": {"assistant_turns": {"max": 4}}, "answer": {"tool_calls": calls}},
        {"answer": {"text": "done"}},
    )
    with dev_model(*turns) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, http_release(model, TOOLS))
        worker.drive()
        assert answer(worker.ports, run_id) == "done"
        requests = _assert_all_paired(worker.ports, run_id, model)
        assert [len(tool_texts(request)) for request in requests] == [0, 3, 6, 9, 12, 15]


@pytest.mark.parametrize("size_bytes", range(2500, 5001, 500))
def test_W01_a_window_that_ends_inside_of_three_parallel_results_sends_all_of_them_or_nothing(
    clean_sqlite: str, size_bytes: int
) -> None:
    # The window ends within the first, the second or the third result of a message, as the size has it.
    calls = [{"name": "noise", "arguments": {"seed": seed, "size_bytes": size_bytes}} for seed in "abc"]
    window = {"models": {"main": {"context_window_tokens": 32_000}}}
    with dev_model({"answer": {"tool_calls": calls}}) as model, simulated(clean_sqlite) as worker:
        run_id = ask(worker.ports, http_release(model, TOOLS, **window))
        worker.drive()
        run = run_of(worker.ports, run_id)
        assert (run.status, run.end_code) == (RunStatus.FAILED, Code.CONTEXT_WINDOW_EXCEEDED)
        requests = _assert_all_paired(worker.ports, run_id, model)
        loops = len(requests)
        assert 2 <= loops == len(model.requests)
        assert [len(tool_texts(request)) for request in requests] == [3 * loop for loop in range(loops)]
        # What could not be sent any more is in the records, whole.
        assert kinds(worker.ports, run_id).count("tool_result") == 3 * loops


def test_W01_the_last_loop_ends_with_its_results_delivered_and_no_orphan(database_url: str) -> None:
    calls = [{"name": "echo", "arguments": {"text": text}} for text in "abc"]
    with dev_model({"answer": {"tool_calls": calls}}) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, http_release(model, TOOLS, agent={"limits": {"max_loops": 2}}))
        worker.drive()
        run = run_of(worker.ports, run_id)
        assert (run.status, run.end_code) == (RunStatus.BUDGET_EXHAUSTED, Code.LOOP_BUDGET_EXHAUSTED)
        assert len(_assert_all_paired(worker.ports, run_id, model)) == len(model.requests) == 2
        assert kinds(worker.ports, run_id).count("tool_result") == 6


@pytest.mark.parametrize(
    "wire_ids", [("call_1", "call_1", "call_1"), ("echo", "echo", "echo"), ("echo", "call_1", "echo")]
)
def test_W03_calls_that_share_a_provider_id_have_ids_of_ours_and_are_each_executed_once(
    clean_sqlite: str, wire_ids: tuple[str, ...], tool_calls: list[tuple[str, object]]
) -> None:
    texts = ["one", "two", "three"]
    pairs = zip(wire_ids, texts, strict=True)
    calls = [{"name": "echo", "id": wire_id, "arguments": {"text": text}} for wire_id, text in pairs]
    with dev_model(*_once(*calls), check_requests=False) as model, simulated(clean_sqlite) as worker:
        ports = worker.ports
        run_id = ask(ports, http_release(model, TOOLS))
        worker.drive()
        assert answer(ports, run_id) == "done"
        assert sorted(tool_calls) == sorted(("echo", text) for text in texts)
        members = _members(ports, run_id)
        assert len({member.call_id for member in members}) == 3
        assert [_result(ports, run_id, member).text for member in members] == [f"echo: {text}" for text in texts]
        (first, _) = model_operations(ports, run_id)
        saved = load_response(ports, run_of(ports, run_id), first)
        assert tuple(call.provider_call_id for call in saved.calls) == wire_ids
        request = _assert_all_paired(ports, run_id, model)[-1]
        assert tuple(call["id"] for call in request["messages"][-4]["tool_calls"]) == wire_ids
        assert tuple(message["tool_call_id"] for message in request["messages"][-3:]) == wire_ids
        assert tool_texts(request) == [f"echo: {text}" for text in texts]


@pytest.mark.parametrize("broken", ['{"text": ', '{"text": "a",}', "text=a", '["a"]', "{'text': 'a'}"])
def test_W05_broken_arguments_are_answered_kept_as_they_are_and_shown_as_valid_json(
    clean_sqlite: str, broken: str, tool_calls: list[tuple[str, object]]
) -> None:
    calls = {"name": "echo", "arguments_text": broken}, {"name": "echo", "arguments": {"text": "sound"}}
    with dev_model(*_once(*calls)) as model, simulated(clean_sqlite) as worker:
        ports = worker.ports
        run_id = ask(ports, http_release(model, TOOLS))
        worker.drive()
        assert (run_of(ports, run_id).status, answer(ports, run_id)) == (RunStatus.SUCCEEDED, "done")
        assert tool_calls == [("echo", "sound")]
        failed, sound = _members(ports, run_id)
        assert (failed.status, failed.code) == (OperationStatus.FAILED, Code.TOOL_ARGUMENTS_INVALID)
        assert sound.status is OperationStatus.COMPLETED
        assert ports.store.list_attempts([failed.operation_id]) == []
        (first, _) = model_operations(ports, run_id)
        assert load_response(ports, run_of(ports, run_id), first).calls[0].arguments_text == broken
        request = _assert_all_paired(ports, run_id, model)[-1]
        shown = request["messages"][-3]["tool_calls"][0]["function"]["arguments"]
        assert json.loads(shown) == {"unparsed_arguments": broken}
        error = json.loads(tool_texts(request)[0])["error"]
        assert (error["code"], error["executed"]) == (Code.TOOL_ARGUMENTS_INVALID, "not_executed")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ('{"text": "hal', "length"),
        ('{"text": "half"}', "length"),
        ('{"text": "half"', "length"),
        ('{"text": "half"}', "content_filter"),
    ],
)
def test_W06_calls_of_a_message_that_was_cut_are_not_executed(
    clean_sqlite: str, arguments: str, reason: str, tool_calls: list[tuple[str, object]]
) -> None:
    calls = {"name": "echo", "arguments": {"text": "whole"}}, {"name": "echo", "arguments_text": arguments}
    with dev_model(*_once(*calls, finish_reason=reason)) as model, simulated(clean_sqlite) as worker:
        ports = worker.ports
        run_id = ask(ports, http_release(model, TOOLS))
        worker.drive()
        assert answer(ports, run_id) == "done"
        assert tool_calls == []
        for member in _members(ports, run_id):
            assert (member.status, member.code) == (OperationStatus.FAILED, Code.TOOL_CALL_TRUNCATED)
        assert attempts(ports, run_id, OperationKind.TOOL) == []
        for text in tool_texts(_assert_all_paired(ports, run_id, model)[-1]):
            error = json.loads(text)["error"]
            assert (error["code"], error["executed"]) == (Code.TOOL_CALL_TRUNCATED, "not_executed")


@pytest.mark.parametrize(
    ("call", "code", "named"),
    [
        ({"name": "rm_rf", "arguments": {}}, Code.CAPABILITY_NOT_FOUND, "rm_rf"),
        ({"name": "Echo", "arguments": {"text": "a"}}, Code.CAPABILITY_NOT_FOUND, "Echo"),
        ({"name": "add", "arguments": {"left": "1", "right": 2}}, Code.TOOL_ARGUMENTS_INVALID, "left"),
        ({"name": "add", "arguments": {"left": 1}}, Code.TOOL_ARGUMENTS_INVALID, "right"),
        ({"name": "echo", "arguments": {"text": "a", "loud": True}}, Code.TOOL_ARGUMENTS_INVALID, "loud"),
        ({"name": "echo", "arguments_text": ""}, Code.TOOL_ARGUMENTS_INVALID, "text"),
    ],
)
def test_W07_an_invalid_call_is_a_settled_member_with_an_error_and_the_run_goes_on(
    clean_sqlite: str, call: dict[str, Any], code: Code, named: str, tool_calls: list[tuple[str, object]]
) -> None:
    sound = {"name": "add", "arguments": {"left": 1, "right": 2}}
    with dev_model(*_once(call, sound)) as model, simulated(clean_sqlite) as worker:
        ports = worker.ports
        run_id = ask(ports, http_release(model, TOOLS))
        worker.drive()
        assert answer(ports, run_id) == "done"
        assert tool_calls == [("add", (1, 2))]
        failed, settled = _members(ports, run_id)
        assert (failed.status, failed.code) == (OperationStatus.FAILED, code)
        assert settled.status is OperationStatus.COMPLETED
        found = query(ports, "SELECT size, settled, state FROM call_batch WHERE run_id = :run", run=run_id)
        assert [tuple(row) for row in found] == [(2, 2, "delivered")]
        first, second = tool_texts(_assert_all_paired(ports, run_id, model)[-1])
        error = json.loads(first)["error"]
        assert (error["code"], error["executed"]) == (code, "not_executed")
        assert named in error["message"]
        assert second == "3"


@pytest.mark.parametrize("arguments", ["", "null", "  ", "{}"])
def test_W07_empty_arguments_call_a_tool_that_takes_none(
    clean_sqlite: str, arguments: str, tool_calls: list[tuple[str, object]]
) -> None:
    with dev_model(*_once({"name": "ping", "arguments_text": arguments})) as model, simulated(clean_sqlite) as worker:
        ports = worker.ports
        run_id = ask(ports, http_release(model, TOOLS))
        worker.drive()
        assert answer(ports, run_id) == "done"
        request = _assert_all_paired(ports, run_id, model)[-1]
        assert tool_texts(request) == ["pong"]
        assert json.loads(request["messages"][-2]["tool_calls"][0]["function"]["arguments"]) == {}
        assert tool_calls == []
        assert len(attempts(ports, run_id, OperationKind.TOOL)) == 1


def test_W07_calls_that_are_all_invalid_are_delivered_at_once(database_url: str) -> None:
    calls = {"name": "nope", "arguments": {}}, {"name": "echo", "arguments_text": "{"}
    with dev_model(*_once(*calls)) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, http_release(model, TOOLS))
        worker.drive()
        assert answer(worker.ports, run_id) == "done"
        assert attempts(worker.ports, run_id, OperationKind.TOOL) == []
        assert len(tool_texts(_assert_all_paired(worker.ports, run_id, model)[-1])) == 2
