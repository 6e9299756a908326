"""What the Responses adapter makes of golden streams, over real sockets, and each cut at every byte."""

import json
from uuid import UUID

import pytest

from agentloom_worker.clock import SystemClock
from agentloom_worker.context.message import assistant_message, tool_message
from agentloom_worker.context.view import View
from agentloom_worker.devmodel import DevModel, parse_script
from agentloom_worker.domain.model import (
    Category,
    Executed,
    Failed,
    FirstOutput,
    FirstOutputKind,
    Message,
    ModelOutcome,
    RequestParameters,
    ResponseCall,
    Role,
    Usage,
)
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.errors import Code
from agentloom_worker.llm.adapter import ModelCall
from agentloom_worker.llm.adapters.openai_responses import OpenAIResponsesAdapter
from agentloom_worker.llm.profiles import PROFILES, Profile, ReasoningReplay
from tests.unit.http.raw_server import CHUNKED_HEAD, STREAM_HEAD, Exchange, bytes_of, chunked, serving
from tests.unit.llm import response_streams as streams
from tests.unit.llm.calls import GENERIC, Attempt, completed, failed, once

JSON_HEAD = STREAM_HEAD.replace(b"text/event-stream", b"application/json")


def new_adapter(profile: Profile = GENERIC) -> OpenAIResponsesAdapter:
    return OpenAIResponsesAdapter(SystemClock(), profile)


def answered(body: bytes, attempt: Attempt | None = None, *, head: bytes = STREAM_HEAD) -> ModelOutcome:
    with serving(bytes_of(head + body)) as server:
        return once(new_adapter(), server.base_url, attempt)


def outcomes_of_every_cut(body: bytes, *, head: bytes = STREAM_HEAD) -> tuple[list[Failed], ModelOutcome]:
    """The outcomes when the connection ends cleanly after each number of bytes; that of the whole apart."""
    adapter = new_adapter()
    with serving(*(bytes_of(head + body[:cut]) for cut in range(len(body) + 1))) as server:
        outcomes = [once(adapter, server.base_url) for _ in range(len(body) + 1)]
    incomplete = [outcome for outcome in outcomes[:-1] if isinstance(outcome, Failed)]
    assert len(incomplete) == len(body), "a cut stream was taken for a whole one"
    return incomplete, outcomes[-1]


def assert_incomplete(outcome: Failed) -> None:
    failure = outcome.failure
    assert (failure.code, failure.category) == (Code.MODEL_TRANSPORT_FAILED, Category.TRANSPORT)
    assert (failure.external_outcome, failure.retry_class) == (Executed.UNKNOWN, RetryClass.TRANSPORT)


def test_the_request_goes_to_responses_and_says_who_asks() -> None:
    with serving(bytes_of(STREAM_HEAD + streams.S01)) as server:
        completed(once(new_adapter(), server.base_url))
        exchange = server.requests.get_nowait()
    assert exchange.head.startswith(b"POST /v1/responses HTTP/1.1")
    assert b"authorization: bearer sk-test" in exchange.head.lower()
    assert new_adapter().version == "openai-responses@1/generic@1"


def test_S01_only_the_whole_stream_of_responses_is_complete() -> None:
    cuts, whole = outcomes_of_every_cut(streams.S01)
    response = completed(whole)
    assert response.text == streams.WORDS
    assert (response.finish_reason, response.usage) == ("stop", Usage(9, 5, 4, 3))
    assert (response.provider_request_id, response.transport_bytes) == ("resp_1", len(streams.S01))
    for cut in cuts:
        assert_incomplete(cut)
    assert cuts[-1].partial.text == response.text


def test_S02_done_without_a_final_frame_is_incomplete() -> None:
    for end in (b"", b"data: [DONE]\n\n", b"data: [DONE]"):
        outcome = failed(answered(streams.S02 + end))
        assert_incomplete(outcome)
        assert outcome.partial.text == "Hi"


