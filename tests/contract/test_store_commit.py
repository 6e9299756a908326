"""One contract for the commit, whatever the database: applied once, fenced, all or nothing."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from agentloom_worker import faults, telemetry
from agentloom_worker.domain.commit import Event, OutboxRow, Part, Put, RunFence, RunMove, RuntimeCommit
from agentloom_worker.domain.dispatch import DispatchRow, Successor
from agentloom_worker.domain.operation import AttemptState, OperationStatus
from agentloom_worker.domain.run import BatchState, CallBatch, EndCause, Phase, RunStatus, ScopeStatus, TicketState
from agentloom_worker.domain.session import DeliveryState
from agentloom_worker.errors import Code, LeaseLostError, RequestError, RevisionConflictError
from agentloom_worker.ids import BatchId, ClaimToken, DispatchId, RunId
from agentloom_worker.limits import STEP_FAILURES_MAX
from agentloom_worker.llm.adapters.scripted import ScriptedRequest, ScriptedTurn, TextTurn
from agentloom_worker.runtime.commit import commit
from agentloom_worker.runtime.parking import retry_parked
from agentloom_worker.runtime.ports import Settings
from agentloom_worker.runtime.result import hash_command
from agentloom_worker.runtime.scopes import close_scopes
from agentloom_worker.runtime.slice import Slice
from agentloom_worker.storage.driver import RefusedError
from agentloom_worker.storage.tree import write_batch
from tests.ground import Ground, ask, dump, open_session, stand, step_commit


def _full_commit(ground: Ground) -> RuntimeCommit:
    """A step's commit with something of everything: a moved row, events, a successor."""
    claim = ground.claim("attempt_model")
    node = ground.slice().node
    moved = replace(node, phase=Phase.ACCEPT, revision=node.revision + 1)
    successor = Successor("accept_model", ground.new(), "accept:once")
    return step_commit(
        ground,
        claim,
        puts=(Put(node, moved),),
        events=(Event("model.completed", (("loop", 1),)), Event("call.settled")),
        outbox=(OutboxRow(DispatchId(ground.new()), successor, "control", 1, 0),),
    )


def test_a_commit_applied_twice_gives_the_same_receipt_and_writes_nothing_twice(database_url: str) -> None:
    ground = stand(database_url, until=Phase.AWAIT_MODEL)
    todo = _full_commit(ground)
    first = commit(ground.ports, todo, ground.process_id)
    after = dump(ground.store)

    assert commit(ground.ports, todo, ground.process_id) == first
    assert first is not None
    assert dump(ground.store) == after


def test_a_commit_that_only_holds_its_claim_is_applied_once_too(database_url: str) -> None:
    ground = stand(database_url, until=Phase.AWAIT_MODEL)
    claim = ground.claim("attempt_model")
    todo = step_commit(ground, claim, key=b"first-output:x", consume=False, events=(Event("model.completed"),))
    first = commit(ground.ports, todo)
    after = dump(ground.store)

    assert commit(ground.ports, todo) == first
    assert dump(ground.store) == after


def test_the_same_question_under_the_same_key_is_one_run_and_one_receipt(database_url: str) -> None:
    ground = stand(database_url)
    after = dump(ground.store)

    assert ask(ground.worker, ground.session_id) == ground.receipt
    assert dump(ground.store) == after


def test_a_key_that_was_used_for_another_command_is_an_idempotency_conflict(database_url: str) -> None:
    ground = stand(database_url, until=Phase.AWAIT_MODEL)
    todo = _full_commit(ground)
    commit(ground.ports, todo, ground.process_id)
    after = dump(ground.store)
    other = replace(todo, parts=(Part("part:other", hash_command("other")),))

    with pytest.raises(RequestError) as refused:
        commit(ground.ports, other, ground.process_id)
    assert refused.value.code is Code.IDEMPOTENCY_CONFLICT
    with pytest.raises(RequestError) as refused:
        ask(ground.worker, ground.session_id, "another question")
    assert refused.value.code is Code.IDEMPOTENCY_CONFLICT
    assert dump(ground.store) == after


