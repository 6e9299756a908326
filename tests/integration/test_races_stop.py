"""A stop or a deadline against whatever a run is doing: one end, the first cause wins (RULINGS R2, R3, A3, A4)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from agentloom_worker import faults, telemetry
from agentloom_worker.cancellation import CancelReason
from agentloom_worker.domain.model import Category, Executed, Failure
from agentloom_worker.domain.operation import AttemptState, OperationStatus
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.domain.run import CleanupState, EndCause, Phase, RunStatus
from agentloom_worker.domain.session import DeliveryState
from agentloom_worker.errors import Code
from agentloom_worker.ids import ProcessId
from agentloom_worker.llm.adapters.scripted import FailureTurn, ScriptedRequest, ScriptedTurn, StallTurn, TextTurn
from agentloom_worker.runtime.accept import StopReceipt, stop_run
from agentloom_worker.runtime.ports import Settings
from agentloom_worker.storage.dispatch import CLAIM
from agentloom_worker.storage.driver import NotAppliedError
from tests import tools
from tests.ground import STEPWISE, Ground, stand
from tests.locks import Running, Session, holding, wait_for_waiters

_HOLD_RUN = "SELECT 1 FROM run WHERE run_id = %s FOR NO KEY UPDATE"
_TERMINAL = {f"run.{status}" for status in RunStatus if status.terminal}


@pytest.fixture
def at_point() -> Iterator[dict[str, object]]:
    """Calls to make, once each, when execution reaches a fault point."""
    calls: dict[str, object] = {}

    def reached(point: str, _step: str) -> None:
        call = calls.pop(point, None)
        if callable(call):
            call()

    faults.install(reached)
    yield calls
    faults.install(None)


def _in_order(ground: Ground, *calls: object) -> list[object]:
    """Let calls queue up for the run's lock in this order, then let them have it; their results or errors."""
    with holding(ground.store.url, _HOLD_RUN, ground.run_id) as lock:
        running = []
        for number, call in enumerate(calls, 1):
            assert callable(call)
            running.append(Running(call))
            wait_for_waiters(ground.store.url, number)
        lock.rollback()
        return [each.result() for each in running]


def _finish(ground: Ground) -> None:
    """Let the run end, and check what holds for every end."""
    ground.worker.drive()
    kinds = [event.kind for event in ground.store.list_events(ground.run_id)]
    assert len([kind for kind in kinds if kind in _TERMINAL]) == 1
    run = ground.slice().run
    assert run.cleanup_state is CleanupState.DONE
    assert ground.store.list_dispatches(run_id=ground.run_id) == []
    for operation in ground.store.list_operations(ground.run_id):
        assert operation.status.settled
    assert (run.loops_reserved, ground.slice().node.phase) == (0, Phase.SETTLED)


def _answered(ground: Ground) -> bool:
    return any(row.step == "finalize_run" for row in ground.store.list_dispatches(run_id=ground.run_id))


def _says_done(_request: ScriptedRequest) -> ScriptedTurn:
    return TextTurn("done")


@pytest.mark.parametrize("first", ["stop", "finalize"])
def test_A4_of_a_stop_and_a_finalize_the_first_one_under_the_lock_decides(clean_postgres: str, first: str) -> None:
    ground = stand(clean_postgres, script=_says_done, until=_answered)
    row = ground.row_of("finalize_run")
    calls = [lambda: stop_run(ground.ports, ground.run_id), lambda: ground.worker.runner.run(row)]
    results = _in_order(ground, *(calls if first == "stop" else reversed(calls)))
    (receipt,) = [result for result in results if isinstance(result, StopReceipt)]
    _finish(ground)

    run = ground.slice().run
    if first == "stop":
        assert (receipt.applied, run.status, run.end_code) == (True, RunStatus.CANCELLED, Code.RUN_STOPPED)
        assert run.answer_operation_id is None
    else:
        assert (receipt.applied, receipt.status) == (False, "succeeded")
        assert (run.status, run.end_cause) == (RunStatus.SUCCEEDED, EndCause.ANSWER)


@pytest.mark.parametrize("first", ["stop", "deadline"])
def test_R3_of_a_stop_and_a_deadline_the_first_cause_stands(clean_postgres: str, first: str) -> None:
    ground = stand(clean_postgres, until=Phase.AWAIT_MODEL)
    ground.clock.advance_to(ground.slice().run.deadline_at + 1)
    row = ground.row_of("expire_run")
    other = ground.other_worker()
    calls = [lambda: stop_run(ground.ports, ground.run_id), lambda: other.runner.run(row)]
    _in_order(ground, *(calls if first == "stop" else reversed(calls)))
    stopped_again = stop_run(ground.ports, ground.run_id)
    _finish(ground)

    run = ground.slice().run
    expected = {
        "stop": (RunStatus.CANCELLED, EndCause.STOP, Code.RUN_STOPPED),
        "deadline": (RunStatus.TIMED_OUT, EndCause.DEADLINE, Code.RUN_DEADLINE_EXCEEDED),
    }[first]
    assert (run.status, run.end_cause, run.end_code) == expected
    assert (stopped_again.applied, stopped_again.end_cause) == (False, expected[1])
    assert run.epoch == 2


