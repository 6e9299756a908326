"""Odd streams through the whole runtime: what the run ends with, and what of a broken stream is never seen.

The bytes themselves, cut at every place, are the adapter's tests (tests/unit/llm).
"""

import base64
import gzip
import json
from typing import Any

import pytest

from agentloom_worker import faults
from agentloom_worker.devmodel import DevModel
from agentloom_worker.domain.model import Executed, FirstOutput, FirstOutputKind
from agentloom_worker.domain.operation import AttemptState, OperationKind, OperationStatus
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.errors import Code
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.inspect import read_result
from agentloom_worker.runtime.ports import Ports
from tests.acceptance.harness import (
    answer,
    ask,
    attempts,
    dev_model,
    dispatching,
    events,
    frozen_requests,
    http_release,
    kinds,
    model_operations,
    operations,
    over,
    query,
    run_of,
    simulated,
    wait_for,
)
from tests.contract.model_adapters import LeapingClock
from tests.factories import python_tool

SECRET = "what nobody may see of a broken stream"
SOON = {"initial_ms": 10, "jitter": "none"}
_TICKETS = "SELECT state FROM loop_ticket WHERE run_id = :run"
PROTOCOLS = ("openai-chat", "openai-responses")
FAILED_ONCE = ["run.accepted", "run.started", "attempt.retrying", "model.completed", "run.succeeded"]


def _stream(*chunks: object, done: bool = True) -> str:
    """The text of an event stream of these data events."""
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join(lines) + ("data: [DONE]\n\n" if done else "")


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


WHOLE = (
    _chunk({"role": "assistant", "content": None}),
    _chunk({"content": "Hi"}),
    _chunk({}, "stop"),
    {"id": "c1", "choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 3}},
)


def _raw(text: str, **more: Any) -> dict[str, Any]:
    return {"raw": {"text": text, **more}}


def _assert_nothing_seen(ports: Ports, run_id: RunId) -> None:
    """No request, no record, no event and no answer holds what a broken stream had brought."""
    assert SECRET not in json.dumps(frozen_requests(ports, run_id))
    assert SECRET not in json.dumps([event.fields for event in ports.store.list_events(run_id)])
    run = run_of(ports, run_id)
    assert SECRET not in (run.end_detail or "")
    for operation in model_operations(ports, run_id):
        assert operation.raw is None or SECRET.encode() not in (operation.raw.inline or b"")


def test_S01_a_whole_stream_ends_the_run_with_its_text_and_its_usage(database_url: str) -> None:
    with dev_model({"answer": _raw(_stream(*WHOLE), piece_bytes=7)}) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, http_release(model))
        worker.drive()
        assert run_of(worker.ports, run_id).status is RunStatus.SUCCEEDED
        assert answer(worker.ports, run_id) == "Hi"
        (done,) = [event for event in worker.ports.store.list_events(run_id) if event.kind == "model.completed"]
        assert (done.fields["input_tokens"], done.fields["output_tokens"]) == (12, 3)
        assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("text", "then"),
    [
        (_stream(*WHOLE[:1], _chunk({"content": SECRET}), done=False), "end"),
        (_stream(*WHOLE[:1], _chunk({"content": SECRET}), done=False), "hang_up"),
        (_stream(*WHOLE[:1], _chunk({"content": SECRET}), done=False) + "data: [DONE]", "end"),
        (_stream(*WHOLE[:1], _chunk({"content": SECRET}), *WHOLE[2:], done=False)[:-90], "hang_up"),
    ],
)
def test_S02_a_stream_without_its_last_frames_is_sent_again_and_never_joined(
    clean_sqlite: str, text: str, then: str
) -> None:
    turns = {"first": 1, "answer": _raw(text, then=then)}, {"answer": {"text": "whole"}}
    with dev_model(*turns) as model, simulated(clean_sqlite) as worker:
        run_id = ask(worker.ports, http_release(model))
        worker.drive()
        assert answer(worker.ports, run_id) == "whole"
        broken, complete = attempts(worker.ports, run_id)
        assert (broken.state, complete.state) == (AttemptState.FAILED, AttemptState.COMPLETE)
        assert SECRET.encode() in (broken.partial or b"")
        assert events(worker.ports, run_id) == FAILED_ONCE
        _assert_nothing_seen(worker.ports, run_id)
        # The same bytes, twice.
        assert [request.arrival for request in model.requests] == [1, 2]