def test_S04_a_call_of_responses_over_three_deltas_is_one_call() -> None:
    cuts, whole = outcomes_of_every_cut(streams.S04)
    assert completed(whole).calls == (ResponseCall(0, "a", "add", '{"x": "né"}'),)
    assert completed(whole).finish_reason == "tool_calls"
    for cut in cuts:
        assert_incomplete(cut)


def test_S04_two_items_in_one_place_are_a_protocol_error_and_never_joined() -> None:
    outcome = failed(answered(streams.S04_INDEX_TWICE))
    assert (outcome.failure.code, outcome.failure.retry_class) == (Code.MODEL_PROTOCOL_ERROR, None)
    assert outcome.partial.calls == (ResponseCall(0, "a", "add", '{"x":1}'),)


def test_S06_a_refusal_of_responses_is_kept_apart_from_text() -> None:
    attempt = Attempt()
    response = completed(answered(streams.S06, attempt))
    assert (response.refusal, response.text) == ("I cannot.", "")
    assert attempt.first_outputs == [FirstOutput(FirstOutputKind.TEXT, True)]


def test_S07_reasoning_of_responses_is_apart_from_text_and_counts_as_output() -> None:
    attempt = Attempt()
    response = completed(answered(streams.S07, attempt))
    assert (response.reasoning, response.text) == ("think more", "Hi")
    assert attempt.first_outputs == [FirstOutput(FirstOutputKind.REASONING, True)]


def test_S09_completed_is_complete_also_when_nothing_was_said() -> None:
    attempt = Attempt()
    response = completed(answered(streams.EMPTY, attempt))
    assert (response.text, response.calls, response.finish_reason) == ("", (), "stop")
    assert attempt.first_outputs == [FirstOutput(FirstOutputKind.COMPLETE_FRAME, False)]


def test_S09_incomplete_is_a_truncated_answer_and_no_failure() -> None:
    cuts, whole = outcomes_of_every_cut(streams.S09_INCOMPLETE)
    response = completed(whole)
    assert (response.text, response.finish_reason, response.usage) == ("Half a", "length", Usage(9, 5, 4, 3))
    for cut in cuts:
        assert_incomplete(cut)


def test_W06_a_call_that_was_not_completed_comes_as_one_of_a_cut_message() -> None:
    half = {**streams.call("a", "add", '{"x": 1}'), "status": "incomplete"}
    body = streams.CREATED + streams.closed(0, **half) + streams.ended("completed", half)
    response = completed(answered(body.encode()))
    assert (response.finish_reason, response.calls) == ("length", (ResponseCall(0, "a", "add", '{"x": 1}'),))


def test_S09_the_limit_that_was_asked_for_tells_where_a_server_says_completed_to_all() -> None:
    # These tests ask for 100 tokens at most.
    for took, reason in ((99, "stop"), (100, "length")):
        usage = {"input_tokens": 9, "output_tokens": took}
        body = streams.ended("completed", streams.message("Half a"), usage=usage, model="m-2").encode()
        with serving(bytes_of(STREAM_HEAD + body)) as server:
            response = completed(once(new_adapter(PROFILES["llama-cpp"]), server.base_url))
        assert (response.finish_reason, response.served_model) == (reason, "m-2")


def test_S09_failed_is_a_provider_error() -> None:
    cuts, whole = outcomes_of_every_cut(streams.S09_FAILED)
    outcome = failed(whole)
    assert (outcome.failure.code, outcome.failure.retry_class) == (Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT)
    assert (outcome.failure.external_outcome, outcome.partial.text) == (Executed.EXECUTED, "So far")
    assert "it broke" in outcome.failure.message
    assert_incomplete(cuts[-1])


def test_S09_a_bare_error_event_is_a_provider_error() -> None:
    outcome = failed(answered(streams.S09_ERROR))
    assert (outcome.failure.code, outcome.failure.retry_class) == (Code.MODEL_RATE_LIMITED, RetryClass.RATE_LIMIT)
    assert "(rate_limit_exceeded): slow down" in outcome.failure.message
    nested = streams.CREATED + streams.event(
        "error", error={"type": "invalid_request_error", "code": "context_length_exceeded", "message": "too long"}
    )
    assert failed(answered(nested.encode())).failure.code == Code.MODEL_CONTEXT_LENGTH_EXCEEDED
    assert failed(answered(streams.event("error").encode())).failure.code == Code.MODEL_PROVIDER_ERROR


