"""Commits that meet: who delivers a batch, the order of locks, rebuilding without repeating (RULINGS T1–T4, D02)."""

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import agentloom_worker
from agentloom_worker import telemetry
from agentloom_worker.cleanup.blobs import collect_blobs
from agentloom_worker.domain.blob import blob_id_of
from agentloom_worker.domain.capability import ResultStatus, ToolResult
from agentloom_worker.domain.commit import BlobPut, Put
from agentloom_worker.domain.model import Category, Executed, Failure
from agentloom_worker.domain.operation import AttemptState, OperationKind, OperationStatus, Payload
from agentloom_worker.domain.run import Phase, RunStatus
from agentloom_worker.domain.session import DeliveryState
from agentloom_worker.errors import Code, PersistenceUnavailableError, RevisionConflictError
from agentloom_worker.ids import ClaimToken, DispatchId, ProcessId
from agentloom_worker.limits import (
    BLOB_GRACE_S,
    FUSED_TRIES,
    REBUILD_TRIES,
    STEP_BACKOFF_INITIAL_S,
    STEP_BACKOFF_MAX_S,
    STEP_FAILURES_MAX,
)
from agentloom_worker.llm.adapters.scripted import ScriptedRequest, ScriptedTurn, TextTurn
from agentloom_worker.runtime.commit import commit
from agentloom_worker.runtime.ports import Settings
from agentloom_worker.storage import blob, schema
from agentloom_worker.storage.dispatch import HOLD
from agentloom_worker.storage.driver import NotAppliedError
from agentloom_worker.storage.tables import metadata
from tests import tools
from tests.factories import python_tool
from tests.ground import STEPWISE, Ground, stand, step_commit, two_calls_then_answer
from tests.locks import Running, Session, holding, lockable, wait_for_waiters
from tests.simulator import Worker

_HOLD_RUN = "SELECT 1 FROM run WHERE run_id = %s FOR NO KEY UPDATE"
_HOLD_SESSION = "SELECT 1 FROM session WHERE session_id = %s FOR NO KEY UPDATE"
_MOVE_NODE = "UPDATE node_task SET revision = revision + 1 WHERE run_id = %s"


def _rows(ground: Ground, step: str) -> list[DispatchId]:
    return [row.dispatch_id for row in ground.store.list_dispatches(run_id=ground.run_id) if row.step == step]


@pytest.mark.parametrize("fusion", [True, False])
def test_T1_two_members_that_settle_at_once_leave_exactly_one_delivery(clean_postgres: str, *, fusion: bool) -> None:
    ground = stand(clean_postgres, until=Phase.AWAIT_BATCH)
    workers = [ground.other_worker(settings=Settings(fusion=fusion, inline_hops=0)) for _ in range(2)]
    rows = _rows(ground, "attempt_call")
    begun = len(tools.CALLS)
    with holding(clean_postgres, _HOLD_RUN, ground.run_id) as lock:
        running = [Running(worker.runner.run, row) for worker, row in zip(workers, rows, strict=True)]
        wait_for_waiters(clean_postgres, 2)
        # Both have built their commits. A step that decided by its slice whether it was the last would now have
        # decided "not last" twice, and the run would stand still with no row left but its deadline's.
        batch = ground.slice().batch
        assert batch is not None
        assert (batch.settled, batch.size) == (0, 2)
        lock.rollback()
        assert [each.result() for each in running] == [True, True]

    batch = ground.slice().batch
    assert batch is not None
    assert batch.settled == 2
    assert len(_rows(ground, "deliver_batch")) == 1
    ground.worker.drive()
    assert ground.slice().run.status is RunStatus.SUCCEEDED
    assert len(tools.CALLS) == begun + 2


def test_A8_a_fused_last_member_that_is_not_the_last_commits_its_result_alone(clean_postgres: str) -> None:
    """It read `settled = size - 1` when that was not so yet: the assertion in the statement says it."""
    ground = stand(clean_postgres, until=Phase.AWAIT_BATCH)
    slice_ = ground.slice()
    batch = slice_.batch
    assert batch is not None
    wrong = replace(batch, settled=1)
    delivered = replace(wrong, settled=2, state=type(batch.state)("delivered"))
    with pytest.raises(RevisionConflictError):
        commit(ground.ports, step_commit(ground, None, puts=(Put(wrong, delivered),)))


def _at(ground: Ground, step: str) -> DispatchId:
    ground.worker.drive(until=lambda: bool(_rows(ground, step)))
    return ground.row_of(step)


def _says_done(_request: ScriptedRequest) -> ScriptedTurn:
    return TextTurn("done")


