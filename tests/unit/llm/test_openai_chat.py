"""What the adapter makes of an answer, over real sockets; golden streams are also cut at every byte."""

import gzip
import json
import zlib

import pytest

from agentloom_worker.domain.model import (
    Category,
    Completed,
    Executed,
    Failed,
    FirstOutput,
    FirstOutputKind,
    ResponseCall,
    Usage,
)
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.errors import Code
from agentloom_worker.llm.profiles import Profile
from tests.unit.http.raw_server import (
    CHUNKED_HEAD,
    LAST_CHUNKED_HEAD,
    STREAM_HEAD,
    Exchange,
    bytes_of,
    chunked,
    serving,
)
from tests.unit.llm import streams
from tests.unit.llm.calls import SECRET, Attempt, completed, failed, new_adapter, once, request_to

HTML = b"<!doctype html><title>Login</title>"


def outcomes_of_every_cut(body: bytes, *, head: bytes = STREAM_HEAD) -> tuple[list[Failed], Completed | Failed]:
    """The outcomes when the connection ends cleanly after each number of bytes; that of the whole apart."""
    adapter = new_adapter()
    with serving(*(bytes_of(head + body[:cut]) for cut in range(len(body) + 1))) as server:
        outcomes = [once(adapter, server.base_url) for _ in range(len(body) + 1)]
    incomplete = [outcome for outcome in outcomes[:-1] if isinstance(outcome, Failed)]
    assert len(incomplete) == len(body), "a cut stream was taken for a whole one"
    whole = outcomes[-1]
    assert isinstance(whole, Completed | Failed)
    return incomplete, whole


def answered(body: bytes, attempt: Attempt | None = None, *, head: bytes = STREAM_HEAD) -> Completed | Failed:
    with serving(bytes_of(head + body)) as server:
        outcome = once(new_adapter(), server.base_url, attempt)
    assert isinstance(outcome, Completed | Failed)
    return outcome


def assert_incomplete(outcome: Failed) -> None:
    failure = outcome.failure
    assert (failure.code, failure.category) == (Code.MODEL_TRANSPORT_FAILED, Category.TRANSPORT)
    assert (failure.external_outcome, failure.retry_class) == (Executed.UNKNOWN, RetryClass.TRANSPORT)


def test_S01_only_the_whole_stream_is_complete() -> None:
    cuts, whole = outcomes_of_every_cut(streams.S01_UNICODE)
    response = completed(whole)
    assert response.text == "né\u2028\u0085\x0b😀"
    assert (response.finish_reason, response.usage) == ("stop", Usage(9, 2, 4))
    assert (response.provider_request_id, response.transport_bytes) == (
        "chatcmpl-1",
        len(streams.S01_UNICODE),
    )
    for cut in cuts:
        assert_incomplete(cut)
    assert cuts[-1].partial.text == response.text


def test_S01_http_chunks_of_one_byte_give_the_same_answer() -> None:
    body = b"".join(chunked(streams.S01[i : i + 1]) for i in range(len(streams.S01)))
    response = completed(answered(body + b"0\r\n\r\n", head=CHUNKED_HEAD))
    assert (response.text, response.usage) == ("Hi", Usage(9, 2, 4))


def test_S02_a_stream_without_its_last_frames_is_never_success() -> None:
    for end in (b"", b"data: [DONE]\n\n", b"data: [DONE]"):
        outcome = failed(answered(streams.S02 + end))
        assert_incomplete(outcome)
        assert outcome.partial.text == "Hi"


def test_S02_a_body_that_ends_before_its_frame_is_incomplete_in_every_profile() -> None:
    lenient = Profile("lenient", 1, done_required=False)
    finished = streams.S02 + streams.delta("stop").encode()
    with serving(
        bytes_of(LAST_CHUNKED_HEAD + chunked(finished)),
        bytes_of(LAST_CHUNKED_HEAD + chunked(finished) + b"0\r\n\r\n"),
        bytes_of(LAST_CHUNKED_HEAD + chunked(streams.S02) + b"0\r\n\r\n"),
        bytes_of(LAST_CHUNKED_HEAD + chunked(finished + b"data: {") + b"0\r\n\r\n"),
    ) as server:
        adapter = new_adapter(lenient)
        assert_incomplete(failed(once(adapter, server.base_url)))
        assert completed(once(adapter, server.base_url)).text == "Hi"
        assert_incomplete(failed(once(adapter, server.base_url)))
        assert_incomplete(failed(once(adapter, server.base_url)))


