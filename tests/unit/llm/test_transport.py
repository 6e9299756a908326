"""Connections: reuse, endings, TLS, many at once, and what a blocked connect is woken by."""

import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentloom_worker import limits
from agentloom_worker.cancellation import CancelReason
from agentloom_worker.clock import ManualClock, SystemClock
from agentloom_worker.domain.model import Cancelled, ModelOutcome
from agentloom_worker.errors import Code
from agentloom_worker.http.connection import dial
from agentloom_worker.http.watch import CallInterrupted, CallWatch, Limit, LimitExpired
from agentloom_worker.llm.adapters.openai_chat import OpenAIChatAdapter
from tests.unit.http.raw_server import CHUNKED_HEAD, WAIT_S, Exchange, chunked, serving
from tests.unit.llm import streams
from tests.unit.llm.calls import GENERIC, Attempt, completed, failed, new_adapter, once

CERTIFICATES = Path(__file__).parent / "certificates"
LAST_CHUNK = b"0\r\n\r\n"


def keeping(exchange: Exchange) -> None:
    exchange.keep = True
    exchange.send(CHUNKED_HEAD + chunked(streams.S01) + LAST_CHUNK)


def new_watch(deadline_s: float = 60.0) -> CallWatch:
    watch = CallWatch(SystemClock(), lambda: None)
    watch.limit(Limit.DEADLINE, deadline_s)
    return watch


def test_attempts_in_a_row_share_one_connection() -> None:
    with serving(keeping) as server:
        adapter = new_adapter()
        for _ in range(5):
            completed(once(adapter, server.base_url))
        assert (server.connections, server.served) == (1, 5)


def test_the_end_of_a_body_that_comes_after_the_answer_does_not_cost_the_connection() -> None:
    taken, ended = threading.Event(), threading.Event()

    def late_end(exchange: Exchange) -> None:
        exchange.keep = True
        exchange.send(CHUNKED_HEAD + chunked(streams.S01))
        assert taken.wait(WAIT_S)
        exchange.send(LAST_CHUNK)
        ended.set()

    with serving(late_end, keeping) as server:
        adapter = new_adapter()
        completed(once(adapter, server.base_url))
        taken.set()
        assert ended.wait(WAIT_S)
        completed(once(adapter, server.base_url))
        assert server.connections == 1


def test_a_body_that_never_ends_costs_its_connection_and_no_attempt() -> None:
    def endless(exchange: Exchange) -> None:
        exchange.send(CHUNKED_HEAD + chunked(streams.S01))
        exchange.wait_for_end()

    with serving(endless, keeping) as server:
        adapter = new_adapter()
        completed(once(adapter, server.base_url))
        completed(once(adapter, server.base_url))
        assert server.connections == 2
        assert server.ended.wait(WAIT_S)


def test_a_connection_that_the_server_has_closed_is_not_used() -> None:
    closed = threading.Event()

    def then_close(exchange: Exchange) -> None:
        exchange.send(CHUNKED_HEAD + chunked(streams.S01) + LAST_CHUNK)
        exchange.sock.shutdown(socket.SHUT_RDWR)
        closed.set()

    with serving(then_close, keeping) as server:
        adapter = new_adapter()
        completed(once(adapter, server.base_url))
        assert closed.wait(WAIT_S)
        completed(once(adapter, server.base_url))
        assert server.connections == 2


def test_a_connection_idle_for_too_long_is_not_used() -> None:
    clock = ManualClock()
    with serving(keeping) as server:
        adapter = new_adapter(clock=clock)
        completed(once(adapter, server.base_url))
        clock.advance(limits.CONNECTION_IDLE_S + 0.1)
        completed(once(adapter, server.base_url))
        assert server.connections == 2


def test_an_unfinished_stream_takes_its_connection_along() -> None:
    def broken(exchange: Exchange) -> None:
        exchange.send(CHUNKED_HEAD + chunked(streams.S02 + b"data: {\n\n"))
        exchange.wait_for_end()

    with serving(broken, keeping) as server:
        adapter = new_adapter()
        assert failed(once(adapter, server.base_url)).failure.code == Code.MODEL_PROTOCOL_ERROR
        assert server.ended.wait(WAIT_S)
        completed(once(adapter, server.base_url))
        assert server.connections == 2


def test_a_forked_child_does_not_use_its_parents_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(keeping) as server:
        adapter = new_adapter()
        completed(once(adapter, server.base_url))
        monkeypatch.setattr("agentloom_worker.http.transport.os.getpid", lambda: -1)
        completed(once(adapter, server.base_url))
        assert server.connections == 2


def test_closing_the_adapter_closes_idle_connections_and_leaves_it_usable() -> None:
    with serving(keeping) as server:
        adapter = new_adapter()
        completed(once(adapter, server.base_url))
        adapter.close()
        completed(once(adapter, server.base_url))
        assert server.connections == 2


