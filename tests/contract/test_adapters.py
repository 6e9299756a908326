"""One contract for every model protocol: the same stories, told by a dev-model over real HTTP on loopback."""

import gzip
import hashlib
import json
import socket
import threading
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloom_worker.cancellation import CancelReason
from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.clock import ManualClock
from agentloom_worker.context.message import note, prompt_message
from agentloom_worker.context.view import View
from agentloom_worker.domain.model import (
    Cancelled,
    Category,
    Executed,
    Failed,
    FirstOutput,
    FirstOutputKind,
    Message,
    MessageCall,
    ModelOutcome,
    RequestParameters,
    ResponseCall,
    Role,
    ToolSchema,
    Usage,
)
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.errors import Code, PersistenceUnavailableError, RunError
from agentloom_worker.http.recording import Recording
from agentloom_worker.llm.adapter import DeliveryStoppedError
from agentloom_worker.llm.profiles import ErrorClass, Profile
from agentloom_worker.secrecy import REDACTED
from tests.contract.model_adapters import (
    ERRORS,
    PROTOCOLS,
    asked,
    model_of,
    new_adapter,
    post,
    raw,
    read,
    stream_of,
    told,
)
from tests.unit.http.raw_server import (
    CHUNKED_HEAD,
    LAST_CHUNKED_HEAD,
    STREAM_HEAD,
    WAIT_S,
    Exchange,
    bytes_of,
    chunked,
    serving,
)
from tests.unit.llm.calls import SECRET, Attempt, completed, failed, once

pytestmark = pytest.mark.parametrize("protocol", PROTOCOLS)

CALLS: dict[str, Any] = {
    "text": "I look.",
    "tool_calls": [
        {"name": "add", "id": "a", "arguments_text": '{"x": "né", "y": [1, 2]}'},
        {"name": "now", "id": "b", "arguments_text": "{}"},
    ],
    "chunk_chars": 5,
}
# Story → the dev-model's answer.
STORIES: dict[str, dict[str, Any]] = {
    "text": {"text": "né\u2028\u0085\x0b😀 and more", "chunk_chars": 3},
    "calls": CALLS,
    "refusal": {"refusal": "I cannot do that.", "chunk_chars": 4},
    "reasoning": {"reasoning": "think twice", "text": "Hi", "chunk_chars": 4},
    "empty": {"text": ""},
    "truncated": {"text": "half a", "finish_reason": "length"},
}
FIRST_OUTPUTS = {
    "text": FirstOutput(FirstOutputKind.TEXT, True),
    "calls": FirstOutput(FirstOutputKind.TEXT, True),
    "refusal": FirstOutput(FirstOutputKind.TEXT, True),
    "reasoning": FirstOutput(FirstOutputKind.REASONING, True),
    "empty": FirstOutput(FirstOutputKind.COMPLETE_FRAME, False),
    "truncated": FirstOutput(FirstOutputKind.TEXT, True),
}


def assert_incomplete(outcome: ModelOutcome) -> Failed:
    failure = failed(outcome).failure
    assert (failure.code, failure.category) == (Code.MODEL_TRANSPORT_FAILED, Category.TRANSPORT)
    assert (failure.external_outcome, failure.retry_class) == (Executed.UNKNOWN, RetryClass.TRANSPORT)
    return failed(outcome)


def test_S01_a_whole_stream_is_its_text_and_its_usage(protocol: str) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 5, "cached_tokens": 4, "reasoning_tokens": 3}
    response = completed(told(protocol, {**STORIES["text"], "usage": usage}))
    assert response.text == "né\u2028\u0085\x0b😀 and more"
    assert (response.finish_reason, response.usage) == ("stop", Usage(9, 5, 4, 3))
    assert response.provider_request_id
    assert (len(response.transport_sha256), response.transport_bytes > 100) == (64, True)
    assert completed(told(protocol, {"text": "Hi", "usage": "none"})).usage is None


@pytest.mark.parametrize("story", STORIES)
def test_S01_a_story_cut_at_any_byte_is_never_whole(protocol: str, story: str) -> None:
    """The frames alone, without sockets: each prefix of each story."""
    body = stream_of(protocol, STORIES[story])
    whole, _, _ = read(protocol, [body])
    assert whole is not None
    ends = [cut for cut in range(len(body) + 1) if read(protocol, [body[:cut]])[0] is not None]
    # The blank line that ends the last event is its last byte.
    assert ends == [len(body)]


