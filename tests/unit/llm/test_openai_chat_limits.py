"""How an attempt ends other than by an answer: limits, cancellation, failures of callbacks and network."""

import socket
import threading
from collections.abc import Callable

import pytest

from agentloom_worker import limits
from agentloom_worker.cancellation import CancelReason
from agentloom_worker.clock import ManualClock
from agentloom_worker.domain.model import Cancelled, Category, Executed, FirstOutput, ModelOutcome
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.errors import Code, PersistenceUnavailableError
from agentloom_worker.http.recording import Recording
from tests.unit.http.raw_server import (
    CHUNKED_HEAD,
    STREAM_HEAD,
    WAIT_S,
    Exchange,
    RawServer,
    answer,
    bytes_of,
    chunked,
    serving,
)
from tests.unit.llm import streams
from tests.unit.llm.calls import SECRET, Attempt, completed, failed, new_adapter, once

HEARTBEATS = (": x\n\n" + streams.ROLE + "data:\n\n" + streams.USAGE + streams.delta(content="")).encode()


class SteppingClock(ManualClock):
    """Each look at the clock takes a tenth of a second."""

    def monotonic_s(self) -> float:
        self.advance(0.1)
        return super().monotonic_s()


def stalling_after(data: bytes) -> Callable[[Exchange], None]:
    def handler(exchange: Exchange) -> None:
        exchange.send(data)
        exchange.wait_for_end()

    return handler


def in_thread(server: RawServer, attempt: Attempt) -> tuple[threading.Thread, list[ModelOutcome]]:
    outcomes: list[ModelOutcome] = []
    adapter = new_adapter()
    thread = threading.Thread(target=lambda: outcomes.append(once(adapter, server.base_url, attempt)))
    thread.start()
    return thread, outcomes


@pytest.mark.parametrize("body", [b"", STREAM_HEAD, STREAM_HEAD + HEARTBEATS])
def test_heartbeats_roles_usage_and_empty_deltas_do_not_end_the_wait_for_output(body: bytes) -> None:
    attempt = Attempt(first_output_timeout_s=0.1)
    with serving(stalling_after(body)) as server:
        outcome = failed(once(new_adapter(), server.base_url, attempt))
        assert server.ended.wait(WAIT_S), "the stream was left open"
    failure = outcome.failure
    assert (failure.code, failure.category) == (Code.MODEL_FIRST_OUTPUT_TIMEOUT, Category.TIMEOUT)
    assert (failure.external_outcome, failure.retry_class) == (Executed.UNKNOWN, RetryClass.TRANSPORT)
    assert attempt.first_outputs == []


def test_the_first_output_ends_its_limit_and_the_stream_goes_on() -> None:
    clock = ManualClock()
    more = threading.Event()

    def handler(exchange: Exchange) -> None:
        exchange.send(STREAM_HEAD + streams.S02)
        assert more.wait(WAIT_S)
        exchange.send(streams.S01[len(streams.S02) :])

    def late(output: FirstOutput) -> None:
        clock.advance(1000.0)
        more.set()

    attempt = Attempt(first_output_timeout_s=60.0, deadline_s=5000.0, on_first_output=late)
    with serving(handler) as server:
        assert completed(once(new_adapter(clock=clock), server.base_url, attempt)).text == "Hi"


def test_S10_a_stall_after_output_ends_by_the_idle_limit_if_one_is_set() -> None:
    attempt = Attempt(idle_timeout_s=0.1)
    with serving(stalling_after(STREAM_HEAD + streams.S02)) as server:
        outcome = failed(once(new_adapter(), server.base_url, attempt))
        assert server.ended.wait(WAIT_S)
    failure = outcome.failure
    assert (failure.code, failure.category) == (Code.MODEL_TRANSPORT_FAILED, Category.TIMEOUT)
    assert (failure.external_outcome, failure.retry_class) == (Executed.UNKNOWN, RetryClass.TRANSPORT)
    assert outcome.partial.text == "Hi"


