"""The dev-model over real HTTP on the loopback interface."""

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentloom_worker.devmodel import DevModel, Outcome, parse_script

TIMEOUT_S = 20.0
QUESTION = {"model": "dev-model", "messages": [{"role": "user", "content": "hi"}]}
ROLE = {"role": "assistant", "content": None}


@contextmanager
def served(*turns: dict[str, Any], **more: Any) -> Iterator[tuple[DevModel, httpx.Client]]:
    script = parse_script({"schema_version": 1, "turns": list(turns), **more})
    with DevModel(script) as model, httpx.Client(base_url=model.base_url, timeout=TIMEOUT_S) as client:
        yield model, client


def ask(client: httpx.Client, **more: Any) -> httpx.Response:
    return client.post("/chat/completions", json={**QUESTION, "stream": True, **more})


def events(response: httpx.Response) -> list[Any]:
    assert response.headers["content-type"] == "text/event-stream"
    parts = response.text.split("\n\n")
    assert parts.pop() == ""
    datas = [part.removeprefix("data: ") for part in parts]
    return [data if data == "[DONE]" else json.loads(data) for data in datas]


def deltas(response: httpx.Response) -> list[dict[str, Any]]:
    chunks = [event for event in events(response) if event != "[DONE]" and event.get("choices")]
    return [chunk["choices"][0]["delta"] for chunk in chunks]


def ended_as(model: DevModel, outcome: Outcome) -> bool:
    return model.wait_until(lambda records: bool(records) and records[-1].outcome is outcome, TIMEOUT_S)


def raw_request(model: DevModel, body: bytes | None = None) -> bytes:
    body = json.dumps({**QUESTION, "stream": True}).encode() if body is None else body
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def connect(model: DevModel) -> socket.socket:
    return socket.create_connection(("127.0.0.1", model.port), timeout=TIMEOUT_S)


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


def test_a_text_is_streamed_with_role_finish_usage_and_done() -> None:
    usage = {"prompt_tokens": 11, "completion_tokens": 2, "cached_tokens": 4}
    with served({"answer": {"text": "Hi there", "chunk_chars": 3, "usage": usage}}) as (_, client):
        streamed = events(ask(client, stream_options={"include_usage": True}))
    assert [event["choices"][0]["delta"] for event in streamed[:5]] == [
        ROLE, {"content": "Hi "}, {"content": "the"}, {"content": "re"}, {},
    ]  # fmt: skip
    assert [event["choices"][0]["finish_reason"] for event in streamed[:5]] == [None] * 4 + ["stop"]
    assert streamed[5]["choices"] == []
    assert streamed[5]["usage"] == {
        "prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 4},
    }  # fmt: skip
    assert streamed[6:] == ["[DONE]"]
    assert {(event["object"], event["model"]) for event in streamed[:6]} == {("chat.completion.chunk", "dev-model")}


def test_usage_is_streamed_only_to_who_asks() -> None:
    with served({"answer": {"text": "a"}}) as (_, client):
        assert not [event for event in events(ask(client)) if "usage" in event]


def test_without_streaming_the_same_answer_is_one_document() -> None:
    answer = {
        "text": "Hi",
        "reasoning": "hm",
        "tool_calls": [{"name": "f", "arguments": {"a": 1}, "id": "c1"}],
    }
    with served({"answer": answer}) as (_, client):
        document = ask(client, stream=False).json()
    (choice,) = document["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Hi",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }
    assert choice["finish_reason"] == "tool_calls"
    assert document["usage"]["total_tokens"] > 0


def test_parallel_calls_keep_their_index_id_name_and_arguments() -> None:
    calls = [
        {"name": "f", "arguments": {"text": "ä\u2028b", "n": [1, 2]}},
        {"name": "g", "arguments_text": '{"broken": '},
        {"name": "g", "arguments_text": "", "id": "same", "index": 0},
        {"name": "f", "id": "same"},
    ]
    with served({"answer": {"tool_calls": calls, "chunk_chars": 5}}) as (_, client):
        streamed = deltas(ask(client))
    parts = [call for delta in streamed for call in delta.get("tool_calls", [])]
    openings = [part for part in parts if "id" in part]
    assert [(part["index"], part["function"]["name"]) for part in openings] == [
        (0, "f"), (1, "g"), (0, "g"), (3, "f"),
    ]  # fmt: skip
    assert [part["id"] for part in openings[2:]] == ["same", "same"]
    assert len({part["id"] for part in openings}) == 3
    written: dict[int, str] = {}
    for part in parts:
        written[part["index"]] = written.get(part["index"], "") + part["function"]["arguments"]
    assert written == {0: '{"text": "ä\u2028b", "n": [1, 2]}', 1: '{"broken": ', 3: "{}"}


