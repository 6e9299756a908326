"""A run whose rows cannot all be read ends all the same, on both databases (RULINGS R3, A3, U13, CASES D24)."""

from contextlib import closing

import pytest
import sqlalchemy as sa

from agentloom_worker.domain.model import Executed
from agentloom_worker.domain.operation import OperationStatus
from agentloom_worker.domain.run import CleanupState, Phase, Run, RunStatus
from agentloom_worker.domain.session import DeliveryState, OnBusy
from agentloom_worker.errors import Code
from agentloom_worker.ids import ReleaseId
from agentloom_worker.runtime.accept import Sending, accept_input, stop_run
from agentloom_worker.runtime.inputs import InputReceipt, InputState, list_inputs
from agentloom_worker.runtime.parking import fail_parked
from agentloom_worker.runtime.publish import publish_release
from agentloom_worker.storage.tables import metadata
from tests.acceptance.harness import at_fault
from tests.factories import release_document
from tests.ground import STEPWISE, Ground, dump, stand
from tests.simulator import Worker

ANSWERED = "an answer that is cut"
# What is damaged → the statement that damages it, how it is named, the table that must stay as it is.
DAMAGES = {
    "a continuation that is cut": ("UPDATE node_task SET continuation = {cut}", "node_task", "node_task"),
    "a continuation of tomorrow": ("UPDATE node_task SET continuation = {tomorrow}", "node_task", "node_task"),
    "no node": ("DELETE FROM node_task", "node_task (missing)", "node_task"),
    "no graph": ("DELETE FROM graph_execution", "graph_execution (missing)", "graph_execution"),
    "no invocation": ("DELETE FROM agent_invocation", "agent_invocation (missing)", "agent_invocation"),
    "no context": ("DELETE FROM role_context", "role_context (missing)", "role_context"),
    "a release that is cut": ("UPDATE release SET body = {cut}, blob_id = NULL", "release ", "release"),
    "an input that is cut": ("UPDATE user_input SET body = {cut}", "what run ", "user_input"),
    ANSWERED: ("UPDATE operation SET raw = {cut} WHERE raw IS NOT NULL", "what run ", None),
}
CUT = {"postgresql": r"'\x7b'::bytea", "sqlite": "x'7b'"}
TOMORROW = {"postgresql": "convert_to('{\"v\":2}', 'UTF8')", "sqlite": "CAST('{\"v\":2}' AS BLOB)"}


def _damage(ground: Ground, what: str) -> None:
    statement, _, _ = DAMAGES[what]
    dialect = ground.store.driver.dialect
    _execute(ground, statement.replace("{cut}", CUT[dialect]).replace("{tomorrow}", TOMORROW[dialect]))


def _execute(ground: Ground, *statements: str) -> None:
    with ground.store.driver.engine.connect() as conn:
        for statement in statements:
            conn.exec_driver_sql(statement)


def _run(ground: Ground) -> Run:
    found = ground.store.load_run(ground.run_id)
    assert found is not None
    return found


def _ends(ground: Ground, worker: Worker, what: str, *, status: RunStatus, code: str) -> Run:
    """Let it end; whatever the damage, the end is whole, and names what it left as it was."""
    _, named, table = DAMAGES[what]
    before = dump(ground.store)
    worker.drive()
    after = dump(ground.store)
    run = _run(ground)
    assert (run.status, run.end_code, run.cleanup_state) == (status, code, CleanupState.DONE)
    assert ground.store.list_dispatches(run_id=ground.run_id) == []
    assert Code.ROWS_UNREADABLE in (run.end_detail or "")
    assert named in (run.end_detail or "")
    if table is not None:
        assert after[table] == before[table], "what cannot be read is left as it is"
    kinds = [event.kind for event in ground.store.list_events(ground.run_id)]
    assert kinds[-2:] == ["run.degraded", f"run.{status}"]
    assert run.loops_reserved == 0
    return run


