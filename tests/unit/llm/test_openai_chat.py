"""What the adapter makes of an answer, over real sockets; golden streams are also cut at every byte."""

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable

import pytest

from agentloom_worker import limits
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
from agentloom_worker.http.recording import Recording
from agentloom_worker.llm.profiles import Profile
from tests.unit.http.raw_server import (
    CHUNKED_HEAD,
    LAST_CHUNKED_HEAD,
    STREAM_HEAD,
    Exchange,
    answer,
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
    sized = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(finished)
    with serving(
        # The end of the connection is the end of these bodies, whole or not.
        bytes_of(STREAM_HEAD + finished),
        bytes_of(STREAM_HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + finished + streams.USAGE.encode()),
        bytes_of(sized + finished[:-1]),
        bytes_of(sized + finished),
        bytes_of(LAST_CHUNKED_HEAD + chunked(finished)),
        bytes_of(LAST_CHUNKED_HEAD + chunked(finished) + b"0\r\n\r\n"),
        bytes_of(LAST_CHUNKED_HEAD + chunked(streams.S02) + b"0\r\n\r\n"),
        bytes_of(LAST_CHUNKED_HEAD + chunked(finished + b"data: {") + b"0\r\n\r\n"),
    ) as server:
        adapter = new_adapter(lenient)
        for _ in range(3):
            assert_incomplete(failed(once(adapter, server.base_url)))
        assert completed(once(adapter, server.base_url)).text == "Hi"
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
    for cut in cuts:
        assert_incomplete(cut)
    for body, code in (
        (b'{"error":{"message":"x","code":500}}', Code.MODEL_PROVIDER_ERROR),
        (b'{"object":"list"}', Code.MODEL_PROTOCOL_ERROR),
        (b'{"choices":[{"message":{"content":"x"}}]}', Code.MODEL_PROTOCOL_ERROR),
        (b"[]", Code.MODEL_PROTOCOL_ERROR),
        (streams.S10_JSON + b"{}", Code.MODEL_PROTOCOL_ERROR),
        (b'{"x":"\xff"}', Code.MODEL_PROTOCOL_ERROR),
    ):
        assert failed(answered(body, head=head)).failure.code == code


TYPES = [
    b"",
    b"Content-Type: text/plain; charset=utf-8\r\n",
    b"Content-Type: application/octet-stream\r\n",
    b"Content-Type: application/json; charset\r\n",
    b"Content-Type: application/problem+json\r\n",
    b"Content-Type: text/json\r\n",
]


@pytest.mark.parametrize("content_type", TYPES)
def test_S10_a_json_answer_is_one_by_what_it_says(content_type: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + content_type + b"Connection: close\r\n\r\n"
    indented = json.dumps(json.loads(streams.S10_JSON), indent=1).encode()
    for body in (streams.S10_JSON, b"\r\n \t" + indented + b"\n", b"\xef\xbb\xbf" + streams.S10_JSON):
        attempt = Attempt(recording=Recording())
        response = completed(answered(body, attempt, head=head))
        assert (response.text, response.finish_reason, response.usage) == ("né", "tool_calls", Usage(3, 1))
        assert response.transport_bytes == len(body)
        assert response.transport_sha256 == hashlib.sha256(body).hexdigest()
        assert attempt.first_outputs == [FirstOutput(FirstOutputKind.TEXT, True)]
    assert failed(answered(b'{"error":{"message":"x","code":500}}', head=head)).failure.retry_class is (
        RetryClass.TRANSPORT
    )
    assert failed(answered(streams.S10_JSON * 2, head=head)).failure.code == Code.MODEL_PROTOCOL_ERROR


@pytest.mark.parametrize("content_type", TYPES)
def test_S10_a_json_answer_that_was_cut_is_incomplete(content_type: bytes) -> None:
    cuts, _ = outcomes_of_every_cut(
        streams.S10_JSON, head=b"HTTP/1.1 200 OK\r\n" + content_type + b"Connection: close\r\n\r\n"
    )
    for cut in cuts:
        assert_incomplete(cut)


def test_S10_a_stream_without_a_type_is_a_stream_and_a_page_none(monkeypatch: pytest.MonkeyPatch) -> None:
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    assert completed(answered(b"\n\n: hello\n\n" + streams.S01, head=head)).text == "Hi"
    assert completed(answered(b'{"a line":"of nobody"}\n' + streams.S01, head=head)).text == "Hi"
    monkeypatch.setattr(limits, "SSE_EVENT_BYTES_MAX", len(streams.S10_JSON) - 1)
    for kind in (b"", b"Content-Type: application/json\r\n"):
        too_large = failed(answered(streams.S10_JSON, head=head.replace(b"\r\n", b"\r\n" + kind, 1)))
        assert too_large.failure.code == Code.MODEL_PROTOCOL_ERROR


PAGE_TYPES = [b"text/html", b"text/plain", b"application/json", b"application/problem+json"]


@pytest.mark.parametrize("content_type", [*(b"Content-Type: %s\r\n" % kind for kind in PAGE_TYPES), b""])
def test_S10_a_web_page_in_place_of_a_stream_is_a_protocol_error(content_type: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + content_type + b"Connection: close\r\n\r\n"
    failure = failed(answered(HTML, head=head)).failure
    assert (failure.code, failure.category, failure.retry_class) == (
        Code.MODEL_PROTOCOL_ERROR,
        Category.PROTOCOL,
        None,
    )
    assert "Login" not in failure.message


def test_S10_what_cannot_begin_a_json_answer_is_not_the_beginning_of_one() -> None:
    """It is the same each time: another attempt would be paid for nothing."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    for body in (streams.S01, b"\xef\xbb\xbf upstream error", b"<", b" Bad gateway\n"):
        failure = failed(answered(body, head=head)).failure
        assert (failure.code, failure.retry_class) == (Code.MODEL_PROTOCOL_ERROR, None)
    for body in (b"", b" \n", b"\xef", b"\xef\xbb", b"\xef\xbb\xbf", b"\xef\xbb\xbf{"):
        assert_incomplete(failed(answered(body, head=head)))


def members(body: bytes) -> bytes:
    """A body packed as a proxy does that ends a member with each flush; one of its members is empty."""
    return b"".join(map(gzip.compress, (body[:40], b"", body[40:90], body[90:])))


@pytest.mark.parametrize("pack", [gzip.compress, members], ids=["one member", "several members"])
def test_S10_a_gzip_stream_is_read_like_any_other(pack: Callable[[bytes], bytes]) -> None:
    head = STREAM_HEAD.replace(b"\r\nConnection", b"\r\nContent-Encoding: gzip\r\nConnection")
    compressed = pack(streams.S01)
    assert completed(answered(compressed, head=head)).text == "Hi"
    # The last 8 bytes are gzip's checksum and length: they carry nothing of the stream.
    adapter = new_adapter()
    ends = range(len(compressed) - 8)
    last = compressed.rindex(b"\x1f\x8b")
    before = len(gzip.decompress(compressed[:last])) if last else 0
    with serving(*(bytes_of(head + compressed[:end]) for end in ends)) as server:
        for end in ends:
            outcome = once(adapter, server.base_url)
            rest = zlib.decompressobj(31).decompress(compressed[last:end]) if end > last else b""
            if before + len(rest) == len(streams.S01):
                assert completed(outcome).text == "Hi"
            else:
                assert_incomplete(failed(outcome))
    assert failed(answered(b"not gzip at all", head=head)).failure.code == Code.MODEL_PROTOCOL_ERROR


def test_S02_a_body_whose_packing_does_not_end_is_broken_off() -> None:
    head = LAST_CHUNKED_HEAD.replace(b"\r\nConnection", b"\r\nContent-Encoding: gzip\r\nConnection")
    packed = gzip.compress(streams.S02)
    for end in range(1, len(packed) + 1):
        assert_incomplete(failed(answered(chunked(packed[:end]) + b"0\r\n\r\n", head=head)))
    document = head.replace(b"text/event-stream", b"application/json")
    packed = gzip.compress(streams.S10_JSON)
    for end in range(1, len(packed)):
        assert_incomplete(failed(answered(chunked(packed[:end]) + b"0\r\n\r\n", head=document)))
    assert completed(answered(chunked(packed) + b"0\r\n\r\n", head=document)).text == "né"


def test_S10_what_follows_a_packed_body_is_a_fault_unless_all_was_said() -> None:
    head = STREAM_HEAD.replace(b"\r\nConnection", b"\r\nContent-Encoding: gzip\r\nConnection")
    assert completed(answered(gzip.compress(streams.S01) + b"more", head=head)).text == "Hi"
    assert failed(answered(gzip.compress(streams.S02) + b"more", head=head)).failure.code == Code.MODEL_PROTOCOL_ERROR
    document = head.replace(b"text/event-stream", b"application/json")
    outcome = failed(answered(gzip.compress(streams.S10_JSON) + b"more", head=document))
    assert outcome.failure.code == Code.MODEL_PROTOCOL_ERROR


def test_of_an_error_body_that_unpacks_to_much_no_more_is_taken_than_its_bound() -> None:
    taken: list[int] = []

    class Counting(Recording):
        def take(self, chunk: bytes) -> None:
            taken.append(len(chunk))
            super().take(chunk)

    bomb = gzip.compress(b'{"error":{"message":"' + bytes(64 * limits.ERROR_BODY_BYTES_MAX))
    assert len(bomb) < 5_000
    recording = Counting()
    with serving(answer("503 Busy", bomb * 8, "Content-Encoding: gzip\r\nRetry-After: 1")) as server:
        failure = failed(once(new_adapter(), server.base_url, Attempt(recording=recording))).failure
    assert (failure.code, failure.retry_class) == (Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT)
    assert sum(taken) == limits.ERROR_BODY_BYTES_MAX
    kept = recording.finish(())
    assert kept is not None and kept.size_bytes == limits.ERROR_BODY_BYTES_MAX


def test_a_stream_that_unpacks_to_much_is_taken_piece_by_piece_and_to_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STREAM_BYTES_MAX", 1_000_000)
    taken: list[int] = []

    class Counting(Recording):
        def take(self, chunk: bytes) -> None:
            taken.append(len(chunk))
            super().take(chunk)

    head = STREAM_HEAD.replace(b"\r\nConnection", b"\r\nContent-Encoding: gzip\r\nConnection")
    failed(answered(gzip.compress(b": x\n" * 1_000_000), Attempt(recording=Counting()), head=head))
    assert (sum(taken), max(taken)) == (1_000_001, limits.UNPACKED_PIECE_BYTES)


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