@pytest.mark.parametrize("step", ["prepare_context", "freeze_request", "attempt_model", "finalize_run"])
def test_T2_a_commit_that_touches_inputs_or_ends_the_run_locks_the_session_before_the_run(
    clean_postgres: str, step: str
) -> None:
    """As whoever brings an input does. The other order would let the two of them wait for each other."""
    ground = stand(clean_postgres, script=_says_done)
    row = _at(ground, step)
    with holding(clean_postgres, _HOLD_SESSION, ground.session_id) as supplement:
        running = Running(ground.worker.runner.run, row)
        wait_for_waiters(clean_postgres)
        # The step waits for the session and holds nothing yet: the run is free for who has the session.
        supplement.run(_HOLD_RUN + " NOWAIT", ground.run_id)
        supplement.run("UPDATE run SET event_head = event_head WHERE run_id = %s", ground.run_id)
        supplement.commit()
        assert running.result()
    ground.worker.drive()
    assert ground.slice().run.status is RunStatus.SUCCEEDED


@pytest.mark.parametrize("step", ["accept_model", "settle_node"])
def test_T2_other_commits_leave_the_session_alone(clean_postgres: str, step: str) -> None:
    ground = stand(clean_postgres, script=_says_done)
    row = _at(ground, step)
    with holding(clean_postgres, _HOLD_SESSION, ground.session_id):
        assert Running(ground.worker.runner.run, row).result()


def test_A6_an_input_that_comes_while_a_prepare_waits_makes_it_read_again(clean_postgres: str) -> None:
    ground = stand(clean_postgres, script=_says_done)
    row = ground.row_of("prepare_context")
    rebuilds = telemetry.counters().get("rebuilds", 0)
    with holding(clean_postgres, _HOLD_RUN, ground.run_id) as supplement:
        running = Running(ground.worker.runner.run, row)
        wait_for_waiters(clean_postgres)
        supplement.run("UPDATE run SET input_head = input_head + 1 WHERE run_id = %s", ground.run_id)
        supplement.commit()
        assert running.result()
    assert telemetry.counters()["rebuilds"] == rebuilds + 1
    assert ground.slice().node.continuation.input_cutoff == 2


def test_T2_no_statement_takes_a_lock_that_inverts_the_order() -> None:
    """With foreign keys `FOR UPDATE` and `FOR SHARE` meet the locks that an insert takes on its parents."""
    forbidden = re.compile(r"\bFOR\s+(KEY\s+)?(UPDATE|SHARE)\b")
    for template in schema.TEMPLATES:
        assert not forbidden.search(template.postgres_prepare), template.name
    sources = list(Path(agentloom_worker.__file__).parent.rglob("*.py"))
    assert len(sources) > 50
    calls = []
    for path in sources:
        text = path.read_text(encoding="utf-8")
        assert not forbidden.search(text), path
        calls += re.findall(r"with_for_update\(([^)]*)\)", text)
    assert calls
    assert all("key_share=True" in call and "read=" not in call for call in calls)