def test_S10_a_stall_ends_by_the_deadline_always() -> None:
    attempt = Attempt(deadline_s=0.1)
    with serving(stalling_after(STREAM_HEAD + streams.S02)) as server:
        outcome = once(new_adapter(), server.base_url, attempt)
        assert server.ended.wait(WAIT_S)
    assert isinstance(outcome, Cancelled)
    assert (outcome.sent, outcome.partial.text) == (True, "Hi")
    assert attempt.cancellation.reason is CancelReason.DEADLINE


# Each comment is larger than one read, so that none arrives together with another.
LARGE_COMMENT = b": " + b"x" * 70_000 + b"\n\n"


def test_S05_keep_alives_re_arm_the_idle_limit() -> None:
    clock = SteppingClock()
    rest = LARGE_COMMENT * 30 + streams.S01[len(streams.S02) :]
    attempt = Attempt(deadline_s=10_000.0, first_output_timeout_s=1000.0, idle_timeout_s=2.0)
    with serving(bytes_of(STREAM_HEAD + streams.S02 + rest)) as server:
        assert completed(once(new_adapter(clock=clock), server.base_url, attempt)).text == "Hi"
    assert clock.monotonic_s() > 4.0


def test_S05_keep_alives_move_neither_the_deadline_nor_the_wait_for_output() -> None:
    body = STREAM_HEAD + LARGE_COMMENT * 100
    with serving(stalling_after(body)) as server:
        attempt = Attempt(deadline_s=4.0, first_output_timeout_s=1000.0)
        assert isinstance(once(new_adapter(clock=SteppingClock()), server.base_url, attempt), Cancelled)
        attempt = Attempt(deadline_s=1000.0, first_output_timeout_s=4.0)
        outcome = failed(once(new_adapter(clock=SteppingClock()), server.base_url, attempt))
        assert outcome.failure.code == Code.MODEL_FIRST_OUTPUT_TIMEOUT


@pytest.mark.parametrize("sent_so_far", [b"", STREAM_HEAD, STREAM_HEAD + streams.S02])
def test_D17_a_cancel_from_another_thread_closes_a_blocked_stream(sent_so_far: bytes) -> None:
    waiting = threading.Event()

    def handler(exchange: Exchange) -> None:
        exchange.send(sent_so_far)
        waiting.set()
        exchange.wait_for_end()

    attempt = Attempt()
    with serving(handler) as server:
        thread, outcomes = in_thread(server, attempt)
        assert waiting.wait(WAIT_S)
        attempt.cancellation.cancel(CancelReason.STOP)
        thread.join(2.0)
        assert not thread.is_alive()
        assert server.ended.wait(WAIT_S)
    (outcome,) = outcomes
    assert isinstance(outcome, Cancelled)
    assert outcome.sent


def test_D17_nothing_that_arrived_is_handled_after_the_cancel() -> None:
    attempt = Attempt()
    attempt.on_first_output = lambda output: attempt.cancellation.cancel(CancelReason.STOP)
    body = STREAM_HEAD + streams.S02 + streams.S01
    with serving(bytes_of(body)) as server:
        outcome = once(new_adapter(), server.base_url, attempt)
    assert isinstance(outcome, Cancelled)
    assert outcome.partial.text == "Hi"


def test_a_cancelled_attempt_sends_nothing() -> None:
    attempt = Attempt()
    attempt.cancellation.cancel(CancelReason.DRAIN)
    with serving(bytes_of(STREAM_HEAD + streams.S01)) as server:
        outcome = once(new_adapter(), server.base_url, attempt)
        assert server.connections == 0
    assert isinstance(outcome, Cancelled)
    assert (outcome.sent, attempt.sent) == (False, 0)