def _node(ground: Ground, slice_: Slice) -> Put:
    return Put(replace(slice_.node, revision=99), replace(slice_.node, revision=100))


def _context(ground: Ground, slice_: Slice) -> Put:
    return Put(replace(slice_.context, revision=99), replace(slice_.context, revision=100))


def _operation(ground: Ground, slice_: Slice) -> Put:
    before = slice_.operation
    assert before is not None
    return Put(replace(before, revision=99), replace(before, revision=100, status=OperationStatus.CANCELLED))


def _freeze(ground: Ground, slice_: Slice) -> Put:
    before = slice_.operation
    assert before is not None
    return Put(replace(before, revision=99, request_hash=None), replace(before, revision=100))


def _delivery(ground: Ground, slice_: Slice) -> Put:
    before = slice_.inputs[0].delivery
    return Put(replace(before, revision=99), replace(before, revision=100, state=DeliveryState.DELIVERED))


def _attempt(ground: Ground, slice_: Slice) -> Put:
    before = slice_.attempt
    assert before is not None
    missing = replace(before, attempt_no=7)
    return Put(missing, replace(missing, state=AttemptState.FAILED))


def _first_output(ground: Ground, slice_: Slice) -> Put:
    before = slice_.attempt
    assert before is not None
    missing = replace(before, attempt_no=7)
    return Put(missing, missing)


def _ticket(ground: Ground, slice_: Slice) -> Put:
    before = slice_.ticket
    assert before is not None
    missing = replace(before, loop_no=7)
    return Put(missing, replace(missing, state=TicketState.CONSUMED))


def _batch_size(ground: Ground, slice_: Slice) -> Put:
    """A batch that is settled already takes no further member."""
    batch = _inserted_batch(ground, slice_, settled=1)
    return Put(batch, replace(batch, settled=2))


def _batch_last(ground: Ground, slice_: Slice) -> Put:
    """Only the commit that makes settled equal to size may deliver (RULINGS A8)."""
    batch = _inserted_batch(ground, slice_, settled=0, size=2)
    return Put(batch, replace(batch, settled=2, state=BatchState.DELIVERED))


def _batch_deliver(ground: Ground, slice_: Slice) -> Put:
    batch = _inserted_batch(ground, slice_, settled=0)
    return Put(batch, replace(batch, state=BatchState.DELIVERED))


def _inserted_batch(ground: Ground, slice_: Slice, *, settled: int, size: int = 1) -> CallBatch:
    assert slice_.operation is not None
    batch = CallBatch(
        BatchId(ground.new()),
        ground.run_id,
        slice_.node.node_id,
        slice_.operation.operation_id,
        size,
        settled,
        BatchState.OPEN,
    )
    ground.store.apply(write_batch(None, batch))
    return batch


def _invocation(ground: Ground, slice_: Slice) -> Put:
    return _settled_scope(ground, slice_, 0)


def _graph(ground: Ground, slice_: Slice) -> Put:
    return _settled_scope(ground, slice_, 1)


def _settled_scope(ground: Ground, slice_: Slice, position: int) -> Put:
    """A scope that was settled before cannot be settled again."""
    scope = ground.store.load_scopes(slice_.node)[position]
    put = Put(scope, replace(scope, status=ScopeStatus.SETTLED))
    ground.store.commit(step_commit(ground, None, puts=(put,)), None, 0)
    assert close_scopes(ground.ports, slice_), "the other scope still runs"
    return put


STALE: dict[str, tuple[Callable[[Ground, Slice], Put], str]] = {
    "node": (_node, "node_task"),
    "context": (_context, "role_context"),
    "operation": (_operation, "operation"),
    "freeze": (_freeze, "operation"),
    "delivery": (_delivery, "user_input_delivery"),
    "attempt": (_attempt, "attempt"),
    "first_output": (_first_output, "attempt"),
    "ticket": (_ticket, "loop_ticket"),
    "batch_size": (_batch_size, "call_batch"),
    "batch_last": (_batch_last, "call_batch"),
    "batch_deliver": (_batch_deliver, "call_batch"),
    "invocation": (_invocation, "agent_invocation"),
    "graph": (_graph, "graph_execution"),
}