def test_S02_a_stream_that_never_ends_well_fails_the_run_with_an_unknown_outcome(database_url: str) -> None:
    text = _stream(*WHOLE[:1], _chunk({"content": SECRET}), done=False)
    with dev_model({"answer": _raw(text, then="hang_up")}) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, http_release(model))
        worker.drive()
        run = run_of(worker.ports, run_id)
        assert (run.status, run.end_code) == (RunStatus.FAILED, Code.MODEL_TRANSPORT_FAILED)
        (operation,) = model_operations(worker.ports, run_id)
        assert (operation.status, operation.executed) == (OperationStatus.FAILED, Executed.UNKNOWN)
        assert [attempt.state for attempt in attempts(worker.ports, run_id)] == [AttemptState.FAILED] * 4
        assert len(model.requests) == 4
        assert kinds(worker.ports, run_id) == ["prompt", "user_ref"]
        found = query(worker.ports, _TICKETS, run=run_id)
        assert [row[0] for row in found] == ["consumed"]
        _assert_nothing_seen(worker.ports, run_id)


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"error": {"message": "overloaded", "type": "server_error", "code": None}}, Code.MODEL_PROVIDER_ERROR),
        ({"error": {"message": "no", "code": None}, "choices": []}, Code.MODEL_PROVIDER_ERROR),
        ({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, Code.MODEL_RATE_LIMITED),
    ],
)
@pytest.mark.parametrize("before", [(), (WHOLE[0], _chunk({"content": SECRET}))], ids=["at once", "in the middle"])
def test_S03_an_error_inside_of_a_200_is_a_provider_error_and_never_an_empty_answer(
    clean_sqlite: str, before: tuple[object, ...], event: dict[str, Any], code: Code
) -> None:
    with dev_model({"answer": _raw(_stream(*before, event))}) as model, simulated(clean_sqlite) as worker:
        run_id = ask(worker.ports, http_release(model))
        worker.drive()
        run = run_of(worker.ports, run_id)
        assert (run.status, run.end_code) == (RunStatus.FAILED, code)
        assert run.answer_operation_id is None
        assert kinds(worker.ports, run_id) == ["prompt", "user_ref"]
        assert {attempt.code for attempt in attempts(worker.ports, run_id)} == {code}
        assert len(attempts(worker.ports, run_id)) == len(model.requests)
        _assert_nothing_seen(worker.ports, run_id)


def test_S03_an_error_inside_of_a_200_is_sent_again_where_its_class_says_so(clean_sqlite: str) -> None:
    error = {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}
    turns = {"first": 2, "answer": _raw(_stream(error))}, {"answer": {"text": "at last"}}
    with dev_model(*turns) as model, simulated(clean_sqlite) as worker:
        run_id = ask(worker.ports, http_release(model))
        worker.drive()
        assert answer(worker.ports, run_id) == "at last"
        assert [request.arrival for request in model.requests] == [1, 2, 3]
        codes = [attempt.code for attempt in attempts(worker.ports, run_id)]
        assert codes == [Code.MODEL_RATE_LIMITED, Code.MODEL_RATE_LIMITED, None]


@pytest.mark.parametrize(
    ("profile", "reason"), [("deepseek", "insufficient_system_resource"), ("zhipu", "network_error"), ("vllm", "error")]
)
def test_S03_a_message_that_ends_by_an_interruption_is_sent_again_and_none_of_its_calls_is_made(
    clean_sqlite: str, profile: str, reason: str
) -> None:
    call = {"index": 0, "id": "a", "function": {"name": "echo", "arguments": json.dumps({"text": SECRET})}}
    broken = _stream(_chunk({"content": SECRET}), _chunk({"tool_calls": [call]}), _chunk({}, reason))
    turns = {"first": 1, "answer": _raw(broken)}, {"answer": {"text": "at last"}}
    with dev_model(*turns) as model, simulated(clean_sqlite) as worker:
        document = http_release(model, tools={"echo": python_tool()}, models={"main": {"profile": profile}})
        run_id = ask(worker.ports, document)
        worker.drive()
        assert answer(worker.ports, run_id) == "at last"
        assert len(model.requests) == 2
        codes = [attempt.code for attempt in attempts(worker.ports, run_id)]
        assert codes == [Code.MODEL_PROVIDER_ERROR, None]
        assert "tool_call" not in kinds(worker.ports, run_id)
        _assert_nothing_seen(worker.ports, run_id)