def test_an_attempt_past_its_deadline_sends_nothing() -> None:
    attempt = Attempt(deadline_s=0.0)
    with serving(bytes_of(STREAM_HEAD + streams.S01)) as server:
        outcome = once(new_adapter(), server.base_url, attempt)
        assert server.connections == 0
    assert isinstance(outcome, Cancelled)
    assert attempt.cancellation.reason is CancelReason.DEADLINE


def test_a_cancel_of_a_finished_attempt_does_not_touch_the_next_one_on_its_connection() -> None:
    first, second = Attempt(), Attempt()
    waiting, go_on = threading.Event(), threading.Event()

    def whole(exchange: Exchange) -> None:
        exchange.keep = True
        exchange.send(CHUNKED_HEAD + chunked(streams.S01) + b"0\r\n\r\n")

    def slow(exchange: Exchange) -> None:
        exchange.send(CHUNKED_HEAD + chunked(streams.S02))
        waiting.set()
        assert go_on.wait(WAIT_S)
        exchange.send(chunked(streams.S01[len(streams.S02) :]) + b"0\r\n\r\n")

    outcomes: list[ModelOutcome] = []
    with serving(whole, slow) as server:
        adapter = new_adapter()
        completed(once(adapter, server.base_url, first))
        thread = threading.Thread(target=lambda: outcomes.append(once(adapter, server.base_url, second)))
        thread.start()
        assert waiting.wait(WAIT_S)
        first.cancellation.cancel(CancelReason.STOP)
        go_on.set()
        thread.join(WAIT_S)
        assert server.connections == 1
    assert completed(outcomes[0]).text == "Hi"


@pytest.mark.parametrize("callback", ["on_sent", "on_first_output"])
def test_an_error_of_a_callback_closes_the_stream_and_leaves_unchanged(callback: str) -> None:
    error = PersistenceUnavailableError("down")

    def fail(*_: object) -> None:
        raise error

    attempt = Attempt()
    setattr(attempt, callback, fail)
    with serving(stalling_after(STREAM_HEAD + streams.S02 + streams.S02)) as server:
        with pytest.raises(PersistenceUnavailableError) as caught:
            once(new_adapter(), server.base_url, attempt)
        if callback == "on_first_output":
            assert server.ended.wait(WAIT_S), "the stream was left open"
        else:
            assert server.served == 0
    assert caught.value is error
    assert len(attempt.first_outputs) == (callback == "on_first_output")


def test_the_request_is_reported_as_sent_before_its_first_byte() -> None:
    attempt = Attempt()
    with serving(bytes_of(STREAM_HEAD + streams.S01)) as server:
        attempt.on_sent = lambda: served.append(server.served)
        served: list[int] = []
        completed(once(new_adapter(), server.base_url, attempt))
        assert (served, server.served) == ([0], 1)


def test_a_refused_connection_executed_nothing_and_may_be_retried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    attempt = Attempt()
    outcome = failed(once(new_adapter(), f"http://127.0.0.1:{port}/v1", attempt))
    failure = outcome.failure
    assert (failure.code, failure.category) == (Code.MODEL_TRANSPORT_FAILED, Category.TRANSPORT)
    assert (failure.external_outcome, failure.retry_class) == (Executed.NOT_EXECUTED, RetryClass.TRANSPORT)
    assert (attempt.sent, outcome.partial.empty) == (0, True)


def test_an_unknown_host_executed_nothing() -> None:
    failure = failed(once(new_adapter(), "http://host.invalid/v1")).failure
    assert (failure.code, failure.external_outcome) == (Code.MODEL_TRANSPORT_FAILED, Executed.NOT_EXECUTED)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/v1", "http://[::1/v1", "no url", "http:///v1", "http://xn--/v1", ""])
def test_a_base_url_that_cannot_be_called_is_rejected_for_good(url: str) -> None:
    failure = failed(once(new_adapter(), url)).failure
    assert (failure.code, failure.retry_class) == (Code.MODEL_REQUEST_REJECTED, None)
    assert failure.external_outcome is Executed.NOT_EXECUTED


