"""Embedded, in real processes: killed ones go on, and two on one file double nothing."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from agentloom_worker import Agentloom, embedded
from agentloom_worker.audit import run_audit
from agentloom_worker.client import RunStatus, database_url
from agentloom_worker.devmodel import DevModel, parse_script
from agentloom_worker.ids import DispatchId
from tests.acceptance.harness import wait_for
from tests.factories import python_tool, release_document
from tests.programs import QUICK

WAIT_S = 30.0
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def program(name: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A program of tests/programs.py in a process of its own; killed at the end, if it is still there."""
    command = [sys.executable, "-m", "tests.programs", name, *map(str, arguments)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.wait(WAIT_S)
        assert child.stdout is not None
        child.stdout.close()


def said(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line, "the program ended without a word"
    facts: dict[str, Any] = json.loads(line)
    return facts


def write_release(folder: Path, model: DevModel) -> Path:
    path = folder / "release.yaml"
    path.write_text(yaml.safe_dump(release_document(base_url=model.base_url, tools={"echo": python_tool()})))
    return path


CALL = {"name": "echo", "arguments": {"text": "{{last_user_text}}"}}
HELD = {
    "schema_version": 1,
    "turns": [
        {"when": {"assistant_turns": 0}, "answer": {"tool_calls": [CALL]}},
        {"first": 1, "answer": {"text": "never seen", "hold": {"gate": "go"}}},
        {"answer": {"text": "{{last_tool_result}}"}},
    ],
}


def test_a_killed_process_goes_on_at_the_next_start_and_repeats_no_call(tmp_path: Path) -> None:
    with DevModel(parse_script(HELD)) as model:
        release = write_release(tmp_path, model)
        with program("ask_and_wait", tmp_path, release, 1) as child:
            run_id = said(child)["run"]
            assert model.wait_until(lambda requests: len(requests) == 2, WAIT_S)
            os.kill(child.pid, signal.SIGKILL)
            child.wait(WAIT_S)
        with Agentloom.embedded(tmp_path, settings=QUICK, threads=2) as loom:
            assert loom.run(run_id).status is RunStatus.RUNNING
            result = loom.wait(run_id, WAIT_S)
            steps = loom.steps(run_id)
            events = list(loom.events(run_id))
            assert run_audit(loom.ports) == ()
        requests = model.requests
    assert (result.status, result.answer) == (RunStatus.SUCCEEDED, "echo: question 0")
    assert [(step.kind.value, len(step.attempts)) for step in steps] == [("model", 1), ("tool", 1), ("model", 2)]
    lost, done = steps[2].attempts
    assert (lost.state.value, lost.maybe_sent, done.state.value) == ("unknown", True, "complete")
    # Only the request that was under way was sent again, and byte for byte.
    assert [request.sha256 for request in requests[1:]] == [requests[1].sha256] * 2
    assert [event.run_seq for event in events] == list(range(1, len(events) + 1))


PLAIN = {
    "schema_version": 1,
    "turns": [
        {"when": {"assistant_turns": 0}, "answer": {"tool_calls": [CALL, {**CALL, "arguments": {"text": "again"}}]}},
        {"answer": {"text": "{{tool_result:echo#1}}"}},
    ],
}


def test_two_processes_on_one_file_double_nothing(tmp_path: Path) -> None:
    each = 3
    with DevModel(parse_script(PLAIN)) as model:
        release = write_release(tmp_path, model)
        with (
            program("ask_and_wait", tmp_path, release, each) as one,
            program("ask_and_wait", tmp_path, release, each) as two,
        ):
            ended = [said(child) for child in (one, two) for _ in range(2 * each)]
            assert [child.wait(WAIT_S) for child in (one, two)] == [0, 0]
        with Agentloom.embedded(tmp_path, settings=QUICK, threads=1) as loom:
            # A process may leave between the end of its last run and what cleans up behind it.
            wait_for(lambda: loom.dispatches() == (), "everything is cleaned up")
            runs = loom.runs()
            steps = [loom.steps(run) for run in runs]
            assert run_audit(loom.ports) == ()
        requests = model.requests
    results = [facts for facts in ended if "status" in facts]
    assert [facts["status"] for facts in results] == ["succeeded"] * (2 * each)
    assert sorted(facts["answer"] for facts in results) == sorted(
        f"echo: question {n}" for n in range(each) for _ in "12"
    )
    assert len(runs) == 2 * each
    for run in steps:
        assert [(step.kind.value, len(step.attempts)) for step in run] == [
            ("model", 1),
            ("tool", 1),
            ("tool", 1),
            ("model", 1),
        ]
    assert len(requests) == 2 * 2 * each


def test_a_file_may_be_named_instead_of_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "own.db"
    with Agentloom.embedded(file, settings=QUICK, threads=1):
        pass
    assert file.is_file()


def test_the_solitary_child_finds_the_tools_that_its_parent_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program's own folder is on its path, and need not be the working directory."""
    (tmp_path / "only_here.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    begin, children = subprocess.Popen, []

    def instead(_command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        children.append(begin([sys.executable, "-c", "import only_here"], cwd=ROOT.anchor, **options))
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", instead)
    dispatcher = embedded.make_dispatcher(database_url(tmp_path), settings=QUICK)
    assert dispatcher._solitary.acquire(blocking=False)
    dispatcher._run_solitary(DispatchId(UUID(int=1)))
    assert [child.returncode for child in children] == [0]


def test_embedded_can_be_opened_again_and_again(tmp_path: Path) -> None:
    for number in range(3):
        with Agentloom.embedded(tmp_path, settings=QUICK, threads=1) as loom:
            loom.publish(release_document())
            loom.open_session("assistant")
            assert loom.runs() == (), number