def test_S02_a_connection_that_ends_at_any_byte_is_incomplete(protocol: str) -> None:
    body = stream_of(protocol, {"reasoning": "so", "text": "Hi", "usage": "none"})
    adapter = new_adapter(protocol)
    with serving(*(bytes_of(STREAM_HEAD + body[:cut]) for cut in range(len(body) + 1))) as server:
        outcomes = [once(adapter, server.base_url) for _ in range(len(body) + 1)]
    completed(outcomes[-1])
    for outcome in outcomes[:-1]:
        assert_incomplete(outcome)


@pytest.mark.parametrize("then", ["end", "hang_up", "reset"])
@pytest.mark.parametrize("after_chunks", [0, 2, None])
def test_S02_an_answer_that_breaks_off_is_incomplete_and_what_came_is_kept(
    protocol: str, then: str, after_chunks: int | None
) -> None:
    cut = {"then": then} if after_chunks is None else {"then": then, "after_chunks": after_chunks}
    partial = assert_incomplete(told(protocol, {"text": "abcdef", "chunk_chars": 1, "cut": cut})).partial
    if then != "reset":  # the kernel may drop what it had not handed over yet
        assert partial.text == "abcdef"[:after_chunks]
    else:
        assert "abcdef".startswith(partial.text)


def test_S02_a_stream_without_its_final_frame_is_never_success(protocol: str) -> None:
    assert assert_incomplete(told(protocol, {"text": "Hi", "omit": ["finish"]})).partial.text == "Hi"


@pytest.mark.parametrize(
    ("code", "expected", "retry_class"),
    [
        ("server_error", Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT),
        ("server_is_overloaded", Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT),
        ("rate_limit_exceeded", Code.MODEL_RATE_LIMITED, RetryClass.RATE_LIMIT),
        ("insufficient_quota", Code.MODEL_RATE_LIMITED, None),
        ("context_length_exceeded", Code.MODEL_CONTEXT_LENGTH_EXCEEDED, None),
        ("invalid_prompt", Code.MODEL_PROVIDER_ERROR, None),
        (None, Code.MODEL_PROVIDER_ERROR, None),
    ],
)
def test_S03_an_error_inside_a_200_stream_has_the_class_of_its_code(
    protocol: str, code: str | None, expected: Code, retry_class: RetryClass | None
) -> None:
    cut = {"then": "error", "after_chunks": 1, "event": ERRORS[protocol](code)}
    outcome = failed(told(protocol, {"text": "so far", "chunk_chars": 3, "cut": cut}))
    failure = outcome.failure
    assert (failure.code, failure.retry_class) == (expected, retry_class)
    assert (failure.external_outcome, outcome.partial.text) == (Executed.EXECUTED, "so ")
    assert "it broke" in failure.message


def test_S03_an_error_in_place_of_an_answer_is_no_answer(protocol: str) -> None:
    cut: dict[str, Any] = {"then": "error", "after_chunks": 0}
    attempt = Attempt()
    outcome = failed(told(protocol, {"text": "never", "cut": cut}, attempt))
    assert outcome.failure.code == Code.MODEL_PROVIDER_ERROR
    assert (outcome.partial.empty, attempt.first_outputs) == (True, [])


def test_S04_calls_over_many_deltas_stay_apart_and_whole(protocol: str) -> None:
    response = completed(told(protocol, CALLS))
    assert response.calls == (
        ResponseCall(0, "a", "add", '{"x": "né", "y": [1, 2]}'),
        ResponseCall(1, "b", "now", "{}"),
    )
    assert (response.text, response.finish_reason) == ("I look.", "tool_calls")


def test_S04_two_calls_in_one_place_are_a_protocol_error_and_never_joined(protocol: str) -> None:
    calls = [{"name": "add", "arguments": {"x": 1}, "index": 0}, {"name": "sub", "arguments": {"y": 2}, "index": 0}]
    outcome = failed(told(protocol, {"tool_calls": calls}))
    failure = outcome.failure
    assert (failure.code, failure.category) == (Code.MODEL_PROTOCOL_ERROR, Category.PROTOCOL)
    assert (failure.external_outcome, failure.retry_class) == (Executed.EXECUTED, None)
    assert [call.arguments_text for call in outcome.partial.calls] == ['{"x": 1}']