def test_S03_an_error_inside_a_200_stream_is_a_provider_error() -> None:
    cuts, whole = outcomes_of_every_cut(streams.S03)
    failure = failed(whole).failure
    assert (failure.code, failure.retry_class) == (Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT)
    assert "upstream broke" in failure.message
    assert_incomplete(cuts[len(streams.ROLE) + 1])
    beside = failed(answered(streams.S03_BESIDE_CHOICES)).failure
    assert (beside.code, beside.retry_class) == (Code.MODEL_PROVIDER_ERROR, None)


def test_S04_a_call_over_three_deltas_is_one_call() -> None:
    cuts, whole = outcomes_of_every_cut(streams.S04)
    assert completed(whole).calls == (ResponseCall(0, "a", "add", '{"x": "né"}'),)
    assert completed(whole).finish_reason == "tool_calls"
    for cut in cuts:
        assert_incomplete(cut)


def test_S04_two_calls_on_one_index_are_a_protocol_error_and_never_joined() -> None:
    cuts, whole = outcomes_of_every_cut(streams.S04_INDEX_TWICE)
    assert failed(whole).failure.code == Code.MODEL_PROTOCOL_ERROR
    assert failed(whole).failure.retry_class is None
    assert {cut.failure.code for cut in cuts} == {Code.MODEL_TRANSPORT_FAILED, Code.MODEL_PROTOCOL_ERROR}
    assert failed(whole).partial.calls == (ResponseCall(0, "a", "add", '{"x":1}'),)


def test_S05_comments_and_empty_data_are_no_output() -> None:
    cuts, whole = outcomes_of_every_cut(streams.S05)
    assert completed(whole).text == "Hi"
    for cut in cuts:
        assert_incomplete(cut)
    attempt = Attempt()
    answered(streams.S05, attempt)
    assert attempt.first_outputs == [FirstOutput(FirstOutputKind.TEXT, True)]


def test_S06_a_refusal_is_kept_apart_from_text_and_counts_as_output() -> None:
    attempt = Attempt()
    response = completed(answered(streams.S06_REFUSAL, attempt))
    assert (response.refusal, response.text) == ("I cannot.", "")
    assert attempt.first_outputs == [FirstOutput(FirstOutputKind.TEXT, True)]


def test_S06_a_content_filter_is_carried_as_finish_reason() -> None:
    attempt = Attempt()
    response = completed(answered(streams.S06_FILTERED, attempt))
    assert (response.text, response.finish_reason) == ("", "content_filter")
    assert attempt.first_outputs == [FirstOutput(FirstOutputKind.COMPLETE_FRAME, False)]


def test_S07_reasoning_is_apart_from_text_and_counts_as_output() -> None:
    attempt = Attempt()
    response = completed(answered(streams.S07, attempt))
    assert (response.reasoning, response.text) == ("think more", "Hi")
    assert attempt.first_outputs == [FirstOutput(FirstOutputKind.REASONING, True)]


def test_S08_calls_stand_although_the_finish_reason_says_stop() -> None:
    response = completed(answered(streams.S08))
    assert (len(response.calls), response.finish_reason) == (1, "stop")