def test_an_end_without_an_answer_is_unknown() -> None:
    with serving(lambda exchange: None) as server:
        failure = failed(once(new_adapter(), server.base_url)).failure
    assert (failure.code, failure.external_outcome) == (Code.MODEL_TRANSPORT_FAILED, Executed.UNKNOWN)


def test_bytes_that_are_not_http_are_a_transport_failure() -> None:
    with serving(bytes_of(b"SSH-2.0-OpenSSH\r\n\r\n")) as server:
        failure = failed(once(new_adapter(), server.base_url)).failure
    assert (failure.code, failure.retry_class) == (Code.MODEL_TRANSPORT_FAILED, RetryClass.TRANSPORT)


@pytest.mark.parametrize("key", [SECRET, None])
def test_what_is_quoted_of_bytes_that_are_not_http_is_short_and_without_keys(key: str | None) -> None:
    with serving(bytes_of(b"sk-proj-0123456789 " + b"x" * 60_000 + b"\r\n\r\n")) as server:
        message = failed(once(new_adapter(), server.base_url, Attempt(api_key=key))).failure.message
    assert message.startswith("illegal status line") and "sk-proj" not in message
    assert len(message) <= limits.ERROR_TEXT_CHARACTERS_MAX + 1


def test_D23_each_attempt_is_one_request_and_hands_on_what_retry_after_says() -> None:
    body = b'{"error":{"message":"overloaded, key ' + SECRET.encode() + b'","code":"server_error"}}'
    headers = "Content-Type: application/json\r\nRetry-After: 7"
    with serving(answer("503 Service Unavailable", body, headers)) as server:
        outcomes = [failed(once(new_adapter(), server.base_url)) for _ in range(3)]
        assert server.served == 3
    for outcome in outcomes:
        failure = outcome.failure
        assert (failure.code, failure.http_status) == (Code.MODEL_PROVIDER_ERROR, 503)
        assert (failure.retry_class, failure.retry_after_ms) == (RetryClass.TRANSPORT, 7000)
        assert "overloaded" in failure.message
        assert SECRET not in repr(outcome)


def test_D23_a_rate_limit_has_its_own_class() -> None:
    with serving(answer("429 Too Many Requests", b"", "Retry-After: 1")) as server:
        failure = failed(once(new_adapter(), server.base_url)).failure
    assert (failure.code, failure.retry_class) == (Code.MODEL_RATE_LIMITED, RetryClass.RATE_LIMIT)
    assert failure.retry_after_ms == 1000


def test_a_redirect_is_not_followed() -> None:
    with serving(bytes_of(STREAM_HEAD + streams.S01)) as elsewhere:
        location = f"Location: {elsewhere.base_url}/chat/completions"
        with serving(answer("307 Temporary Redirect", b"", location)) as server:
            failure = failed(once(new_adapter(), server.base_url)).failure
        assert elsewhere.served == 0
    assert (failure.code, failure.retry_class) == (Code.MODEL_REQUEST_REJECTED, None)


