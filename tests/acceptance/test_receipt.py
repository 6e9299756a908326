"""A first output whose receipt cannot be saved: nothing more of the stream is handled, and the stream is closed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentloom_worker.audit import run_audit
from agentloom_worker.domain.operation import AttemptState, OperationStatus
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.domain.session import DeliveryState
from agentloom_worker.errors import Code
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.parking import retry_parked
from agentloom_worker.runtime.ports import Ports, Settings
from tests.acceptance.harness import (
    FUSED,
    ONE_BY_ONE,
    answer,
    ask,
    attempts,
    events,
    execute,
    kinds,
    model_operations,
    operations,
    query,
    rows,
    run_of,
    simulated,
)
from tests.factories import python_tool, release_document
from tests.unit.http.raw_server import STREAM_HEAD, WAIT_S, Exchange, bytes_of, serving
from tests.unit.http.raw_server import answer as http_answer

_REFUSE = {
    "postgresql": (
        "CREATE FUNCTION refuse_receipt() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'the receipt is refused'; END $$",
        "CREATE TRIGGER refuse_receipt BEFORE UPDATE ON user_input_delivery FOR EACH ROW"
        " WHEN (NEW.state = 'delivered') EXECUTE FUNCTION refuse_receipt()",
    ),
    "sqlite": (
        "CREATE TRIGGER refuse_receipt BEFORE UPDATE ON user_input_delivery WHEN NEW.state = 'delivered'"
        " BEGIN SELECT RAISE(ABORT, 'the receipt is refused'); END",
    ),
}
_ALLOW = {
    "postgresql": (
        "DROP TRIGGER refuse_receipt ON user_input_delivery",
        "DROP FUNCTION refuse_receipt()",
    ),
    "sqlite": ("DROP TRIGGER refuse_receipt",),
}


@contextmanager
def receipts_refused(ports: Ports) -> Iterator[None]:
    """The database itself refuses to mark an input as delivered."""
    dialect = ports.store.driver.engine.dialect.name
    for statement in _REFUSE[dialect]:
        execute(ports, statement)
    try:
        yield
    finally:
        for statement in _ALLOW[dialect]:
            execute(ports, statement)


def stream(*deltas: dict[str, Any], finish: str) -> bytes:
    """A whole stream of these deltas."""
    ends: list[tuple[dict[str, Any], str | None]] = [*((delta, None) for delta in deltas), ({}, finish)]
    frames = [{"choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in ends]
    return b"".join(b"data: " + json.dumps(frame).encode() + b"\n\n" for frame in frames) + b"data: [DONE]\n\n"


CALL = {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "echo", "arguments": '{"text": "never"}'}}]}


def states(ports: Ports, run_id: RunId) -> list[str]:
    found = query(ports, "SELECT state FROM user_input_delivery WHERE target_run_id = :run", run=run_id)
    return [row[0] for row in found]


@pytest.mark.parametrize("settings", [FUSED, ONE_BY_ONE], ids=["fused", "one-by-one"])
def test_C07_a_receipt_that_cannot_be_saved_ends_the_delivery_and_closes_the_stream(
    database_url: str, settings: Settings, tool_calls: list[tuple[str, object]]
) -> None:
    """All of the answer is there in one piece: a call among it is handled by nobody (seed 004, 6.2)."""

    def whole_and_open(exchange: Exchange) -> None:
        exchange.send(STREAM_HEAD + stream({"content": "half"}, CALL, finish="tool_calls"))
        exchange.wait_for_end()

    later = bytes_of(STREAM_HEAD + stream({"content": "at last"}, finish="stop"))
    with serving(whole_and_open, later) as server, simulated(database_url, settings=settings) as worker:
        ports = worker.ports
        run_id = ask(ports, release_document(base_url=server.base_url, tools={"echo": python_tool()}))
        with receipts_refused(ports):
            worker.drive(until=lambda: "step.parked" in events(ports, run_id))
            assert server.ended.wait(WAIT_S), "the stream was closed"
            assert server.requests.qsize() == 1
            (operation,) = operations(ports, run_id)
            assert (operation.status, operation.raw) == (OperationStatus.ATTEMPTING, None)
            (attempt,) = attempts(ports, run_id)
            assert (attempt.state, attempt.first_output) == (AttemptState.INTENT, None)
            assert states(ports, run_id) == [DeliveryState.CLAIMED]
            assert kinds(ports, run_id) == ["prompt", "user_ref"] and tool_calls == []
            (row,) = rows(ports, run_id, "attempt_model")
            assert row.parked_at is not None and row.last_error is not None
        # The operator has mended it: the outcome is unknown, and only the policy sends again.
        retry_parked(ports, row.dispatch_id)
        worker.drive()
        assert (run_of(ports, run_id).status, answer(ports, run_id)) == (RunStatus.SUCCEEDED, "at last")
        assert [one.state for one in attempts(ports, run_id)] == [AttemptState.UNKNOWN, AttemptState.COMPLETE]
        assert states(ports, run_id) == [DeliveryState.DELIVERED] and tool_calls == []
        assert server.requests.qsize() == 2
        assert run_audit(ports) == ()


@pytest.mark.parametrize("inside", [False, True], ids=["refused", "inside a 200"])
def test_a_context_that_is_too_long_for_the_provider_ends_the_role_without_a_retry(
    database_url: str, inside: bool
) -> None:
    """By the code alone: the same words under another code are another failure."""
    error = {"error": {"message": "too many tokens", "code": "context_length_exceeded"}}
    other = {"error": {"message": "context_length_exceeded", "code": "server_error"}}
    for number, (document, code, tries) in enumerate(
        ((error, Code.MODEL_CONTEXT_LENGTH_EXCEEDED, 1), (other, Code.MODEL_PROVIDER_ERROR, 2))
    ):
        body = json.dumps(document).encode()
        status = ("400 Bad Request", "500 Internal Server Error")[number]
        handler = bytes_of(STREAM_HEAD + b"data: " + body + b"\n\n") if inside else http_answer(status, body)
        with serving(handler) as server, simulated(database_url) as worker:
            release = release_document(
                base_url=server.base_url,
                agent={"id": f"agent-{number}"},
                models={"main": {"retry": {"max_attempts": 2}}},
            )
            run_id = ask(worker.ports, release)
            worker.drive()
            run = run_of(worker.ports, run_id)
            assert (run.status, run.end_code) == (RunStatus.FAILED, code)
            assert len(attempts(worker.ports, run_id)) == server.requests.qsize() == tries
            (operation,) = model_operations(worker.ports, run_id)
            assert operation.code == code