def test_reasoning_refusal_and_a_finish_reason_can_be_scripted() -> None:
    answer = {"reasoning": "hm", "refusal": "no", "text": "", "finish_reason": "content_filter"}
    with served({"answer": answer}) as (_, client):
        streamed = events(ask(client))
    assert [event["choices"][0]["delta"] for event in streamed[:-1]] == [
        ROLE, {"reasoning_content": "hm"}, {"refusal": "no"}, {},
    ]  # fmt: skip
    assert streamed[-2]["choices"][0]["finish_reason"] == "content_filter"


def test_frames_can_be_left_out() -> None:
    answer = {"text": "a", "omit": ["role", "finish", "usage", "done"]}
    with served({"answer": answer}) as (_, client):
        streamed = events(ask(client, stream_options={"include_usage": True}))
    assert [event["choices"][0]["delta"] for event in streamed] == [{"content": "a"}]


def test_the_same_bytes_get_the_same_bytes() -> None:
    answer = {"text": "{{last_user_text}}", "tool_calls": [{"name": "f"}, {"name": "f"}]}
    with served({"answer": answer}) as (_, client):
        first, second = ask(client), ask(client)
        other = ask(client, temperature=0)
    assert first.content == second.content
    assert first.content != other.content


def test_errors_for_first_arrivals_are_counted_for_each_request_alone() -> None:
    error = {"status": 503, "headers": {"Retry-After": "2"}, "body": {"error": {"message": "busy"}}}
    with served({"first": 2, "answer": {"http_error": error}}, {"answer": {"text": "ok"}}) as (model, client):
        answers = [
            ask(client),
            ask(client, temperature=0),
            ask(client),
            ask(client),
            ask(client, temperature=0),
        ]
        # What is still open is not forgotten, and an answer may be here before its end is noted.
        assert model.wait_until(lambda seen: all(one.outcome is not Outcome.OPEN for one in seen), 10)
        model.clear()
        again = ask(client)
        log = model.requests
    assert [answer.status_code for answer in answers] == [503, 503, 503, 200, 503]
    assert (answers[0].headers["retry-after"], answers[0].json()) == ("2", {"error": {"message": "busy"}})
    assert again.status_code == 503
    assert [(record.number, record.arrival, record.kind) for record in log] == [(6, 1, "http_error")]


def test_an_error_body_may_be_text_or_a_default() -> None:
    with served(
        {"first": 1, "answer": {"http_error": {"status": 502, "body": "<html>bad</html>"}}},
        {"answer": {"http_error": {"status": 429}}},
    ) as (_, client):
        html, default = ask(client), ask(client)
    assert (html.status_code, html.text, html.headers["content-type"][:10]) == (
        502,
        "<html>bad</html>",
        "text/plain",
    )
    assert (default.status_code, default.json()["error"]["type"]) == (429, "scripted_error")


def test_a_stream_can_end_cleanly_without_its_last_frames() -> None:
    with served({"answer": {"text": "abcd", "chunk_chars": 2, "cut": {"then": "end"}}}) as (model, client):
        response = ask(client)
        assert ended_as(model, Outcome.COMPLETE)
    assert deltas(response) == [ROLE, {"content": "ab"}, {"content": "cd"}]


@pytest.mark.parametrize("event", [None, {"error": {"message": "boom", "code": None}, "choices": []}])
def test_an_error_can_come_inside_the_stream(event: dict[str, Any] | None) -> None:
    cut = {"then": "error", "after_chunks": 1} | ({"event": event} if event else {})
    with served({"answer": {"text": "abcd", "chunk_chars": 2, "cut": cut}}) as (_, client):
        response = ask(client)
    assert response.status_code == 200
    *content, error, done = events(response)
    assert [part["choices"][0]["delta"] for part in content] == [ROLE, {"content": "ab"}]
    assert error == event or (event is None and error["error"]["message"] == "scripted error")
    assert done == "[DONE]"


