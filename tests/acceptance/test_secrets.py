"""A credential is planted wherever it could travel, and then looked for in everything that anybody could read."""

import gzip
import io
import json
import logging
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry, generate_latest

from agentloom_worker import secrecy, telemetry
from agentloom_worker.audit import run_audit
from agentloom_worker.canonical import sha256
from agentloom_worker.cli.app import main
from agentloom_worker.clock import SystemClock
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.errors import Code
from agentloom_worker.http import credentials
from agentloom_worker.ids import RunId
from agentloom_worker.metrics import ProcessCollector
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.storage.tables import metadata
from tests.acceptance.harness import (
    ONE_BY_ONE,
    answer,
    ask,
    at_fault,
    attempts,
    events,
    frozen_bodies,
    model_operations,
    operations,
    run_of,
    simulated,
)
from tests.factories import http_tool, python_tool, release_document
from tests.unit.http.raw_server import STREAM_HEAD, Exchange, Handler, serving

SECRET = 'tok-9f/8e7d6c5b4a"3210fedcba'
SPELLINGS = (SECRET, json.dumps(SECRET)[1:-1], SECRET.replace("/", "\\/"), SECRET.replace('"', "%22"))
PROVIDER = """
import os

def read(name):
    if name == "gone":
        from agentloom_worker.http.credentials import CredentialRevokedError
        raise CredentialRevokedError(os.environ["PLANTED"])
    if name == "down":
        raise RuntimeError("cannot log in with " + os.environ["PLANTED"])
    return os.environ["PLANTED"]
"""


def leak(text: str = "") -> str:
    """A tool of the project's own that meets the credential and says it aloud."""
    if text == "raise":
        raise RuntimeError(f"denied: {os.environ['PLANTED']}")
    return f"used {os.environ['PLANTED']}"