@pytest.mark.parametrize("first", ["stop", "settle"])
def test_R3_a_stop_against_the_settling_of_a_call(clean_postgres: str, first: str) -> None:
    ground = stand(clean_postgres, until=Phase.AWAIT_BATCH)
    rows = [row.dispatch_id for row in ground.store.list_dispatches() if row.step == "attempt_call"]
    begun = len(tools.CALLS)
    calls = [lambda: stop_run(ground.ports, ground.run_id), lambda: ground.worker.runner.run(rows[0])]
    _in_order(ground, *(calls if first == "stop" else reversed(calls)))
    _finish(ground)

    members = ground.slice().members
    made = ground.store.list_attempts([member.operation_id for member in members])
    attempts = {attempt.operation_id: attempt for attempt in made}
    assert len(tools.CALLS) == begun + 1
    (acted,) = [member for member in members if member.executed is not Executed.NOT_EXECUTED]
    (idle,) = [member for member in members if member is not acted]
    assert idle.status is OperationStatus.CANCELLED
    if first == "stop":
        # It acted and its commit came too late: unknown, with what it brought as a late fact.
        assert (acted.status, acted.executed, acted.raw) == (OperationStatus.UNKNOWN, Executed.UNKNOWN, None)
        assert attempts[acted.operation_id].late is not None
        assert attempts[acted.operation_id].state is AttemptState.UNKNOWN
    else:
        assert (acted.status, acted.executed) == (OperationStatus.COMPLETED, Executed.EXECUTED)
        assert attempts[acted.operation_id].late is None
    assert ground.slice().run.status is RunStatus.CANCELLED


def test_R3_a_stop_sees_the_claim_that_is_just_being_made(clean_postgres: str) -> None:
    """Else a request that left would be reported as never sent, and its ticket given back."""
    ground = stand(clean_postgres, until=Phase.AWAIT_MODEL)
    row = ground.row_of("attempt_model")
    with holding(clean_postgres, "SELECT 1") as claimer:
        _claim_in(claimer, ground, row)
        stop = Running(stop_run, ground.ports, ground.run_id)
        wait_for_waiters(clean_postgres)
        claimer.commit()
        assert stop.result().applied
    operation = ground.slice().operation
    assert operation is not None
    (attempt,) = ground.store.list_attempts([operation.operation_id])
    assert attempt.maybe_sent
    _finish(ground)
    operation = ground.store.load_operation(operation.operation_id)
    assert operation is not None
    assert (operation.status, operation.executed) == (OperationStatus.UNKNOWN, Executed.UNKNOWN)
    assert ground.slice().run.loops_used == 1


def _claim_in(session: Session, ground: Ground, row: object) -> None:
    """The very statement of a claim, in a transaction that stays open."""
    statement = CLAIM(row, ground.new(), ground.new(), STEPWISE.claim_ttl_us, STEPWISE.grace_us, False, 2)
    assert len(session.apply(statement, ground.clock.database_now_us())) == 1


def test_R3_a_step_whose_commit_was_answered_after_a_stop_does_not_go_on_inline(clean_postgres: str) -> None:
    """Its answer is lost, the run is stopped, and the repetition is told by the key that it was applied."""
    ground = stand(clean_postgres, until=Phase.AWAIT_MODEL)
    worker = ground.other_worker(settings=Settings(fusion=False), solitary=False)
    begun, store = len(tools.CALLS), worker.ports.store
    applied = store.commit

    def stopped_meanwhile(*arguments: Any) -> Any:
        receipt = applied(*arguments)
        if any(row.step == "attempt_call" for row in ground.store.list_dispatches(run_id=ground.run_id)):
            store.commit = applied  # type: ignore[method-assign]
            assert stop_run(ground.ports, ground.run_id).applied
            raise NotAppliedError(Code.LEASE_LOST, "pending_dispatch")
        return receipt

    store.commit = stopped_meanwhile  # type: ignore[method-assign, assignment]
    assert worker.runner.run(ground.row_of("attempt_model"))
    assert store.commit == applied
    assert len(tools.CALLS) == begun
    _finish(ground)
    assert ground.slice().run.status is RunStatus.CANCELLED


def test_R3_a_row_that_nobody_claimed_was_not_sent(clean_postgres: str) -> None:
    ground = stand(clean_postgres, until=Phase.AWAIT_MODEL)
    assert stop_run(ground.ports, ground.run_id).applied
    _finish(ground)
    (operation,) = ground.store.list_operations(ground.run_id)
    assert (operation.status, operation.executed) == (OperationStatus.CANCELLED, Executed.NOT_EXECUTED)
    assert ground.slice().run.loops_used == 0


