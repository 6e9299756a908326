"""Http tools against real servers on loopback: what is sent, what an answer becomes, and what is known at each end."""

import gzip
import json
import ssl
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from agentloom_worker import limits
from agentloom_worker.cancellation import Cancellation, CancelReason
from agentloom_worker.capabilities.context import open_context
from agentloom_worker.capabilities.http import HttpCaller, prepare_request
from agentloom_worker.capabilities.result import encode_result, model_text
from agentloom_worker.clock import SystemClock
from agentloom_worker.domain.capability import CapabilitySpec, ResultStatus, ToolResult
from agentloom_worker.domain.model import Category, Executed, Failure
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.domain.release import load_release
from agentloom_worker.errors import Code, RunError
from agentloom_worker.http.credentials import resolve_credential
from agentloom_worker.ids import OperationId, RunId, SystemIds
from agentloom_worker.runtime.publish import resolve_release
from tests.factories import http_tool, release_document
from tests.server_process import free_port
from tests.unit.http.raw_server import WAIT_S, Exchange, RawServer, answer, bytes_of, serving

CLOCK = SystemClock()
IDS = SystemIds(CLOCK)
OPERATION = OperationId(IDS.new())
SECRET = "tok/en-0123456789"
ANY = {"type": "object"}
OK = answer("200 OK", b'{"ok":true}')

HALF_PACKED = gzip.compress(b"half", mtime=0)[:-4]


def tool(server: RawServer | str, path: str = "/x", **overrides: Any) -> CapabilitySpec:
    base = server if isinstance(server, str) else server.base_url.removesuffix("/v1")
    document = release_document(tools={"t": http_tool(base + path, **({"input_schema": ANY} | overrides))})
    return load_release(resolve_release(document).body).catalog.by_model_name["t"]


def schema(*names: str, required: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {} for name in names}, "required": list(required)}


def call(
    spec: CapabilitySpec,
    *,
    caller: HttpCaller | None = None,
    cancellation: Cancellation | None = None,
    entered: Callable[[], None] = lambda: None,
    deadline_s: float = 60.0,
    **arguments: object,
) -> ToolResult:
    request = prepare_request(spec, arguments, resolve_credential)
    assert not isinstance(request, Failure), request
    used = caller or HttpCaller(CLOCK)
    context = open_context(CLOCK, RunId(IDS.new()), OPERATION, attempt_no=1, deadline_s=deadline_s)
    try:
        return used.call(spec, request, context, cancellation=cancellation or Cancellation(), entered=entered)
    finally:
        if caller is None:
            used.close()


def failure_of(result: ToolResult) -> Failure:
    assert result.failure is not None, result
    return result.failure


def request_line(exchange: Exchange) -> str:
    return exchange.head.split(b"\r\n")[0].decode()


def headers_of(exchange: Exchange) -> dict[str, str]:
    pairs = (line.decode().partition(": ") for line in exchange.head.split(b"\r\n")[1:])
    return {name.lower(): value for name, _, value in pairs}


# --- what is sent


def test_call_sends_the_filled_url_and_no_body_for_a_get() -> None:
    with serving(OK) as server:
        spec = tool(server, "/items/{id}?q={q}&all={all}", input_schema=schema("id", "q", "all", required=("id",)))
        result = call(spec, id="a/b ü", q="x&y")
        sent = server.requests.get(timeout=WAIT_S)
    assert request_line(sent) == "GET /items/a%2Fb%20%C3%BC?q=x%26y HTTP/1.1"
    assert sent.body == b""
    assert "content-type" not in headers_of(sent)
    assert "idempotency-key" not in headers_of(sent), "a GET changes nothing, and has nothing to recognise"
    assert result == ToolResult(ResultStatus.SUCCEEDED, structured=({"ok": True},))


