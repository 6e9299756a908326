"""The audit finds nothing in a sound database, and every way in which a test breaks one."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from agentloom_worker.audit import INVARIANTS, Finding, run_audit
from agentloom_worker.canonical import canonical_bytes, parse
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.request import rebuild_request
from agentloom_worker.storage.audit_scan import REFERENCES
from agentloom_worker.storage.schema import metadata
from agentloom_worker.storage.store import Store
from tests.audit_database import fill, fill_few, open_audited, stop_between_attempts
from tests.servers import PostgresServer

NOWHERE = UUID(int=0x0BAD)
tables = metadata.tables


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def new_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], str]]:
    """Makes fresh, migrated databases of one kind; they go with the module."""
    made: list[str] = []
    if request.param == "sqlite":
        template: Path = request.getfixturevalue("sqlite_template")

        def copy() -> str:
            path = tmp_path_factory.mktemp("audit") / "agentloom.sqlite"
            shutil.copy(template, path)
            return f"sqlite:///{path}"

        yield copy
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    template_url: str = request.getfixturevalue("postgres_template")

    def create() -> str:
        made.append(server.create_database(template=template_url))
        return made[-1]

    yield create
    for url in made:
        server.drop_database(url)


def test_nothing_is_found_in_runs_of_every_end_and_at_every_stage(new_database: Callable[[], str]) -> None:
    url = new_database()
    runs = fill(url)
    worker = open_audited(url, fusion=True).worker
    statuses = {str(run.status) for run in worker.ports.store.list_runs(limit=1000)}

    findings = run_audit(worker.ports)
    by_run = [finding for run_id in list(runs.values())[:5] for finding in run_audit(worker.ports, run_id=run_id)]

    worker.close()
    assert findings == ()
    assert by_run == []
    assert statuses >= {
        "queued",
        "running",
        "stopping",
        "succeeded",
        "failed",
        "cancelled",
        "timed_out",
        "budget_exhausted",
    }


def test_nothing_is_found_after_any_step(new_database: Callable[[], str]) -> None:
    audited = open_audited(new_database(), fusion=False)
    run_id = audited.ask("stepwise", "parallel")
    store, looks = audited.worker.ports.store, 0
    while store.next_wake() is not None:
        assert run_audit(audited.worker.ports, run_id=run_id) == (), f"after {looks} steps"
        audited.steps(1)
        looks += 1
        run = store.load_run(run_id)
        assert run is not None and looks < 100
        if run.cleanup_state == "done":
            break
    assert run_audit(audited.worker.ports) == ()
    assert looks > 10
    audited.worker.close()


def test_rows_that_move_while_a_run_is_read_are_no_findings(new_database: Callable[[], str]) -> None:
    """The run goes on to its end between the first and the last read of its audit."""
    audited = open_audited(new_database(), fusion=True)
    run_id = audited.ask("moving", "parallel")
    store = _Interrupted(audited.worker.ports.store, audited.worker.drive)

    findings = run_audit(replace(audited.worker.ports, store=store))

    run = audited.worker.ports.store.load_run(run_id)
    assert run is not None and run.status.terminal
    assert store.interrupted
    assert findings == ()
    audited.worker.close()


class _Interrupted(Store):
    """Somebody works after the first read of the first snapshot that follows a `list`."""

    def __init__(self, store: Store, work: Callable[[], object]) -> None:
        super().__init__(store.driver, store._clock, store.url)
        self._work = work
        self._snapshots = 0
        self.interrupted = False

    @contextmanager
    def snapshot(self) -> Iterator[Store]:
        self._snapshots += 1
        with super().snapshot() as store:
            # The first snapshot is the session's, the second one the run's.
            if self._snapshots == 2:
                with store.read() as conn:
                    conn.execute(sa.select(sa.func.count()).select_from(tables["run"])).scalar()
                self._work()
                self.interrupted = True
            yield store


def test_an_unknown_run_is_told(new_database: Callable[[], str]) -> None:
    worker = open_audited(new_database(), fusion=True).worker
    with pytest.raises(RequestError) as told:
        run_audit(worker.ports, run_id=RunId(NOWHERE))
    worker.close()
    assert told.value.code is Code.RUN_NOT_FOUND


def test_a_call_that_is_stopped_between_attempts_says_that_it_may_have_been_executed(
    new_database: Callable[[], str],
) -> None:
    url = new_database()
    audited = open_audited(url, fusion=True)
    run_id = stop_between_attempts(audited, url)
    calls = [row for row in audited.worker.ports.store.list_operations(run_id) if row.batch_id is not None]
    audited.worker.close()
    assert [(row.status, row.executed, row.attempts_made) for row in calls] == [("cancelled", "unknown", 2)]


@dataclass
class Broken:
    """A database in a transaction that will be undone, in which everything may be broken."""

    conn: sa.Connection
    runs: dict[str, RunId]

    def row(self, table: str, *where: sa.ColumnElement[bool], last: bool = False) -> Any:
        """The first row, or the last one, by primary key."""
        keys = [column.desc() if last else column for column in tables[table].primary_key.columns]
        found = self.conn.execute(sa.select(tables[table]).where(*where).order_by(*keys).limit(1)).one()
        return found

    def set(self, table: str, row: Any, **values: Any) -> None:
        """Change one row."""
        self._one(sa.update(tables[table]).where(*_same(table, row)).values(**values))

    def delete(self, table: str, *where: sa.ColumnElement[bool]) -> None:
        """Delete rows, at least one."""
        assert self.conn.execute(sa.delete(tables[table]).where(*where)).rowcount >= 1

    def insert(self, table: str, row: Any, **values: Any) -> None:
        """Insert a changed copy of a row."""
        self._one(sa.insert(tables[table]).values(**{**row._mapping, **values}))

    def _one(self, statement: Any) -> None:
        assert self.conn.execute(statement).rowcount == 1

    def run(self, name: str) -> Any:
        """A run by its name."""
        return self.row("run", tables["run"].c.run_id == self.runs[name])

    def of_run(self, table: str, name: str, *where: sa.ColumnElement[bool], last: bool = False) -> Any:
        """The first row, or the last one, of a run."""
        return self.row(table, tables[table].c.run_id == self.runs[name], *where, last=last)

    def operation(self, name: str, *, kind: str = "model", ordinal: int | None = None, loop_no: int = 1) -> Any:
        """A run's operation."""
        table = tables["operation"].c
        place = table.ordinal.is_(None) if ordinal is None else table.ordinal == ordinal
        return self.of_run("operation", name, table.kind == kind, place, table.loop_no == loop_no)

    def feedback(self, name: str) -> Any:
        """The first correction of a run's answers."""
        return self.of_run("context_record", name, tables["context_record"].c.message_kind == "feedback")

    def open_call(self) -> Any:
        """A call that has not been made."""
        table = tables["operation"].c
        return self.of_run("operation", "waiting", table.kind == "tool", table.status == "attempting")

    def attempt(self, name: str, **which: Any) -> Any:
        """The first attempt of a run's operation."""
        return self.attempt_of(self.operation(name, **which))

    def attempt_of(self, operation: Any) -> Any:
        """The first attempt of an operation."""
        return self.row("attempt", tables["attempt"].c.operation_id == operation.operation_id)

    def context(self, name: str) -> Any:
        """A run's context."""
        return self.of_run("role_context", name)

    def in_context(self, table: str, name: str, *where: sa.ColumnElement[bool], last: bool = False) -> Any:
        """The first row, or the last one, of a run's context."""
        return self.row(table, tables[table].c.context_id == self.context(name).context_id, *where, last=last)

    def delivery(self, name: str) -> Any:
        """The delivery of a run."""
        return self.row("user_input_delivery", tables["user_input_delivery"].c.target_run_id == self.runs[name])