@pytest.mark.parametrize(
    ("phase", "what"),
    [
        *((Phase.AWAIT_MODEL, what) for what in DAMAGES if what != ANSWERED),
        *((Phase.AWAIT_BATCH, what) for what in DAMAGES),
    ],
    ids=str,
)
def test_R3_a_stop_ends_a_run_whose_rows_cannot_be_read(database_url: str, phase: Phase, what: str) -> None:
    ground = stand(database_url, until=phase)
    claimed = "attempt_model" if phase is Phase.AWAIT_MODEL else None
    if claimed:
        ground.claim(claimed)
    _damage(ground, what)
    worker = ground.other_worker()  # it has read nothing of the run before
    stop_run(worker.ports, ground.run_id)
    _ends(ground, worker, what, status=RunStatus.CANCELLED, code=Code.RUN_STOPPED)

    for operation in ground.store.list_operations(ground.run_id):
        assert operation.status.settled
    if claimed:
        (operation,) = ground.store.list_operations(ground.run_id)
        assert (operation.status, operation.executed) == (OperationStatus.UNKNOWN, Executed.UNKNOWN)
        assert _run(ground).loops_used == 1


@pytest.mark.parametrize("what", ["a continuation that is cut", "no node", "a release that is cut"])
def test_U13_failing_a_parked_step_ends_a_run_whose_rows_cannot_be_read(database_url: str, what: str) -> None:
    ground = stand(database_url, until=Phase.AWAIT_MODEL)
    _damage(ground, what)
    worker = ground.other_worker()
    worker.drive(until=lambda: bool(ground.store.list_dispatches(parked_only=True)))
    (parked,) = ground.store.list_dispatches(parked_only=True)
    assert parked.step == "attempt_model", "only the steps of an end do without rows"
    assert fail_parked(worker.ports, parked.dispatch_id).applied
    run = _ends(ground, worker, what, status=RunStatus.FAILED, code=Code.STEP_FAILED_BY_OPERATOR)
    assert (run.end_detail or "").startswith("an operator failed the parked step attempt_model; ")


def test_R3_the_deadline_ends_a_run_whose_rows_cannot_be_read(database_url: str) -> None:
    ground = stand(database_url, until=Phase.AWAIT_MODEL)
    what = "a continuation that is cut"
    _damage(ground, what)
    _ends(ground, ground.other_worker(), what, status=RunStatus.TIMED_OUT, code=Code.RUN_DEADLINE_EXCEEDED)


def test_A4_a_role_that_ended_by_itself_parks_where_its_end_cannot_be_read(database_url: str) -> None:
    """Why it ended stands in the node only: nobody may guess, an operator decides."""
    ground = stand(database_url, until=lambda ground: "finalize_run" in _steps(ground))
    _damage(ground, "a continuation that is cut")
    worker = ground.other_worker()
    worker.drive(until=lambda: bool(ground.store.list_dispatches(parked_only=True)))
    (parked,) = ground.store.list_dispatches(parked_only=True)
    assert (parked.step, _run(ground).status) == ("finalize_run", RunStatus.RUNNING)
    fail_parked(worker.ports, parked.dispatch_id)
    what = "a continuation that is cut"
    _ends(ground, worker, what, status=RunStatus.FAILED, code=Code.STEP_FAILED_BY_OPERATOR)


def _steps(ground: Ground) -> list[str]:
    return [row.step for row in ground.store.list_dispatches(run_id=ground.run_id)]


@pytest.mark.parametrize("table", ["operation", "attempt", "loop_ticket"])
def test_R3_one_row_that_cannot_be_read_costs_no_other(clean_sqlite: str, table: str) -> None:
    """Checks of the database keep such values out; what a newer version or a broken disk left has met none."""
    column = "kind" if table == "operation" else "state"
    ground = stand(clean_sqlite, until=Phase.AWAIT_MODEL)
    ground.claim("attempt_model")
    _execute(ground, "PRAGMA ignore_check_constraints = ON", f"UPDATE {table} SET {column} = 'odd'")
    worker = ground.other_worker()
    stop_run(worker.ports, ground.run_id)
    before = dump(ground.store)
    worker.drive()

    run = _run(ground)
    assert (run.status, run.cleanup_state) == (RunStatus.CANCELLED, CleanupState.DONE)
    with closing(ground.store.driver.engine.connect()) as conn:
        (node,) = conn.execute(sa.select(metadata.tables["node_task"].c.phase)).scalars()
    assert node == Phase.SETTLED.value
    assert dump(ground.store)[table] == before[table]
    if table != "loop_ticket":
        # Reserved tickets are looked for by their state; this one is none of them any more.
        assert f"{table} " in (run.end_detail or "")
    if table != "operation":
        (operation,) = ground.store.list_operations(ground.run_id)
        assert (operation.status, operation.executed) == (OperationStatus.UNKNOWN, Executed.UNKNOWN)
    if table == "operation":
        assert run.loops_used == 1, "what cannot be read may have been sent"