def test_200_streams_run_at_once_and_each_gets_its_own_answer() -> None:
    streams_count = 200
    all_open = threading.Barrier(streams_count)

    def echo(exchange: Exchange) -> None:
        exchange.keep = True
        all_open.wait(WAIT_S)
        key = exchange.head.split(b"Bearer ")[1].split(b"\r\n")[0].decode()
        body = (streams.ROLE + streams.delta(content=key) + streams.delta("stop") + streams.DONE).encode()
        exchange.send(CHUNKED_HEAD + chunked(body) + LAST_CHUNK)

    texts: dict[str, str] = {}
    with serving(echo) as server:
        adapter = new_adapter()

        def run(key: str) -> None:
            texts[key] = completed(once(adapter, server.base_url, Attempt(api_key=key))).text

        threads = [threading.Thread(target=run, args=(f"key-{n}",)) for n in range(streams_count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    assert texts == {f"key-{n}": f"key-{n}" for n in range(streams_count)}


@pytest.fixture
def server_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "loopback.pem", CERTIFICATES / "loopback.key")
    return context


def tls_adapter() -> OpenAIChatAdapter:
    trusting = ssl.create_default_context(cafile=str(CERTIFICATES / "loopback.pem"))
    return OpenAIChatAdapter(SystemClock(), GENERIC, ssl_context=trusting)


def test_tls_streams_are_read_and_their_connections_reused(server_tls: ssl.SSLContext) -> None:
    with serving(keeping, context=server_tls) as server:
        adapter = tls_adapter()
        for _ in range(3):
            assert completed(once(adapter, server.base_url)).text == "Hi"
        assert server.connections == 1
        adapter.close()


def test_an_untrusted_certificate_is_refused_before_anything_is_sent(server_tls: ssl.SSLContext) -> None:
    attempt = Attempt()
    with serving(keeping, context=server_tls) as server:
        failure = failed(once(new_adapter(), server.base_url, attempt)).failure
        assert (server.served, attempt.sent) == (0, 0)
    assert failure.code == Code.MODEL_TRANSPORT_FAILED
    assert "TLS" in failure.message


def test_D17_a_cancel_wakes_a_blocked_tls_read(server_tls: ssl.SSLContext) -> None:
    waiting = threading.Event()

    def stall(exchange: Exchange) -> None:
        exchange.send(CHUNKED_HEAD + chunked(streams.S02))
        waiting.set()
        exchange.wait_for_end()

    attempt, outcomes = Attempt(), list[ModelOutcome]()
    with serving(stall, context=server_tls) as server:
        adapter = tls_adapter()
        thread = threading.Thread(target=lambda: outcomes.append(once(adapter, server.base_url, attempt)))
        thread.start()
        assert waiting.wait(WAIT_S)
        attempt.cancellation.cancel(CancelReason.STOP)
        thread.join(2.0)
        assert not thread.is_alive()
    assert isinstance(outcomes[0], Cancelled)


def test_D17_a_cancel_wakes_a_tls_handshake_that_nobody_answers() -> None:
    attempt, outcomes = Attempt(), list[ModelOutcome]()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/v1"
        adapter = tls_adapter()
        thread = threading.Thread(target=lambda: outcomes.append(once(adapter, url, attempt)))
        thread.start()
        connection, _ = listener.accept()
        with connection:
            connection.recv(1)
            attempt.cancellation.cancel(CancelReason.STOP)
            thread.join(2.0)
            assert not thread.is_alive()
    (outcome,) = outcomes
    assert isinstance(outcome, Cancelled)
    assert not outcome.sent


def test_a_resolver_that_hangs_is_left_behind_at_a_cancel_or_a_limit() -> None:
    asked, release = threading.Event(), threading.Event()

    def hang(host: str, port: int) -> list[Any]:
        asked.set()
        release.wait(WAIT_S)
        return []

    watch, errors = new_watch(), list[Exception]()

    def connect() -> None:
        try:
            dial(watch, "model.example", 80, resolver=hang)
        except httpx.TransportError as error:
            errors.append(error)

    try:
        thread = threading.Thread(target=connect)
        thread.start()
        assert asked.wait(WAIT_S)
        watch.interrupt()
        thread.join(2.0)
        assert not thread.is_alive()
        assert isinstance(errors[0], CallInterrupted)
        with pytest.raises(LimitExpired):
            dial(new_watch(deadline_s=0.05), "model.example", 80, resolver=hang)
    finally:
        release.set()


def test_a_second_address_is_tried_when_the_first_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed, socket.create_server(("127.0.0.1", 0)) as listener:
        refusing = closed.getsockname()
        closed.close()
        found = [
            (int(socket.AF_INET), int(socket.SOCK_STREAM), 0, "", address)
            for address in (refusing, listener.getsockname())
        ]
        stream = dial(new_watch(), "model.example", 80, resolver=lambda host, port: found)
        assert stream.get_extra_info("socket").getpeername() == listener.getsockname()
        stream.close()