def test_T4_a_commit_that_holds_its_claim_locks_the_row_and_leaves_it(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    claim = ground.claim("prepare_context")
    nowait = "SELECT 1 FROM pending_dispatch WHERE dispatch_id = %s FOR NO KEY UPDATE NOWAIT"
    with closing(Session(clean_postgres)) as session:
        session.apply(HOLD(claim.dispatch_id, claim.token), None)
        assert not lockable(clean_postgres, nowait, claim.dispatch_id)
        # A connection that is closed lets go a moment later only.
        session.rollback()
    assert lockable(clean_postgres, nowait, claim.dispatch_id)
    commit(ground.ports, step_commit(ground, claim, key=b"held", consume=False))
    assert ground.store.load_tokens([claim.dispatch_id]) == {claim.dispatch_id: claim.token}


def _parts_of(ground: Ground) -> list[str]:
    with ground.store.read() as conn:
        table = metadata.tables["scope_commit"]
        rows = conn.execute(sa.select(table.c.parts).where(table.c.scope_id == ground.run_id))
        return sorted(row[0] for row in rows)


def _disturb(worker: Worker, ground: Ground, times: int) -> None:
    """Let a row on which the step decided move on under its first commits."""
    commit_one: Callable[..., Any] = worker.ports.store.commit
    left = [times]

    def disturbed(*arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            with worker.ports.store.driver.engine.connect() as conn:
                conn.exec_driver_sql(_MOVE_NODE, (str(ground.run_id),))
        return commit_one(*arguments)

    worker.ports.store.commit = disturbed  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize(
    ("times", "parts"),
    [(0, "raw model:accept settle finalize"), (FUSED_TRIES - 1, "raw model:accept settle finalize"), (5, "raw")],
)
def test_T3_a_conflict_rebuilds_the_commit_and_never_repeats_the_effect(
    clean_postgres: str, times: int, parts: str
) -> None:
    sent: list[int] = []

    def counted(_request: ScriptedRequest) -> ScriptedTurn:
        sent.append(1)
        return TextTurn("done")

    ground = stand(clean_postgres, script=counted, until=Phase.AWAIT_MODEL)
    worker = ground.other_worker(scripts={"main": counted}, settings=Settings(fusion=True, inline_hops=0))
    _disturb(worker, ground, times)
    known = _parts_of(ground)
    assert worker.runner.run(ground.row_of("attempt_model"))

    new = list(_parts_of(ground))
    for part in known:
        new.remove(part)
    new.remove(next(part for part in new if part.startswith("first-output")))
    assert new == [parts]
    assert len(sent) == 1
    ground.worker.drive()
    run = ground.slice().run
    assert (run.status, run.loops_used) == (RunStatus.SUCCEEDED, 1)
    (operation,) = ground.store.list_operations(ground.run_id)
    assert operation.attempts_made == 1


def test_T3_a_pure_step_that_never_gets_through_backs_off_without_failing(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    worker = ground.other_worker()
    rounds = STEP_FAILURES_MAX + 2
    _disturb(worker, ground, REBUILD_TRIES * rounds)
    row = ground.row_of("prepare_context")
    contended = telemetry.counters().get("steps_contended", 0)
    for _ in range(rounds):
        assert worker.runner.run(row)

        (found,) = [held for held in ground.store.list_dispatches() if held.dispatch_id == row]
        assert (found.claimed_by, found.attempts, found.failures, found.parked_at) == (None, 0, 0, None)
        assert found.not_before > ground.clock.wall_us()
        ground.clock.advance(STEP_BACKOFF_INITIAL_S)
    assert telemetry.counters()["steps_contended"] == contended + rounds
    assert worker.runner.run(row)
    assert ground.slice().node.phase is Phase.FREEZE


def test_T3_a_conflict_with_rows_that_stand_still_is_a_failure_and_parks(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    worker = ground.other_worker()

    def refuse(*_arguments: Any) -> Any:
        raise NotAppliedError(Code.REVISION_CONFLICT, "a row that nobody moves")

    worker.ports.store.commit = refuse  # type: ignore[method-assign, assignment]
    row = ground.row_of("prepare_context")
    for failures in range(1, STEP_FAILURES_MAX + 1):
        assert worker.runner.run(row)
        (found,) = [held for held in ground.store.list_dispatches() if held.dispatch_id == row]
        assert (found.failures, found.parked_at is not None) == (failures, failures == STEP_FAILURES_MAX)
        ground.clock.advance(STEP_BACKOFF_MAX_S)


def test_D02_a_model_attempt_whose_holder_paused_is_fenced_and_its_fact_kept_once(clean_postgres: str) -> None:
    """The holder stands still for twice the TTL in the middle of its call; another goes on; then it wakes up."""
    held: list[Ground] = []
    others: list[Worker] = []

    def pauses(_request: ScriptedRequest) -> ScriptedTurn:
        ground = held[0]
        others.append(ground.other_worker(scripts={"main": _says_done}))
        ground.expire(others[0])
        # The takeover finds an intent that may have been sent, and makes another attempt (on_unknown: retry).
        others[0].drive(until=lambda: ground.slice().run.status is RunStatus.SUCCEEDED)
        return TextTurn("from the grave")

    ground = stand(clean_postgres, script=pauses, until=Phase.AWAIT_MODEL)
    held.append(ground)
    assert ground.worker.runner.run(ground.row_of("attempt_model"))

    (operation,) = ground.store.list_operations(ground.run_id)
    first, second = ground.store.list_attempts([operation.operation_id])
    assert (first.state, second.state) == (AttemptState.UNKNOWN, AttemptState.COMPLETE)
    assert first.late is not None
    assert second.late is None
    assert (operation.status, operation.raw and b"done" in (operation.raw.inline or b"")) == (
        OperationStatus.COMPLETED,
        True,
    )
    assert not ground.store.save_late(first, b'"again"')
    before = ground.slice()
    ground.worker.drive()
    assert (before.run.status, ground.slice().context) == (RunStatus.SUCCEEDED, before.context)
    (delivery,) = ground.store.list_deliveries([ground.receipt.input_id])
    assert delivery.state is DeliveryState.DELIVERED
    assert delivery.first_output_receipt == f"{operation.operation_id}/2"


def test_D02_a_call_whose_holder_paused_stays_unknown_for_the_model(
    clean_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = stand(clean_postgres, until=Phase.AWAIT_BATCH)
    row = _rows(ground, "attempt_call")[0]
    begun = len(tools.CALLS)
    invoke = ground.ports.tools

    def pauses(*arguments: Any, **options: Any) -> Any:
        result = invoke(*arguments, **options)
        other = ground.other_worker(scripts={"main": two_calls_then_answer})
        ground.expire(other)
        other.drive(until=lambda: ground.slice().run.status is RunStatus.SUCCEEDED)
        return result

    object.__setattr__(ground.ports, "tools", pauses)
    assert ground.worker.runner.run(row)

    members = [each for each in ground.store.list_operations(ground.run_id) if each.kind is OperationKind.TOOL]
    unknown, fine = members
    assert (unknown.status, unknown.executed) == (OperationStatus.UNKNOWN, Executed.UNKNOWN)
    assert fine.status is OperationStatus.COMPLETED
    (attempt,) = ground.store.list_attempts([unknown.operation_id])
    assert attempt.late is not None
    assert b"echo: a" in attempt.late
    assert len(tools.CALLS) == begun + 2
    assert ground.slice().run.status is RunStatus.SUCCEEDED


@pytest.mark.parametrize(("action", "attempts"), [("retry", [2, 1]), ("fail", [1, 1])])
def test_R10_a_call_that_a_drain_left_unknown_is_repeated_by_on_unknown_alone(
    clean_postgres: str, action: str, attempts: list[int]
) -> None:
    """A worker that leaves politely must not do worse than one that is killed (RULINGS R11)."""
    repeatable = python_tool(retry={"jitter": "none", "on_unknown": {"action": action}})
    ground = stand(clean_postgres, until=Phase.AWAIT_BATCH, tools={"echo": repeatable})
    keeper = ground.worker.keeper

    def leaves(*_arguments: Any, **_options: Any) -> ToolResult:
        keeper.drain()
        failure = Failure(Code.TOOL_CANCELLED, Category.CANCELLED, "the call was cancelled", Executed.UNKNOWN)
        return ToolResult(ResultStatus.CANCELLED, failure=failure)

    object.__setattr__(ground.ports, "tools", leaves)
    assert ground.worker.runner.run(_rows(ground, "attempt_call")[0])
    ground.other_worker().drive()

    members = [each for each in ground.store.list_operations(ground.run_id) if each.kind is OperationKind.TOOL]
    assert [member.attempts_made for member in members] == attempts
    assert members[0].executed is (Executed.EXECUTED if action == "retry" else Executed.UNKNOWN)
    assert ground.slice().run.status is RunStatus.SUCCEEDED


def test_T7_a_token_of_another_process_commits_nothing(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    claim = ground.claim("prepare_context")
    ground.expire()
    taken = ground.claim(claim.dispatch_id, ProcessId(ground.new()))
    assert taken.token != claim.token
    assert not ground.store.hand_back(claim, delay_us=0, failed=True, failures_max=1, error="mine")
    assert not ground.store.park(claim, "mine")
    assert ground.store.renew([(claim.dispatch_id, claim.token)], STEPWISE.claim_ttl_us) == set()
    assert ground.store.load_tokens([claim.dispatch_id]) == {claim.dispatch_id: ClaimToken(taken.token)}


@pytest.mark.parametrize("where", ["the reload before the commit", "the commit"])
def test_T3_the_outcome_of_a_call_waits_for_a_store_that_is_away(clean_postgres: str, where: str) -> None:
    ground = stand(clean_postgres, until=Phase.AWAIT_BATCH)
    begun, store = len(tools.CALLS), ground.ports.store
    name = "load_slice" if where.startswith("the reload") else "commit"
    real: Callable[..., Any] = getattr(store, name)
    left = [3]

    def away(*arguments: Any) -> Any:
        if left[0] and len(tools.CALLS) > begun:
            left[0] -= 1
            raise PersistenceUnavailableError("away")
        return real(*arguments)

    setattr(store, name, away)
    assert ground.worker.runner.run(_rows(ground, "attempt_call")[0])
    assert left == [0]
    assert len(tools.CALLS) == begun + 1
    assert [member.status for member in ground.slice().members] == [
        OperationStatus.COMPLETED,
        OperationStatus.ATTEMPTING,
    ]


def test_T14_a_body_that_is_put_again_while_it_is_collected_stays(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    owner_id, body = ground.slice().run.owner_id, b"left over" * 1000
    put = BlobPut(blob_id_of(owner_id, body), owner_id, body)
    ground.store.put_blob(put)
    ground.clock.advance(BLOB_GRACE_S + 1)
    again = blob.put(put.blob_id, owner_id, body, put.media_type)
    with closing(Session(clean_postgres)) as worker:
        worker.apply(again, ground.clock.database_now_us())
        collector = Running(collect_blobs, ground.ports)
        wait_for_waiters(clean_postgres)
        worker.commit()
        assert collector.result() == 0
    assert ground.store.load_payload(owner_id, Payload(blob_id=put.blob_id)) == body
