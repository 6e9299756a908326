"""What every part runs: runs of N loops, each loop one model call with one tool call, messages of about 600 B."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from agentloom_worker.bootstrap import make_ports
from agentloom_worker.domain.dispatch import WakeUp
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.ids import DispatchId, RunId, SessionId
from agentloom_worker.llm.adapters.scripted import CallsTurn, ScriptedCall, ScriptedRequest, TextTurn
from agentloom_worker.llm.adapters.scripted import Script as InProcessScript
from agentloom_worker.runtime.accept import accept_question
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.publish import publish_release

MESSAGE_BYTES = 600
# A message's fragment is about 40 bytes of JSON and this text.
TEXT = "x" * (MESSAGE_BYTES - 40)
ARGUMENTS = f'{{"text":"{TEXT}"}}'
MODEL_CHUNK_CHARS = 200
FINISH_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Load:
    """So many runs at once, of so many loops each."""

    runs: int
    loops: int

    @property
    def loops_total(self) -> int:
        """Loops of all runs together."""
        return self.runs * self.loops


def in_process_script(loops: int) -> InProcessScript:
    """A model that costs nothing: calls the tool in every loop but the last."""

    def answer(request: ScriptedRequest) -> CallsTurn | TextTurn:
        loop = (request.message_count - 2) // 2
        if loop < loops - 1:
            return CallsTurn((ScriptedCall("echo", ARGUMENTS, f"call-{loop}"),))
        return TextTurn("done")

    return answer


def dev_model_script(loops: int) -> dict[str, Any]:
    """The same conversation for the dev-model."""
    call = {"name": "echo", "arguments": {"text": TEXT}}
    return {
        "schema_version": 1,
        "check_requests": False,
        "chunk_chars": MODEL_CHUNK_CHARS,
        "turns": [
            {"when": {"assistant_turns": {"min": 0, "max": loops - 2}}, "answer": {"tool_calls": [call]}},
            {"answer": {"text": "done"}},
        ],
    }


def release(base_url: str) -> dict[str, Any]:
    """An agent with one tool and a window that holds thousands of messages."""
    return {
        "schema_version": 1,
        "agent": {
            "id": "bench",
            "prompt": "Call echo.",
            "model": "main",
            "tools": ["echo"],
            "limits": {"max_loops": 100_000},
        },
        "models": {
            "main": {
                "protocol": "scripted" if base_url.startswith("script:") else "openai-chat",
                "base_url": base_url,
                "model": "dev-model",
                "context_window_tokens": 20_000_000,
            }
        },
        "tools": {"echo": {"kind": "python", "handler": "bench.tools:echo", "effect": "none"}},
    }


def accept_runs(ports: Ports, base_url: str, count: int) -> list[RunId]:
    """Publish the release and accept one question in each of so many sessions."""
    return ask_all(ports, release(base_url), ["Go on until you are done."] * count)


def ask_all(ports: Ports, document: dict[str, Any], questions: Iterable[str]) -> list[RunId]:
    """Publish a release and ask each question in a session of its own."""
    published = publish_release(ports, document)
    owner = ports.store.find_owner(published.agent_id)
    assert owner is not None, "the release has an owner"
    runs = []
    for question in questions:
        session_id = SessionId(ports.ids.new())
        ports.store.open_session(session_id, owner)
        session = ports.store.load_session(session_id)
        assert session is not None, "the session was opened"
        run_id = accept_question(ports, session, question, None, "question").run_id
        assert run_id is not None, "nothing else runs in a new session"
        runs.append(run_id)
    return runs


def first_dispatch(ports: Ports, run_id: RunId) -> DispatchId:
    """The row that begins an accepted run."""
    return next(row.dispatch_id for row in ports.store.list_dispatches(run_id=run_id) if row.step == "prepare_context")


def client_ports(database_url: str, publish: Callable[[list[WakeUp]], None] = lambda _due: None) -> Ports:
    """Ports of the process that asks and waits."""
    return make_ports(database_url, pool_size=3, scripts={"main": in_process_script(2)}, publish=publish)


def wait_for(ports: Ports, runs: list[RunId]) -> None:
    """Wait until all runs have succeeded. Raises RuntimeError if one ended otherwise, or in no time."""
    until_s = time.monotonic() + FINISH_TIMEOUT_S
    open_runs = list(runs)
    while open_runs:
        statuses = ports.store.load_standings(open_runs)
        ended = [run_id for run_id in open_runs if statuses[run_id].status.terminal]
        for run_id in ended:
            if statuses[run_id].status is not RunStatus.SUCCEEDED:
                raise RuntimeError(f"run {run_id} ended as {statuses[run_id]}")
        open_runs = [run_id for run_id in open_runs if run_id not in set(ended)]
        if open_runs and time.monotonic() > until_s:
            raise RuntimeError(f"{len(open_runs)} runs have not ended within {FINISH_TIMEOUT_S} s")
        time.sleep(0.02)