def test_arguments_that_the_url_does_not_take_are_the_body() -> None:
    with serving(OK) as server:
        spec = tool(server, "/items/{id}", method="POST", input_schema=schema("id", "b", "a", required=("id",)))
        call(spec, id="7", b=[1, None], a="ü")
        sent = server.requests.get(timeout=WAIT_S)
    assert sent.body == '{"a":"ü","b":[1,null]}'.encode()
    assert headers_of(sent)["content-type"] == "application/json"
    assert headers_of(sent)["idempotency-key"] == str(OPERATION)


def test_body_template_headers_and_idempotency_header_of_the_release_are_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("TOOL_TOKEN", SECRET)
    (tmp_path / "key").write_text("from-a-file\n")
    with serving(OK) as server:
        spec = tool(
            server,
            method="PATCH",
            input_schema=schema("title"),
            body={"data": {"title": "{title}"}},
            headers={
                "Authorization": {"credential": "env:TOOL_TOKEN", "prefix": "Bearer "},
                "X-Key": {"credential": f"file:{tmp_path}/key"},
                "accept": {"value": "application/vnd.x+json"},
            },
            idempotency_header="X-Request-Id",
        )
        call(spec, title="T")
        sent = headers_of(exchange := server.requests.get(timeout=WAIT_S))
    assert json.loads(exchange.body) == {"data": {"title": "T"}}
    assert sent["authorization"] == f"Bearer {SECRET}"
    assert sent["x-key"] == "from-a-file"
    assert sent["accept"] == "application/vnd.x+json"
    assert sent["x-request-id"] == str(OPERATION)
    assert "idempotency-key" not in sent
    assert sent["host"] == f"127.0.0.1:{server.port}"


def test_same_call_sends_the_same_bytes_on_every_attempt() -> None:
    with serving(OK) as server:
        spec = tool(server, method="POST", input_schema=schema("a", "b"))
        call(spec, a=1, b=2)
        call(spec, b=2, a=1)
        first, second = (server.requests.get(timeout=WAIT_S) for _ in range(2))
    assert (first.head, first.body) == (second.head, second.body)


def test_argument_that_fits_no_url_is_told_to_the_model_and_nothing_is_sent() -> None:
    spec = tool("http://127.0.0.1:1", "/items/{id}", input_schema=schema("id", required=("id",)))
    refused = prepare_request(spec, {"id": "../admin"}, resolve_credential)
    assert isinstance(refused, Failure)
    assert (refused.code, refused.external_outcome) == (Code.TOOL_ARGUMENTS_INVALID, Executed.NOT_EXECUTED)
    assert "admin" not in refused.message


def test_credential_that_is_missing_sends_nothing() -> None:
    spec = tool("http://127.0.0.1:1", headers={"Authorization": {"credential": "env:TOOL_TOKEN_THAT_IS_NOT"}})
    with pytest.raises(RunError) as missing:
        prepare_request(spec, {}, resolve_credential)
    assert missing.value.code == Code.CREDENTIAL_UNAVAILABLE


def test_connections_are_kept_between_calls() -> None:
    def kept(exchange: Exchange) -> None:
        exchange.keep = True
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok")

    caller = HttpCaller(CLOCK)
    with serving(kept) as server:
        spec = tool(server)
        assert [call(spec, caller=caller).text for _ in range(3)] == ["ok"] * 3
        assert server.connections == 1
        caller.close()


def test_certificate_that_nobody_vouches_for_is_refused_before_the_request() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    folder = "tests/unit/llm/certificates"
    context.load_cert_chain(f"{folder}/loopback.pem", f"{folder}/loopback.key")
    with serving(OK, context=context) as server:
        failure = failure_of(call(tool(server)))
        assert server.served == 0
    assert (failure.external_outcome, failure.retry_class) == (Executed.NOT_EXECUTED, RetryClass.TRANSPORT)
    assert "TLS" in failure.message


def test_certificate_of_a_trusted_authority_is_taken() -> None:
    folder = "tests/unit/llm/certificates"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{folder}/loopback.pem", f"{folder}/loopback.key")
    caller = HttpCaller(CLOCK, ssl_context=ssl.create_default_context(cafile=f"{folder}/loopback.pem"))
    with serving(OK, context=context) as server:
        assert call(tool(server), caller=caller).failure is None
    caller.close()