def _same(table: str, row: Any) -> list[sa.ColumnElement[bool]]:
    return [column == row._mapping[column.name] for column in tables[table].primary_key.columns]


def _seq(table: str, number: int) -> sa.ColumnElement[bool]:
    return tables[table].c.context_seq == number


def _drop_result(broken: Broken) -> None:
    """One of the five results vanishes from the context, with its entry."""
    context_id = broken.context("parallel").context_id
    for table in ("context_record", "effective_entry"):
        broken.delete(table, tables[table].c.context_id == context_id, _seq(table, 5))


def _drop_movers(broken: Broken) -> None:
    table = tables["pending_dispatch"].c
    broken.delete("pending_dispatch", table.run_id == broken.runs["waiting"], table.step != "expire_run")


def _drop_steps(name: str, step: str) -> Callable[[Broken], None]:
    table = tables["pending_dispatch"].c
    return lambda broken: broken.delete("pending_dispatch", table.run_id == broken.runs[name], table.step == step)


def _leave_row(broken: Broken) -> None:
    row = broken.of_run("pending_dispatch", "waiting", tables["pending_dispatch"].c.step == "expire_run")
    run_id = broken.runs["parallel"]
    broken.insert("pending_dispatch", row, dispatch_id=NOWHERE, run_id=run_id, scope_id=run_id, subject_id=run_id)


def _two_live(broken: Broken) -> None:
    broken.conn.execute(sa.text("DROP INDEX run_live_session_key"))
    for name in ("plain", "plain again"):
        broken.set("run", broken.run(name), status="running")


