"""Real processes and a real server: stopped, killed, restarted. Times are short by setting; rows are what is read."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from agentloom_worker.domain.operation import AttemptState
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.storage.schema import migrate
from tests.acceptance.harness import (
    FAST,
    answer,
    ask,
    assert_paired,
    attempts,
    dev_model,
    dispatching,
    events,
    execute,
    frozen_requests,
    http_release,
    kinds,
    over,
    platform,
    rows,
    run_of,
    wait_for,
)
from tests.acceptance.processes import ask_at_last, leave, over_at_last, poison_folder, worker_process
from tests.factories import python_tool
from tests.servers import PostgresServer

ONE_BY_ONE = replace(FAST, fusion=False, inline_hops=0)
SOON = {"initial_ms": 50, "jitter": "none"}
ECHO = {"echo": python_tool()}
CALL = {"when": {"assistant_turns": 0, "user_text_contains": "call"}, "answer": {"tool_calls": [
    {"name": "echo", "arguments": {"text": "a"}}
]}}  # fmt: skip


@pytest.mark.parametrize("meanwhile", ["the stream stays open", "the answer arrives"])
def test_D02_a_worker_that_was_stopped_for_longer_than_its_claim_is_fenced_and_nothing_of_it_is_seen(
    clean_postgres: str, meanwhile: str
) -> None:
    held = {"first": 1, "answer": {"text": "stale", "chunk_chars": 1, "hold": {"gate": "go", "after_chunks": 2}}}
    with dev_model(held, {"answer": {"text": "fresh"}}) as model, platform(clean_postgres) as ports:
        with worker_process(clean_postgres, FAST) as stopped:
            run_id = ask(ports, http_release(model, models={"main": {"retry": SOON}}))
            wait_for(lambda: bool(attempts(ports, run_id)) and _has_first_output(ports, run_id), "the stream is open")
            os.kill(stopped.pid, signal.SIGSTOP)
            with dispatching(clean_postgres) as other:
                wait_for(over(ports, run_id), "another worker has ended the run")
                wait_for(lambda: not rows(ports, run_id), "the run is cleaned up")
                assert answer(ports, run_id) == "fresh"
                if meanwhile == "the answer arrives":
                    model.open_gate("go")
                before = (run_of(ports, run_id), events(ports, run_id), kinds(ports, run_id), rows(ports, run_id))
                first, second = attempts(ports, run_id)
                assert (first.state, second.state) == (AttemptState.UNKNOWN, AttemptState.COMPLETE)
                os.kill(stopped.pid, signal.SIGCONT)
                if meanwhile == "the stream stays open":
                    assert model.wait_until(lambda requests: requests[0].client_gone, 30), "its stream was not closed"
                wait_for(lambda: attempts(ports, run_id)[0].late is not None, "its late fact is kept on its attempt")
                counters = leave(stopped)
                # It hears it from its keeper, or from the commit that refuses it: whichever comes first.
                fenced = ("superseded", "claims_superseded", "commits_fenced")
                assert sum(counters.get(name, 0) for name in fenced) >= 1
                late = attempts(ports, run_id)
                # What it had received is kept with that fact, and nowhere else.
                assert [replace(late[0], late=None, transport=None), *late[1:]] == [first, second]
                after = (run_of(ports, run_id), events(ports, run_id), kinds(ports, run_id), rows(ports, run_id))
                assert after == before
                del other
        assert [request.arrival for request in model.requests] == [1, 2]


def _has_first_output(ports: Ports, run_id: RunId) -> bool:
    return attempts(ports, run_id)[0].first_output is not None


def test_D05_a_step_that_kills_its_process_is_parked_after_three_claims_and_other_runs_go_on(
    database_url: str, tmp_path: Path
) -> None:
    poison = poison_folder(tmp_path, "deliver_batch")
    with dev_model(CALL, {"answer": {"text": "done"}}) as model, platform(database_url) as ports:
        document = http_release(model, ECHO)
        others = [ask(ports, document, "plain") for _ in range(2)]
        poisoned = ask(ports, document, "call")
        deaths = 0
        while not ports.store.list_dispatches(parked_only=True):
            assert deaths < 3, "the step killed more worker processes than it may"
            with worker_process(database_url, ONE_BY_ONE, poison) as worker:
                others.append(ask(ports, document, "plain"))
                wait_for(
                    lambda process=worker: (
                        process.poll() is not None  # type: ignore[misc]
                        or bool(ports.store.list_dispatches(parked_only=True))
                    ),
                    "the worker has died or the step is parked",
                )
                if worker.poll() is None:
                    wait_for(over(ports, *others), "the other runs are over")
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


def test_D05_a_parent_that_leaves_costs_the_step_alone_in_its_child_no_life(database_url: str) -> None:
    held = {"first": 1, "answer": {"text": "held", "hold": {"gate": "never", "after_chunks": 1}}}
    with dev_model(held, {"answer": {"text": "done"}}) as model, platform(database_url) as ports:
        run_id = ask(ports, http_release(model))
        with dispatching(database_url, settings=replace(ONE_BY_ONE, queues=("control",))):
            wait_for(lambda: bool(rows(ports, run_id, "attempt_model")), "the request is frozen")
        moved = "UPDATE pending_dispatch SET queue = 'solitary', losses = 2 WHERE step = 'attempt_model'"
        assert execute(ports, moved) == 1
        with dispatching(database_url, settings=ONE_BY_ONE):
            wait_for(lambda: attempts(ports, run_id)[0].first_output is not None, "the child has an open stream")
        wait_for(lambda: len(attempts(ports, run_id)) == 2, "the child has ended its attempt")
        assert (attempts(ports, run_id)[0].state, attempts(ports, run_id)[0].reason) == (
            AttemptState.CANCELLED,
            "drain",
        )
        assert model.wait_until(lambda requests: requests[0].client_gone, 30), "its stream was not closed"
        with dispatching(database_url, settings=ONE_BY_ONE):
            wait_for(over(ports, run_id), "the run is over")
        assert answer(ports, run_id) == "done"
        assert ports.store.list_dispatches(parked_only=True) == []


def test_D11_no_run_is_left_behind_when_the_database_restarts_again_and_again(
    own_postgres_server: PostgresServer,
) -> None:
    url = own_postgres_server.create_database()
    migrate(url)
    loops, more, restarts = 3, 4, 4
    retry = {**SOON, "max_attempts": 50, "on_unknown": {"action": "retry", "max": 50}}
    call = {"tool_calls": [{"name": "echo", "arguments": {"text": "{{assistant_turns}}"}}]}
    turns = {"when": {"assistant_turns": {"max": loops - 1}}, "answer": call}, {"answer": {"text": "done"}}
    settings = replace(FAST, claim_ttl_s=2.0, suspect_grace_s=0.5)
    with (
        dev_model(*turns, delay={"first_chunk_ms": 50}) as model,
        dispatching(url, settings=settings, threads=3) as dispatcher,
    ):
        ports = dispatcher.ports
        document = http_release(model, ECHO, models={"main": {"retry": retry}}, retry={"tools": retry})
        run_ids: list[RunId] = []
        for _ in range(restarts):
            run_ids += [ask_at_last(ports, document) for _ in range(more)]
            reached = len(model.requests) + more
            assert model.wait_until(lambda requests, count=reached: len(requests) >= count, 60)  # type: ignore[misc]
            own_postgres_server.restart_immediate()
        wait_for(lambda: over_at_last(ports, run_ids), "every run is over", timeout_s=120)
        for run_id in run_ids:
            run = run_of(ports, run_id)
            assert (run.status, answer(ports, run_id)) == (RunStatus.SUCCEEDED, "done")
            assert (run.loops_used, run.loops_reserved) == (loops + 1, 0)
            assert kinds(ports, run_id) == ["prompt", "user_ref", *["assistant", "tool_result"] * loops, "assistant"]
            events(ports, run_id)
            for request in frozen_requests(ports, run_id):
                assert_paired(request)
        wait_for(lambda: ports.store.list_dispatches() == [], "no row is left", timeout_s=60)
