"""An http tool in a whole run: what the model hears of it, what is repeated, and where its secret is not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentloom_worker import faults
from agentloom_worker.domain.operation import AttemptState, Operation, OperationKind
from agentloom_worker.ids import RunId, SessionId
from agentloom_worker.llm.adapters.scripted import CallsTurn, ScriptedCall, ScriptedRequest, TextTurn
from agentloom_worker.runtime.accept import accept_question
from agentloom_worker.runtime.ports import Settings
from agentloom_worker.runtime.publish import publish_release
from agentloom_worker.runtime.request import rebuild_request
from agentloom_worker.storage.schema import migrate
from tests.factories import http_tool, release_document, run_of_receipt
from tests.simulator import Worker, make_worker
from tests.unit.http.raw_server import WAIT_S, Exchange, RawServer, answer, bytes_of, serving

SECRET = "tok-0123456789abcdef"
ARGUMENTS = {"project": "a b", "title": "Broken"}
CREATED = answer("201 Created", b'{"id":"T-1"}')


class SimulatedCrashError(BaseException):
    """Ends the worker on the spot."""


def script(request: ScriptedRequest) -> CallsTurn | TextTurn:
    if request.message_count == 2:
        return CallsTurn((ScriptedCall("create", json.dumps(ARGUMENTS), "c1"),))
    return TextTurn("done")


@pytest.fixture(params=[True, False], ids=["fused", "one-by-one"])
def worker(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setenv("TOOL_TOKEN", SECRET)
    url = f"sqlite:///{tmp_path}/test.sqlite"
    migrate(url)
    settings = Settings(fusion=request.param, inline_hops=64 if request.param else 0)
    worker = make_worker(url, scripts={"main": script}, settings=settings)
    yield worker
    worker.close()


def ask(worker: Worker, server: RawServer, **overrides: Any) -> RunId:
    texts = {"type": "string"}
    tool = http_tool(
        f"http://127.0.0.1:{server.port}/projects/{{project}}/tickets",
        method="POST",
        effect="write_external",
        input_schema={
            "type": "object",
            "properties": {"project": texts, "title": texts},
            "required": ["project", "title"],
            "additionalProperties": False,
        },
        headers={"Authorization": {"credential": "env:TOOL_TOKEN", "prefix": "Bearer "}},
        **overrides,
    )
    publish_release(worker.ports, release_document(tools={"create": tool}))
    store = worker.ports.store
    session_id = SessionId(worker.ports.ids.new())
    store.open_session(session_id, store.find_owner("assistant"))
    return run_of_receipt(accept_question(worker.ports, store.load_session(session_id), "File it.", None, "k"))


def operations(worker: Worker, run_id: RunId, kind: OperationKind) -> list[Operation]:
    return [one for one in worker.ports.store.list_operations(run_id) if one.kind is kind]


def heard(worker: Worker, run_id: RunId) -> dict[str, Any]:
    """What the model was told of the call."""
    last = operations(worker, run_id, OperationKind.MODEL)[-1]
    message = json.loads(rebuild_request(worker.ports, last))["messages"][-1]
    assert message["role"] == "tool"
    return json.loads(message["content"])


def attempts(worker: Worker, run_id: RunId) -> list[AttemptState]:
    (operation,) = operations(worker, run_id, OperationKind.TOOL)
    return [one.state for one in worker.ports.store.list_attempts([operation.operation_id])]


def sent(server: RawServer) -> list[tuple[bytes, bytes]]:
    """Head and body of every request so far."""
    found = []
    while not server.requests.empty():
        exchange = server.requests.get(timeout=WAIT_S)
        found.append((exchange.head, exchange.body))
    return found


def crash_once_at(point: str) -> None:
    """The next time that a call comes to this point its worker dies."""

    def trigger(name: str, step: str) -> None:
        if (name, step) == (point, "attempt_call"):
            faults.install(None)
            raise SimulatedCrashError

    faults.install(trigger)


def test_call_is_sent_and_its_answer_told_and_its_secret_is_in_no_row(worker: Worker, tmp_path: Path) -> None:
    def echo(exchange: Exchange) -> None:
        answer("201 Created", json.dumps({"id": "T-1", "you_sent": exchange.head.decode()}).encode())(exchange)

    with serving(echo) as server:
        run_id = ask(worker, server)
        worker.drive()
        ((head, body),) = sent(server)
    assert worker.ports.store.load_run(run_id).status == "succeeded"
    assert head.startswith(b"POST /projects/a%20b/tickets HTTP/1.1\r\n")
    assert f"Bearer {SECRET}".encode() in head
    assert body == b'{"title":"Broken"}'
    assert heard(worker, run_id)["id"] == "T-1"
    worker.ports.store.close()
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"TOOL_TOKEN" in kept, "the reference is there"
    assert SECRET.encode() not in kept


def test_A20_busy_server_is_asked_again_when_it_wishes_with_the_same_bytes(worker: Worker) -> None:
    busy = answer("503 Busy", b"later", "Content-Type: text/plain\r\nRetry-After: 30")
    with serving(busy, CREATED) as server:
        run_id = ask(worker, server, retry={"jitter": "none"})
        begun_s = worker.clock.monotonic_s()
        worker.drive()
        first, second = sent(server)
    assert first == second
    assert worker.clock.monotonic_s() - begun_s >= 30
    assert attempts(worker, run_id) == [AttemptState.FAILED, AttemptState.COMPLETE]
    assert heard(worker, run_id) == {"id": "T-1"}


def test_A20_answer_that_says_no_is_told_and_not_repeated(worker: Worker) -> None:
    with serving(answer("422 No", b'{"detail":"title is taken"}')) as server:
        run_id = ask(worker, server)
        worker.drive()
        assert len(sent(server)) == 1
    error = heard(worker, run_id)["error"]
    assert (error["code"], error["executed"]) == ("TOOL_FAILED", "executed")
    assert "title is taken" in error["message"]


def test_A20_broken_connection_is_unknown_and_not_repeated_by_default(worker: Worker) -> None:
    with serving(bytes_of(b""), CREATED) as server:
        run_id = ask(worker, server)
        worker.drive()
        assert len(sent(server)) == 1
    assert attempts(worker, run_id) == [AttemptState.UNKNOWN]
    assert heard(worker, run_id)["error"]["executed"] == "unknown"


def test_A20_broken_connection_is_repeated_under_the_same_key_where_the_release_says_so(worker: Worker) -> None:
    with serving(bytes_of(b""), CREATED) as server:
        run_id = ask(worker, server, retry={"on_unknown": {"action": "retry"}})
        worker.drive()
        first, second = sent(server)
    (operation,) = operations(worker, run_id, OperationKind.TOOL)
    assert first == second
    assert f"idempotency-key: {operation.operation_id}".encode() in first[0].lower()
    assert attempts(worker, run_id) == [AttemptState.UNKNOWN, AttemptState.COMPLETE]
    assert heard(worker, run_id) == {"id": "T-1"}


@pytest.mark.parametrize(("action", "requests"), [("retry", 2), ("fail", 1)])
def test_A20_death_after_the_send_is_repeated_by_on_unknown_alone(worker: Worker, action: str, requests: int) -> None:
    with serving(CREATED) as server:
        run_id = ask(worker, server, retry={"on_unknown": {"action": action}})
        crash_once_at("effect.done")
        try:
            with pytest.raises(SimulatedCrashError):
                worker.drive()
        finally:
            faults.install(None)
        # No process takes its own claims over: another one goes on.
        another = make_worker(worker.ports.store.url, clock=worker.clock, scripts={"main": script})
        another.drive()
        another.close()
        found = sent(server)
    assert len(found) == requests
    assert len(set(found)) == 1, "the same bytes under the same key"
    assert worker.ports.store.load_run(run_id).status == "succeeded"
    last = attempts(worker, run_id)
    assert last == [AttemptState.UNKNOWN, *([AttemptState.COMPLETE] if action == "retry" else [])]


def test_secret_that_is_missing_is_told_without_a_send(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOL_TOKEN")
    with serving(CREATED) as server:
        run_id = ask(worker, server)
        worker.drive()
        assert server.connections == 0
    error = heard(worker, run_id)["error"]
    assert (error["code"], error["executed"]) == ("CREDENTIAL_UNAVAILABLE", "not_executed")


def test_argument_that_would_climb_is_told_without_a_send(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARGUMENTS, "project", "../admin")
    with serving(CREATED) as server:
        run_id = ask(worker, server)
        worker.drive()
        assert server.connections == 0
    error = heard(worker, run_id)["error"]
    assert (error["code"], error["executed"]) == ("TOOL_ARGUMENTS_INVALID", "not_executed")