def test_S10_a_json_response_in_place_of_a_stream_is_complete_when_whole() -> None:
    cuts, whole = outcomes_of_every_cut(streams.S10_JSON, head=JSON_HEAD)
    response = completed(whole)
    assert (response.text, response.usage) == ("né", Usage(9, 5, 4, 3))
    assert response.calls == (ResponseCall(0, "a", "add", "{}"),)
    assert {cut.failure.code for cut in cuts} <= {Code.MODEL_TRANSPORT_FAILED, Code.MODEL_PROTOCOL_ERROR}
    for body, code in (
        (b'{"error":{"message":"x","code":500}}', Code.MODEL_PROVIDER_ERROR),
        (b'{"status":"failed","output":[],"error":null}', Code.MODEL_PROVIDER_ERROR),
        (b'{"status":"in_progress","output":[]}', Code.MODEL_PROTOCOL_ERROR),
        (b'{"status":"completed"}', Code.MODEL_PROTOCOL_ERROR),
        (b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}', Code.MODEL_PROTOCOL_ERROR),
        (b"[]", Code.MODEL_PROTOCOL_ERROR),
    ):
        assert failed(answered(body, head=JSON_HEAD)).failure.code == code


@pytest.mark.parametrize("bad", [b"data: \xff\n\n", b"data: {\n\n", b"data: [1]\n\n", b'data: {"choices": []}\n\n'])
def test_what_is_no_event_of_responses_is_a_protocol_error(bad: bytes) -> None:
    assert failed(answered(streams.S02 + bad)).failure.code == Code.MODEL_PROTOCOL_ERROR


def test_a_stream_that_ended_leaves_its_connection_to_the_next_request() -> None:
    def handler(exchange: Exchange) -> None:
        exchange.keep = True
        exchange.send(CHUNKED_HEAD + chunked(streams.S01) + b"0\r\n\r\n")

    with serving(handler) as server:
        adapter = new_adapter()
        for _ in range(3):
            completed(once(adapter, server.base_url))
        assert (server.served, server.connections) == (3, 1)
        adapter.close()


def test_S07_reasoning_is_sent_back_sealed_in_the_turn_of_its_call() -> None:
    sealed = Profile("sealed", 1, reasoning_replay=ReasoningReplay.IN_TOOL_TURNS, encrypted_reasoning=True)
    adapter = new_adapter(sealed)
    turns = [
        {"when": {"assistant_turns": 0}, "answer": {"reasoning": "hm", "tool_calls": [{"name": "look"}]}},
        {"answer": {"text": "Seen."}},
    ]
    with DevModel(parse_script({"schema_version": 1, "turns": turns})) as model:
        fragments = [adapter.encode_message(Message(Role.USER, "Look."))]
        response = completed(adapter.stream_once(_call(adapter, model, fragments), Attempt().context()))
        assert [item.before_call for item in response.reasoning_items] == [0]
        message, (wire_id,) = assistant_message(response, (UUID(int=1),))
        fragments += [adapter.encode_message(message), adapter.encode_message(tool_message("a cat", wire_id))]
        assert completed(adapter.stream_once(_call(adapter, model, fragments), Attempt().context())).text == "Seen."
        first, second = (json.loads(request.body or b"") for request in model.requests)
    assert first["include"] == second["include"] == ["reasoning.encrypted_content"]
    assert [item["type"] for item in second["input"]] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert second["input"][1]["encrypted_content"] == response.reasoning_items[0].encrypted != ""


def _call(adapter: OpenAIResponsesAdapter, model: DevModel, fragments: list[bytes]) -> ModelCall:
    return ModelCall(adapter.frame_body(RequestParameters("m", 100), View().extend(fragments), b""), model.base_url)