def test_R3_a_stop_deletes_parked_rows_and_keeps_what_they_may_have_sent(clean_postgres: str) -> None:
    ground = stand(clean_postgres, until=Phase.AWAIT_MODEL)
    ground.store.park(ground.claim("attempt_model", ProcessId(ground.new())), "it broke")
    assert stop_run(ground.ports, ground.run_id).applied
    _finish(ground)
    (operation,) = ground.store.list_operations(ground.run_id)
    assert (operation.status, operation.executed) == (OperationStatus.UNKNOWN, Executed.UNKNOWN)


def test_R3_after_a_stop_the_first_output_does_not_deliver_the_question(clean_postgres: str) -> None:
    held: list[Ground] = []

    def stops_itself(_request: ScriptedRequest) -> ScriptedTurn:
        stop_run(held[0].ports, held[0].run_id)
        return TextTurn("too late")

    ground = stand(clean_postgres, script=stops_itself, until=Phase.AWAIT_MODEL)
    held.append(ground)
    assert ground.worker.runner.run(ground.row_of("attempt_model"))
    _finish(ground)

    (pending,) = ground.slice().inputs
    assert (pending.delivery.state, pending.delivery.target_run_id) == (DeliveryState.CLAIMED, ground.run_id)
    (operation,) = ground.store.list_operations(ground.run_id)
    (attempt,) = ground.store.list_attempts([operation.operation_id])
    assert (operation.status, operation.raw) == (OperationStatus.UNKNOWN, None)
    assert attempt.late is not None
    assert ground.slice().run.status is RunStatus.CANCELLED


def test_R2_a_question_that_was_delivered_before_the_stop_stays_delivered(
    clean_postgres: str, at_point: dict[str, object]
) -> None:
    ground = stand(clean_postgres, script=lambda _request: StallTurn("half an ans"), until=Phase.AWAIT_MODEL)

    def stop() -> None:
        assert stop_run(ground.ports, ground.run_id).applied
        ground.worker.keeper.poll_control()

    at_point["first_output.saved"] = stop
    assert ground.worker.runner.run(ground.row_of("attempt_model"))
    _finish(ground)

    (delivery,) = ground.store.list_deliveries([ground.receipt.input_id])
    assert delivery.state is DeliveryState.DELIVERED
    (operation,) = ground.store.list_operations(ground.run_id)
    (attempt,) = ground.store.list_attempts([operation.operation_id])
    assert attempt.late is not None
    assert b"half an ans" in attempt.late
    assert ground.slice().run.answer_operation_id is None


def test_A20_a_stop_during_a_retry_wait_sends_nothing_more(clean_postgres: str) -> None:
    sent: list[int] = []

    def busy(_request: ScriptedRequest) -> ScriptedTurn:
        sent.append(1)
        failure = Failure(
            Code.MODEL_RATE_LIMITED, Category.RATE_LIMIT, "busy", Executed.NOT_EXECUTED, RetryClass.RATE_LIMIT
        )
        return FailureTurn(replace(failure, retry_after_ms=30_000))

    ground = stand(clean_postgres, script=busy, until=lambda ground: bool(sent))
    row = ground.row_of("attempt_model")
    assert not ground.worker.runner.run(row), "it is not due yet"
    assert stop_run(ground.ports, ground.run_id).applied
    ground.clock.advance(60)
    assert not ground.worker.runner.run(row)
    _finish(ground)

    assert len(sent) == 1
    (operation,) = ground.store.list_operations(ground.run_id)
    assert (operation.status, operation.executed) == (OperationStatus.CANCELLED, Executed.NOT_EXECUTED)
    states = [attempt.state for attempt in ground.store.list_attempts([operation.operation_id])]
    assert states == [AttemptState.FAILED, AttemptState.CANCELLED]
    assert ground.slice().run.loops_used == 0


def test_R3_a_late_fact_is_kept_once(clean_postgres: str) -> None:
    ground = stand(clean_postgres, until=Phase.AWAIT_MODEL)
    attempt = ground.slice().attempt
    assert attempt is not None
    repeated = telemetry.counters().get("late_facts_repeated", 0)
    assert ground.store.save_late(attempt, b'"first"')
    assert not ground.store.save_late(attempt, b'"second"')
    (stored,) = ground.store.list_attempts([attempt.operation_id])
    assert stored.late == b'"first"'
    assert telemetry.counters().get("late_facts_repeated", 0) == repeated


def test_T9_the_control_poll_cancels_a_stopped_runs_steps_and_not_those_of_its_end(clean_postgres: str) -> None:
    ground = stand(clean_postgres, until=Phase.AWAIT_MODEL)
    keeper = ground.worker.keeper
    old = keeper.hold(ground.claim("attempt_model"), 0.0)
    other = stand(clean_postgres, clock=ground.clock)
    alien = keeper.hold(other.claim("prepare_context"), 0.0)
    keeper.poll_control()
    assert not old.cancellation.cancelled

    stop_run(ground.ports, ground.run_id)
    ending = keeper.hold(ground.claim("finalize_run"), 0.0)
    keeper.poll_control()
    assert old.cancellation.reason is CancelReason.STOP
    assert not ending.cancellation.cancelled
    assert not alien.cancellation.cancelled