def test_S10_a_json_answer_in_place_of_a_stream_is_complete_when_whole() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nConnection: close\r\n\r\n"
    cuts, whole = outcomes_of_every_cut(streams.S10_JSON, head=head)
    response = completed(whole)
    assert (response.text, response.usage) == ("né", Usage(3, 1))
    assert response.calls == (ResponseCall(0, "a", "add", "{}"),)
    assert {cut.failure.code for cut in cuts} <= {Code.MODEL_TRANSPORT_FAILED, Code.MODEL_PROTOCOL_ERROR}
    for body, code in (
        (b'{"error":{"message":"x","code":500}}', Code.MODEL_PROVIDER_ERROR),
        (b'{"object":"list"}', Code.MODEL_PROTOCOL_ERROR),
        (b'{"choices":[{"message":{"content":"x"}}]}', Code.MODEL_PROTOCOL_ERROR),
        (b"[]", Code.MODEL_PROTOCOL_ERROR),
    ):
        assert failed(answered(body, head=head)).failure.code == code


@pytest.mark.parametrize("content_type", [b"Content-Type: text/html\r\n", b"Content-Type: text/plain\r\n", b""])
def test_S10_a_web_page_in_place_of_a_stream_is_a_protocol_error(content_type: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + content_type + b"Connection: close\r\n\r\n"
    failure = failed(answered(HTML, head=head)).failure
    assert (failure.code, failure.category, failure.retry_class) == (
        Code.MODEL_PROTOCOL_ERROR,
        Category.PROTOCOL,
        None,
    )
    assert "Login" not in failure.message


def test_S10_a_gzip_stream_is_read_like_any_other() -> None:
    head = STREAM_HEAD.replace(b"\r\nConnection", b"\r\nContent-Encoding: gzip\r\nConnection")
    compressed = gzip.compress(streams.S01)
    assert completed(answered(compressed, head=head)).text == "Hi"
    # The last 8 bytes are gzip's checksum and length: they carry nothing of the stream.
    adapter = new_adapter()
    ends = range(len(compressed) - 8)
    with serving(*(bytes_of(head + compressed[:end]) for end in ends)) as server:
        for end in ends:
            outcome = once(adapter, server.base_url)
            whole = zlib.decompressobj(31).decompress(compressed[:end]) == streams.S01
            assert isinstance(outcome, Completed) == whole
    assert failed(answered(b"not gzip at all", head=head)).failure.code == Code.MODEL_PROTOCOL_ERROR


@pytest.mark.parametrize(
    "bad", [b"data: \xff\n\n", b"data: {\n\n", b"data: [1]\n\n", b"data: " + b"[" * 99_999 + b"\n\n"]
)
def test_what_is_no_event_of_the_protocol_is_a_protocol_error(bad: bytes) -> None:
    outcome = failed(answered(streams.S02 + bad + streams.DONE.encode()))
    assert outcome.failure.code == Code.MODEL_PROTOCOL_ERROR
    assert outcome.failure.external_outcome is Executed.EXECUTED


def test_an_empty_complete_frame_ends_the_wait_for_output() -> None:
    attempt = Attempt()
    response = completed(answered(streams.EMPTY, attempt))
    assert (response.text, response.calls) == ("", ())
    assert attempt.first_outputs == [FirstOutput(FirstOutputKind.COMPLETE_FRAME, False)]


def test_the_request_is_the_frozen_body_and_carries_the_key_as_a_header() -> None:
    adapter = new_adapter()
    attempt = Attempt()
    with serving(bytes_of(STREAM_HEAD + streams.S01)) as server:
        request = request_to(adapter, server.base_url + "/")
        adapter.stream_once(request, attempt.context())
        exchange: Exchange = server.requests.get(timeout=10)
    assert exchange.body == request.body.join()
    assert exchange.head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert f"Authorization: Bearer {SECRET}".encode() in exchange.head
    assert json.loads(exchange.body)["stream"] is True
    assert attempt.sent == 1


def test_a_query_of_the_base_url_stays_behind_the_path() -> None:
    with serving(bytes_of(STREAM_HEAD + streams.S01)) as server:
        completed(once(new_adapter(), server.base_url + "/?api-version=7"))
        exchange: Exchange = server.requests.get(timeout=10)
    assert exchange.head.startswith(b"POST /v1/chat/completions?api-version=7 HTTP/1.1\r\n")


def test_the_version_names_the_encoding_and_the_profile() -> None:
    assert new_adapter().version == "openai-chat@1/generic@1"