def test_a_run_of_whole_rows_is_salvaged_by_nobody(database_url: str) -> None:
    ground = stand(database_url, until=Phase.AWAIT_MODEL, settings=STEPWISE)
    stop_run(ground.ports, ground.run_id)
    ground.worker.drive()
    assert _run(ground).end_detail is None
    kinds = [event.kind for event in ground.store.list_events(ground.run_id)]
    assert "run.degraded" not in kinds


# -- what goes on after such an end ------------------------------------------------------------------

CUT_NODE = "a continuation that is cut"


def _say(ground: Ground, text: str, sending: Sending, release_id: ReleaseId | None = None) -> InputReceipt:
    """Send words, under the words' own key; again it tells where they are now."""
    session = ground.store.load_session(ground.session_id)
    assert session is not None
    return accept_input(ground.ports, session, sending, text, release_id, text)


def _chain(ground: Ground, receipt: InputReceipt) -> list[DeliveryState]:
    """The states of an input's deliveries, oldest first."""
    after = {one.previous_delivery_id: one for one in ground.store.list_deliveries([receipt.input_id])}
    chain, following = [], after.get(None)
    while following is not None:
        chain.append(following.state)
        following = after.get(following.delivery_id)
    return chain


def _runs(ground: Ground) -> list[Run]:
    return sorted(ground.store.list_runs(session_id=ground.session_id), key=lambda run: run.run_no)


@pytest.mark.parametrize("what", [CUT_NODE, "no node", "no graph", "no invocation", "no context"])
def test_A5_A10_what_waits_goes_on_after_a_run_whose_rows_cannot_be_read(database_url: str, what: str) -> None:
    ground = stand(database_url, until=Phase.AWAIT_BATCH, on_busy=OnBusy.ENQUEUE)
    supplements = [_say(ground, text, Sending.SUPPLEMENT) for text in ("also this", "and that")]
    questions = [_say(ground, text, Sending.QUESTION) for text in ("second?", "third?")]
    _damage(ground, what)
    worker = ground.other_worker()
    stop_run(worker.ports, ground.run_id)
    worker.drive(until=lambda: _run(ground).status.terminal)

    first, second = _runs(ground)
    assert first.status is RunStatus.CANCELLED and Code.ROWS_UNREADABLE in (first.end_detail or "")
    assert (second.status, second.run_no) == (RunStatus.QUEUED, 2)
    assert [_chain(ground, one) for one in supplements] == [[DeliveryState.CARRIED, DeliveryState.PENDING]] * 2
    now = [_say(ground, text, Sending.SUPPLEMENT) for text in ("also this", "and that")]
    assert [(one.state, one.run_id) for one in now] == [(InputState.PENDING, second.run_id)] * 2
    assert _say(ground, "second?", Sending.QUESTION).run_id == second.run_id
    assert [one.input_id for one in ground.store.list_queue(ground.session_id)] == [questions[1].input_id]
    steps = {row.step for row in ground.store.list_dispatches(run_id=second.run_id)}
    assert steps == {"prepare_context", "expire_run"}
    # Whatever becomes of the runs that follow, whose history is damaged: each ends, and the next one begins.
    for number in (2, 3):
        stop_run(worker.ports, _runs(ground)[-1].run_id)
        worker.drive()
        assert [run.run_no for run in _runs(ground)][-1] == min(3, number + 1)
    assert all(run.status.terminal for run in _runs(ground))


def test_A5_runs_that_follow_go_on_where_only_the_node_was_damaged(database_url: str) -> None:
    ground = stand(database_url, until=Phase.AWAIT_BATCH, on_busy=OnBusy.ENQUEUE)
    _say(ground, "also this", Sending.SUPPLEMENT)
    _say(ground, "second?", Sending.QUESTION)
    _damage(ground, CUT_NODE)
    worker = ground.other_worker()
    stop_run(worker.ports, ground.run_id)
    worker.drive()
    assert [run.status for run in _runs(ground)] == [RunStatus.CANCELLED, RunStatus.SUCCEEDED]
    assert _say(ground, "also this", Sending.SUPPLEMENT).state is InputState.DELIVERED
    assert _say(ground, "second?", Sending.QUESTION).state is InputState.DELIVERED