def test_S05_keep_alives_are_no_output_and_change_no_answer(protocol: str) -> None:
    attempt = Attempt()
    answer = {"text": "Hi", "keep_alive": {"count": 3}}
    assert completed(told(protocol, answer, attempt)).text == "Hi"
    assert attempt.first_outputs == [FirstOutput(FirstOutputKind.TEXT, True)]


def test_S05_keep_alives_alone_do_not_hold_off_the_limit_of_the_first_output(protocol: str) -> None:
    attempt = Attempt(first_output_timeout_s=0.2)
    answer = {"text": "", "keep_alive": {"count": 3}, "cut": {"then": "stall", "after_chunks": 0}}
    with model_of(answer) as model:
        failure = failed(once(new_adapter(protocol), model.base_url, attempt)).failure
        assert model.wait_until(lambda requests: requests[0].client_gone), "the stream was left open"
    assert (failure.code, failure.category) == (Code.MODEL_FIRST_OUTPUT_TIMEOUT, Category.TIMEOUT)
    assert (failure.external_outcome, failure.retry_class) == (Executed.UNKNOWN, RetryClass.TRANSPORT)
    assert attempt.first_outputs == []


def test_S06_a_refusal_is_kept_apart_from_text(protocol: str) -> None:
    response = completed(told(protocol, STORIES["refusal"]))
    assert (response.refusal, response.text) == ("I cannot do that.", "")


def test_S06_a_filtered_answer_says_so(protocol: str) -> None:
    response = completed(told(protocol, {"text": "", "finish_reason": "content_filter"}))
    assert (response.text, response.refusal, response.finish_reason) == ("", "", "content_filter")


def test_S07_reasoning_is_apart_from_text(protocol: str) -> None:
    response = completed(told(protocol, STORIES["reasoning"]))
    assert (response.reasoning, response.text) == ("think twice", "Hi")
    assert response.reasoning_items == (), "this profile sends none back"


def test_S08_calls_stand_whatever_the_finish_reason_says(protocol: str) -> None:
    response = completed(told(protocol, {"tool_calls": CALLS["tool_calls"], "finish_reason": "stop"}))
    assert [call.name for call in response.calls] == ["add", "now"]


def test_a_truncated_answer_is_complete_and_marked(protocol: str) -> None:
    response = completed(told(protocol, STORIES["truncated"]))
    assert (response.text, response.finish_reason) == ("half a", "length")


@pytest.mark.parametrize("story", STORIES)
def test_C07_the_first_output_is_reported_once_and_with_its_kind(protocol: str, story: str) -> None:
    attempt = Attempt()
    completed(told(protocol, STORIES[story], attempt))
    assert attempt.first_outputs == [FIRST_OUTPUTS[story]]


def test_C07_a_call_counts_by_its_name_and_its_arguments(protocol: str) -> None:
    attempt = Attempt()
    completed(told(protocol, {"tool_calls": CALLS["tool_calls"]}, attempt))
    assert attempt.first_outputs == [FirstOutput(FirstOutputKind.TOOL_NAME, True)]
    _, _, kinds = read(protocol, [stream_of(protocol, {"tool_calls": CALLS["tool_calls"]})])
    assert FirstOutputKind.TOOL_ARGUMENTS in kinds


def test_C09_what_a_broken_attempt_brought_is_in_no_later_answer(protocol: str) -> None:
    broken = {**CALLS, "text": "stale", "cut": {"then": "hang_up", "after_chunks": 4}}
    with model_of(broken, {"text": "fresh"}) as model:
        adapter = new_adapter(protocol)
        first = assert_incomplete(once(adapter, model.base_url))
        second = completed(once(adapter, model.base_url))
        bodies = {request.body for request in model.requests}
    assert first.partial.text == "stale"
    # Half of the arguments: for audit, and in no response.
    assert [(call.name, call.arguments_text) for call in first.partial.calls] == [("add", '{"x": "né"')]
    assert (second.text, second.calls) == ("fresh", ())
    assert len(bodies) == 1, "the same bytes, twice"