# --- what an answer becomes


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("application/json", b'{"b":1,"a":"\xc3\xbc"}', '{"a":"ü","b":1}'),
        ("application/problem+json; charset=utf-8", b"[1]", "[1]"),
        ("application/json", b'"just text"', "just text"),
        ("text/plain", "grün".encode(), "grün"),
        ("text/plain; charset=iso-8859-1", "grün".encode("latin-1"), "grün"),
        ("text/plain; charset=nonsense", b"ok", "ok"),
        ("text/html", b"<p>", "<p>"),
        ("text/csv", b"a\xff", "a\ufffd"),
        ("application/yaml", b"a: 1", "a: 1"),
        ("application/json", b"", ""),
    ],
)
def test_successful_answer_is_a_json_value_or_text(kind: str, body: bytes, text: str) -> None:
    with serving(answer("201 Created", body, f"Content-Type: {kind}")) as server:
        result = call(tool(server))
    assert result.failure is None
    assert model_text(result).text == text


def test_empty_answer_is_an_empty_text() -> None:
    with serving(bytes_of(b"HTTP/1.1 204 No Content\r\n\r\n")) as server:
        assert call(tool(server)) == ToolResult(ResultStatus.SUCCEEDED)


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        ("application/json", b"{", "not the JSON that it says it is"),
        ("application/json", b'{"a":NaN}', "NaN is not a JSON number"),
        ("application/json", b'"\xff"', "not UTF-8"),
        ("application/json", b"[" * 200 + b"]" * 200, "nested more than"),
        ("application/json", b"[" * 100_000, "nested too deeply"),
        ("image/png", b"\x89PNG\r\n\x00", "image/png and no text"),
        ("application/octet-stream", b"a\x00b", "no text"),
    ],
)
def test_answer_that_no_model_can_have_is_a_typed_failure_of_a_call_that_was_made(
    kind: str, body: bytes, reason: str
) -> None:
    with serving(answer("200 OK", body, f"Content-Type: {kind}")) as server:
        failure = failure_of(call(tool(server)))
    assert (failure.code, failure.external_outcome) == (Code.TOOL_OUTPUT_INVALID, Executed.EXECUTED)
    assert failure.retry_class is None
    assert reason in failure.message


def test_answer_above_the_limit_is_refused_and_not_read_on() -> None:
    def endless(exchange: Exchange) -> None:
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while True:
            exchange.send(b"x" * 4096)

    with serving(endless) as server:
        failure = failure_of(call(tool(server, max_bytes=10_000)))
    assert (failure.code, failure.external_outcome) == (Code.TOOL_OUTPUT_INVALID, Executed.EXECUTED)
    assert "10000 bytes" in failure.message


def test_answer_of_just_the_limit_is_taken() -> None:
    with serving(answer("200 OK", b"x" * 10_000, "Content-Type: text/plain")) as server:
        assert call(tool(server, max_bytes=10_000)).text == "x" * 10_000


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate", "identity"])
def test_answer_that_a_server_packs_unasked_is_unpacked_once(coding: str) -> None:
    plain = b'{"ok":true}'
    body = {"deflate": zlib.compress(plain), "identity": plain}.get(coding, gzip.compress(plain))
    head = f"Content-Type: application/json\r\nContent-Encoding: {coding}"
    with serving(answer("200 OK", body, head)) as server:
        assert call(tool(server)).structured == ({"ok": True},)


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("br", b"\x00"),
        ("gzip, gzip", gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0)),
        ("gzip", b"not packed"),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"more"),
    ],
    ids=["unknown", "twice", "not at all", "and more"],
)
def test_answer_of_a_coding_that_is_not_undone_is_a_typed_failure(coding: str, body: bytes) -> None:
    with serving(answer("200 OK", body, f"Content-Type: application/json\r\nContent-Encoding: {coding}")) as server:
        failure = failure_of(call(tool(server)))
    assert (failure.code, failure.external_outcome) == (Code.TOOL_OUTPUT_INVALID, Executed.EXECUTED)
    assert "cannot be read" in failure.message