@pytest.mark.parametrize(
    ("then", "error", "outcome"),
    [
        ("hang_up", httpx.RemoteProtocolError, Outcome.HUNG_UP),
        ("reset", httpx.ReadError, Outcome.RESET),
    ],
)
def test_a_stream_can_break_off_after_some_chunks(then: str, error: type[httpx.HTTPError], outcome: Outcome) -> None:
    cut = {"then": then, "after_chunks": 1}
    hold = {"gate": "cut", "after_chunks": 1}
    with served({"answer": {"text": "abcd", "chunk_chars": 2, "cut": cut, "hold": hold}}) as (model, client):
        with client.stream("POST", "/chat/completions", json={**QUESTION, "stream": True}) as response:
            lines = response.iter_lines()
            seen = next(line for line in lines if '"ab"' in line)
            model.open_gate("cut")
            with pytest.raises(error):
                list(lines)
        assert ended_as(model, outcome)
    assert seen


def test_a_break_without_streaming_leaves_half_of_the_document() -> None:
    with served({"answer": {"text": "abcd", "cut": {"then": "end"}}}) as (_, client):
        response = ask(client, stream=False)
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        response.json()


@pytest.mark.parametrize("answer", [{"text": "ab", "cut": {"then": "stall"}}, {"no_answer": "stall"}])
def test_a_stalled_answer_is_held_until_the_client_goes_away(answer: dict[str, Any]) -> None:
    with served({"answer": answer}) as (model, _):
        with connect(model) as connection:
            connection.sendall(raw_request(model))
            assert model.wait_until(lambda records: len(records) == 1, TIMEOUT_S)
            assert model.requests[0].outcome is Outcome.OPEN
        assert ended_as(model, Outcome.CLIENT_GONE)
        assert model.requests[0].client_gone


@pytest.mark.parametrize(("how", "error"), [("hang_up", httpx.RemoteProtocolError), ("reset", httpx.ReadError)])
def test_an_answer_can_fail_before_any_byte(how: str, error: type[httpx.HTTPError]) -> None:
    with served({"answer": {"no_answer": how}}) as (model, client):
        with pytest.raises(error):
            ask(client)
        assert model.requests[0].kind == "no_answer"
        assert model.requests[0].status is None


@pytest.mark.parametrize("form", ["text", "base64"])
def test_a_raw_body_arrives_as_it_is_written(form: str) -> None:
    body = b"data: \xe2\x80\xa8 x\r\n\r\n:" + b"y" * 100
    content = body.decode() if form == "text" else base64.b64encode(body).decode()
    raw = {
        form: content,
        "piece_bytes": 1,
        "headers": {"Content-Type": "text/html", "x-a": "b"},
        "status": 203,
    }
    with served({"answer": {"raw": raw, "delay": {"between_chunks_ms": 0}}}) as (_, client):
        response = ask(client)
    assert (response.status_code, response.content, response.headers["x-a"]) == (203, body, "b")
    assert response.headers["content-type"] == "text/html"


def test_a_raw_body_can_be_gzip() -> None:
    raw = {"base64": "H4sIAAAAAAAAA8tIzcnJBwCGphA2BQAAAA==", "headers": {"content-encoding": "gzip"}}
    with served({"answer": {"raw": raw}}) as (_, client):
        assert ask(client).text == "hello"


def test_a_raw_body_can_break_off() -> None:
    with (
        served({"answer": {"raw": {"text": "abc", "then": "hang_up"}}}) as (_, client),
        pytest.raises(httpx.RemoteProtocolError),
    ):
        ask(client)


def test_a_raw_response_is_all_that_the_client_gets() -> None:
    text = "HTTP/1.1 299 Odd\r\nno colon here\r\n\r\nrest"
    with (
        served({"answer": {"raw_http": {"text": text, "piece_bytes": 7}}}) as (model, _),
        connect(model) as connection,
    ):
        connection.sendall(raw_request(model))
        assert read_all(connection) == text.encode()


def test_a_gate_holds_many_streams_at_once_until_it_opens() -> None:
    count = 60
    hold = {"gate": "go", "after_chunks": 1}
    with served({"answer": {"text": "abcd", "chunk_chars": 2, "hold": hold}}) as (model, client):
        with ThreadPoolExecutor(count) as pool:
            answers = [pool.submit(ask, client) for _ in range(count)]
            assert model.wait_until(lambda records: len(records) == count, TIMEOUT_S)
            assert {record.outcome for record in model.requests} == {Outcome.OPEN}
            assert not any(answer.done() for answer in answers)
            assert client.post(f"http://127.0.0.1:{model.port}/__gates/go").json() == {"open": ["go"]}
            texts = {answer.result(TIMEOUT_S).text for answer in answers}
        assert len(texts) == 1
        assert "[DONE]" in texts.pop()