def test_C10_what_follows_the_final_frame_changes_nothing(protocol: str) -> None:
    body = stream_of(protocol, CALLS)
    attempt = Attempt()
    with serving(bytes_of(STREAM_HEAD + body + body + b"data: {broken\n\n")) as server:
        response = completed(once(new_adapter(protocol), server.base_url, attempt))
    assert (len(response.calls), response.text) == (2, "I look.")
    assert len(attempt.first_outputs) == 1


def test_S10_a_json_answer_in_place_of_a_stream_is_complete_when_whole(protocol: str) -> None:
    adapter = new_adapter(protocol)
    whole = post(protocol, CALLS, {**asked(protocol), "stream": False}).content
    head = {"content-type": "application/json"}
    for cut in (len(whole), len(whole) - 1, len(whole) // 2, 1):
        with model_of(raw(whole[:cut], headers=head)) as model:
            outcome = once(adapter, model.base_url)
        if cut < len(whole):
            assert_incomplete(outcome)
        else:
            response = completed(outcome)
            assert (response.text, len(response.calls)) == ("I look.", 2)
            assert response.usage is not None


@pytest.mark.parametrize("kind", ["text/plain", "text/json", "application/vnd.any+json"])
def test_S10_a_json_answer_is_read_unless_its_type_says_otherwise(protocol: str, kind: str) -> None:
    whole = post(protocol, CALLS, {**asked(protocol), "stream": False}).content
    response = completed(told(protocol, raw(whole, headers={"content-type": kind})))
    assert (response.text, len(response.calls)) == ("I look.", 2)
    assert_incomplete(told(protocol, raw(whole[:-1], headers={"content-type": kind})))


def test_S10_a_web_page_in_place_of_a_stream_is_a_protocol_error(protocol: str) -> None:
    for kind in ("text/html", "text/plain"):
        answer = raw(b"<!doctype html><title>Login</title>", headers={"content-type": kind})
        failure = failed(told(protocol, answer)).failure
        assert (failure.code, failure.retry_class) == (Code.MODEL_PROTOCOL_ERROR, None)
        assert "Login" not in failure.message


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json", "text/plain"])
@pytest.mark.parametrize(
    ("error", "code", "retry_class"),
    [
        ({"error": {"code": "context_length_exceeded"}}, Code.MODEL_CONTEXT_LENGTH_EXCEEDED, None),
        ({"error": {"type": "rate_limit_error"}}, Code.MODEL_RATE_LIMITED, RetryClass.RATE_LIMIT),
        ({"object": "error", "type": "BadRequestError", "code": 400}, Code.MODEL_PROVIDER_ERROR, None),
        ({"error": {"code": 14, "status": "UNAVAILABLE"}}, Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT),
    ],
)
def test_S10_a_bare_error_in_place_of_a_stream_has_the_class_of_its_code(
    protocol: str, kind: str, error: Any, code: Code, retry_class: RetryClass | None
) -> None:
    answer = raw(json.dumps(error, indent=2).encode(), headers={"content-type": kind}, piece_bytes=9)
    failure = failed(told(protocol, answer)).failure
    assert (failure.code, failure.retry_class) == (code, retry_class)
    assert failure.external_outcome is Executed.EXECUTED


def test_S10_a_bare_error_in_a_list_is_found_where_a_stream_was_announced(protocol: str) -> None:
    body = json.dumps([{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}]).encode()
    failure = failed(told(protocol, raw(body, headers={"content-type": "text/event-stream"}))).failure
    assert (failure.code, failure.retry_class) == (Code.MODEL_RATE_LIMITED, RetryClass.RATE_LIMIT)


def test_S10_a_bare_document_that_is_no_error_ends_no_stream(protocol: str) -> None:
    whole = post(protocol, CALLS, {**asked(protocol), "stream": False}).content
    for body in (whole, b'{"error": null}', b'{"error": {"code": "x"}', b"[]", b"[" * 100_000):
        assert_incomplete(told(protocol, raw(body, headers={"content-type": "text/event-stream"})))


def test_S10_a_gzip_stream_is_read_like_any_other(protocol: str) -> None:
    body = gzip.compress(stream_of(protocol, STORIES["text"]))
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    whole = completed(told(protocol, raw(body, headers=headers, piece_bytes=7)))
    assert whole.text == "né\u2028\u0085\x0b😀 and more"
    # Also where the body ends well and its packing does not: a proxy that lost its upstream closes politely.
    for then in ("hang_up", "end"):
        assert_incomplete(told(protocol, raw(body[: len(body) // 2], headers=headers, then=then)))


def test_S10_a_packing_of_packings_is_not_unpacked(protocol: str) -> None:
    body = gzip.compress(gzip.compress(stream_of(protocol, STORIES["text"])))
    for kind in ("text/event-stream", "application/json"):
        answer = raw(body, headers={"content-type": kind, "content-encoding": "gzip, gzip"})
        failure = failed(told(protocol, answer)).failure
        assert (failure.code, failure.retry_class) == (Code.MODEL_PROTOCOL_ERROR, None)
        assert "coding" in failure.message


def test_S10_a_stall_ends_by_the_idle_limit_if_one_is_set(protocol: str) -> None:
    answer = {"text": "Hi, and", "chunk_chars": 2, "cut": {"then": "stall", "after_chunks": 1}}
    outcome = failed(told(protocol, answer, Attempt(idle_timeout_s=0.1)))
    failure = outcome.failure
    assert (failure.code, failure.category) == (Code.MODEL_TRANSPORT_FAILED, Category.TIMEOUT)
    assert (failure.external_outcome, failure.retry_class) == (Executed.UNKNOWN, RetryClass.TRANSPORT)
    assert outcome.partial.text == "Hi"


def test_S10_a_stall_ends_by_the_deadline_always(protocol: str) -> None:
    answer = {"text": "Hi, and", "chunk_chars": 2, "cut": {"then": "stall", "after_chunks": 1}}
    attempt = Attempt(deadline_s=0.2)
    outcome = told(protocol, answer, attempt)
    assert isinstance(outcome, Cancelled)
    assert (outcome.sent, outcome.partial.text) == (True, "Hi")
    assert attempt.cancellation.reason is CancelReason.DEADLINE


def test_the_first_output_ends_its_limit_and_the_stream_goes_on(protocol: str) -> None:
    clock = ManualClock()
    with model_of({"text": "Hi, and more", "chunk_chars": 2, "hold": {"gate": "go", "after_chunks": 1}}) as model:

        def late(output: FirstOutput) -> None:
            clock.advance(1000.0)
            model.open_gate("go")

        attempt = Attempt(first_output_timeout_s=60.0, deadline_s=5000.0, on_first_output=late)
        assert completed(once(new_adapter(protocol, clock), model.base_url, attempt)).text == "Hi, and more"


@pytest.mark.parametrize("after_chunks", [None, 0, 1])
def test_D17_a_cancel_from_another_thread_closes_a_blocked_stream(protocol: str, after_chunks: int | None) -> None:
    hold = {"gate": "never"} if after_chunks is None else {"gate": "never", "after_chunks": after_chunks}
    attempt = Attempt()
    outcomes: list[ModelOutcome] = []
    with model_of({"text": "Hi, and", "chunk_chars": 2, "hold": hold}) as model:
        adapter = new_adapter(protocol)
        thread = threading.Thread(target=lambda: outcomes.append(once(adapter, model.base_url, attempt)))
        thread.start()
        assert model.wait_until(lambda requests: len(requests) == 1)
        attempt.cancellation.cancel(CancelReason.STOP)
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert model.wait_until(lambda requests: requests[0].client_gone), "the stream was left open"
    (outcome,) = outcomes
    assert isinstance(outcome, Cancelled)
    assert outcome.sent


def test_D17_nothing_that_arrived_is_handled_after_the_cancel(protocol: str) -> None:
    attempt = Attempt()
    attempt.on_first_output = lambda output: attempt.cancellation.cancel(CancelReason.STOP)
    outcome = told(protocol, {"text": "abc", "chunk_chars": 1}, attempt)
    assert isinstance(outcome, Cancelled)
    assert outcome.partial.text == "a"


@pytest.mark.parametrize("ending", ["hang_up", "reset"])
def test_an_end_without_an_answer_is_unknown(protocol: str, ending: str) -> None:
    assert_incomplete(told(protocol, {"no_answer": ending}))


def test_a_refused_connection_executed_nothing(protocol: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    failure = failed(once(new_adapter(protocol), f"http://127.0.0.1:{port}/v1")).failure
    assert (failure.code, failure.external_outcome) == (Code.MODEL_TRANSPORT_FAILED, Executed.NOT_EXECUTED)


def test_a_receipt_that_cannot_be_saved_closes_the_stream(protocol: str) -> None:
    error = PersistenceUnavailableError("down")

    def fail(output: FirstOutput) -> None:
        raise error

    hold = {"gate": "never", "after_chunks": 1}
    with model_of({"text": "abc", "chunk_chars": 1, "hold": hold}) as model:
        with pytest.raises(PersistenceUnavailableError) as caught:
            once(new_adapter(protocol), model.base_url, Attempt(on_first_output=fail))
        assert model.wait_until(lambda requests: requests[0].client_gone), "the stream was left open"
    assert caught.value is error


@pytest.mark.parametrize("story", sorted(STORIES))
def test_C07_a_delivery_that_is_stopped_closes_the_stream_and_leaves_what_had_come(protocol: str, story: str) -> None:
    """Also where the whole answer is there: nothing makes a response of it any more."""

    def stop(output: FirstOutput) -> None:
        raise DeliveryStoppedError

    body = stream_of(protocol, STORIES[story])

    def whole_and_open(exchange: Exchange) -> None:
        exchange.send(CHUNKED_HEAD + chunked(body))
        exchange.wait_for_end()

    attempt = Attempt(on_first_output=stop)
    with serving(whole_and_open) as server:
        outcome = once(new_adapter(protocol), server.base_url, attempt)
        assert server.ended.wait(WAIT_S), "the stream was left open"
    assert isinstance(outcome, Cancelled) and outcome.sent
    assert outcome.partial.empty is (story == "empty")
    assert len(attempt.first_outputs) == 1 and not attempt.cancellation.cancelled


def test_D23_each_attempt_is_one_request_and_hands_on_what_retry_after_says(protocol: str) -> None:
    body = {"error": {"message": f"overloaded, key {SECRET}", "code": "server_error"}}
    answer = {"http_error": {"status": 503, "headers": {"Retry-After": "7"}, "body": body}}
    with model_of(answer) as model:
        outcomes = [failed(once(new_adapter(protocol), model.base_url)) for _ in range(3)]
        assert len(model.requests) == 3
    for outcome in outcomes:
        failure = outcome.failure
        assert (failure.code, failure.http_status) == (Code.MODEL_PROVIDER_ERROR, 503)
        assert (failure.retry_class, failure.retry_after_ms) == (RetryClass.TRANSPORT, 7000)
        assert SECRET not in repr(outcome)


@pytest.mark.parametrize(
    ("status", "code", "expected", "retry_class"),
    [
        (400, "context_length_exceeded", Code.MODEL_CONTEXT_LENGTH_EXCEEDED, None),
        (400, "whatever", Code.MODEL_REQUEST_REJECTED, None),
        (401, None, Code.MODEL_REQUEST_REJECTED, None),
        (429, "rate_limit_exceeded", Code.MODEL_RATE_LIMITED, RetryClass.RATE_LIMIT),
        (429, "insufficient_quota", Code.MODEL_RATE_LIMITED, None),
        (504, None, Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT),
    ],
)
def test_D23_a_refusal_has_the_class_of_its_status_and_code(
    protocol: str, status: int, code: str | None, expected: Code, retry_class: RetryClass | None
) -> None:
    body = {"error": {"message": "no", "type": "some_error", "code": code}}
    failure = failed(told(protocol, {"http_error": {"status": status, "body": body}})).failure
    assert (failure.code, failure.retry_class, failure.http_status) == (expected, retry_class, status)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), story=st.sampled_from(sorted(STORIES)))
def test_S01_any_split_into_chunks_gives_the_same_answer(protocol: str, data: st.DataObject, story: str) -> None:
    body = _body(protocol, story)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=40)))
    bounds = list(zip([0, *cuts], [*cuts, len(body)], strict=True))
    assert read(protocol, [body[start:end] for start, end in bounds]) == read(protocol, [body])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data(), story=st.sampled_from(sorted(STORIES)))
