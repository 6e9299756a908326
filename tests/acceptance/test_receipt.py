"""A first output whose receipt cannot be saved: nothing more of the stream is handled, and the stream is closed."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from agentloom_worker.audit import run_audit
from agentloom_worker.clock import ManualClock
from agentloom_worker.domain.model import Category, Executed
from agentloom_worker.domain.operation import Attempt, AttemptState, OperationStatus
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.domain.session import DeliveryState
from agentloom_worker.errors import Code
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.ports import Ports, Settings
from agentloom_worker.runtime.transport import read_transport
from agentloom_worker.storage import operation, postgres
from agentloom_worker.storage.tables import metadata
from tests.acceptance.harness import (
    FUSED,
    ONE_BY_ONE,
    answer,
    ask,
    attempts,
    dev_model,
    execute,
    http_release,
    kinds,
    model_operations,
    operations,
    query,
    rows,
    run_of,
    simulated,
)
from tests.contract.model_adapters import stream_of
from tests.factories import python_tool, release_document
from tests.proxy import Loss, Proxy
from tests.unit.http.raw_server import STREAM_HEAD, WAIT_S, Exchange, Handler, RawServer, bytes_of, serving
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
_LATE = (
    *("late_ref", "late_at", "transport", "transport_blob_id"),
    *("first_output_at", "first_output_kind", "first_output_display"),
)
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


# In pieces; the first one is what has come when the receipt is to be saved.
STALE = {
    "text": "half and half",
    "tool_calls": [{"name": "echo", "id": "c1", "arguments": {"text": "never"}}],
    "chunk_chars": 4,
}
FRESH = {"text": "at last"}


def states(ports: Ports, run_id: RunId) -> list[str]:
    found = query(ports, "SELECT state FROM user_input_delivery WHERE target_run_id = :run", run=run_id)
    return [row[0] for row in found]


def whole_and_open(protocol: str, before: Callable[[], None] = lambda: None) -> Handler:
    """All of the answer in one piece, on a connection that only the client ends."""
    body = stream_of(protocol, STALE)

    def handle(exchange: Exchange) -> None:
        before()
        exchange.send(STREAM_HEAD + body)
        exchange.wait_for_end()

    return handle


def fresh(protocol: str) -> Handler:
    return bytes_of(STREAM_HEAD + stream_of(protocol, FRESH))


def release(server: RawServer, protocol: str, **retry: Any) -> dict[str, Any]:
    model = {"protocol": protocol, "retry": {"jitter": "none", **retry}}
    return release_document(base_url=server.base_url, tools={"echo": python_tool()}, models={"main": model})


def assert_kept_as_material(ports: Ports, attempt: Attempt, protocol: str) -> None:
    """What had come is the attempt's, as a part and byte for byte up to its first output; the rest is nobody's."""
    assert (attempt.state, attempt.code) == (AttemptState.UNKNOWN, Code.MODEL_OUTCOME_UNKNOWN)
    assert attempt.category == Category.PERSISTENCE and attempt.detail is not None and "receipt" in attempt.detail
    assert attempt.partial is not None
    assert json.loads(attempt.partial) == {"v": 1, "complete": False, "text": "half", "reasoning": "", "calls": []}
    number, received = read_transport(ports, attempt.operation_id, attempt.attempt_no)
    assert number == attempt.attempt_no
    whole = stream_of(protocol, STALE)
    assert whole.startswith(received.body) and b"half" in received.body and b" and" not in received.body


PROTOCOLS = pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses"])


@PROTOCOLS
@pytest.mark.parametrize("settings", [FUSED, ONE_BY_ONE], ids=["fused", "one-by-one"])
def test_C07_a_receipt_that_cannot_be_saved_ends_the_delivery_and_closes_the_stream(
    database_url: str, settings: Settings, tool_calls: list[tuple[str, object]], protocol: str
) -> None:
    """All of the answer is there in one piece: a call among it is handled by nobody (seed 004, 6.2)."""
    with serving(whole_and_open(protocol), fresh(protocol)) as server, simulated(database_url, settings=settings) as w:
        ports = w.ports
        run_id = ask(ports, release(server, protocol))
        with receipts_refused(ports):
            w.drive(until=lambda: len(attempts(ports, run_id)) == 2)
            assert server.ended.wait(WAIT_S), "the stream was closed"
            assert server.requests.qsize() == 1
            (open_,) = operations(ports, run_id)
            assert (open_.status, open_.raw) == (OperationStatus.ATTEMPTING, None)
            assert (open_.executed, open_.unknown_attempts) == (Executed.UNKNOWN, 1)
            first, second = attempts(ports, run_id)
            assert first.first_output is None and second.state is AttemptState.INTENT
            assert_kept_as_material(ports, first, protocol)
            assert states(ports, run_id) == [DeliveryState.CLAIMED]
            assert kinds(ports, run_id) == ["prompt", "user_ref"] and tool_calls == []
            (row,) = rows(ports, run_id, "attempt_model")
            assert (row.parked_at, row.losses) == (None, 0)
            assert run_audit(ports) == ()
        # It has been mended: the policy sends the same bytes again, and its first output delivers.
        w.drive()
        assert (run_of(ports, run_id).status, answer(ports, run_id)) == (RunStatus.SUCCEEDED, "at last")
        assert [one.state for one in attempts(ports, run_id)] == [AttemptState.UNKNOWN, AttemptState.COMPLETE]
        assert states(ports, run_id) == [DeliveryState.DELIVERED] and tool_calls == []
        one, other = (server.requests.get_nowait() for _ in range(2))
        assert one.body == other.body
        assert run_audit(ports) == ()


@PROTOCOLS
@pytest.mark.parametrize(("on_unknown", "tries"), [({"action": "fail"}, 1), ({"action": "retry", "max": 2}, 3)])
def test_C07_R11_receipts_that_are_always_refused_end_the_role_by_the_policy(
    database_url: str, protocol: str, on_unknown: dict[str, Any], tries: int, tool_calls: list[tuple[str, object]]
) -> None:
    with serving(whole_and_open(protocol)) as server, simulated(database_url) as worker:
        ports = worker.ports
        run_id = ask(ports, release(server, protocol, on_unknown=on_unknown))
        with receipts_refused(ports):
            worker.drive()
        run = run_of(ports, run_id)
        assert (run.status, run.end_code) == (RunStatus.FAILED, Code.MODEL_OUTCOME_UNKNOWN)
        assert (run.loops_used, run.loops_reserved) == (1, 0)
        made = attempts(ports, run_id)
        assert len(made) == tries == server.requests.qsize()
        for attempt in made:
            assert_kept_as_material(ports, attempt, protocol)
        (settled,) = operations(ports, run_id)
        assert (settled.status, settled.executed) == (OperationStatus.UNKNOWN, Executed.UNKNOWN)
        assert tool_calls == [] and rows(ports, run_id) == []
        assert run_audit(ports) == ()


@PROTOCOLS
@pytest.mark.parametrize("loss", list(Loss), ids=["before the server", "behind the commit"])
def test_C07_a_receipt_whose_connection_is_lost_for_good_leaves_what_came_with_its_attempt(
    clean_postgres: str, protocol: str, loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Applied or not: nobody knows, and the next commit finds out (RULINGS T6)."""
    monkeypatch.setattr(postgres, "COMMIT_RESENDS_MAX", 2)
    with closing(Proxy(clean_postgres)) as proxy:
        lose = partial(proxy.lose, loss, b"EXECUTE attempt_first_output(", times=2)
        with serving(whole_and_open(protocol, lose), fresh(protocol)) as server, simulated(proxy.url) as worker:
            run_id = ask(worker.ports, release(server, protocol))
            worker.drive()
            assert server.ended.wait(WAIT_S), "the stream was closed"
            assert proxy.lost == 2
            assert_lost_receipt_is_survived(worker.ports, run_id, protocol, saved=loss is Loss.ANSWER)


