"""Stopping a run: while its stream is open, and before anything of it has begun."""

from agentloom_worker.domain.model import Executed
from agentloom_worker.domain.operation import AttemptState, OperationStatus
from agentloom_worker.domain.run import EndCause, RunStatus
from agentloom_worker.errors import Code
from agentloom_worker.runtime.accept import stop_run
from tests.acceptance.harness import (
    answer,
    ask,
    attempts,
    dev_model,
    dispatching,
    events,
    http_release,
    kinds,
    model_operations,
    over,
    platform,
    query,
    rows,
    run_of,
    simulated,
    wait_for,
)

HELD = {
    "when": {"user_text_contains": "slow"},
    "answer": {"text": "never to be seen", "chunk_chars": 1, "hold": {"gate": "never", "after_chunks": 3}},
}
ENDED = ["run.accepted", "run.started", "run.stopping", "run.cancelled"]


def test_D17_a_stop_closes_the_stream_frees_the_slot_and_survives_a_restart_of_everything(database_url: str) -> None:
    with dev_model(HELD, {"answer": {"text": "quick"}}) as model:
        with dispatching(database_url, threads=1) as dispatcher:
            ports = dispatcher.ports
            document = http_release(model)
            run_id = ask(ports, document, "slow")
            wait_for(
                lambda: bool(attempts(ports, run_id)) and attempts(ports, run_id)[0].first_output is not None,
                "the stream has brought its first output",
            )
            # Waits for the only slot.
            other = ask(ports, document, "quick")
            receipt = stop_run(ports, run_id)
            assert (receipt.applied, receipt.end_cause) == (True, EndCause.STOP)
            assert not stop_run(ports, run_id).applied
            assert model.wait_until(lambda requests: requests[0].client_gone, 30), "its stream was not closed"
            wait_for(over(ports, run_id, other), "the stopped run has ended and its slot has run another")
            assert answer(ports, other) == "quick"
            wait_for(lambda: attempts(ports, run_id)[0].late is not None, "what it had brought is kept on its attempt")
            wait_for(lambda: rows(ports, run_id) == [], "its cleanup is over")
        with dispatching(database_url, threads=1) as restarted:
            ports = restarted.ports
            third = ask(ports, document, "quick again")
            wait_for(over(ports, third), "a run of the restarted process is over")
            run = run_of(ports, run_id)
            assert (run.status, run.end_code) == (RunStatus.CANCELLED, Code.RUN_STOPPED)
            assert run.answer_operation_id is None
            assert events(ports, run_id) == ENDED
            assert kinds(ports, run_id) == ["prompt", "user_ref"]
            (attempt,) = attempts(ports, run_id)
            assert attempt.state is AttemptState.UNKNOWN
            (operation,) = model_operations(ports, run_id)
            assert (operation.status, operation.executed) == (OperationStatus.UNKNOWN, Executed.UNKNOWN)
            assert operation.raw is None
            assert (run.loops_used, run.loops_reserved) == (1, 0)
        assert len(model.requests) == 3


def test_D17_a_queued_run_is_cancelled_by_its_row_alone(database_url: str) -> None:
    with dev_model(HELD, {"answer": {"text": "quick"}}) as model, simulated(database_url) as worker:
        # Whoever stops has no dispatcher and tells nobody; a later process finds the row.
        with platform(database_url) as ports:
            run_id = ask(worker.ports, http_release(model), "slow")
            assert run_of(ports, run_id).status is RunStatus.QUEUED
            receipt = stop_run(ports, run_id)
            assert (receipt.applied, receipt.status) == (True, RunStatus.STOPPING)
            (row,) = rows(ports, run_id)
            assert (row.step, row.attempts) == ("finalize_run", 0)
        worker.clock.advance_to(row.wake_at)
        worker.drive()
        run = run_of(worker.ports, run_id)
        assert (run.status, run.end_code) == (RunStatus.CANCELLED, Code.RUN_STOPPED)
        assert events(worker.ports, run_id) == ["run.accepted", "run.stopping", "run.cancelled"]
        assert kinds(worker.ports, run_id) == []
        assert (run.loops_used, run.loops_reserved) == (0, 0)
        assert model_operations(worker.ports, run_id) == []
        found = query(worker.ports, "SELECT state FROM user_input_delivery WHERE target_run_id = :run", run=run_id)
        assert [one[0] for one in found] == ["pending"]
        assert model.requests == ()


def test_D17_a_stop_while_a_retry_waits_ends_the_run_and_nothing_is_sent_again(database_url: str) -> None:
    busy = {"answer": {"http_error": {"status": 503, "headers": {"Retry-After": "60"}}}}
    with dev_model(busy) as model, simulated(database_url) as worker:
        ports = worker.ports
        run_id = ask(ports, http_release(model))
        worker.drive(until=lambda: len(attempts(ports, run_id)) == 2)
        assert stop_run(ports, run_id).applied
        worker.drive()
        assert run_of(ports, run_id).status is RunStatus.CANCELLED
        first, second = attempts(ports, run_id)
        assert (first.state, second.state) == (AttemptState.FAILED, AttemptState.CANCELLED)
        assert len(model.requests) == 1
        assert events(ports, run_id) == [*ENDED[:2], "attempt.retrying", *ENDED[2:]]