def test_S01_any_split_over_http_gives_the_same_answer(protocol: str, data: st.DataObject, story: str) -> None:
    body = _body(protocol, story)
    cuts = sorted(data.draw(st.lists(st.integers(1, len(body) - 1), max_size=10, unique=True)))
    bounds = zip([0, *cuts], [*cuts, len(body)], strict=True)
    sent = b"".join(chunked(body[start:end]) for start, end in bounds) + b"0\r\n\r\n"
    with serving(bytes_of(LAST_CHUNKED_HEAD + sent), bytes_of(STREAM_HEAD + body)) as server:
        adapter = new_adapter(protocol)
        assert completed(once(adapter, server.base_url)) == completed(once(adapter, server.base_url))


CONVERSATION = (
    prompt_message("You count."),
    Message(Role.USER, "How many?\n\ud800"),
    Message(Role.ASSISTANT, "", (MessageCall("c1", "count", '{"path": "a"}'), MessageCall("c2", "count", "{broken"))),
    Message(Role.TOOL, "12", wire_id="c1"),
    Message(Role.TOOL, "invalid", wire_id="c2"),
    note("The run was stopped."),
    Message(Role.ASSISTANT, " "),
    Message(Role.USER, "Go on."),
)
TOOLS = (ToolSchema("count", "Count.", {"type": "object", "properties": {"path": {"type": "string"}}}),)