@pytest.mark.parametrize("layers", [1, 2])
def test_packed_answer_is_unpacked_no_further_than_its_limit(layers: int) -> None:
    body = bytes(64 * 2**20)
    for _ in range(layers):
        body = gzip.compress(body, 9)
    head = f"Content-Type: text/plain\r\nContent-Encoding: {', '.join(['gzip'] * layers)}"
    with serving(answer("200 OK", body, head)) as server:
        spec = tool(server, max_bytes=10_000)
        tracemalloc.start()
        try:
            failure = failure_of(call(spec))
            _, most_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert failure.code == Code.TOOL_OUTPUT_INVALID
    assert most_bytes < 8 * 2**20


def test_output_schema_is_checked() -> None:
    with serving(OK) as server:
        wrong = {"type": "object", "required": ["id"]}
        failure = failure_of(call(tool(server, output_schema=wrong)))
        assert call(tool(server, output_schema={"type": "object", "required": ["ok"]})).failure is None
    assert (failure.code, failure.external_outcome) == (Code.TOOL_OUTPUT_INVALID, Executed.EXECUTED)


@pytest.mark.parametrize(
    ("status", "category", "executed", "retry_class"),
    [
        ("400 Bad Request", Category.VALIDATION, Executed.EXECUTED, None),
        ("401 Unauthorized", Category.PERMISSION, Executed.EXECUTED, None),
        ("404 Not Found", Category.NOT_FOUND, Executed.EXECUTED, None),
        ("409 Conflict", Category.CONFLICT, Executed.EXECUTED, None),
        ("418 Teapot", Category.BUSINESS, Executed.EXECUTED, None),
        ("500 Internal Server Error", Category.BUSINESS, Executed.EXECUTED, None),
        ("408 Request Timeout", Category.TIMEOUT, Executed.NOT_EXECUTED, RetryClass.TRANSPORT),
        ("429 Too Many Requests", Category.RATE_LIMIT, Executed.NOT_EXECUTED, RetryClass.RATE_LIMIT),
        ("503 Service Unavailable", Category.TRANSPORT, Executed.NOT_EXECUTED, RetryClass.TRANSPORT),
        ("502 Bad Gateway", Category.TRANSPORT, Executed.UNKNOWN, None),
        ("504 Gateway Timeout", Category.TIMEOUT, Executed.UNKNOWN, None),
    ],
)
def test_status_settles_the_call_by_the_table(
    status: str, category: Category, executed: Executed, retry_class: RetryClass | None
) -> None:
    headers = "Content-Type: application/json\r\nRetry-After: 7"
    with serving(answer(status, b'{"detail":"no\nsuch thing"}', headers)) as server:
        failure = failure_of(call(tool(server)))
    assert failure.http_status == int(status[:3])
    assert (failure.category, failure.external_outcome) == (category, executed)
    assert failure.retry_class is retry_class
    assert failure.retry_after_ms == (7000 if retry_class else None)
    assert failure.code == (Code.TOOL_OUTCOME_UNKNOWN if executed is Executed.UNKNOWN else Code.TOOL_FAILED)
    assert failure.message == f'the server answered HTTP {status[:3]}: {{"detail":"no such thing"}}'


def test_web_page_of_an_error_is_not_told() -> None:
    with serving(answer("500 Oh", b"<html>long</html>", "Content-Type: text/html")) as server:
        assert failure_of(call(tool(server))).message == "the server answered HTTP 500"


def test_error_whose_body_breaks_off_is_still_the_error() -> None:
    broken = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\nno"
    with serving(bytes_of(broken)) as server:
        failure = failure_of(call(tool(server)))
    assert (failure.http_status, failure.external_outcome) == (404, Executed.EXECUTED)
    assert failure.message.endswith(": no")