def test_a_delayed_answer_arrives_whole_and_others_overtake_it() -> None:
    slow = {"when": {"user_text_contains": "slow"}, "answer": {"text": "later", "hold": {"gate": "slow"}}}
    with (
        served(slow, {"answer": {"text": "now", "delay": {"headers_ms": 1, "end_ms": 1}}}) as (
            model,
            client,
        ),
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(ask, client, messages=[{"role": "user", "content": "slow"}])
        assert model.wait_until(lambda records: len(records) == 1, TIMEOUT_S)
        assert {"content": "now"} in deltas(ask(client))
        assert not waiting.done()
        model.open_gate("slow")
        assert {"content": "later"} in deltas(waiting.result(TIMEOUT_S))


def test_a_request_that_no_turn_fits_is_refused_with_the_reason() -> None:
    with served({"when": {"assistant_turns": 3}, "answer": {"text": "x"}}) as (model, client):
        response = ask(client)
        assert model.requests[0].kind == "no_turn"
    assert response.status_code == 400
    assert "no turn of the script fits: 0 assistant turns" in response.json()["error"]["message"]


def test_an_orphan_result_is_refused_unless_the_script_allows_it() -> None:
    orphan = [*QUESTION["messages"], {"role": "tool", "tool_call_id": "x", "content": "1"}]
    with served({"answer": {"text": "ok"}}) as (model, client):
        refused = ask(client, messages=orphan)
        assert model.requests[0].kind == "refused"
    with served({"answer": {"text": "ok"}}, check_requests=False) as (_, client):
        assert ask(client, messages=orphan).status_code == 200
    assert refused.status_code == 400
    assert "answers no call" in refused.json()["error"]["message"]


def test_models_are_listed() -> None:
    with served({"answer": {"text": "x"}}, models=["a", "b"]) as (_, client):
        listing = client.get("/models").json()
    assert [entry["id"] for entry in listing["data"]] == ["a", "b"]


def test_the_log_shows_bodies_arrivals_and_ends_but_no_key() -> None:
    with served({"name": "only", "answer": {"text": "x"}}) as (model, client):
        client.headers["authorization"] = "Bearer s3cret"
        ask(client), ask(client), ask(client, stream=False)
        assert ended_as(model, Outcome.COMPLETE)
        records = model.requests
        log = client.get(f"http://127.0.0.1:{model.port}/__log", params={"after": 1, "limit": 1}).json()
        cleared = client.delete(f"http://127.0.0.1:{model.port}/__log").json()
        left = model.requests
    assert [(record.number, record.arrival) for record in records] == [(1, 1), (2, 2), (3, 1)]
    assert records[0].body == records[1].body
    assert json.loads(records[2].body or b"")["stream"] is False
    assert dict(records[0].headers)["authorization"] == "(hidden)"
    assert log["total"] == 3
    (entry,) = log["requests"]
    assert (entry["number"], entry["turn"], entry["status"], entry["outcome"]) == (2, "only", 200, "complete")
    assert entry["sha256"] == records[1].sha256
    assert (cleared, left) == ({"cleared": True}, ())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/chat/completions", 404), ("POST", "/v1/other", 404), ("GET", "/__log?after=x", 400)],
)
def test_other_requests_are_refused(method: str, path: str, status: int) -> None:
    with served({"answer": {"text": "x"}}) as (model, client):
        assert client.request(method, f"http://127.0.0.1:{model.port}{path}").status_code == status


def test_a_body_that_is_no_chat_request_is_refused_and_logged() -> None:
    with served({"answer": {"text": "x"}}) as (model, client):
        assert client.post("/chat/completions", content=b"{").status_code == 400
        assert [(record.kind, record.body) for record in model.requests] == [("malformed", b"{")]


def test_requests_sent_ahead_are_answered_in_order_on_one_connection() -> None:
    with served({"answer": {"text": "{{last_user_text}}", "delay": {"end_ms": 1}}}) as (model, _):
        bodies = [
            json.dumps({"model": "m", "messages": [{"role": "user", "content": f"number-{number}"}]}).encode()
            for number in range(5)
        ]
        last = raw_request(model, bodies[4]).replace(b"Host: x", b"Host: x\r\nConnection: close")
        with connect(model) as connection:
            connection.sendall(b"".join(raw_request(model, body) for body in bodies[:4]) + last)
            received = read_all(connection).decode()
    assert re.findall(r"number-\d", received) == [f"number-{number}" for number in range(5)]


def test_a_request_may_arrive_byte_by_byte() -> None:
    with served({"answer": {"text": "x"}}) as (model, _), connect(model) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in raw_request(model).replace(b"Host: x", b"Connection: close"):
            connection.sendall(bytes([byte]))
        assert read_all(connection).endswith(b"[DONE]\n\n\r\n0\r\n\r\n")