@PROTOCOLS
def test_C07_a_receipt_that_a_locked_database_does_not_take_leaves_what_came_with_its_attempt(
    clean_sqlite: str, protocol: str
) -> None:
    """Another process writes and writes; the commit behind it waits until it has ended."""
    with (
        simulated(clean_sqlite) as worker,
        closing(
            sqlite3.connect(clean_sqlite.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
        ) as other,
    ):
        whole = whole_and_open(protocol, lambda: other.execute("BEGIN IMMEDIATE") and None)

        def handle(exchange: Exchange) -> None:
            whole(exchange)
            other.execute("ROLLBACK")

        with serving(handle, fresh(protocol)) as server:
            run_id = ask(worker.ports, release(server, protocol))
            writer = worker.ports.store.driver._writer  # type: ignore[attr-defined]
            writer.execute("PRAGMA busy_timeout=50")
            worker.drive()
            assert server.ended.is_set(), "the stream was closed"
            assert_lost_receipt_is_survived(worker.ports, run_id, protocol, saved=False)


def tables(ports: Ports) -> dict[str, list[str]]:
    """Every row of the database, without what a late fact may write."""
    late = {column for column in operation.attempt.c if column.name in _LATE}
    with ports.store.read() as conn:
        return {
            table.name: sorted(map(str, conn.execute(sa.select(*(column for column in table.c if column not in late)))))
            for table in metadata.sorted_tables
        }


def assert_lost_receipt_is_survived(ports: Ports, run_id: RunId, protocol: str, *, saved: bool) -> None:
    first, second = attempts(ports, run_id)
    assert_kept_as_material(ports, first, protocol)
    assert (first.first_output is not None) is saved
    assert second.state is AttemptState.COMPLETE
    assert (run_of(ports, run_id).status, answer(ports, run_id)) == (RunStatus.SUCCEEDED, "at last")
    receipts = query(
        ports, "SELECT state, first_output_receipt FROM user_input_delivery WHERE target_run_id = :run", run=run_id
    )
    delivered_by = (first if saved else second).attempt_no
    assert [tuple(row) for row in receipts] == [(DeliveryState.DELIVERED, f"{first.operation_id}/{delivered_by}")]
    assert run_audit(ports) == ()


@PROTOCOLS
def test_C07_R3_whoever_has_lost_the_run_writes_nothing_but_the_late_fact_of_its_own_attempt(
    database_url: str, protocol: str, tool_calls: list[tuple[str, object]]
) -> None:
    """Another worker took the run over and ended it before the first output of the first one came."""
    seen: list[dict[str, list[tuple[Any, ...]]]] = []
    clock = ManualClock()
    with simulated(database_url, clock=clock) as loser, simulated(database_url, clock=clock) as winner:
        ports = loser.ports
        run_ids: list[RunId] = []

        def take_over() -> None:
            for _ in range(2):
                clock.advance(s=ports.settings.claim_ttl_s + ports.settings.suspect_grace_s)
                winner.sweeper.sweep()
            winner.drive()
            seen.append(tables(ports))

        with serving(whole_and_open(protocol, take_over), fresh(protocol)) as server:
            document = release(server, protocol)
            document["models"]["main"]["first_output_timeout_ms"] = 3_600_000
            run_ids.append(ask(ports, document))
            loser.drive()
            assert server.ended.wait(WAIT_S), "the stream was closed"
        assert (run_of(ports, run_ids[0]).status, answer(ports, run_ids[0])) == (RunStatus.SUCCEEDED, "at last")
        first, second = attempts(ports, run_ids[0])
        assert (first.state, second.state) == (AttemptState.UNKNOWN, AttemptState.COMPLETE)
        assert first.partial is None and first.late is not None
        late = json.loads(first.late)
        assert (late["cancelled"], late["sent"], json.loads(late["partial"])["text"]) == ("superseded", True, "half")
        (before,) = seen
        assert tables(ports) == before
        assert tool_calls == []
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
            release_ = release_document(
                base_url=server.base_url,
                agent={"id": f"agent-{number}"},
                models={"main": {"retry": {"max_attempts": 2}}},
            )
            run_id = ask(worker.ports, release_)
            worker.drive()
            run = run_of(worker.ports, run_id)
            assert (run.status, run.end_code) == (RunStatus.FAILED, code)
            assert len(attempts(worker.ports, run_id)) == server.requests.qsize() == tries
            (failed,) = model_operations(worker.ports, run_id)
            assert failed.code == code


def test_C07_a_first_output_that_delivers_no_input_is_committed_with_the_end_of_its_attempt(database_url: str) -> None:
    """A commit of its own is for words that wait for it: the first request claims the question, the second none."""
    calls = {"tool_calls": [{"name": "echo", "arguments": {"text": "a"}}]}
    turns = {"when": {"assistant_turns": 0}, "answer": calls}, {"answer": {"text": "done"}}
    with dev_model(*turns) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, http_release(model, {"echo": python_tool()}))
        worker.drive()
        first, second = model_operations(worker.ports, run_id)
        found = query(worker.ports, "SELECT key FROM scope_commit WHERE scope_id = :run", run=run_id)
        receipts = [key for key in (bytes(row[0]) for row in found) if key.startswith(b"first-output:")]
        assert receipts == [f"first-output:{first.operation_id}/1".encode()]
        (attempt,) = worker.ports.store.list_attempts([second.operation_id])
        assert attempt.first_output is not None and attempt.first_output_at is not None