@pytest.mark.parametrize("size", [0, 100_000])
def test_the_end_of_an_error_body_is_not_waited_for(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ERROR_BODY_TIMEOUT_S", 0.1 if size == 0 else 60.0)
    head = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 1000000\r\n\r\n"
    with serving(stalling_after(head + b"x" * size)) as server:
        failure = failed(once(new_adapter(), server.base_url)).failure
        assert server.ended.wait(WAIT_S)
    assert failure.code == Code.MODEL_PROVIDER_ERROR


REFUSED = b"HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\n"


@pytest.mark.parametrize(("deadline_s", "passes_s"), [(1.0, 1.5), (30.0, 31.0)])
def test_a_deadline_that_passes_while_an_error_is_read_cancels(deadline_s: float, passes_s: float) -> None:
    """Also where the limit of the error's body has passed before it."""
    clock = ManualClock()

    def handler(exchange: Exchange) -> None:
        exchange.send(REFUSED + b"Content-Length: 1000\r\n\r\nx")
        assert waiting.wait(WAIT_S)
        clock.advance(passes_s)
        exchange.send(b"y")
        exchange.wait_for_end()

    waiting = threading.Event()
    attempt = Attempt(deadline_s=deadline_s, recording=_Telling(waiting))
    with serving(handler) as server:
        outcome = once(new_adapter(clock=clock), server.base_url, attempt)
    assert isinstance(outcome, Cancelled)
    assert (outcome.sent, attempt.cancellation.reason) == (True, CancelReason.DEADLINE)


def test_the_limit_of_an_error_body_alone_leaves_the_failure_of_its_status() -> None:
    clock = ManualClock()

    def handler(exchange: Exchange) -> None:
        exchange.send(REFUSED + b"Content-Length: 1000\r\n\r\nx")
        assert waiting.wait(WAIT_S)
        clock.advance(limits.ERROR_BODY_TIMEOUT_S)
        exchange.send(b"y")
        exchange.wait_for_end()

    waiting = threading.Event()
    attempt = Attempt(deadline_s=30.0, recording=_Telling(waiting))
    with serving(handler) as server:
        failure = failed(once(new_adapter(clock=clock), server.base_url, attempt)).failure
    assert (failure.code, failure.http_status) == (Code.MODEL_PROVIDER_ERROR, 500)
    assert not attempt.cancellation.cancelled


@pytest.mark.parametrize(
    "sent",
    [
        REFUSED + b"\r\nx",
        REFUSED + b"Content-Length: 1000\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nnone",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{}",
    ],
    ids=["an error without a size", "an error", "no stream", "a document"],
)
def test_D17_a_cancel_while_a_body_is_read_is_no_end_of_that_body(sent: bytes) -> None:
    def handler(exchange: Exchange) -> None:
        exchange.send(sent)
        exchange.wait_for_end()

    waiting = threading.Event()
    attempt = Attempt(recording=_Telling(waiting))
    with serving(handler) as server:
        thread, outcomes = in_thread(server, attempt)
        assert waiting.wait(WAIT_S)
        attempt.cancellation.cancel(CancelReason.STOP)
        thread.join(2.0)
        assert not thread.is_alive()
    (outcome,) = outcomes
    assert isinstance(outcome, Cancelled)
    assert attempt.cancellation.reason is CancelReason.STOP


class _Telling(Recording):
    """Tells when the first bytes of a body have been read."""

    def __init__(self, told: threading.Event) -> None:
        super().__init__()
        self._told = told

    def take(self, chunk: bytes) -> None:
        super().take(chunk)
        self._told.set()


def test_a_large_request_that_is_refused_half_way_gives_the_refusal() -> None:
    def refuse(sock: socket.socket) -> None:
        connection, _ = sock.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=refuse, args=(listener,))
        thread.start()
        adapter = new_adapter()
        outcome = once(adapter, f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
        thread.join(WAIT_S)
    assert (failed(outcome).failure.http_status, failed(outcome).failure.category) == (413, Category.LIMIT)


@pytest.mark.parametrize("key", ["bad\r\nX: y", "schlüssel\ud800", "a\x00b"])
def test_a_key_that_no_header_can_carry_is_rejected_without_being_quoted(key: str) -> None:
    with serving(bytes_of(STREAM_HEAD + streams.S01)) as server:
        outcome = failed(once(new_adapter(), server.base_url, Attempt(api_key=key)))
        assert server.served == 0
    assert outcome.failure.code == Code.MODEL_REQUEST_REJECTED
    assert key not in repr(outcome)


def test_the_key_is_in_no_representation_of_an_attempt() -> None:
    assert SECRET not in repr(Attempt().context())