def test_S03_a_message_that_ends_by_a_full_window_ends_the_run_at_once(clean_sqlite: str) -> None:
    broken = _stream(_chunk({"content": SECRET}), _chunk({}, "model_context_window_exceeded"))
    with dev_model({"answer": _raw(broken)}) as model, simulated(clean_sqlite) as worker:
        run_id = ask(worker.ports, http_release(model, models={"main": {"profile": "zhipu"}}))
        worker.drive()
        assert run_of(worker.ports, run_id).end_code == Code.MODEL_CONTEXT_LENGTH_EXCEEDED
        assert len(model.requests) == 1
        _assert_nothing_seen(worker.ports, run_id)


def test_S05_keep_alives_are_no_first_output_and_change_no_answer(database_url: str) -> None:
    comments = ": keep-alive\n\n: keep-alive\n\n"
    text = comments + "id: 7\n: keep-alive\n" + _stream(*WHOLE).replace("\n\ndata: [DONE]", "\n\n: bye\n\ndata: [DONE]")
    with dev_model({"answer": _raw(text, piece_bytes=11)}) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, http_release(model))
        worker.drive()
        assert answer(worker.ports, run_id) == "Hi"
        (attempt,) = attempts(worker.ports, run_id)
        assert attempt.first_output is not None and attempt.first_output.has_display_content
        assert len(model.requests) == 1


def test_S05_keep_alives_alone_deliver_nothing_and_do_not_hold_off_the_limit_of_the_first_output(
    database_url: str,
) -> None:
    slow = {"text": SECRET, "keep_alive": {"count": 10_000, "interval_ms": 20}}
    turns = {"first": 1, "answer": slow}, {"answer": {"text": "quick"}}
    binding = {"models": {"main": {"first_output_timeout_ms": 2_000, "idle_timeout_ms": 30_000, "retry": SOON}}}
    with dev_model(*turns) as model, dispatching(database_url) as dispatcher:
        ports = dispatcher.ports
        run_id = ask(ports, http_release(model, **binding))
        wait_for(over(ports, run_id), "the run is over")
        assert answer(ports, run_id) == "quick"
        first, second = attempts(ports, run_id)
        assert (first.state, first.code) == (AttemptState.FAILED, Code.MODEL_FIRST_OUTPUT_TIMEOUT)
        assert first.first_output is None and second.first_output is not None
        statement = "SELECT state, first_output_receipt FROM user_input_delivery WHERE target_run_id = :run"
        delivered = [tuple(row) for row in query(ports, statement, run=run_id)]
        assert delivered == [("delivered", f"{second.operation_id}/2")]
        _assert_nothing_seen(ports, run_id)


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_S10_a_whole_json_answer_in_place_of_a_stream_is_the_answer(database_url: str, kind: str) -> None:
    message = {"role": "assistant", "content": "whole"}
    document = {"id": "c1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    body = _raw(json.dumps(document), headers={"content-type": kind})
    with dev_model({"answer": body}) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, http_release(model))
        worker.drive()
        assert answer(worker.ports, run_id) == "whole"
        assert len(model.requests) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("kind", "code", "detail", "requests"),
    [
        ("text/html", Code.MODEL_PROTOCOL_ERROR, "the endpoint answered with a web page", 1),
        ("text/plain", Code.MODEL_PROTOCOL_ERROR, "the answer is no event stream", 1),
        # A server that declares a stream and sends none of it is like one whose stream broke off.
        ("text/event-stream", Code.MODEL_TRANSPORT_FAILED, "the stream ended before its final frame", 4),
        ("application/json", Code.MODEL_PROTOCOL_ERROR, "the answer is not JSON", 1),
    ],
)
def test_S10_a_web_page_in_place_of_a_stream_fails_the_run_and_none_of_it_is_shown(
    clean_sqlite: str, protocol: str, kind: str, code: Code, detail: str, requests: int
) -> None:
    page = f"<html><body>{SECRET}</body></html>"
    with (
        dev_model({"answer": _raw(page, headers={"content-type": kind})}) as model,
        simulated(clean_sqlite) as worker,
    ):
        run_id = ask(worker.ports, http_release(model, models={"main": {"protocol": protocol}}))
        worker.drive()
        run = run_of(worker.ports, run_id)
        assert (run.status, run.end_code, run.end_detail) == (RunStatus.FAILED, code, detail)
        assert len(attempts(worker.ports, run_id)) == len(model.requests) == requests
        assert {(one.code, one.first_output) for one in attempts(worker.ports, run_id)} == {(code, None)}
        _assert_nothing_seen(worker.ports, run_id)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_S06_a_refusal_is_the_answer_and_marked_as_one(clean_sqlite: str, protocol: str) -> None:
    with dev_model({"answer": {"refusal": "I will not."}}) as model, simulated(clean_sqlite) as worker:
        run_id = ask(worker.ports, http_release(model, models={"main": {"protocol": protocol}}))
        worker.drive()
        run = run_of(worker.ports, run_id)
        assert (run.status, run.end_code, run.end_detail) == (RunStatus.SUCCEEDED, None, "refused")
        found = read_result(worker.ports, run_id)
        assert (found.answer, found.refused, found.truncated, found.empty) == ("I will not.", True, False, False)
        (attempt,) = attempts(worker.ports, run_id)
        assert attempt.first_output == FirstOutput(FirstOutputKind.TEXT, True)
        assert kinds(worker.ports, run_id) == ["prompt", "user_ref", "assistant"]
        assert len(model.requests) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("thoughts", ["", "hm"])