@pytest.fixture(params=["env", "file", "provider"])
def reference(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the release names the credential."""
    monkeypatch.setenv("PLANTED", SECRET)
    (tmp_path / "planted_vault.py").write_text(PROVIDER)
    info = tmp_path / "planted_vault-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted-vault\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[agentloom.credentials]\nplanted = planted_vault:read\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(credentials, "_providers", {})
    path = tmp_path / "key"
    path.write_text(f"{SECRET}\n")
    monkeypatch.setitem(sys.modules, "planted_vault", None)
    del sys.modules["planted_vault"]
    return {"env": "env:PLANTED", "file": f"file:{path}", "provider": "planted:team/key"}[request.param]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[io.StringIO]:
    """Every log line of the process, as a program writes it, tracebacks included."""
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(telemetry.JsonFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="agentloom")
    yield lines
    root.removeHandler(handler)


def sse(*frames: dict[str, Any], done: bool = True) -> bytes:
    end = b"data: [DONE]\n\n" if done else b""
    return b"".join(b"data: " + json.dumps(frame).encode() + b"\n\n" for frame in frames) + end


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": SECRET, "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call(name: str, number: int, arguments: str) -> dict[str, Any]:
    return {"index": number, "id": f"{SECRET}-{number}", "function": {"name": name, "arguments": arguments}}


def sent(data: bytes, *, head: bytes = STREAM_HEAD, chunk: int = 0) -> Handler:
    """Answer with these bytes, with the credential in the headers as well; and remember what was asked."""

    def handle(exchange: Exchange) -> None:
        assert f"Bearer {SECRET}".encode() in exchange.head, "the server knows the credential"
        planted = f"X-Request-Id: {SECRET}\r\nX-Echo: {SECRET}\r\n".encode()
        exchange.send(head.replace(b"\r\n\r\n", b"\r\n" + planted + b"\r\n"))
        for at in range(0, len(data), chunk or len(data)):
            exchange.send(data[at : at + (chunk or len(data))])

    return handle


def error_head(status: str, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode()


HALVES = (SECRET[:11], SECRET[11:])
# Too much for a row, however well it is packed.
LONG = b"".join(sha256(b"%d" % number) for number in range(500)).hex()
ESCAPED = "".join(f"\\u{ord(one):04x}" for one in SECRET)
ECHO = json.dumps({"error": {"message": f"bad key {SECRET}", "type": SECRET, "code": SECRET}}).encode()
BUSY = {"error": {"message": f"no {SECRET}", "type": "server_error", "code": SECRET}}
ANSWERS: list[Handler] = [
    sent(ECHO, head=error_head("500 Internal Server Error")),
    sent(ECHO.replace(b"/", b"\\/"), head=error_head("503 Busy", f"text/{SECRET[:3]}")),
    sent(sse(delta(content=f"half {SECRET}"), delta(reasoning=SECRET), done=False)),
    sent(sse(delta(content=f"x{HALVES[0]}"), delta(content=HALVES[1]), done=False), chunk=5),
    sent(sse(delta(content=f"{LONG[:9000]}{SECRET}{LONG[9000:]}"), done=False)),
    sent(sse(BUSY)),
    sent(
        gzip.compress(json.dumps(BUSY).encode()),
        head=STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"),
    ),
]
# What ends a role at once.
NO_JSON = sent(b"data: {" + SECRET.encode() + b"}\n\n")
NO_STREAM = sent(ECHO, head=error_head("200 OK"))
UNKNOWN_KEY = sent(ECHO, head=error_head("401 Unauthorized"))
CALLS = sent(
    sse(
        delta(
            content=f"I use {SECRET}",
            reasoning=f"think {SECRET}",
            tool_calls=[
                call("ask", 0, "{}"),
                call("leak", 1, '{"text": "raise"}'),
                call("leak", 2, f'{{"text": "{ESCAPED}"}}'),
                call("leak", 3, json.dumps({"text": SECRET})),
                call(SECRET[:3], 4, SECRET),
            ],
        ),
        delta("tool_calls"),
    )
)
FINAL = sent(sse(delta(content="done "), *(delta(content=one) for one in HALVES), delta("stop")), chunk=3)


def echoing(exchange: Exchange) -> None:
    """The tool's server: it sends back what it was sent."""
    assert SECRET.encode() in exchange.head
    body = json.dumps({"headers": exchange.head.decode(), SECRET: ESCAPED.join('""')}).replace("/", "\\/").encode()
    exchange.send(error_head("200 OK") + body)


def release(base_url: str, tool_url: str, reference: str) -> dict[str, Any]:
    headers = {"Authorization": {"credential": reference, "prefix": "Bearer "}}
    retry = {"max_attempts": 20, "initial_ms": 1}
    return release_document(
        base_url=base_url,
        tools={
            "ask": http_tool(f"{tool_url}/ask", headers=headers),
            "leak": python_tool(handler="tests.acceptance.test_secrets:leak"),
        },
        models={"main": {"credential": reference, "retry": retry}},
    )


def everything_stored(ports: Ports) -> Iterator[tuple[str, bytes]]:
    """Every value of every column of every table, and what compressed ones hold."""
    with ports.store.read() as conn:
        for table in metadata.sorted_tables:
            for row in conn.execute(sa.select(table)):
                for column, value in row._mapping.items():
                    name = f"{table.name}.{column}"
                    if isinstance(value, bytes | memoryview):
                        yield name, bytes(value)
                        yield name, unpacked(bytes(value))
                    else:
                        yield name, str(value).encode()


def unpacked(value: bytes) -> bytes:
    """What compressed bytes hold, compressed once or twice."""
    try:
        found = zlib.decompress(value)
    except zlib.error:
        return b""
    return found + unpacked(found)


def assert_nowhere(where: str, text: bytes | str) -> None:
    found = text if isinstance(text, bytes) else text.encode()
    for spelling in SPELLINGS:
        assert spelling.encode() not in found, f"{where} holds the credential"
    assert ESCAPED.encode() not in found, f"{where} spells the credential"


def printed(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code in (0, 1, None), "the command line is one"
    found = capfd.readouterr()
    return found.out + found.err


def look_everywhere(ports: Ports, run_id: RunId, url: str, said: io.StringIO, capfd: Any) -> None:
    for name, value in everything_stored(ports):
        assert_nowhere(name, value)
    assert_nowhere("the logs", said.getvalue())
    for event in ports.store.list_events(run_id):
        assert_nowhere(f"event {event.kind}", json.dumps(event.fields))
    for body in frozen_bodies(ports, run_id):
        assert_nowhere("a request", body)
    registry = CollectorRegistry()
    registry.register(ProcessCollector(SystemClock(), list))
    assert_nowhere("the metrics", generate_latest(registry))
    shown = [
        ("steps", str(run_id)),
        ("runs", "list"),
        ("runs", "show", str(run_id)),
        ("dispatches", "list"),
        ("dispatches", "parked"),
        ("audit",),
    ]
    for operation in model_operations(ports, run_id):
        shown.append(("request", str(operation.operation_id)))
        for number in range(1, operation.attempts_made + 1):
            shown.append(("request", str(operation.operation_id), "--raw", "--attempt", str(number)))
    for words in shown:
        assert_nowhere(f"agentloom {' '.join(words)}", printed(capfd, *words, "--database", url))
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        for file in path.parent.glob(f"{path.name}*"):
            assert_nowhere(file.name, file.read_bytes())


def test_a_credential_that_servers_and_tools_echo_is_stored_logged_and_shown_nowhere(
    database_url: str, reference: str, said: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        serving(*ANSWERS, CALLS, FINAL) as model,
        serving(echoing) as tool,
        simulated(database_url) as worker,
    ):
        ports = worker.ports
        run_id = ask(ports, release(model.base_url, f"http://127.0.0.1:{tool.port}", reference))
        worker.drive()
        assert run_of(ports, run_id).status is RunStatus.SUCCEEDED
        assert answer(ports, run_id) == "done [redacted]"
        made = attempts(ports, run_id)
        assert tool.requests.qsize() == 1 and model.requests.qsize() == len(made) >= 5
        assert all(attempt.transport is not None for attempt in made), "what arrived was kept"
        results = [one for one in operations(ports, run_id) if one.batch_id is not None]
        assert [one.status for one in results].count("completed") >= 3
        stored = b"".join(value for _, value in everything_stored(ports))
        assert stored.count(b"[redacted]") > 10, "it was there"
        blobs = [value for name, value in everything_stored(ports) if name == "blob.content"]
        assert any(b"[redacted]" in value for value in blobs), "it was there as well"
        assert run_audit(ports) == ()
        look_everywhere(ports, run_id, database_url, said, capfd)


@pytest.mark.parametrize("last", [NO_JSON, NO_STREAM, UNKNOWN_KEY], ids=["no-json", "no-stream", "unknown-key"])
@pytest.mark.parametrize("reference", ["env"], indirect=True)
def test_what_ends_a_role_quotes_no_credential(
    database_url: str, reference: str, last: Handler, said: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(last) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, release(model.base_url, "http://127.0.0.1:9", reference))
        worker.drive()
        assert run_of(worker.ports, run_id).status is RunStatus.FAILED
        assert b"[redacted]" in b"".join(value for _, value in everything_stored(worker.ports)), "it was there"
        look_everywhere(worker.ports, run_id, database_url, said, capfd)


@pytest.mark.parametrize("reference", ["env", "file", "provider"], indirect=True)
def test_a_tool_says_the_credential_aloud_in_a_process_that_has_never_read_it(
    database_url: str, reference: str, said: io.StringIO, capfd: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """The workers of `model` and of `tools` are other processes; so is one that begins with the tool of a run."""
    with serving(CALLS, FINAL) as model, simulated(database_url, settings=ONE_BY_ONE) as worker:
        ports = worker.ports
        document = release(model.base_url, "http://127.0.0.1:9", reference)
        document["agent"]["tools"].remove("ask")
        run_id = ask(ports, document)
        worker.drive(until=lambda: len(operations(ports, run_id)) > 1)
        monkeypatch.setattr(secrecy, "_known", {})
        monkeypatch.setattr(secrecy, "_in_order", ())
        monkeypatch.setattr(credentials, "_ask_again_s", {})
        worker.drive()
        assert run_of(ports, run_id).status is RunStatus.SUCCEEDED
        look_everywhere(ports, run_id, database_url, said, capfd)


def raise_it() -> None:
    raise RuntimeError(f"our own bug with {SECRET}")


def test_a_traceback_of_ours_carries_no_credential(
    database_url: str, reference: str, said: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(FINAL) as model, simulated(database_url) as worker:
        ports = worker.ports
        run_id = ask(ports, release(model.base_url, "http://127.0.0.1:9", reference))
        with at_fault("effect.done", "attempt_model", raise_it):
            worker.drive(until=lambda: "step.parked" in events(ports, run_id))
        try:
            raise_it()
        except RuntimeError:
            logging.getLogger("somebody.else").exception("caught %s", SECRET)
        assert "our own bug with [redacted]" in said.getvalue()
        look_everywhere(ports, run_id, database_url, said, capfd)


@pytest.mark.parametrize(
    ("revoke", "code", "tries"),
    [
        (lambda release: release["models"]["main"].update(credential="planted:gone"), Code.CREDENTIAL_REVOKED, 1),
        (lambda release: release["models"]["main"].update(credential="planted:down"), Code.CREDENTIAL_UNAVAILABLE, 3),
        (lambda release: release["models"]["main"].update(credential="env:NOT_SET"), Code.CREDENTIAL_UNAVAILABLE, 1),
    ],
    ids=["revoked", "down", "not set"],
)
@pytest.mark.parametrize("reference", ["env"], indirect=True)
def test_a_credential_that_cannot_be_had_ends_the_role_and_sends_nothing(
    database_url: str,
    reference: str,
    revoke: Callable[[dict[str, Any]], None],
    code: Code,
    tries: int,
    said: io.StringIO,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with serving(FINAL) as model, simulated(database_url) as worker:
        document = release(model.base_url, "http://127.0.0.1:9", reference)
        document["models"]["main"]["retry"]["max_attempts"] = 3
        revoke(document)
        run_id = ask(worker.ports, document)
        worker.drive()
        run = run_of(worker.ports, run_id)
        assert (run.status, run.end_code) == (RunStatus.FAILED, code)
        assert (len(attempts(worker.ports, run_id)), model.requests.qsize()) == (tries, 0)
        look_everywhere(worker.ports, run_id, database_url, said, capfd)


@pytest.mark.parametrize("reference", ["file"], indirect=True)
def test_a_revocation_works_on_the_next_attempt(database_url: str, reference: str) -> None:
    """The first attempt sends the credential and fails; it is taken away; the second attempt ends the role (A14)."""
    with serving(ANSWERS[0], FINAL) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, release(model.base_url, "http://127.0.0.1:9", reference))
        worker.drive(until=lambda: len(attempts(worker.ports, run_id)) == 2)
        Path(reference.removeprefix("file:")).unlink()
        worker.drive()
        run = run_of(worker.ports, run_id)
        assert (run.status, run.end_code) == (RunStatus.FAILED, Code.CREDENTIAL_UNAVAILABLE)
        assert (len(attempts(worker.ports, run_id)), model.requests.qsize()) == (2, 1)
