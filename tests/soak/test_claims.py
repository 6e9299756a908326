"""Claims over their full time: a long stream, a stopped worker, a step that kills whoever takes it."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agentloom_worker.audit import run_audit
from agentloom_worker.domain.dispatch import DispatchRow, WakeUp
from agentloom_worker.domain.operation import AttemptState
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.ports import Ports
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
    rows,
    run_of,
    wait_for,
)
from tests.acceptance.processes import leave, poison_folder, worker_process
from tests.factories import python_tool
from tests.fleet import open_fleet
from tests.servers import RedisServer
from tests.soak.sizes import SIZES

pytestmark = pytest.mark.soak

SOON = {"initial_ms": 50, "jitter": "none"}
CHUNKS = 100


def test_D01_a_stream_of_ten_minutes_is_one_call_one_claim_and_one_outcome_however_often_it_is_redelivered(
    clean_postgres: str, redis_server: RedisServer, redis_prefix: str, tmp_path: Path, result: Callable[..., None]
) -> None:
    pace = {"between_chunks_ms": round(SIZES.stream_s * 1000 / CHUNKS)}
    slow = {"answer": {"text": "x" * CHUNKS, "chunk_chars": 1, "delay": pace}}
    with (
        dev_model(slow) as model,
        open_fleet(
            clean_postgres, redis_server.url, tmp_path, key_prefix=redis_prefix, settings_of=SIZES.variables
        ) as fleet,
    ):
        workers = [fleet.worker(), fleet.worker()]
        ports = fleet.ports
        run_id = ask(ports, http_release(model))
        wait_for(lambda: bool(attempts(ports, run_id)) and bool(rows(ports, run_id, "attempt_model")), "it streams")
        (claimed,) = rows(ports, run_id, "attempt_model")
        held, redeliveries = _who(claimed), 0
        until_s = ports.clock.monotonic_s() + SIZES.patience_s
        while not over(ports, run_id)():
            assert ports.clock.monotonic_s() < until_s
            for row in rows(ports, run_id, "attempt_model"):
                assert _who(row) == held, (row, claimed)
                wake_ups = [WakeUp(row.dispatch_id, row.step, row.queue, 1, force=force) for force in (False, True)]
                fleet.made.publisher.wake(wake_ups)
                redeliveries += 1
            threading.Event().wait(SIZES.redelivery_s)
        (operation,) = model_operations(ports, run_id)
        (attempt,) = attempts(ports, run_id)
        assert (operation.attempts_made, attempt.state, attempt.late) == (1, AttemptState.COMPLETE, None)
        assert answer(ports, run_id) == "x" * CHUNKS
        assert [request.arrival for request in model.requests] == [1]
        assert kinds(ports, run_id).count("assistant") == 1
        wait_for(lambda: ports.store.list_dispatches() == [], "no row is left")
        assert [worker.end() for worker in workers] == [0, 0]
        assert run_audit(ports) == ()
    assert redeliveries >= 5
    result(stream_s=SIZES.stream_s, redeliveries=redeliveries, calls=1, claims=1)


def _who(row: DispatchRow) -> tuple[object, ...]:
    """Whose claim it is and which; the same while nobody else has claimed it."""
    return row.claimed_by, row.attempts, row.losses


def test_D02_a_worker_that_stood_still_for_two_lives_of_its_claim_is_fenced_and_nothing_of_it_is_seen(
    clean_postgres: str, result: Callable[..., None]
) -> None:
    held = {"first": 1, "answer": {"text": "stale", "chunk_chars": 1, "hold": {"gate": "go", "after_chunks": 2}}}
    stopped_s = SIZES.stopped_ttls * SIZES.claim_ttl_s
    with (
        dev_model(held, {"answer": {"text": "fresh"}}) as model,
        platform(clean_postgres) as ports,
        worker_process(clean_postgres, SIZES.settings) as stopped,
    ):
        run_id = ask(ports, http_release(model, models={"main": {"retry": SOON}}))
        wait_for(lambda: any(attempt.first_output for attempt in attempts(ports, run_id)), "the stream is open")
        os.kill(stopped.pid, signal.SIGSTOP)
        with dispatching(clean_postgres, settings=SIZES.settings):
            threading.Event().wait(stopped_s)
            wait_for(over(ports, run_id), "another worker has ended the run", SIZES.patience_s)
            assert answer(ports, run_id) == "fresh"
            wait_for(lambda: rows(ports, run_id) == [], "its rows are gone")
            before = (run_of(ports, run_id), events(ports, run_id), kinds(ports, run_id))
            first, second = attempts(ports, run_id)
            assert (first.state, second.state) == (AttemptState.UNKNOWN, AttemptState.COMPLETE)
            os.kill(stopped.pid, signal.SIGCONT)
            assert model.wait_until(lambda requests: requests[0].client_gone, 60), "its stream was not closed"
            wait_for(lambda: attempts(ports, run_id)[0].late is not None, "its late fact is kept on its attempt")
            counters = leave(stopped)
            fenced = counters.get("superseded", 0) + counters.get("claims_superseded", 0)
            assert fenced >= 1
            assert [replace(attempt, late=None) for attempt in attempts(ports, run_id)] == [first, second]
            assert (run_of(ports, run_id), events(ports, run_id), kinds(ports, run_id)) == before
        assert [request.arrival for request in model.requests] == [1, 2]
        assert run_audit(ports) == ()
    result(stopped_s=stopped_s, attempts=2, fenced=fenced)


def test_D05_a_step_that_kills_whoever_takes_it_is_parked_after_three_claims_and_all_other_runs_end(
    clean_postgres: str, tmp_path: Path, result: Callable[..., None]
) -> None:
    call = {"tool_calls": [{"name": "echo", "arguments": {"text": "a"}}]}
    turn = {"when": {"assistant_turns": 0, "user_text_contains": "call"}, "answer": call}
    # Each step is a row of its own: a fused one would not be loaded alone.
    settings = replace(SIZES.settings, fusion=False, inline_hops=0)
    poison = poison_folder(tmp_path, "deliver_batch")
    deaths = 0
    with dev_model(turn, {"answer": {"text": "done"}}) as model, platform(clean_postgres) as ports:
        document = http_release(model, {"echo": python_tool()})
        poisoned = ask(ports, document, "call")
        others: list[RunId] = []
        while not ports.store.list_dispatches(parked_only=True):
            assert deaths < 3, "the step killed more worker processes than it may"
            with worker_process(clean_postgres, settings, poison) as worker:
                others += [ask(ports, document, "plain") for _ in range(SIZES.other_runs // 3)]
                wait_for(
                    lambda process=worker: process.poll() is not None or _is_parked(ports),  # type: ignore[misc]
                    "the worker has died or the step is parked",
                    SIZES.patience_s,
                )
                if worker.poll() is None:
                    wait_for(over(ports, *others), "the other runs are over", SIZES.patience_s)
                    leave(worker)
                else:
                    assert worker.returncode == -signal.SIGKILL
                    deaths += 1
        (parked,) = ports.store.list_dispatches(parked_only=True)
        # Two worker processes, then a child process that did nothing else.
        assert deaths == 2
        assert (parked.run_id, parked.step, parked.attempts, parked.queue) == (poisoned, "deliver_batch", 3, "solitary")
        assert "died three times" in (parked.last_error or "")
        assert events(ports, poisoned)[-1] == "step.parked"
        assert run_of(ports, poisoned).status is RunStatus.RUNNING
        assert [answer(ports, run_id) for run_id in others] == ["done"] * len(others)
        assert run_audit(ports) == ()
    result(claims=3, others=len(others))


def _is_parked(ports: Ports) -> bool:
    return bool(ports.store.list_dispatches(parked_only=True))