def test_S06_an_answer_that_the_filter_withheld_is_a_failure_and_no_empty_answer(
    clean_sqlite: str, protocol: str, thoughts: str
) -> None:
    withheld = {"text": "", "finish_reason": "content_filter"} | ({"reasoning": thoughts} if thoughts else {})
    with dev_model({"answer": withheld}) as model, simulated(clean_sqlite) as worker:
        run_id = ask(worker.ports, http_release(model, models={"main": {"protocol": protocol}}))
        worker.drive()
        run = run_of(worker.ports, run_id)
        assert (run.status, run.end_code) == (RunStatus.FAILED, Code.MODEL_CONTENT_FILTERED)
        assert run.end_detail == "the provider's content filter withheld the whole answer"
        found = read_result(worker.ports, run_id)
        assert (found.answer, found.refused, found.empty) == (None, False, False)
        assert run.answer_operation_id is None
        (operation,) = model_operations(worker.ports, run_id)
        assert (operation.status, operation.executed) == (OperationStatus.COMPLETED, Executed.EXECUTED)
        assert [tuple(row) for row in query(worker.ports, _TICKETS, run=run_id)] == [("consumed",)]
        assert kinds(worker.ports, run_id) == ["prompt", "user_ref"]
        assert len(model.requests) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_S06_a_call_that_the_filter_cut_is_not_executed(
    clean_sqlite: str, protocol: str, tool_calls: list[tuple[str, object]]
) -> None:
    cut = {"tool_calls": [{"name": "echo", "arguments": {"text": "a"}}], "finish_reason": "content_filter"}
    turns = {"when": {"assistant_turns": 0}, "answer": cut}, {"answer": {"text": "then not"}}
    with dev_model(*turns) as model, simulated(clean_sqlite) as worker:
        tools = {"echo": python_tool()}
        run_id = ask(worker.ports, http_release(model, tools, models={"main": {"protocol": protocol}}))
        worker.drive()
        assert answer(worker.ports, run_id) == "then not"
        (member,) = operations(worker.ports, run_id, OperationKind.TOOL)
        assert (member.code, member.executed) == (Code.TOOL_CALL_TRUNCATED, Executed.NOT_EXECUTED)
        assert tool_calls == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("broken", [False, True])
