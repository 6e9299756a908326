"""The limits of an attempt, for every model protocol, on a clock that leaps: nothing here waits for time."""

import threading

import pytest

from agentloom_worker import limits
from agentloom_worker.cancellation import CancelReason
from agentloom_worker.domain.model import Cancelled, Category, Executed, FirstOutput, FirstOutputKind, ModelOutcome
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.errors import Code
from agentloom_worker.http.recording import Recording
from tests.contract.model_adapters import (
    LEAP_S,
    PROTOCOLS,
    LeapingClock,
    model_of,
    new_adapter,
    stream_of,
    told,
)
from tests.unit.http.raw_server import STREAM_HEAD, WAIT_S, Exchange, bytes_of, serving
from tests.unit.llm.calls import Attempt, completed, failed, once

pytestmark = pytest.mark.parametrize("protocol", PROTOCOLS)

STORY = {"text": "Hi, and more", "chunk_chars": 2}


def stalled(protocol: str, *, idle_timeout_s: float | None, deadline_s: float) -> tuple[ModelOutcome, Attempt]:
    """An attempt behind whose first output a hundred seconds lie between one look at the clock and the next."""
    clock = LeapingClock()
    with model_of({**STORY, "hold": {"gate": "go", "after_chunks": 1}}) as model:

        def leap(_output: FirstOutput) -> None:
            clock.leaping = True
            model.open_gate("go")

        attempt = Attempt(idle_timeout_s=idle_timeout_s, deadline_s=deadline_s, on_first_output=leap)
        return once(new_adapter(protocol, clock), model.base_url, attempt), attempt


def test_S10_without_an_idle_limit_a_silence_of_any_length_ends_nothing(protocol: str) -> None:
    outcome, attempt = stalled(protocol, idle_timeout_s=None, deadline_s=1e6)
    assert completed(outcome).text == "Hi, and more"
    assert not attempt.cancellation.cancelled


@pytest.mark.parametrize("idle_timeout_s", [LEAP_S - 1, LEAP_S + 1])
def test_S10_an_idle_limit_ends_a_silence_that_is_longer_and_none_that_is_shorter(
    protocol: str, idle_timeout_s: float
) -> None:
    """The shorter silences together are far longer than the limit: every byte re-arms it."""
    outcome, attempt = stalled(protocol, idle_timeout_s=idle_timeout_s, deadline_s=1e6)
    if idle_timeout_s > LEAP_S:
        assert completed(outcome).text == "Hi, and more"
        return
    failure = failed(outcome).failure
    assert (failure.code, failure.category) == (Code.MODEL_TRANSPORT_FAILED, Category.TIMEOUT)
    assert (failure.message, failure.http_status) == ("the idle limit has passed", 200)
    assert (failure.external_outcome, failure.retry_class) == (Executed.UNKNOWN, RetryClass.TRANSPORT)
    assert failed(outcome).partial.text == "Hi"
    assert not attempt.cancellation.cancelled


@pytest.mark.parametrize("idle_timeout_s", [None, LEAP_S + 1])
def test_S10_the_deadline_ends_a_silence_whether_an_idle_limit_is_set_or_not(
    protocol: str, idle_timeout_s: float | None
) -> None:
    outcome, attempt = stalled(protocol, idle_timeout_s=idle_timeout_s, deadline_s=LEAP_S / 2)
    assert isinstance(outcome, Cancelled)
    assert (outcome.sent, outcome.partial.text) == (True, "Hi")
    assert attempt.cancellation.reason is CancelReason.DEADLINE


# First outputs of each kind → the answer whose stream begins with one, and what of the stream comes before it.
FIRST: dict[str, tuple[dict[str, object], FirstOutputKind]] = {
    "text": ({"text": "Hi, and", "chunk_chars": 2}, FirstOutputKind.TEXT),
    "refusal": ({"refusal": "No, and", "chunk_chars": 2}, FirstOutputKind.TEXT),
    "reasoning": ({"reasoning": "hm, and", "text": "Hi", "chunk_chars": 2}, FirstOutputKind.REASONING),
    "call": (
        {"tool_calls": [{"name": "add", "id": "a", "arguments_text": '{"x": 1}'}], "chunk_chars": 3},
        FirstOutputKind.TOOL_NAME,
    ),
    "nothing": ({"text": ""}, FirstOutputKind.COMPLETE_FRAME),
}


@pytest.mark.parametrize("first", FIRST)
def test_C07_a_first_output_of_any_kind_ends_its_limit(protocol: str, first: str) -> None:
    answer, kind = FIRST[first]
    clock = LeapingClock()
    attempt = Attempt(first_output_timeout_s=LEAP_S - 1, deadline_s=1e6)
    attempt.on_first_output = lambda _output: setattr(clock, "leaping", True)
    with serving(bytes_of(STREAM_HEAD + stream_of(protocol, answer))) as server:
        completed(once(new_adapter(protocol, clock), server.base_url, attempt))
    assert attempt.first_outputs == [FirstOutput(kind, kind is not FirstOutputKind.COMPLETE_FRAME)]