def _other_body(broken: Broken) -> None:
    """A result is changed where it stands; whatever it counted as before does not match any more."""
    row = broken.operation("parallel", kind="tool", ordinal=1)
    body = parse(bytes(row.raw))
    broken.set("operation", row, raw=canonical_bytes({**body, "text": "4", "structured": 4}))


def _more_calls(broken: Broken) -> None:
    row = broken.operation("parallel")
    body = parse(bytes(row.raw))
    broken.set("operation", row, raw=canonical_bytes({**body, "calls": [*body["calls"], body["calls"][0]]}))


def _recipe(**values: Any) -> Callable[[Broken], None]:
    def change(broken: Broken) -> None:
        row = broken.operation("parallel", loop_no=3)
        broken.set("operation", row, request=canonical_bytes({**parse(bytes(row.request)), **values}))

    return change


def _other_words(broken: Broken) -> None:
    input_id = broken.delivery("parallel").input_id
    row = broken.row("user_input", tables["user_input"].c.input_id == input_id)
    broken.set("user_input", row, body=canonical_bytes("Something that nobody has said."))


def _second_delivery(broken: Broken) -> None:
    broken.insert("user_input_delivery", broken.delivery("plain"), delivery_id=NOWHERE, operation_id=None)


def _carried(broken: Broken) -> Any:
    return broken.row("user_input_delivery", tables["user_input_delivery"].c.state == "carried")


def _carried_input(broken: Broken) -> Any:
    return broken.row("user_input", tables["user_input"].c.input_id == _carried(broken).input_id)


def _follower(broken: Broken) -> Any:
    return broken.row("user_input_delivery", tables["user_input_delivery"].c.previous_delivery_id.is_not(None))


def _waiting(broken: Broken) -> Any:
    return broken.row("user_input_delivery", tables["user_input_delivery"].c.target_run_id.is_(None))


def _queued(broken: Broken, state: str) -> Any:
    return broken.row("queued_question", tables["queued_question"].c.state == state)


def _crowd(broken: Broken) -> None:
    """More questions wait than a session may have."""
    asked = broken.row("user_input", tables["user_input"].c.input_id == _queued(broken, "queued").input_id)
    for number in range(8):
        input_id = UUID(int=0xC0 + number)
        broken.insert("user_input", asked, input_id=input_id, input_seq=100 + number)
        broken.insert("queued_question", _queued(broken, "queued"), input_id=input_id, place=100 + number)


def _blob(broken: Broken) -> Any:
    """The blob of the long question."""
    input_id = broken.delivery("plain").input_id
    blob_id = broken.row("user_input", tables["user_input"].c.input_id == input_id).blob_id
    return broken.row("blob", tables["blob"].c.blob_id == blob_id)


def _client_commit(broken: Broken, key: str = "key-plain") -> Any:
    return broken.row("scope_commit", tables["scope_commit"].c.key == f"client:{key}".encode())


def _release(broken: Broken) -> Any:
    return broken.row("release", tables["release"].c.release_id == broken.run("plain").release_id)


# One way or more to break each invariant; a finding of that very invariant is expected.
def _unknown_attempt_of_a_call_that_never_ran(broken: "Broken") -> None:
    broken.set("attempt", broken.attempt("parallel", kind="tool", ordinal=4), state="unknown")
    broken.set("operation", broken.operation("parallel", kind="tool", ordinal=4), executed="not_executed")