def test_S08_calls_are_made_although_the_finish_reason_says_stop(
    clean_sqlite: str, protocol: str, tool_calls: list[tuple[str, object]], broken: bool
) -> None:
    """Each by itself: one whose arguments are no JSON is answered with what is wrong, the others are executed."""
    calls = [
        {"name": "echo", "arguments_text": '{"text": "a"}'},
        {"name": "echo", "arguments_text": '{"text": ' if broken else '{"text": "b"}'},
    ]
    told = {"tool_calls": calls, "finish_reason": "stop"}
    turns = {"when": {"assistant_turns": 0}, "answer": told}, {"answer": {"text": "done"}}
    with dev_model(*turns) as model, simulated(clean_sqlite) as worker:
        document = http_release(model, {"echo": python_tool()}, models={"main": {"protocol": protocol}})
        run_id = ask(worker.ports, document)
        worker.drive()
        assert answer(worker.ports, run_id) == "done"
        made = [one.code for one in operations(worker.ports, run_id, OperationKind.TOOL)]
        assert made == [None, Code.TOOL_ARGUMENTS_INVALID if broken else None]
        assert tool_calls == [("echo", "a")] + ([] if broken else [("echo", "b")])
        assert kinds(worker.ports, run_id)[2:5] == ["assistant", "tool_result", "tool_result"]


def test_S10_a_compressed_stream_is_read_like_any_other(clean_sqlite: str) -> None:
    packed = base64.b64encode(gzip.compress(_stream(*WHOLE).encode())).decode()
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    body = {"raw": {"base64": packed, "piece_bytes": 5, "headers": headers}}
    with dev_model({"answer": body}) as model, simulated(clean_sqlite) as worker:
        run_id = ask(worker.ports, http_release(model))
        worker.drive()
        assert answer(worker.ports, run_id) == "Hi"


def test_S02_a_compressed_stream_that_was_cut_is_sent_again(database_url: str) -> None:
    whole = gzip.compress(_stream(*WHOLE).encode())
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    cut, packed = (
        {"raw": {"base64": base64.b64encode(body).decode(), "headers": headers}} for body in (whole[:90], whole)
    )
    with dev_model({"first": 1, "answer": cut}, {"answer": packed}) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, http_release(model))
        worker.drive()
        assert answer(worker.ports, run_id) == "Hi"
        broken, complete = attempts(worker.ports, run_id)
        assert (broken.code, complete.state) == (Code.MODEL_TRANSPORT_FAILED, AttemptState.COMPLETE)
        assert [request.arrival for request in model.requests] == [1, 2]


def test_S10_a_stream_that_stalls_ends_by_the_idle_limit_and_is_sent_again(database_url: str) -> None:
    stalls = {"text": SECRET, "chunk_chars": 4, "cut": {"then": "stall", "after_chunks": 2}}
    turns = {"first": 1, "answer": stalls}, {"answer": {"text": "on time"}}
    with dev_model(*turns) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, http_release(model, models={"main": {"idle_timeout_ms": 200}}))
        worker.drive()
        assert answer(worker.ports, run_id) == "on time"
        first, second = attempts(worker.ports, run_id)
        assert (first.state, second.state) == (AttemptState.FAILED, AttemptState.COMPLETE)
        assert first.first_output is not None and first.partial is not None
        _assert_nothing_seen(worker.ports, run_id)
        assert model.wait_until(lambda requests: requests[0].client_gone)


@pytest.mark.parametrize(
    ("limit", "states"),
    [
        ({}, [AttemptState.COMPLETE]),
        ({"idle_timeout_ms": 150_000}, [AttemptState.COMPLETE]),
        ({"idle_timeout_ms": 50_000}, [AttemptState.FAILED, AttemptState.COMPLETE]),
    ],
    ids=["none", "longer", "shorter"],
)
def test_S10_a_stream_that_is_silent_for_100_s_is_ended_by_an_idle_limit_of_its_release_and_by_no_other(
    clean_sqlite: str, limit: dict[str, int], states: list[AttemptState]
) -> None:
    clock = LeapingClock()
    slow = {"text": "slow but whole", "chunk_chars": 4, "hold": {"gate": "go", "after_chunks": 1}}
    with dev_model({"answer": slow}) as model, simulated(clean_sqlite, clock=clock) as worker:

        def trigger(point: str, _step: str) -> None:
            if point == "first_output.saved" and not model.requests[1:]:
                clock.leaping = True
                model.open_gate("go")
            elif point == "effect.done":
                clock.leaping = False

        faults.install(trigger)
        try:
            run_id = ask(worker.ports, http_release(model, models={"main": {"retry": SOON, **limit}}))
            worker.drive()
        finally:
            faults.install(None)
        assert answer(worker.ports, run_id) == "slow but whole"
        assert [attempt.state for attempt in attempts(worker.ports, run_id)] == states