@pytest.mark.parametrize("kind", STALE)
def test_T1_a_stale_row_is_a_revision_conflict_that_names_it_and_writes_nothing(database_url: str, kind: str) -> None:
    ground = stand(database_url, until=Phase.AWAIT_MODEL)
    claim = ground.claim("attempt_model")
    make, entity = STALE[kind]
    put = make(ground, ground.slice())
    successor = OutboxRow(DispatchId(ground.new()), Successor("accept_model", ground.new(), "k"), "control", 1, 0)
    before = dump(ground.store)
    todo = step_commit(ground, claim, puts=(put,), events=(Event("model.completed"),), outbox=(successor,))

    with pytest.raises(RevisionConflictError) as refused:
        commit(ground.ports, todo)
    assert refused.value.entity == entity
    assert dump(ground.store) == before


@pytest.mark.parametrize("consume", [True, False])
@pytest.mark.parametrize("how", ["another token", "no row"])
def test_T4_a_lost_claim_writes_nothing(database_url: str, *, consume: bool, how: str) -> None:
    ground = stand(database_url, until=Phase.AWAIT_MODEL)
    claim = ground.claim("attempt_model")
    if how == "another token":
        claim = replace(claim, token=ClaimToken(ground.ports.ids.token()))
    else:
        claim = replace(claim, dispatch_id=DispatchId(ground.new()))
    node = ground.slice().node
    put = Put(node, replace(node, revision=node.revision + 1))
    before = dump(ground.store)

    with pytest.raises(LeaseLostError):
        commit(ground.ports, step_commit(ground, claim, consume=consume, puts=(put,), events=(Event("x"),)))
    assert dump(ground.store) == before


LIVE_MOVES = {RunStatus.QUEUED, RunStatus.RUNNING}
TERMINAL = {status for status in RunStatus if status.terminal}
ALLOWED = {
    RunMove.FENCE: LIVE_MOVES,
    RunMove.START: LIVE_MOVES,
    RunMove.STOP: LIVE_MOVES,
    RunMove.END: LIVE_MOVES | {RunStatus.STOPPING},
    RunMove.TAKE: LIVE_MOVES,
    RunMove.QUEUE: LIVE_MOVES | {RunStatus.STOPPING},
    RunMove.CLEANED: TERMINAL,
}
AFTER = {RunMove.START: RunStatus.RUNNING, RunMove.STOP: RunStatus.STOPPING, RunMove.END: RunStatus.CANCELLED}


@pytest.mark.parametrize("move", RunMove)
def test_R4_the_status_of_the_run_fences_each_move(database_url: str, move: RunMove) -> None:
    ground = stand(database_url, until=Phase.AWAIT_MODEL)
    fence = RunFence(
        ground.run_id, move, status=RunStatus.CANCELLED, cause=EndCause.STOP, code=Code.RUN_STOPPED, detail="told to"
    )
    met = {}
    for status in RunStatus:
        cause = None if status in LIVE_MOVES else EndCause.STOP
        ground.set_run(status=str(status), end_cause=cause and str(cause))
        before = dump(ground.store)
        try:
            receipt = commit(ground.ports, step_commit(ground, None, fence=fence, events=(Event("x"),)))
        except LeaseLostError:
            assert dump(ground.store) == before, f"{move} in {status} wrote something"
        else:
            assert receipt is not None
            met[status] = receipt.status
    assert met == {status: AFTER.get(move, status) for status in ALLOWED[move]}


def test_R3_a_stop_raises_the_epoch_and_the_rows_that_follow_carry_it(database_url: str) -> None:
    ground = stand(database_url, until=Phase.AWAIT_MODEL)
    fence = RunFence(ground.run_id, RunMove.STOP, cause=EndCause.STOP, code=Code.RUN_STOPPED)
    row = OutboxRow(DispatchId(ground.new()), Successor("finalize_run", ground.run_id, "finalize"), "control", 1, 0)
    receipt = commit(ground.ports, step_commit(ground, None, fence=fence, delete_run_rows=True, outbox=(row,)))

    assert receipt is not None
    assert receipt.epoch == 2
    assert [found.step for found in ground.store.list_dispatches()] == ["finalize_run"]
    assert ground.claim("finalize_run").epoch == 2