BREAKAGES: dict[str, tuple[Callable[[Broken], None], ...]] = {
    "run.event_sequence": (
        lambda b: b.delete(
            "run_event", tables["run_event"].c.run_id == b.runs["parallel"], tables["run_event"].c.run_seq == 2
        ),
        lambda b: b.set("run", b.run("plain"), event_head=99),
    ),
    "run.lifecycle": (
        lambda b: b.set("run_event", b.of_run("run_event", "plain", last=True), kind="model.completed"),
        lambda b: b.insert("run_event", b.of_run("run_event", "plain", last=True), run_seq=99),
        lambda b: b.insert("run_event", b.of_run("run_event", "plain", last=True), run_seq=99, kind="call.settled"),
        lambda b: b.set("run_event", b.of_run("run_event", "queued"), kind="run.started"),
        lambda b: b.set("run_event", b.of_run("run_event", "waiting", last=True), kind="run.succeeded"),
    ),
    "run.end": (
        lambda b: b.set("run", b.run("plain"), status="failed"),
        lambda b: b.set("run", b.run("plain"), ended_at=None),
        lambda b: b.set("run", b.run("waiting"), ended_at=1),
        lambda b: b.set("run", b.run("waiting"), end_cause="stop"),
        lambda b: b.set("run", b.run("stopping"), end_cause=None),
        lambda b: b.set("run", b.run("plain"), status="cancelled", end_cause="stop"),
    ),
    "run.cleanup": (
        lambda b: b.set("run", b.run("plain"), cleanup_state="none"),
        lambda b: b.set("run", b.run("waiting"), cleanup_state="pending"),
    ),
    "run.answer": (
        lambda b: b.set("run", b.run("plain"), answer_operation_id=None),
        lambda b: b.set("run", b.run("plain"), answer_operation_id=b.run("big").answer_operation_id),
        lambda b: b.set("operation", b.operation("plain"), status="failed"),
    ),
    "run.tree": (
        lambda b: b.set("agent_invocation", b.of_run("agent_invocation", "plain"), status="running"),
        lambda b: b.set("graph_execution", b.of_run("graph_execution", "waiting"), status="settled"),
        lambda b: b.set("node_task", b.of_run("node_task", "plain"), phase="settle"),
        lambda b: b.delete("role_context", tables["role_context"].c.run_id == b.runs["plain"]),
        lambda b: b.set("role_context", b.context("plain"), node_id=NOWHERE),
    ),
    "run.continuation": (
        lambda b: b.set("node_task", b.of_run("node_task", "waiting"), continuation=b'{"v":1}'),
        lambda b: b.set(
            "node_task",
            b.of_run("node_task", "waiting"),
            continuation=b.of_run("node_task", "parallel").continuation,
        ),
        lambda b: b.set("node_task", b.of_run("node_task", "queued"), continuation=b'{"cutoff":9,"loop":0,"v":1}'),
    ),
    "run.loops": (
        lambda b: b.set("run", b.run("parallel"), loops_used=2),
        lambda b: b.set("run", b.run("waiting"), loops_reserved=1),
    ),
    "run.quota": (lambda b: b.set("run", b.run("parallel"), max_loops=2),),
    "run.tickets": (
        lambda b: b.delete("loop_ticket", tables["loop_ticket"].c.run_id == b.runs["plain"]),
        lambda b: b.set("loop_ticket", b.of_run("loop_ticket", "plain"), loop_no=7),
        lambda b: b.insert("loop_ticket", b.of_run("loop_ticket", "plain"), loop_no=2),
    ),
    "run.ticket_states": (
        lambda b: b.set("loop_ticket", b.of_run("loop_ticket", "plain"), state="released"),
        lambda b: b.set("loop_ticket", b.of_run("loop_ticket", "plain"), state="reserved"),
    ),
    "operation.outcome": (
        lambda b: b.set("operation", b.operation("parallel", kind="tool", ordinal=4), code=None),
        lambda b: b.set("operation", b.operation("plain"), raw=None, raw_blob_id=None),
        lambda b: b.set("operation", b.open_call(), raw=b"{}"),
    ),
    "operation.executed": (
        lambda b: b.set("operation", b.operation("plain"), executed="unknown"),
        lambda b: b.set("operation", b.operation("parallel", kind="tool", ordinal=4), status="unknown"),
        _unknown_attempt_of_a_call_that_never_ran,
    ),
    "operation.attempts": (
        lambda b: b.set("operation", b.operation("plain"), attempts_made=2),
        lambda b: b.set("attempt", b.attempt("plain"), attempt_no=2),
        lambda b: b.set("operation", b.operation("parallel", kind="tool", ordinal=0), kind="internal"),
    ),
    "operation.intents": (
        lambda b: b.set("attempt", b.attempt("plain"), state="intent"),
        lambda b: b.insert("attempt", b.attempt_of(b.open_call()), attempt_no=2),
        lambda b: b.set("operation", b.open_call(), status="failed", code="X"),
    ),
    "operation.attempt_ends": (
        lambda b: b.set("attempt", b.attempt("plain"), ended_at=None),
        lambda b: b.set("attempt", b.attempt_of(b.open_call()), ended_at=1),
        lambda b: b.set("attempt", b.attempt("parallel", kind="tool", ordinal=4), code=None),
    ),
    "operation.epochs": (
        lambda b: b.set("attempt", b.attempt("plain"), epoch=2),
        lambda b: b.set("attempt", b.attempt("plain"), epoch=0),
    ),
    "operation.frozen": (
        lambda b: b.set("operation", b.operation("plain"), request=None),
        lambda b: b.set("operation", b.operation("plain"), request=None, request_hash=None),
        lambda b: b.set("operation", b.operation("plain"), request_hash=b"short"),
    ),
    "operation.members": (
        lambda b: b.set("operation", b.operation("parallel", kind="tool", ordinal=1), ordinal=7),
        lambda b: b.set("operation", b.operation("parallel", kind="tool", ordinal=1), call_id=NOWHERE),
        lambda b: b.set("call_batch", b.of_run("call_batch", "parallel"), size=6),
        lambda b: b.set("operation", b.operation("plain"), ordinal=0, call_id=NOWHERE),
        lambda b: b.set(
            "operation",
            b.operation("parallel", kind="tool", ordinal=1),
            model_operation_id=b.operation("parallel", loop_no=2).operation_id,
        ),
    ),
    "operation.settled": (
        lambda b: b.set("call_batch", b.of_run("call_batch", "parallel"), settled=4),
        lambda b: b.set("call_batch", b.of_run("call_batch", "waiting"), state="delivered"),
        lambda b: b.set("operation", b.open_call(), status="cancelled"),
    ),
    "context.record_sequence": (
        _drop_result,
        lambda b: b.set("role_context", b.context("plain"), record_head=9),
    ),
    "context.sources": (
        lambda b: b.set("context_record", b.in_context("context_record", "plain"), role="user"),
        lambda b: b.set("context_record", b.in_context("context_record", "plain"), release_id=NOWHERE),
        lambda b: b.set("context_record", b.in_context("context_record", "plain"), run_id=b.runs["big"]),
        lambda b: b.set(
            "context_record",
            b.in_context("context_record", "plain", _seq("context_record", 2)),
            origin_input_id=b.delivery("big").input_id,
        ),
        lambda b: b.set(
            "context_record",
            b.in_context("context_record", "plain", last=True),
            operation_id=b.operation("waiting").operation_id,
            logical_result_key="other",
        ),
    ),
    "context.feedback": (
        lambda b: b.set("context_record", b.feedback("corrected"), operation_id=b.operation("corrected").operation_id),
        lambda b: b.set("context_record", b.feedback("corrected"), operation_id=None),
        lambda b: b.set(
            "run", b.run("corrected"), answer_operation_id=b.operation("corrected", loop_no=2).operation_id
        ),
        lambda b: b.set(
            "context_record", b.feedback("corrected"), message_kind="prompt", raw_ref="prompt", operation_id=None
        ),
    ),
    "context.revisions": (
        lambda b: b.delete(
            "effective_revision",
            tables["effective_revision"].c.context_id == b.context("parallel").context_id,
            tables["effective_revision"].c.revision == 2,
        ),
        lambda b: b.set("role_context", b.context("plain"), effective_revision=9),
        lambda b: b.set(
            "effective_revision", b.in_context("effective_revision", "parallel", last=True), record_watermark=1
        ),
    ),
    "context.manifest": (
        lambda b: b.set("role_context", b.context("plain"), manifest_hash=bytes(32)),
        lambda b: b.set("effective_revision", b.in_context("effective_revision", "plain"), manifest_hash=bytes(32)),
        lambda b: b.set("effective_entry", b.in_context("effective_entry", "plain"), source_refs=b'["x"]'),
        lambda b: b.set("effective_entry", b.in_context("effective_entry", "plain"), source_refs=b"["),
        lambda b: b.set("role_context", b.context("queued"), manifest_hash=bytes(32)),
    ),
    "context.entries": (
        lambda b: b.set("effective_entry", b.in_context("effective_entry", "plain"), revision=2),
        lambda b: b.set("effective_entry", b.in_context("effective_entry", "plain", last=True), revision=1),
        lambda b: b.delete("effective_entry", tables["effective_entry"].c.context_id == b.context("plain").context_id),
        lambda b: b.insert("effective_entry", b.in_context("effective_entry", "plain"), context_seq=99),
        lambda b: b.set("effective_entry", b.in_context("effective_entry", "plain"), raw_ref="input"),
    ),
    "context.effective_hashes": (
        _other_body,
        lambda b: b.set("context_record", b.feedback("corrected"), blob_id=None, body=b'"All is well."'),
        lambda b: b.set("effective_entry", b.in_context("effective_entry", "plain"), effective_hash=bytes(32)),
        lambda b: b.set("blob", _blob(b), content=b"damaged"),
    ),
    "context.results": (
        _drop_result,
        lambda b: b.set("call_batch", b.of_run("call_batch", "parallel"), state="open"),
        lambda b: b.set(
            "context_record", b.in_context("context_record", "parallel", _seq("context_record", 5)), call_id=NOWHERE
        ),
        lambda b: b.delete("call_batch", tables["call_batch"].c.run_id == b.runs["parallel"]),
    ),
    "context.calls": (
        _more_calls,
        lambda b: b.set("call_batch", b.of_run("call_batch", "parallel"), size=4),
    ),
    "context.tokens": (
        lambda b: b.set("effective_entry", b.in_context("effective_entry", "parallel", last=True), tokens=1),
    ),
    "request.hashes": (
        lambda b: b.set("operation", b.operation("plain"), request_hash=bytes(32)),
        lambda b: b.set("operation", b.operation("plain"), request=b"{}"),
        lambda b: b.delete("blob", tables["blob"].c.blob_id == _blob(b).blob_id),
        lambda b: b.set("run", b.run("plain"), binding=b"{"),
        lambda b: b.set("operation", b.operation("parallel"), raw=b'{"v":9}'),
        lambda b: b.set("operation", b.operation("parallel", kind="tool", ordinal=1), raw=b"\xff"),
        _recipe(records=3),
        _other_words,
    ),
    "request.budgets": (_recipe(tokens=1), _recipe(tokens=1_000_000)),
    "request.inputs": (
        lambda b: b.set(
            "context_record",
            b.in_context("context_record", "parallel", _seq("context_record", 2)),
            origin_input_id=b.delivery("plain again").input_id,
        ),
        _recipe(cutoff=0),
        _recipe(claimed=[str(NOWHERE)]),
    ),
    "request.pairing": (_drop_result,),
    "dispatch.live_runs": (
        _drop_movers,
        _drop_steps("waiting", "expire_run"),
        _drop_steps("stopping", "finalize_run"),
        _drop_steps("queued", "prepare_context"),
    ),
    "dispatch.terminal_runs": (
        _leave_row,
        lambda b: b.set("run", b.run("plain"), cleanup_state="pending"),
    ),
    "dispatch.epochs": (lambda b: b.set("pending_dispatch", b.of_run("pending_dispatch", "waiting"), epoch=2),),
    "dispatch.scopes": (
        lambda b: b.set("pending_dispatch", b.of_run("pending_dispatch", "waiting"), scope_id=b.runs["queued"]),
    ),
    "dispatch.claims": (
        lambda b: b.set("pending_dispatch", b.of_run("pending_dispatch", "queued"), claim_token=NOWHERE),
        lambda b: b.set("pending_dispatch", b.of_run("pending_dispatch", "queued"), claimed_until=1),
    ),
    "dispatch.parked": (lambda b: b.set("pending_dispatch", b.of_run("pending_dispatch", "queued"), parked_at=1),),
    "dispatch.intents": (_drop_steps("waiting", "attempt_call"),),
    "dispatch.subjects": (
        *(
            (
                lambda b, step=step: b.set(
                    "pending_dispatch", b.of_run("pending_dispatch", "waiting"), step=step, subject_id=NOWHERE
                )
            )
            for step in (
                "prepare_context",
                "freeze_request",
                "attempt_model",
                "accept_model",
                "attempt_call",
                "deliver_batch",
                "validate_output",
                "settle_node",
                "finalize_run",
                "expire_run",
                "clean_up",
            )
        ),
        lambda b: b.set("node_task", b.of_run("node_task", "queued"), phase="freeze"),
        lambda b: b.set("attempt", b.attempt_of(b.open_call()), state="failed", code="X"),
        lambda b: b.set(
            "pending_dispatch",
            b.of_run("pending_dispatch", "waiting"),
            step="accept_model",
            subject_id=b.operation("waiting").operation_id,
        ),
    ),
    "session.projected": (
        lambda b: b.set("user_input_delivery", b.delivery("plain"), context_seq=1),
        lambda b: b.set("user_input_delivery", b.delivery("plain"), context_seq=None),
    ),
    "session.input_heads": (
        lambda b: b.set("run", b.run("plain again"), input_head=1),
        lambda b: b.set("run", b.run("plain"), input_head=3),
    ),
    "session.input_sequence": (
        lambda b: b.set(
            "user_input",
            b.row("user_input", tables["user_input"].c.input_id == b.delivery("plain again").input_id),
            input_seq=5,
        ),
        lambda b: b.set(
            "session", b.row("session", tables["session"].c.session_id == b.run("plain").session_id), input_head=1
        ),
    ),
    "session.delivery_heads": (
        _second_delivery,
        lambda b: b.delete(
            "user_input_delivery", tables["user_input_delivery"].c.delivery_id == b.delivery("plain").delivery_id
        ),
        lambda b: b.set("user_input_delivery", b.delivery("plain"), session_id=b.run("big").session_id),
    ),
    "session.claimed": (
        lambda b: b.set("user_input_delivery", b.delivery("plain"), operation_id=None),
        lambda b: b.set("user_input_delivery", b.delivery("plain"), state="pending"),
        lambda b: b.set(
            "user_input_delivery", b.delivery("parallel"), operation_id=b.operation("parallel", loop_no=2).operation_id
        ),
        lambda b: b.set("operation", b.operation("plain"), request=b"{}"),
    ),
    "session.delivered": (
        lambda b: b.set("attempt", b.attempt("plain"), first_output_at=None),
        lambda b: b.set("user_input_delivery", b.delivery("plain"), first_output_receipt=None),
        lambda b: b.set(
            "user_input_delivery",
            b.delivery("plain"),
            first_output_receipt=b.delivery("plain again").first_output_receipt,
        ),
        lambda b: b.set("user_input_delivery", b.delivery("plain"), state="claimed"),
    ),
    "session.carried": (
        lambda b: b.set("user_input_delivery", _carried(b), state="claimed"),
        lambda b: b.set("user_input_delivery", _follower(b), input_id=b.delivery("big").input_id),
        lambda b: b.set("user_input_delivery", _follower(b), previous_delivery_id=None),
        lambda b: b.set("user_input", _carried_input(b), kind="question"),
    ),
    "session.delivered_once": (
        lambda b: b.insert(
            "user_input_delivery", b.delivery("plain"), delivery_id=NOWHERE, state="pending", operation_id=None
        ),
        lambda b: b.set("user_input_delivery", _carried(b), state="delivered"),
    ),
    "session.waiting": (
        lambda b: b.set("run", b.run("talk-stopping"), status="running"),
        lambda b: b.set("user_input_delivery", _waiting(b), context_seq=3),
        lambda b: b.set("user_input_delivery", _waiting(b), state="claimed"),
    ),
    "session.left_behind": (
        lambda b: b.set("user_input_delivery", _carried(b), state="claimed"),
        lambda b: b.set("user_input_delivery", _carried(b), state="pending"),
    ),
    "session.queue": (
        lambda b: b.set("run", b.run("talk-stopping"), status="cancelled"),
        lambda b: b.set("run", b.run("talk-stopping"), input_head=2),
        lambda b: b.set("queued_question", _queued(b, "queued"), place=99),
        lambda b: b.set("queued_question", _queued(b, "queued"), state="started"),
        lambda b: b.set("queued_question", _queued(b, "started"), run_id=None),
        lambda b: b.set("queued_question", _queued(b, "started"), run_id=b.runs["plain"]),
        lambda b: b.set("queued_question", _queued(b, "withdrawn"), run_id=b.runs["plain"]),
        _crowd,
    ),
    "session.run_sequence": (
        lambda b: b.set("run", b.run("plain again"), run_no=5),
        lambda b: b.set("run", b.run("plain"), question_seq=9),
        lambda b: b.set(
            "session", b.row("session", tables["session"].c.session_id == b.run("plain").session_id), run_head=9
        ),
    ),
    "session.one_live_run": (_two_live,),
    "blob.contents": (
        lambda b: b.set("blob", _blob(b), content=b"damaged"),
        lambda b: b.set("blob", _blob(b), content=b"damaged", encoding="identity"),
        lambda b: b.set("blob", _blob(b), size_bytes=1),
        lambda b: b.set("blob", _blob(b), sha256=bytes(32)),
        lambda b: b.set("blob", _blob(b), blob_id=NOWHERE),
    ),
    "blob.owners": (
        lambda b: b.set("blob", _blob(b), owner_id=b.run("big").owner_id),
        lambda b: b.delete("blob", tables["blob"].c.blob_id == _blob(b).blob_id),
        lambda b: b.set("operation", b.operation("plain"), effective_blob_id=NOWHERE),
        lambda b: b.set("operation", b.operation("plain"), raw_blob_id=b.operation("big", loop_no=3).raw_blob_id),
        lambda b: b.set("effective_entry", b.in_context("effective_entry", "plain"), effective_blob_id=NOWHERE),
        lambda b: b.set("release", _release(b), body=None, blob_id=NOWHERE),
        lambda b: b.set("context_record", b.feedback("corrected"), blob_id=NOWHERE),
    ),
    "release.digests": (
        lambda b: b.set("release", _release(b), digest=bytes(32)),
        lambda b: b.set("release", _release(b), body=b"{}", blob_id=None),
        lambda b: b.set("release", _release(b), schema_version=9),
        lambda b: b.set("owner", b.row("owner", tables["owner"].c.owner_id == b.run("plain").owner_id), slug="other"),
    ),
    "commit.hashes": (
        lambda b: b.set("scope_commit", _client_commit(b), command_hash=b"short"),
        lambda b: b.set("scope_commit", _client_commit(b), key=b""),
    ),
    "commit.receipts": (
        lambda b: b.set("scope_commit", _client_commit(b), receipt=None),
        lambda b: b.set("scope_commit", _client_commit(b), receipt=b"{}"),
        lambda b: b.set("scope_commit", _client_commit(b), receipt=_client_commit(b, "talk 3").receipt),
        lambda b: b.set("user_input", b.row("user_input"), origin_run_id=b.runs["big"]),
    ),
}