def test_the_body_is_canonical_and_strict_servers_take_it(protocol: str) -> None:
    adapter = new_adapter(protocol)
    parameters = RequestParameters("dev-model", 100, (("temperature", 0),))
    fragments = View().extend([adapter.encode_message(message) for message in CONVERSATION])
    tools = adapter.encode_tools(TOOLS)
    body = adapter.frame_body(parameters, fragments, tools)
    joined = body.join()
    assert canonical_bytes(json.loads(joined)) == joined
    around = adapter.envelope_bytes(parameters, tools)
    assert body.size_bytes == len(joined) == around + fragments.size_bytes + fragments.length - 1
    # The dev-model refuses calls without results, and answers of no word.
    answer = post(protocol, {"text": "fine"}, json.loads(joined))
    assert answer.status_code == 200, answer.text


# A conversation with everything that a strict order of roles has to mend, and what breaks without it.
DISORDER = (
    prompt_message("You count."),
    Message(Role.ASSISTANT, "What I counted before."),
    Message(Role.USER, "How many?"),
    Message(Role.USER, "And since when?"),
    note("The run was stopped."),
    Message(Role.ASSISTANT, "I look.", (MessageCall("c1", "count", "{}"),)),
    Message(Role.TOOL, "12", wire_id="c1"),
    Message(Role.USER, "Go on."),
    Message(Role.ASSISTANT, "Twelve."),
    Message(Role.ASSISTANT, "", (MessageCall("c2", "count", "{}"),)),
    Message(Role.TOOL, "13", wire_id="c2"),
)
ORDER = {"mid_system": False, "strict_alternation": True, "first_must_be_user": True}