def _responses(model: DevModel, tools: dict[str, Any] | None = None, profile: str = "generic") -> dict[str, Any]:
    """A release whose model speaks the Responses protocol."""
    binding = {"protocol": "openai-responses", "retry": SOON, "profile": profile}
    return http_release(model, tools, models={"main": binding})


def _failing(code: str, kind: str = "response.failed") -> dict[str, Any]:
    error = {"code": code, "message": "it broke"}
    response = {"id": "resp_1", "status": "failed", "error": error, "output": []}
    event = {"type": kind, "response": response} if kind == "response.failed" else {"type": kind, **error}
    return {"text": SECRET, "cut": {"then": "error", "event": event}}


def test_S09_a_run_over_responses_calls_its_tools_and_ends_by_a_completed_answer(
    database_url: str, tool_calls: list[tuple[str, object]]
) -> None:
    calls = [{"name": "echo", "arguments": {"text": text}} for text in ("a", "b")]
    usage = {"prompt_tokens": 12, "completion_tokens": 3}
    turns = (
        {"when": {"assistant_turns": 0}, "answer": {"text": "I look.", "reasoning": "hm", "tool_calls": calls}},
        {"answer": {"text": "{{tool_result:echo#1}} {{tool_result:echo#2}}", "usage": usage}},
    )
    with dev_model(*turns) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, _responses(model, {"echo": python_tool()}))
        worker.drive()
        assert run_of(worker.ports, run_id).status is RunStatus.SUCCEEDED
        assert sorted(tool_calls) == [("echo", "a"), ("echo", "b")]
        assert answer(worker.ports, run_id) == "echo: a echo: b"
        done = [event for event in worker.ports.store.list_events(run_id) if event.kind == "model.completed"]
        assert (done[-1].fields["input_tokens"], done[-1].fields["output_tokens"]) == (12, 3)
        # What was frozen is what was sent, and holds nothing that a server would have to keep.
        assert frozen_requests(worker.ports, run_id) == [json.loads(request.body or b"") for request in model.requests]
        last = frozen_requests(worker.ports, run_id)[-1]
        assert [item["type"] for item in last["input"]] == [
            *("message", "message", "message", "function_call", "function_call"),
            *("function_call_output", "function_call_output"),
        ]
        assert last["store"] is False


def test_S09_an_incomplete_response_is_a_truncated_answer_and_is_not_sent_again(clean_sqlite: str) -> None:
    with (
        dev_model({"answer": {"text": "Half a", "finish_reason": "length"}}) as model,
        simulated(clean_sqlite) as worker,
    ):
        run_id = ask(worker.ports, _responses(model))
        worker.drive()
        run = run_of(worker.ports, run_id)
        assert (run.status, run.end_detail) == (RunStatus.SUCCEEDED, "truncated")
        assert (answer(worker.ports, run_id), len(model.requests)) == ("Half a", 1)