# `make test` takes one case of each invariant on both databases.
CASES = [
    pytest.param(name, number, marks=[pytest.mark.full] if number else [], id=f"{name}-{number}")
    for name, breakages in BREAKAGES.items()
    for number in range(len(breakages))
]
ORPHANS = {f"orphan.{one.table}.{one.column}": one for one in REFERENCES}


def test_every_invariant_is_broken_by_a_case() -> None:
    assert BREAKAGES.keys() | ORPHANS.keys() == INVARIANTS.keys()


@dataclass
class Breakable:
    """A filled database without foreign keys and checks, and ports that read from it."""

    ports: Ports
    runs: dict[str, RunId]

    @contextmanager
    def broken(self, breakage: Callable[[Broken], None]) -> Iterator[Ports]:
        """Ports that see the breakage; afterwards it has never been."""
        store = self.ports.store
        with store.driver.engine.connect() as conn:
            if store.driver.dialect == "sqlite":
                conn.exec_driver_sql("PRAGMA foreign_keys=OFF")
                conn.exec_driver_sql("PRAGMA ignore_check_constraints=ON")
            conn.exec_driver_sql("BEGIN")
            try:
                breakage(Broken(conn, self.runs))
                yield replace(self.ports, store=_BoundStore(store, conn))
            finally:
                conn.exec_driver_sql("ROLLBACK")
                conn.invalidate()