@pytest.mark.parametrize("first", [EndCause.STOP, EndCause.DEADLINE])
def test_A4_the_first_cause_that_stands_on_the_run_refuses_every_other_end(database_url: str, first: EndCause) -> None:
    ground = stand(database_url, until=Phase.AWAIT_MODEL)
    ground.set_run(status="stopping", end_cause=str(first))
    causes = {cause for cause in EndCause if cause is not first}
    before = dump(ground.store)
    for cause in causes:
        fence = RunFence(ground.run_id, RunMove.END, status=RunStatus.FAILED, cause=cause)
        with pytest.raises(LeaseLostError):
            commit(ground.ports, step_commit(ground, None, fence=fence))
    assert dump(ground.store) == before


@pytest.mark.parametrize(
    ("used", "reserved", "take", "fits"),
    [
        (1, 1, {"reserved": 1}, True),
        (2, 1, {"reserved": 1}, False),
        (3, 0, {"reserved": 1}, False),
        (2, 1, {"consumed": 1, "reserved": -1}, True),
        (3, 1, {"consumed": 1, "reserved": -1}, True),
        (3, 0, {"consumed": 1}, False),
    ],
)
def test_T2_the_loop_quota_is_asserted_under_the_lock_of_the_run(
    database_url: str, used: int, reserved: int, take: dict[str, int], *, fits: bool
) -> None:
    ground = stand(database_url)
    ground.set_run(loops_used=used, loops_reserved=reserved, max_loops=3)
    before = dump(ground.store)
    todo = step_commit(ground, None, fence=RunFence(ground.run_id, **take))  # type: ignore[arg-type]
    if fits:
        commit(ground.ports, todo)
        run = ground.store.load_run(ground.run_id)
        assert run is not None
        moved = (used + take.get("consumed", 0), reserved + take.get("reserved", 0))
        assert (run.loops_used, run.loops_reserved) == moved
    else:
        with pytest.raises(LeaseLostError):
            commit(ground.ports, todo)
        assert dump(ground.store) == before


def test_A6_an_input_that_arrived_since_the_slice_was_read_is_a_revision_conflict(database_url: str) -> None:
    ground = stand(database_url)
    seen = ground.slice().run.input_head
    commit(ground.ports, step_commit(ground, None, fence=RunFence(ground.run_id, input_head=seen)))
    ground.set_run(input_head=seen + 1)
    before = dump(ground.store)

    with pytest.raises(RevisionConflictError) as refused:
        commit(ground.ports, step_commit(ground, None, fence=RunFence(ground.run_id, input_head=seen)))
    assert refused.value.entity == "run.input_head"
    assert dump(ground.store) == before


def test_a_run_that_is_missing_refuses_every_commit(database_url: str) -> None:
    ground = stand(database_url)
    before = dump(ground.store)
    with pytest.raises(LeaseLostError):
        commit(ground.ports, step_commit(ground, None, fence=RunFence(RunId(ground.new()))))
    assert dump(ground.store) == before


def test_run_events_are_gapless_while_many_threads_commit_and_some_are_refused(database_url: str) -> None:
    ground = stand(database_url)
    node = ground.slice().node
    stale = Put(replace(node, revision=99), replace(node, revision=100))
    begin = threading.Barrier(6)
    written: list[int] = []

    def write(number: int) -> None:
        begin.wait(timeout=10)
        for turn in range(12):
            events = tuple(Event("call.settled", (("ordinal", number),)) for _ in range(1 + turn % 3))
            if turn % 4 == 3:
                with pytest.raises(RevisionConflictError):
                    commit(ground.ports, step_commit(ground, None, events=events, puts=(stale,)))
            else:
                commit(ground.ports, step_commit(ground, None, events=events))
                written.append(len(events))

    before = ground.store.list_events(ground.run_id)
    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    events = ground.store.list_events(ground.run_id)
    run = ground.store.load_run(ground.run_id)

    assert len(written) == 6 * 9
    assert [event.run_seq for event in events] == list(range(1, len(before) + sum(written) + 1))
    assert run is not None
    assert run.event_head == len(events)