# --- redirects


def redirect(to: str, status: str = "302 Found") -> Callable[[Exchange], None]:
    return answer(status, b"", f"Location: {to}")


def test_redirect_is_not_followed_by_default_and_its_address_not_told() -> None:
    with serving(redirect("/secret-place"), OK) as server:
        failure = failure_of(call(tool(server)))
        assert server.served == 1
    assert failure.message == "the server answered HTTP 302, a redirect that is not followed"
    assert failure.external_outcome is Executed.EXECUTED


def test_redirect_is_followed_as_often_as_the_release_says_to_its_own_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOL_TOKEN", SECRET)
    headers = {"Authorization": {"credential": "env:TOOL_TOKEN"}}
    with serving(redirect("/y?z=1"), redirect("../w", "307 T"), OK) as server:
        assert call(tool(server, max_redirects=2, headers=headers)).failure is None
        sent = [server.requests.get(timeout=WAIT_S) for _ in range(3)]
    assert [request_line(one) for one in sent] == ["GET /x HTTP/1.1", "GET /y?z=1 HTTP/1.1", "GET /w HTTP/1.1"]
    assert {headers_of(one)["authorization"] for one in sent} == {SECRET}
    with serving(redirect("/x")) as server:
        assert failure_of(call(tool(server, max_redirects=2))).http_status == 302
        assert server.served == 3


def test_redirect_leads_to_no_other_host_unless_it_is_allowed_and_takes_no_secret_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOOL_TOKEN", SECRET)
    headers = {"Authorization": {"credential": "env:TOOL_TOKEN"}, "X-Plain": {"value": "1"}}
    with serving(OK) as other, serving(redirect(f"http://127.0.0.1:{other.port}/there")) as server:
        assert failure_of(call(tool(server, max_redirects=1))).http_status == 302
        assert other.served == 0
        both = [f"127.0.0.1:{one.port}" for one in (server, other)]
        assert call(tool(server, max_redirects=1, allow=both, headers=headers)).failure is None
        sent = headers_of(other.requests.get(timeout=WAIT_S))
    assert "authorization" not in sent
    assert sent["x-plain"] == "1"


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "http://user:pw@127.0.0.1:{port}/", "//127.0.0.1:1/", "http://[", "http://127.0.0.1:x/", ""],
)
def test_redirect_to_a_strange_place_is_not_followed(location: str) -> None:
    port = free_port()
    with serving(redirect(location.format(port=port))) as server:
        failure = failure_of(call(tool(server, max_redirects=3)))
        assert failure.http_status == 302
        assert server.served == (1 if location else 4), "an empty address is the same one again"


# --- what is known when it fails


def test_refused_connection_executed_nothing_and_may_be_tried_again() -> None:
    failure = failure_of(call(tool(f"http://127.0.0.1:{free_port()}")))
    assert (failure.code, failure.category) == (Code.TOOL_FAILED, Category.TRANSPORT)
    assert (failure.external_outcome, failure.retry_class) == (Executed.NOT_EXECUTED, RetryClass.TRANSPORT)
    assert "before the request was sent" in failure.message


def test_name_that_does_not_resolve_executed_nothing() -> None:
    failure = failure_of(call(tool("http://does-not-exist.invalid")))
    assert (failure.external_outcome, failure.retry_class) == (Executed.NOT_EXECUTED, RetryClass.TRANSPORT)


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 2",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n" + HALF_PACKED,
        b"no http at all\r\n\r\n",
    ],
)
def test_error_of_the_connection_after_the_send_leaves_the_outcome_unknown(reply: bytes) -> None:
    with serving(bytes_of(reply)) as server:
        failure = failure_of(call(tool(server, method="POST")))
        assert server.served == 1, "nothing is repeated behind the policy's back"
    assert (failure.code, failure.category) == (Code.TOOL_OUTCOME_UNKNOWN, Category.TRANSPORT)
    assert (failure.external_outcome, failure.retry_class) == (Executed.UNKNOWN, None)
    assert "after the request was sent" in failure.message