@pytest.mark.parametrize("wanted", [*ORDER, "all"])
def test_a_provider_of_an_order_of_roles_takes_what_the_adapter_makes_for_it_and_nothing_else(
    protocol: str, wanted: str
) -> None:
    dialect = ORDER if wanted == "all" else {wanted: ORDER[wanted]}

    def sent(profile: Profile) -> httpx.Response:
        adapter = new_adapter(protocol, profile=profile)
        view = View(seam=adapter.seam).extend([adapter.encode_message(message) for message in DISORDER])
        body = adapter.frame_body(RequestParameters("dev-model", 100), view, adapter.encode_tools(TOOLS))
        joined = body.join()
        assert canonical_bytes(json.loads(joined)) == joined and body.size_bytes == len(joined)
        return post(protocol, {"text": "fine"}, json.loads(joined), dialect)

    ordered = sent(Profile("strict", 1, **{**ORDER, **dialect}))
    assert ordered.status_code == 200, ordered.text
    assert sent(Profile("free", 1)).status_code == 400


def test_what_the_adapter_sets_itself_is_refused_as_a_parameter(protocol: str) -> None:
    adapter = new_adapter(protocol)
    with pytest.raises(RunError) as caught:
        adapter.encode_parameters(RequestParameters("m", 1, (("stream", False),)))
    assert caught.value.code == Code.MODEL_FEATURE_UNSUPPORTED


_bodies: dict[tuple[str, str], bytes] = {}


def _body(protocol: str, story: str) -> bytes:
    if (protocol, story) not in _bodies:
        _bodies[protocol, story] = stream_of(protocol, STORIES[story])
    return _bodies[protocol, story]