class _BoundStore(Store):
    """Reads what one uncommitted transaction sees."""

    def __init__(self, store: Store, conn: sa.Connection) -> None:
        super().__init__(store.driver, store._clock, store.url)
        self._conn = conn

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        yield self._conn

    @contextmanager
    def snapshot(self) -> Iterator[Store]:
        yield self


@pytest.fixture(scope="module")
def breakable(new_database: Callable[[], str]) -> Iterator[Breakable]:
    url = new_database()
    runs = fill_few(url)
    worker = open_audited(url, fusion=True).worker
    if worker.ports.store.driver.dialect == "postgresql":
        with worker.ports.store.read() as conn:
            guards = conn.execute(
                sa.text(
                    "SELECT CASE conrelid WHEN 0 THEN 'DOMAIN ' || contypid::regtype::text"
                    " ELSE 'TABLE ' || conrelid::regclass::text END, conname FROM pg_constraint"
                    " WHERE contype IN ('f', 'c') AND connamespace = 'public'::regnamespace"
                )
            ).all()
            for guarded, name in guards:
                conn.execute(sa.text(f'ALTER {guarded} DROP CONSTRAINT "{name}"'))
    yield Breakable(worker.ports, runs)
    worker.close()


def test_the_database_to_be_broken_is_sound(breakable: Breakable) -> None:
    assert run_audit(breakable.ports) == ()


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_broken_invariant_is_found(breakable: Breakable, name: str, number: int) -> None:
    with breakable.broken(BREAKAGES[name][number]) as ports:
        findings = run_audit(ports)
    assert name in {finding.invariant for finding in findings}
    assert all(_is_discreet(finding) for finding in findings)


