"""`agentloom chat` in a process of its own: on a terminal, on a pipe, over more than one process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agentloom_worker import Agentloom
from agentloom_worker.audit import run_audit
from agentloom_worker.client import InputKind, InputState, RunStatus, database_url
from agentloom_worker.devmodel import DevModel, parse_script
from tests.factories import python_tool, release_document
from tests.terminal import CTRL_C, CTRL_D, ROOT, Terminal, terminal

WAIT_S = 60.0
PLAN = "PLOVER-7731"
SCRIPT = {
    "schema_version": 1,
    "turns": [
        {
            "when": {"user_text_contains": "held", "turns_since_user": 0},
            "answer": {
                "text": PLAN,
                "tool_calls": [{"name": "echo", "arguments": {"text": "a"}}],
                "hold": {"gate": "go", "after_chunks": 1},
            },
        },
        {
            "when": {"user_text_contains": "stall"},
            "answer": {"text": PLAN, "cut": {"then": "stall", "after_chunks": 1}},
        },
        {
            "when": {"user_text_contains": "last words"},
            "answer": {"text": "too early to know", "hold": {"gate": "end", "after_chunks": 1}},
        },
        {"when": {"user_text_contains": "refuse"}, "answer": {"http_error": {"status": 401}}},
        {"answer": {"text": "you said {{last_user_text}}"}},
    ],
}


@pytest.fixture
def model() -> Iterator[DevModel]:
    with DevModel(parse_script(SCRIPT)) as served:
        yield served


@pytest.fixture
def release(model: DevModel, tmp_path: Path) -> Path:
    path = tmp_path / "release.yaml"
    path.write_text(yaml.safe_dump(release_document(base_url=model.base_url, tools={"echo": python_tool()})))
    return path


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """An embedded store; every invariant holds of what is left in it."""
    folder = tmp_path / "state"
    yield folder
    with look(folder) as loom:
        assert run_audit(loom.ports) == ()


def look(folder: Path) -> Agentloom:
    return Agentloom.connect(database_url(folder))


def users(model: DevModel, number: int) -> list[str]:
    """The user's messages in a request."""
    body = json.loads(model.requests[number].body or b"")
    return [message["content"] for message in body["messages"] if message["role"] == "user"]


def begin(term: Terminal, text: str, model: DevModel, requests: int = 1) -> int:
    """Ask, and wait until its request has reached the model; where the screen stood."""
    term.wait_for("> ")
    term.type(f"{text}\n")
    place = term.wait_for("started")
    assert model.wait_until(lambda seen: len(seen) == requests, WAIT_S)
    return place


def test_what_is_typed_while_it_works_goes_out_with_the_next_request(
    release: Path, state: Path, model: DevModel
) -> None:
    with terminal("chat", release, "--embedded", state) as term:
        begin(term, "held question", model)
        term.type("only in Berlin\n")
        term.wait_for("stored: added to run ")
        model.open_gate("go")
        place = term.wait_for("loop 1: model asked for 1 call(s)")
        place = term.wait_for("loop 1: echo completed", after=place)
        place = term.wait_for("succeeded, 2 loop(s)", after=place)
        # Nothing of the model is shown before the commit that ends the run.
        assert PLAN not in term.shown and "you said" not in term.shown[:place]
        term.wait_for("you said only in Berlin\n> ", after=place)
        term.type(CTRL_D)
        assert term.leave() == 0
    assert [users(model, number) for number in range(2)] == [["held question"], ["held question", "only in Berlin"]]
    with look(state) as loom:
        (run,) = loom.runs()
        assert [(one.kind, one.state, one.run_id) for one in loom.inputs(run_session(loom))] == [
            (InputKind.QUESTION, InputState.DELIVERED, run.run_id),
            (InputKind.SUPPLEMENT, InputState.DELIVERED, run.run_id),
        ]
    assert "waits for" not in term.shown
    assert "go on with: agentloom chat --session " in term.shown


def run_session(loom: Agentloom) -> str:
    (session,) = loom.sessions()
    return str(session.session_id)


def test_ctrl_c_stops_the_run_once_and_leaves_while_nothing_runs(release: Path, state: Path, model: DevModel) -> None:
    with terminal("chat", release, "--embedded", state) as term:
        place = begin(term, "stall", model)
        term.type(CTRL_C)
        place = term.wait_for("stopping run ", after=place)
        place = term.wait_for("cancelled RUN_STOPPED", after=place)
        # The same session goes on with the next question.
        term.wait_for("> ", after=place)
        term.type("hello\n")
        place = term.wait_for("you said hello\n> ", after=place)
        term.type(CTRL_C)
        assert term.leave() == 130
    assert PLAN not in term.shown
    assert model.requests[0].client_gone
    with look(state) as loom:
        assert [run.status for run in loom.runs()] == [RunStatus.SUCCEEDED, RunStatus.CANCELLED]


