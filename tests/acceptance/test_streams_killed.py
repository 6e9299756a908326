"""Worker processes killed in the middle of streams over HTTP, for both protocols: kill -9, at every kind of place."""

import signal
from contextlib import ExitStack
from typing import Any

import pytest

from agentloom_worker.audit import run_audit
from agentloom_worker.domain.operation import AttemptState, OperationKind
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.ports import Ports
from tests.acceptance.harness import (
    FAST,
    answer,
    ask,
    attempts,
    dev_model,
    dispatching,
    frozen_bodies,
    http_release,
    kinds,
    operations,
    over,
    platform,
    run_of,
    wait_for,
)
from tests.acceptance.processes import worker_process
from tests.factories import python_tool

# In pieces: three of text, one that names the call, four of its arguments.
STALE = {"text": "stale words", "tool_calls": [{"name": "echo", "arguments": {"text": "stale"}}], "chunk_chars": 5}
# Where the stream stands still → after how many pieces; None: before its status line.
PLACES = {
    "before the status": None,
    "before a word": 0,
    "inside of the words": 1,
    "behind the name of a call": 4,
    "inside of its arguments": 6,
    "before the final frame": 8,
}
RETRY = {"initial_ms": 50, "jitter": "none", "on_unknown": {"action": "retry"}}


def _held(place: str) -> dict[str, Any]:
    hold = {"gate": "never"} if PLACES[place] is None else {"gate": "never", "after_chunks": PLACES[place]}
    return {"when": {"user_text_contains": place}, "first": 1, "answer": {**STALE, "hold": hold}}


def _read_as_far_as_it_goes(ports: Ports, run_id: RunId, place: str) -> bool:
    """Whether the attempt is under way, and its first output saved if there is one."""
    made = attempts(ports, run_id)
    return bool(made) and (not PLACES[place] or made[0].first_output is not None)


@pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses"])
def test_C09_D18_a_stream_whose_worker_is_killed_is_sent_again_and_nothing_of_it_is_joined(
    clean_postgres: str, protocol: str, tool_calls: list[tuple[str, object]]
) -> None:
    with (
        dev_model(*map(_held, PLACES), {"answer": {"text": "fresh"}}) as model,
        platform(clean_postgres) as ports,
    ):
        document = http_release(model, {"echo": python_tool()}, models={"main": {"protocol": protocol, "retry": RETRY}})
        with ExitStack() as workers:
            # Two threads each: together they hold all the streams.
            processes = [workers.enter_context(worker_process(clean_postgres, FAST)) for _ in range(3)]
            run_ids = {place: ask(ports, document, place) for place in PLACES}
            wait_for(lambda: len(model.requests) == len(PLACES), "every stream is open")
            for place, run_id in run_ids.items():
                wait_for(
                    lambda run_id=run_id, place=place: _read_as_far_as_it_goes(ports, run_id, place),  # type: ignore[misc]
                    f"the stream is read: {place}",
                )
            for process in processes:
                process.send_signal(signal.SIGKILL)
            assert [process.wait(30) for process in processes] == [-signal.SIGKILL] * 3
        with dispatching(clean_postgres):
            wait_for(over(ports, *run_ids.values()), "every run is over")
        for place, run_id in run_ids.items():
            run = run_of(ports, run_id)
            assert (run.status, answer(ports, run_id)) == (RunStatus.SUCCEEDED, "fresh"), place
            assert (run.loops_used, run.loops_reserved) == (1, 0), place
            first, second = attempts(ports, run_id)
            assert (first.state, second.state) == (AttemptState.UNKNOWN, AttemptState.COMPLETE), place
            assert (first.first_output is not None) is bool(PLACES[place]), place
            assert kinds(ports, run_id) == ["prompt", "user_ref", "assistant"], place
            # The calls of the stream that was killed were never anybody's.
            assert operations(ports, run_id, OperationKind.TOOL) == [], place
            (body,) = frozen_bodies(ports, run_id)
            sent = [request.arrival for request in model.requests if request.body == body]
            assert sent == [1, 2], f"the same bytes, twice: {place}"
        assert tool_calls == []
        assert run_audit(ports) == ()