def test_a_row_whose_parent_is_gone_is_found(breakable: Breakable) -> None:
    """One row of each reference, all at once: each is found by a query of its own."""

    def orphan_all(broken: Broken) -> None:
        for one in REFERENCES:
            row = broken.row(one.table, tables[one.table].c[one.column].is_not(None), last=True)
            broken.set(one.table, row, **{one.column: NOWHERE})

    with breakable.broken(orphan_all) as ports:
        findings = run_audit(ports)
    assert ORPHANS.keys() <= {finding.invariant for finding in findings}
    assert all(str(NOWHERE) in finding.detail for finding in findings if finding.invariant in ORPHANS)


@pytest.mark.full
@pytest.mark.parametrize("name", ORPHANS)
def test_a_single_row_whose_parent_is_gone_is_found(breakable: Breakable, name: str) -> None:
    one = ORPHANS[name]

    def orphan(broken: Broken) -> None:
        row = broken.row(one.table, tables[one.table].c[one.column].is_not(None))
        broken.set(one.table, row, **{one.column: NOWHERE})

    with breakable.broken(orphan) as ports:
        findings = run_audit(ports)
    assert name in {finding.invariant for finding in findings}


def _is_discreet(finding: Finding) -> bool:
    """No word of the user, of the model or of a prompt, and no name of a Python value in its place."""
    text = f"{finding.subject} {finding.detail}"
    return not any(word in text for word in ("long question", "What?", "hello", "Answer briefly", "echo: "))


def test_no_more_findings_than_asked_for(breakable: Breakable) -> None:
    with breakable.broken(BREAKAGES["context.entries"][2]) as ports:
        assert len(run_audit(ports)) > 2
        assert len(run_audit(ports, limit=2)) == 2


def test_what_the_audit_builds_is_what_a_request_is_rebuilt_to(breakable: Breakable) -> None:
    """The audit walks the records once for all requests; each one by itself gives the same."""
    rebuilt = 0
    for name in ("parallel", "big", "waiting"):
        for operation in breakable.ports.store.list_operations(breakable.runs[name]):
            if operation.request is not None:
                assert rebuild_request(breakable.ports, operation)
                rebuilt += 1
    assert rebuilt == 7