def test_a_chunked_body_and_expect_continue_are_understood() -> None:
    body = json.dumps({**QUESTION, "stream": True}).encode()
    with served({"answer": {"text": "x"}}) as (model, client):
        streamed = client.post("/chat/completions", content=iter([body[:10], body[10:]]))
        with connect(model) as connection:
            head, rest = raw_request(model, body).split(b"\r\n\r\n", 1)
            connection.sendall(head + b"\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
            assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(rest)
            read_all(connection)
        assert [record.body for record in model.requests] == [body, body]
    assert streamed.status_code == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nbroken\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000, 431),
    ],
)
def test_what_is_no_http_request_is_refused_and_the_connection_closed(head: bytes, status: int) -> None:
    with served({"answer": {"text": "x"}}) as (model, _), connect(model) as connection:
        connection.sendall(head)
        assert read_all(connection).startswith(b"HTTP/1.1 %d " % status)


def test_a_large_body_and_a_large_answer_pass() -> None:
    text = "0123456789" * 500_000
    with served({"answer": {"text": "{{last_user_text}}", "chunk_chars": 1_000_000}}) as (_, client):
        response = ask(client, messages=[{"role": "user", "content": text}])
    assert "".join(delta.get("content") or "" for delta in deltas(response)) == text


def test_a_client_that_leaves_amid_a_large_answer_is_noted() -> None:
    with served({"answer": {"raw": {"text": "x" * 1000, "repeat": 30_000}}}) as (model, _):
        with connect(model) as connection:
            connection.sendall(raw_request(model))
            assert connection.recv(10)
        assert ended_as(model, Outcome.CLIENT_GONE)


def test_a_lone_surrogate_in_a_quoted_text_is_sent_as_its_escape() -> None:
    body = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "a\\ud800b"}]}'
    with served({"answer": {"text": "{{last_user_text}}"}}) as (_, client):
        response = client.post("/chat/completions", content=body)
    assert b'"a\\ud800b"' in response.content


def test_stopping_the_server_ends_open_streams_and_writes_them_down(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    script = parse_script({"schema_version": 1, "turns": [{"answer": {"no_answer": "stall"}}]})
    model = DevModel(script, log_path=path).start()
    with connect(model) as connection:
        connection.sendall(raw_request(model))
        assert model.wait_until(lambda records: len(records) == 1, TIMEOUT_S)
        model.stop()
        model.stop()
        assert read_all(connection) == b""
    assert [json.loads(line)["outcome"] for line in path.read_text().splitlines()] == ["server_stopped"]


def test_a_taken_port_is_an_error_of_the_start() -> None:
    with served({"answer": {"text": "x"}}) as (model, _), pytest.raises(OSError, match="in use"):
        DevModel(parse_script({"schema_version": 1, "turns": [{"answer": {"text": "x"}}]}), model.port).start()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_hang_up_reaches_the_client_though_a_forked_process_holds_the_socket() -> None:
    with (
        served({"answer": {"no_answer": "hang_up", "hold": {"gate": "cut"}}}) as (model, _),
        connect(model) as connection,
    ):
        connection.sendall(raw_request(model))
        assert model.wait_until(lambda records: len(records) == 1, TIMEOUT_S)
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        try:
            model.open_gate("cut")
            assert read_all(connection) == b""
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "agentloom_worker.devmodel", *arguments]


def test_the_command_says_where_it_listens_and_leaves_on_sigterm(tmp_path: Path) -> None:
    script, log = tmp_path / "script.yaml", tmp_path / "log.jsonl"
    script.write_text("schema_version: 1\nturns: [{answer: {text: hello}}]\n")
    process = subprocess.Popen(
        command(str(script), "--port", "0", "--log", str(log)), stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        announced = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+/v1)\n", process.stdout.readline())
        assert announced is not None
        response = httpx.post(f"{announced[1]}/chat/completions", json=QUESTION, timeout=TIMEOUT_S)
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
    assert response.json()["choices"][0]["message"]["content"] == "hello"
    assert json.loads(log.read_text())["kind"] == "text"


def test_the_command_lists_the_problems_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("schema_version: 1\nturns: [{answer: {text: 1, colour: red}}]\n")
    done = subprocess.run(command(str(script)), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 2
    assert "/turns/0/answer/text" in done.stderr
    assert "/turns/0/answer/colour" in done.stderr