_BREAK = {
    "postgresql": ("ALTER TABLE graph_execution ADD CONSTRAINT broken CHECK (status = 'running')",),
    "sqlite": (
        "CREATE TRIGGER broken BEFORE UPDATE ON graph_execution BEGIN SELECT RAISE(ABORT, 'a settled graph'); END",
    ),
}
_MEND = {"postgresql": "ALTER TABLE graph_execution DROP CONSTRAINT broken", "sqlite": "DROP TRIGGER broken"}


def test_R1_the_outcome_of_an_effect_is_committed_alone_where_the_database_refuses_its_tail(database_url: str) -> None:
    sent: list[int] = []

    def counted(_request: ScriptedRequest) -> ScriptedTurn:
        sent.append(1)
        return TextTurn("done")

    ground = stand(database_url, script=counted, settings=Settings())
    dialect = ground.store.driver.dialect
    with ground.store.driver.engine.connect() as conn:
        for statement in _BREAK[dialect]:
            conn.exec_driver_sql(statement)
    parked: Callable[[], list[DispatchRow]] = lambda: ground.store.list_dispatches(parked_only=True)  # noqa: E731
    ground.worker.drive(until=lambda: bool(parked()))

    (operation,) = ground.store.list_operations(ground.run_id)
    assert (operation.status, operation.raw is not None) == (OperationStatus.COMPLETED, True)
    (row,) = parked()
    assert (row.step, row.failures) == ("settle_node", STEP_FAILURES_MAX)
    assert "the database refused a write" in str(row.last_error)
    assert "a settled graph" not in str(row.last_error), "what a database says may quote the row"
    with ground.store.driver.engine.connect() as conn:
        conn.exec_driver_sql(_MEND[dialect])
    retry_parked(ground.ports, row.dispatch_id)
    ground.worker.drive()
    assert ground.slice().run.status is RunStatus.SUCCEEDED
    assert len(sent) == 1


def test_R1_an_outcome_that_the_database_refuses_alone_parks_its_row(database_url: str) -> None:
    ground = stand(database_url, settings=Settings())
    refused = telemetry.counters().get("commits_refused", 0)

    def refuse(*_arguments: object) -> None:
        raise RefusedError("a test")

    def trigger(point: str, _step: str) -> None:
        if point == "effect.done":
            ground.store.commit = refuse  # type: ignore[method-assign, assignment]

    faults.install(trigger)
    try:
        ground.worker.drive(until=lambda: bool(ground.store.list_dispatches(parked_only=True)))
    finally:
        faults.install(None)
    (row,) = ground.store.list_dispatches(parked_only=True)
    assert (row.step, row.attempts) == ("attempt_model", 1)
    assert telemetry.counters()["commits_refused"] == refused + 2, "fused, then alone, and no third time"


def test_U2_a_claim_that_the_database_refuses_leaves_the_row_and_the_worker(database_url: str) -> None:
    ground = stand(database_url)
    row, *_timers = ground.store.list_dispatches()

    def refuse(*_arguments: object, **_options: object) -> None:
        raise RefusedError("InsufficientPrivilege 42501")

    claim = ground.store.claim
    ground.store.claim = refuse  # type: ignore[method-assign, assignment]
    assert ground.worker.runner.run(row.dispatch_id) is False
    ground.store.claim = claim  # type: ignore[method-assign]
    ground.worker.drive()
    assert ground.slice().run.status is RunStatus.SUCCEEDED


def test_sessions_do_not_disturb_each_other(database_url: str) -> None:
    ground = stand(database_url)
    other = open_session(ground.worker)
    receipt = ask(ground.worker, other)

    assert receipt.run_id != ground.run_id
    assert (receipt.input_seq, ground.receipt.input_seq) == (1, 1)