def _completed(*items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The answer of a server that ends with `response.completed`, whatever its items say."""
    response = {"id": "resp_1", "status": "completed", "output": items, **fields}
    events = [{"type": "response.output_item.done", "output_index": n, "item": item} for n, item in enumerate(items)]
    return {"raw": {"text": _stream(*events, {"type": "response.completed", "response": response}, done=False)}}


ALL_THAT_IT_MAY = {"input_tokens": 9, "output_tokens": 1_000_000}


@pytest.mark.parametrize(
    ("status", "profile"), [("incomplete", "generic"), ("in_progress", "generic"), ("completed", "llama-cpp")]
)
def test_W06_calls_of_a_completed_response_that_was_cut_are_not_executed(
    clean_sqlite: str, status: str, profile: str, tool_calls: list[tuple[str, object]]
) -> None:
    whole, half = (
        {"type": "function_call", "call_id": name, "name": "echo", "arguments": '{"text": "a"}', "status": said}
        for name, said in (("c1", "completed"), ("c2", status))
    )
    cut = {"when": {"assistant_turns": 0}, "answer": _completed(whole, half, usage=ALL_THAT_IT_MAY)}
    with dev_model(cut, {"answer": {"text": "done"}}) as model, simulated(clean_sqlite) as worker:
        run_id = ask(worker.ports, _responses(model, {"echo": python_tool()}, profile))
        worker.drive()
        assert (run_of(worker.ports, run_id).status, answer(worker.ports, run_id)) == (RunStatus.SUCCEEDED, "done")
        assert tool_calls == []
        made = operations(worker.ports, run_id, OperationKind.TOOL)
        assert [one.code for one in made] == [Code.TOOL_CALL_TRUNCATED] * 2
        assert attempts(worker.ports, run_id, OperationKind.TOOL) == []


@pytest.mark.parametrize(("status", "profile"), [("incomplete", "generic"), ("completed", "llama-cpp")])
def test_S09_a_message_of_a_completed_response_that_was_cut_is_a_truncated_answer(
    clean_sqlite: str, status: str, profile: str
) -> None:
    half = {"type": "message", "status": status, "content": [{"type": "output_text", "text": "Half a"}]}
    with (
        dev_model({"answer": _completed(half, usage=ALL_THAT_IT_MAY)}) as model,
        simulated(clean_sqlite) as worker,
    ):
        run_id = ask(worker.ports, _responses(model, profile=profile))
        worker.drive()
        run = run_of(worker.ports, run_id)
        assert (run.status, run.end_detail) == (RunStatus.SUCCEEDED, "truncated")
        assert answer(worker.ports, run_id) == "Half a"


@pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses"])
def test_S06_a_text_that_the_content_filter_cut_is_an_answer_that_says_so(clean_sqlite: str, protocol: str) -> None:
    filtered = {"answer": {"text": "Half a", "finish_reason": "content_filter"}}
    with dev_model(filtered) as model, simulated(clean_sqlite) as worker:
        run_id = ask(worker.ports, http_release(model, models={"main": {"protocol": protocol}}))
        worker.drive()
        run = run_of(worker.ports, run_id)
        assert (run.status, run.end_detail) == (RunStatus.SUCCEEDED, "filtered")
        result = read_result(worker.ports, run_id)
        assert (result.answer, result.filtered, result.truncated, result.empty) == ("Half a", True, False, False)


@pytest.mark.parametrize("kind", ["response.failed", "error"])
def test_S09_a_failed_response_is_sent_again_where_its_class_says_so(clean_sqlite: str, kind: str) -> None:
    turns = {"first": 1, "answer": _failing("server_error", kind)}, {"answer": {"text": "whole"}}
    with dev_model(*turns) as model, simulated(clean_sqlite) as worker:
        run_id = ask(worker.ports, _responses(model))
        worker.drive()
        assert answer(worker.ports, run_id) == "whole"
        assert [attempt.state for attempt in attempts(worker.ports, run_id)] == [
            AttemptState.FAILED,
            AttemptState.COMPLETE,
        ]
        assert events(worker.ports, run_id) == FAILED_ONCE
        _assert_nothing_seen(worker.ports, run_id)
        assert [request.arrival for request in model.requests] == [1, 2]


@pytest.mark.parametrize("kind", ["response.failed", "error"])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("invalid_prompt", Code.MODEL_PROVIDER_ERROR),
        ("context_length_exceeded", Code.MODEL_CONTEXT_LENGTH_EXCEEDED),
        ("insufficient_quota", Code.MODEL_RATE_LIMITED),
    ],
)
def test_S09_a_failed_response_of_another_class_ends_the_run_at_once(
    clean_sqlite: str, kind: str, code: str, expected: Code
) -> None:
    with dev_model({"answer": _failing(code, kind)}) as model, simulated(clean_sqlite) as worker:
        run_id = ask(worker.ports, _responses(model))
        worker.drive()
        run = run_of(worker.ports, run_id)
        assert (run.status, run.end_code, len(model.requests)) == (RunStatus.FAILED, expected, 1)
        _assert_nothing_seen(worker.ports, run_id)