@pytest.mark.parametrize("first", FIRST)
def test_C07_what_comes_before_a_first_output_does_not_end_its_limit(protocol: str, first: str) -> None:
    """Comments, roles, opened items and empty deltas arrive, and then nothing any more."""
    answer, _ = FIRST[first]
    body = stream_of(protocol, answer)
    clock, attempt = LeapingClock(), Attempt(first_output_timeout_s=LEAP_S - 1, deadline_s=1e6)
    before = _before_output(protocol, body)

    def quiet(exchange: Exchange) -> None:
        exchange.send(STREAM_HEAD + b": ping\n\n" + before)
        clock.leaping = True
        exchange.send(b": ping\n\n")
        exchange.wait_for_end()

    with serving(quiet) as server:
        outcome = failed(once(new_adapter(protocol, clock), server.base_url, attempt))
        assert server.ended.wait(WAIT_S), "the stream was left open"
    failure = outcome.failure
    assert (failure.code, failure.category) == (Code.MODEL_FIRST_OUTPUT_TIMEOUT, Category.TIMEOUT)
    assert (failure.external_outcome, failure.retry_class) == (Executed.UNKNOWN, RetryClass.TRANSPORT)
    assert (attempt.first_outputs, outcome.partial.empty) == ([], True)


def _before_output(protocol: str, body: bytes) -> bytes:
    """The events of a stream that stand before its first output, with copies of its deltas that hold nothing."""
    events = [event + b"\n\n" for event in body.split(b"\n\n") if event]
    whole = len(events)
    for number in range(whole):
        attempt = Attempt()
        head = b"".join(events[: number + 1])
        with serving(bytes_of(STREAM_HEAD + head)) as server:
            once(new_adapter(protocol), server.base_url, attempt)
        if attempt.first_outputs:
            return b"".join(events[:number])
    raise AssertionError("the stream has no first output")


@pytest.mark.parametrize("story", ["text", "call"])
def test_D17_a_cancel_between_two_events_of_one_chunk_is_the_end_of_the_second(protocol: str, story: str) -> None:
    """They arrive together and the first one is handled; nothing of the second one is."""
    answer = {
        "text": {"text": "abc", "chunk_chars": 1},
        "call": {"tool_calls": [{"name": "add", "id": "a", "arguments_text": "{}"}], "chunk_chars": 1},
    }[story]
    attempt = Attempt()
    attempt.on_first_output = lambda _output: attempt.cancellation.cancel(CancelReason.STOP)
    with serving(bytes_of(STREAM_HEAD + stream_of(protocol, answer))) as server:
        outcome = once(new_adapter(protocol), server.base_url, attempt)
    assert isinstance(outcome, Cancelled) and outcome.sent
    if story == "text":
        assert (outcome.partial.text, outcome.partial.calls) == ("a", ())
    else:
        (call,) = outcome.partial.calls
        assert (call.name, call.arguments_text) == ("add", "")


def test_S02_done_without_an_end_of_the_answer_ends_the_attempt_though_the_connection_stays(protocol: str) -> None:
    """As proxies close politely that have lost the provider behind them."""
    body = stream_of(protocol, {"text": "Hi", "usage": "none"})
    first = body.index(b"\n\n", body.index(b"Hi")) + 2

    def polite(exchange: Exchange) -> None:
        exchange.send(STREAM_HEAD + body[:first] + b"data: [DONE]\n\n")
        exchange.wait_for_end()

    with serving(polite) as server:
        outcome = failed(once(new_adapter(protocol), server.base_url, Attempt(deadline_s=2 * WAIT_S)))
        assert server.ended.wait(WAIT_S), "the stream was left open"
    failure = outcome.failure
    assert (failure.code, failure.retry_class) == (Code.MODEL_TRANSPORT_FAILED, RetryClass.TRANSPORT)
    assert failure.message.startswith("the stream said [DONE] without a fin")
    assert (failure.external_outcome, outcome.partial.text) == (Executed.UNKNOWN, "Hi")


def test_S03_an_error_inside_a_200_that_echoes_the_key_quotes_it_nowhere(protocol: str) -> None:
    """Also a key that does not look like one."""
    key = "plover7731"
    said = {"code": "server_error", "message": f"no such thing: {key}"}
    event = {"error": said} if protocol == "openai-chat" else {"type": "error", **said}
    answer = {"text": "so far", "cut": {"then": "error", "after_chunks": 0, "event": event}}
    outcome = failed(told(protocol, answer, Attempt(api_key=key)))
    assert outcome.failure.code is Code.MODEL_PROVIDER_ERROR
    assert outcome.failure.message.endswith(" (server_error): no such thing: [redacted]")
    assert key not in repr(outcome)


def test_D17_a_cancel_amid_the_body_of_a_refusal_is_a_cancel(protocol: str) -> None:
    """The status alone would settle the class of a refusal; a stop is a stop all the same."""
    taken = threading.Event()

    class Noticing(Recording):
        def take(self, piece: bytes) -> None:
            super().take(piece)
            taken.set()

    attempt = Attempt(recording=Noticing())

    def refuse(exchange: Exchange) -> None:
        exchange.send(b"HTTP/1.1 503 Busy\r\nContent-Length: 1000\r\n\r\n{")
        assert taken.wait(WAIT_S)
        attempt.cancellation.cancel(CancelReason.STOP)
        exchange.wait_for_end()

    with serving(refuse) as server:
        outcome = once(new_adapter(protocol), server.base_url, attempt)
        assert server.ended.wait(WAIT_S), "the connection was left open"
    assert isinstance(outcome, Cancelled)
    assert (outcome.sent, attempt.cancellation.reason) == (True, CancelReason.STOP)


def test_S10_a_document_that_is_too_large_is_a_protocol_error_and_not_sent_again(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SSE_EVENT_BYTES_MAX", 1000)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    with serving(bytes_of(head + b'{"text": "' + b"x" * 2000 + b'"}')) as server:
        failure = failed(once(new_adapter(protocol), server.base_url)).failure
    assert (failure.code, failure.retry_class) == (Code.MODEL_PROTOCOL_ERROR, None)
    assert failure.message == "the answer is larger than 1000 bytes"