def test_the_profile_says_where_the_key_goes_and_what_codes_mean(protocol: str) -> None:
    profile = Profile("p", 1, auth_header="x-key", auth_prefix="Key ", codes={"E7": ErrorClass.RATE_LIMIT})
    refusal = {"http_error": {"status": 400, "body": {"error": {"message": "later", "code": "E7"}}}}
    broken = {"text": "Hi", "cut": {"then": "error", "event": ERRORS[protocol]("E7")}}
    with model_of(refusal, broken) as model:
        outcomes = [failed(once(new_adapter(protocol, profile=profile), model.base_url)) for _ in range(2)]
        sent = [dict(record.headers) for record in model.requests]
    assert [headers.get("x-key") for headers in sent] == [f"Key {SECRET}"] * 2
    assert not any("authorization" in headers for headers in sent)
    assert {(one.failure.code, one.failure.retry_class) for one in outcomes} == {
        (Code.MODEL_RATE_LIMITED, RetryClass.RATE_LIMIT)
    }
    assert failed(told(protocol, refusal)).failure.code is Code.MODEL_REQUEST_REJECTED


def test_what_arrives_is_taken_down_and_the_key_in_it_concealed(protocol: str) -> None:
    body = stream_of(protocol, {"text": f"the key is {SECRET}!", "chunk_chars": 500, "usage": "none"})
    assert SECRET.encode() in body
    attempt = Attempt(recording=Recording())
    completed(told(protocol, raw(body), attempt))
    assert attempt.recording is not None
    plain = attempt.recording.finish(())
    assert plain is not None and (plain.status, plain.media_type, plain.body) == (200, "text/event-stream", body)
    clean = attempt.recording.finish((SECRET,))
    assert clean is not None and SECRET.encode() not in clean.body and REDACTED.encode() in clean.body


# What may stand behind the final frame, in the same chunk or in another: no part of the answer.
BEHIND = b': bye\n\ndata: [DONE]\n\ndata: {"choices": 7}\n\n\xff'
# How the reading of a stream ends before the stream does → what follows its first event.
FAULTS = {
    "complete": b"",
    "an error inside": b'data: {"error": {"message": "it broke", "code": "server_error"}}\n\n',
    "no JSON": b"data: {\r\n\r\n",
    "no UTF-8": b"data: \xe2\x82(\n\n",
}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    data=st.data(), story=st.sampled_from(sorted(STORIES)), fault=st.sampled_from(sorted(FAULTS)), packed=st.booleans()
)
def test_any_split_of_the_bytes_is_stored_the_same(
    protocol: str, data: st.DataObject, story: str, fault: str, *, packed: bool
) -> None:
    """The response with its digest and size, and the bytes that are kept, up to where the reading stopped."""
    whole = _body(protocol, story)
    first = whole.index(b"\n\n") + 2
    body = (whole if fault == "complete" else whole[:first] + FAULTS[fault] + whole[first:]) + BEHIND
    head = LAST_CHUNKED_HEAD
    if packed:
        head, body = head.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"), gzip.compress(body)
    cuts = sorted(data.draw(st.lists(st.integers(1, len(body) - 1), max_size=10, unique=True)))
    bounds = zip([0, *cuts], [*cuts, len(body)], strict=True)
    sent = b"".join(chunked(body[start:end]) for start, end in bounds) + b"0\r\n\r\n"
    found = []
    with serving(bytes_of(head + sent), bytes_of(head + chunked(body) + b"0\r\n\r\n")) as server:
        for _ in range(2):
            attempt = Attempt(recording=Recording())
            outcome = once(new_adapter(protocol), server.base_url, attempt)
            assert attempt.recording is not None
            found.append((outcome, attempt.recording.finish(())))
    assert found[0] == found[1]
    outcome, kept = found[0]
    assert kept is not None
    if fault == "complete":
        response = completed(outcome)
        # The blank line behind the final frame is the last of it.
        end = response.transport_bytes
        assert kept.body == (whole + BEHIND)[:end] and kept.size_bytes == end
        assert response.transport_sha256 == hashlib.sha256(kept.body).hexdigest()
        assert kept.body.endswith(b"\n\n") and end <= len(whole)
    else:
        failed(outcome)
        assert kept.body.startswith(whole[:first]) and len(kept.body) <= first + len(FAULTS[fault])