def test_ctrl_c_twice_leaves_a_run_that_nobody_ends_stopped_for_good(
    release: Path, state: Path, model: DevModel
) -> None:
    with Agentloom.embedded(state) as loom:
        loom.publish(release)
        session = loom.open_session("assistant")
    with terminal("chat", "--session", session.session_id, "--embedded", state, "--no-workers") as term:
        term.wait_for("> ")
        term.type("hello\n")
        place: int | None = term.wait_for("question accepted")
        # A slow machine may need more than a second between the two: then the next one is a first one again.
        while place is not None:
            term.type(CTRL_C)
            place = stopping_again(term, place)
        assert term.leave() == 130
    assert "is stopping: agentloom run --resume " in term.shown
    with look(state) as loom:
        assert [run.status for run in loom.runs()] == [RunStatus.STOPPING]
    with terminal("chat", "--session", session.session_id, "--embedded", state) as term:
        term.wait_for("cancelled RUN_STOPPED")
        term.type(CTRL_D)
        assert term.leave() == 0
    assert model.requests == ()


def stopping_again(term: Terminal, place: int) -> int | None:
    """Behind the next word of a stop; None where the program leaves instead."""
    try:
        return term.wait_for("stopping run ", after=place)
    except AssertionError:
        assert "go on with: " in term.shown
        return None


def test_what_came_too_late_is_told_at_the_end_and_goes_with_the_next_question(
    release: Path, state: Path, model: DevModel
) -> None:
    with terminal("chat", release, "--embedded", state) as term:
        place = begin(term, "last words", model)
        term.type("one more thing\n")
        place = term.wait_for("stored: added to run ", after=place)
        model.open_gate("end")
        place = term.wait_for("1 input(s) came too late for this run and go with the next question", after=place)
        term.wait_for("> ", after=place)
        term.type(CTRL_D)
        assert term.leave() == 0
    assert "waits for the next question (pending_next_run): one more thing" in term.shown
    with look(state) as loom:
        session = run_session(loom)
        (waiting,) = loom.waiting(session)
        assert (waiting.text, waiting.state) == ("one more thing", InputState.PENDING_NEXT_RUN)
        assert len(model.requests) == 1, "nothing starts by itself"
    with terminal("chat", "--session", session, "--embedded", state) as term:
        place = term.wait_for("waits for the next question (pending_next_run): one more thing")
        term.type("go on\n")
        term.wait_for("you said go on\n", after=place)
        term.type(CTRL_D)
        assert term.leave() == 0
    assert users(model, 1)[-2:] == ["one more thing", "go on"]


def test_sigterm_leaves_the_run_to_whoever_goes_on(release: Path, state: Path, model: DevModel) -> None:
    with terminal("chat", release, "--embedded", state) as term:
        begin(term, "held question", model)
        term.child.send_signal(signal.SIGTERM)
        assert term.leave() == 143
    assert "is running: agentloom run --resume " in term.shown
    model.open_gate("go")
    with look(state) as loom:
        session = run_session(loom)
    with terminal("chat", "--session", session, "--embedded", state) as term:
        # The run is taken up by itself; nothing is asked again.
        term.wait_for("you said held question\n")
        term.type(CTRL_D)
        assert term.leave() == 0


def piped(text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentloom_worker", *map(str, arguments)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=WAIT_S, check=False
    )


def test_without_a_terminal_each_line_is_a_question_asked_when_the_one_before_has_ended(
    release: Path, state: Path, model: DevModel
) -> None:
    done = piped("first\n\nsecond", "chat", release, "--embedded", state)
    assert (done.returncode, done.stdout) == (0, "you said first\nyou said second\n")
    assert "you said" not in done.stderr and "> " not in done.stderr
    failed = piped("refuse\nthird\n", "chat", release, "--embedded", state)
    assert (failed.returncode, failed.stdout) == (1, "you said third\n")
    assert "failed MODEL_REQUEST_REJECTED" in failed.stderr
    with look(state) as loom:
        newer, older = loom.sessions()
        assert (older.runs, newer.runs) == (2, 2)
        assert [one.answer for one in loom.history(older.session_id)] == ["you said first", "you said second"]


def test_run_asks_several_questions_of_one_session_and_succeeds_only_if_all_do(
    release: Path, state: Path, model: DevModel
) -> None:
    both = piped("from stdin", "run", release, "--ask", "one", "--ask", "-", "--embedded", state)
    assert (both.returncode, both.stdout) == (0, "you said one\nyou said from stdin\n")
    assert users(model, 1) == ["one", "from stdin"], "the second run sees the first"
    some = piped("", "run", release, "--ask", "refuse", "--ask", "two", "--embedded", state, "--json")
    assert some.returncode == 1
    assert [(run["status"], run["answer"]) for run in json.loads(some.stdout)] == [
        ("failed", None),
        ("succeeded", "you said two"),
    ]
    one = piped("", "run", release, "--ask", "three", "--embedded", state, "--json")
    assert json.loads(one.stdout)["answer"] == "you said three"
    twice = piped("x", "run", release, "--ask", "-", "--ask", "-", "--embedded", state)
    assert (twice.returncode, twice.stdout) == (2, "")