def test_A6_a_question_that_comes_while_a_run_is_salvaged_is_not_overlooked(database_url: str) -> None:
    ground = stand(database_url, until=Phase.AWAIT_BATCH, on_busy=OnBusy.ENQUEUE)
    _damage(ground, CUT_NODE)
    worker = ground.other_worker()
    stop_run(worker.ports, ground.run_id)
    with at_fault("commit.before", "finalize_run", lambda: _ask_second(ground)) as hits:
        worker.drive(until=lambda: _run(ground).status.terminal)
    second = _runs(ground)[1]
    assert len(hits) == 2, "what it wrote first was refused"
    assert _say(ground, "second?", Sending.QUESTION).run_id == second.run_id
    assert ground.store.list_queue(ground.session_id) == []


def _ask_second(ground: Ground) -> None:
    _say(ground, "second?", Sending.QUESTION)


@pytest.mark.parametrize("salvaged", [False, True])
def test_A10_a_question_whose_release_cannot_be_read_has_failed_and_the_next_one_is_taken(
    database_url: str, salvaged: bool
) -> None:
    ground = stand(database_url, until=Phase.AWAIT_BATCH, on_busy=OnBusy.ENQUEUE)
    old = _run(ground).release_id
    document = release_document(agent={"limits": {"max_loops": 9}})
    new = publish_release(ground.ports, document).release_id
    assert new != old
    _say(ground, "second?", Sending.QUESTION, new)
    _say(ground, "third?", Sending.QUESTION, old)
    _say(ground, "fourth?", Sending.QUESTION, new)
    dialect = ground.store.driver.dialect
    key = new.hex if dialect == "sqlite" else str(new)
    _execute(ground, f"UPDATE release SET body = {CUT[dialect]}, blob_id = NULL WHERE release_id = '{key}'")
    if salvaged:
        _damage(ground, CUT_NODE)
    worker = ground.other_worker()
    stop_run(worker.ports, ground.run_id)
    worker.drive()

    first, third = _runs(ground)
    assert (first.status, third.status) == (RunStatus.CANCELLED, RunStatus.SUCCEEDED)
    assert (Code.ROWS_UNREADABLE in (first.end_detail or "")) is salvaged
    assert _say(ground, "third?", Sending.QUESTION, old).state is InputState.DELIVERED
    for run, text in ((first, "second?"), (third, "fourth?")):
        failed = _say(ground, text, Sending.QUESTION, new)
        assert (failed.state, failed.run_id, failed.code) == (InputState.FAILED, None, Code.RELEASE_UNREADABLE)
        (told,) = [one for one in ground.store.list_events(run.run_id) if one.kind == "question.failed"]
        assert told.fields == {"code": Code.RELEASE_UNREADABLE, "input": str(failed.input_id)}
    assert ground.store.list_dispatches() == []
    session = ground.store.load_session(ground.session_id)
    assert session is not None
    views = list_inputs(ground.ports, session, after=0, limit=10)
    assert [one.code for one in views] == [None, Code.RELEASE_UNREADABLE, None, Code.RELEASE_UNREADABLE]
    # The session takes the next question as ever.
    assert _say(ground, "fifth?", Sending.QUESTION, old).run_id is not None


def test_A5_a_supplement_whose_row_cannot_be_read_is_named_and_the_others_go_on(clean_sqlite: str) -> None:
    ground = stand(clean_sqlite, until=Phase.AWAIT_BATCH)
    texts = ("one", "two", "three")
    receipts = [_say(ground, text, Sending.SUPPLEMENT) for text in texts]
    odd = receipts[1].input_id.hex
    _execute(
        ground, "PRAGMA ignore_check_constraints = ON", f"UPDATE user_input SET kind = 'odd' WHERE input_id = '{odd}'"
    )
    worker = ground.other_worker()
    stop_run(worker.ports, ground.run_id)
    worker.drive()
    run = _run(ground)
    assert (run.status, run.cleanup_state) == (RunStatus.CANCELLED, CleanupState.DONE)
    assert "user_input " in (run.end_detail or "")
    carried = [DeliveryState.CARRIED, DeliveryState.PENDING]
    assert [_chain(ground, one) for one in receipts] == [carried, [DeliveryState.PENDING], carried]