def test_silent_server_is_given_up_at_the_time_limit_of_the_tool() -> None:
    with serving(Exchange.wait_for_end) as server:
        failure = failure_of(call(tool(server, timeout_ms=100)))
        assert server.ended.wait(WAIT_S), "the socket was closed"
    assert (failure.code, failure.category) == (Code.TOOL_TIMEOUT, Category.TIMEOUT)
    assert (failure.external_outcome, failure.retry_class) == (Executed.UNKNOWN, None)


def test_deadline_of_the_run_ends_the_call_as_well_and_none_begins_after_it() -> None:
    with serving(Exchange.wait_for_end) as server:
        assert failure_of(call(tool(server), deadline_s=0.1)).code == Code.TOOL_TIMEOUT
        late = failure_of(call(tool(server), deadline_s=0.0))
        assert server.served == 1
    assert (late.code, late.external_outcome) == (Code.TOOL_TIMEOUT, Executed.NOT_EXECUTED)


def test_cancellation_closes_the_socket_at_once() -> None:
    cancellation, results = Cancellation(), []
    with serving(Exchange.wait_for_end) as server:
        spec = tool(server, method="POST")
        thread = threading.Thread(target=lambda: results.append(call(spec, cancellation=cancellation)))
        thread.start()
        server.requests.get(timeout=WAIT_S)
        cancellation.cancel(CancelReason.STOP)
        thread.join(WAIT_S)
        assert server.ended.wait(WAIT_S)
    (result,) = results
    assert result.status is ResultStatus.CANCELLED
    assert (failure_of(result).code, failure_of(result).external_outcome) == (Code.TOOL_CANCELLED, Executed.UNKNOWN)


def test_call_that_was_cancelled_before_it_began_sends_nothing() -> None:
    cancellation = Cancellation()
    cancellation.cancel(CancelReason.DRAIN)
    with serving(OK) as server:
        result = call(tool(server), cancellation=cancellation)
        assert server.connections == 0
    assert result.status is ResultStatus.CANCELLED
    assert failure_of(result).external_outcome is Executed.NOT_EXECUTED


def test_what_the_send_hook_raises_leaves_the_call_and_nothing_was_written() -> None:
    class CrashError(BaseException):
        pass

    def crash() -> None:
        raise CrashError

    with serving(OK) as server:
        with pytest.raises(CrashError):
            call(tool(server), entered=crash)
        assert server.served == 0


# --- secrets


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request"])
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_secret_that_the_server_echoes_is_in_no_result(monkeypatch: pytest.MonkeyPatch, status: str, kind: str) -> None:
    monkeypatch.setenv("TOOL_TOKEN", SECRET)

    def echo(exchange: Exchange) -> None:
        found = headers_of(exchange)["authorization"]
        # As some encoders write it: `\\/` in JSON is the same text as `/`.
        body = json.dumps({"headers": [found], found: 1}).replace("/", "\\/") if "json" in kind else f"you: {found}"
        answer(status, body.encode(), f"Content-Type: {kind}")(exchange)

    with serving(echo) as server:
        spec = tool(server, headers={"Authorization": {"credential": "env:TOOL_TOKEN", "prefix": "Token "}})
        result = call(spec)
    stored = encode_result(result).decode()
    assert "0123456789" not in stored
    assert "[redacted]" in stored


def test_prepared_request_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOL_TOKEN", SECRET)
    spec = tool("http://127.0.0.1:1", headers={"Authorization": {"credential": "env:TOOL_TOKEN"}})
    assert SECRET not in repr(prepare_request(spec, {}, resolve_credential))
    assert SECRET not in repr(spec)


def test_words_of_an_error_are_bounded() -> None:
    with serving(answer("400 Bad", b"x " * 100_000, "Content-Type: text/plain")) as server:
        assert len(failure_of(call(tool(server))).message) < limits.TOOL_MESSAGE_CHARS_MAX
