"""The program in a process of its own: its answer on stdout, its signals, its demo."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from agentloom_worker.audit import INVARIANTS
from agentloom_worker.cli.app import main
from agentloom_worker.client import Agentloom
from agentloom_worker.devmodel import DevModel, parse_script
from agentloom_worker.errors import Code, RequestError
from tests.factories import python_tool, release_document

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60.0
SECRET = "PLOVER-7731"
CALL = {"name": "echo", "arguments": {"text": SECRET}}
ANSWERS = {
    "schema_version": 1,
    "turns": [
        {"when": {"assistant_turns": 0}, "answer": {"text": SECRET, "tool_calls": [CALL]}},
        {"answer": {"text": f"{SECRET} → {{{{last_tool_result}}}}"}},
    ],
}
STALLS_ONCE = {
    "schema_version": 1,
    "turns": [
        {"first": 1, "answer": {"text": "so far", "cut": {"then": "stall", "after_chunks": 1}}},
        {"answer": {"text": "at last"}},
    ],
}
CORRECTED = {
    "schema_version": 1,
    "turns": [
        {"when": {"assistant_turns": 0}, "answer": {"text": ""}},
        {"answer": {"text": f'{{"answer": "{SECRET}"}}'}},
    ],
}
REFUSES = {"schema_version": 1, "turns": [{"answer": {"http_error": {"status": 401}}}]}


@contextmanager
def agentloom(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """The program, killed at the end if it is still there."""
    child = subprocess.Popen(
        [sys.executable, "-m", "agentloom_worker", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def write_release(folder: Path, model: DevModel) -> Path:
    path = folder / "release.yaml"
    path.write_text(yaml.safe_dump(release_document(base_url=model.base_url, tools={"echo": python_tool()})))
    return path


def leave(*arguments: object) -> object:
    """Run a command in this process; its exit code."""
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return left.value.code or 0


def test_run_prints_the_answer_alone_and_shows_no_model_text_before(tmp_path: Path) -> None:
    with DevModel(parse_script(ANSWERS)) as model:
        release = write_release(tmp_path, model)
        with agentloom("run", release, "--ask", "hello", "--embedded", tmp_path / "state") as child:
            out, err = child.communicate(timeout=WAIT_S)
    assert (child.returncode, out) == (0, f"{SECRET} → echo: {SECRET}\n")
    assert "loop 1: model asked for 1 call(s)" in err
    assert "loop 1: echo completed" in err
    assert SECRET not in err


def test_a_process_that_runs_its_steps_itself_heeds_the_variables_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("AGENTLOOM_KEEP_TRANSPORT", "unusual")
    with DevModel(parse_script(ANSWERS)) as model:
        release = write_release(tmp_path, model)
        assert leave("run", release, "--ask", "hello", "--embedded", state) == 0
        monkeypatch.setenv("AGENTLOOM_MODEL_LANES", "many")
        assert leave("run", release, "--ask", "hello", "--embedded", state) == 1
        assert "AGENTLOOM_MODEL_LANES: word 1" in capsys.readouterr().err
    with Agentloom.embedded(state) as loom:
        (run,) = loom.runs()
        operation = next(step.operation_id for step in loom.steps(run) if step.kind.value == "model")
        with pytest.raises(RequestError) as nothing:
            loom.received(operation)
    assert nothing.value.code is Code.TRANSPORT_NOT_KEPT


def test_a_correction_is_shown_by_each_command_and_its_request_is_the_one_that_was_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    state, release = tmp_path / "state", tmp_path / "release.yaml"
    with DevModel(parse_script(CORRECTED)) as model:
        document = release_document(base_url=model.base_url, agent={"output_schema": schema})
        release.write_text(yaml.safe_dump(document))
        assert leave("validate", release) == 0
        with agentloom("run", release, "--ask", "hello", "--embedded", state) as child:
            out, err = child.communicate(timeout=WAIT_S)
        sent = [request.body for request in model.requests]
    assert (child.returncode, out) == (0, f'{{"answer": "{SECRET}"}}\n')
    assert "loop 1: answer does not match the output schema (1 issue(s)), sent back" in err
    assert SECRET not in err
    with Agentloom.embedded(state) as loom:
        (run,) = loom.runs()
    capsys.readouterr()
    assert leave("steps", run.run_id, "--embedded", state, "--json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["issues"], second["issues"]) == (1, None)
    assert leave("request", second["operation_id"], "--embedded", state) == 0
    shown = capsys.readouterr().out
    assert shown.encode() == (sent[1] or b"") + b"\n"
    assert [message["role"] for message in json.loads(shown)["messages"]] == ["system", "user", "assistant", "system"]
    assert leave("audit", "--embedded", state) == 0
    release.write_text(release.read_text().replace("type: object", "type: objekt"))
    capsys.readouterr()
    assert leave("validate", release, "--json") == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["path"] == "/agent/output_schema/type"


def test_a_run_that_fails_leaves_with_1_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with DevModel(parse_script(REFUSES)) as model:
        release = write_release(tmp_path, model)
        assert leave("run", release, "--ask", "hello", "--embedded", tmp_path / "state") == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "failed MODEL_REQUEST_REJECTED" in shown.err
    assert "agentloom steps " in shown.err


def test_an_invalid_release_leaves_with_1_and_makes_no_run(tmp_path: Path) -> None:
    release = tmp_path / "release.yaml"
    release.write_text("schema_version: 1\nagent: {}\n")
    with agentloom("run", release, "--ask", "hello", "--embedded", tmp_path / "state") as child:
        out, err = child.communicate(timeout=WAIT_S)
    assert (child.returncode, out) == (1, "")
    assert err.startswith("error RELEASE_INVALID: ")


def test_ctrl_c_stops_the_run_and_says_how_to_look_at_it(tmp_path: Path) -> None:
    with DevModel(parse_script(STALLS_ONCE)) as model:
        release = write_release(tmp_path, model)
        with agentloom("run", release, "--ask", "hello", "--embedded", tmp_path / "state") as child:
            assert model.wait_until(lambda requests: len(requests) == 1, WAIT_S)
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=WAIT_S)
        assert model.requests[0].client_gone
    assert (child.returncode, out) == (130, "")
    assert "is cancelled: agentloom runs show " in err
    with Agentloom.connect(f"sqlite:///{tmp_path}/state/agentloom.sqlite") as loom:
        assert [run.state for run in loom.runs()] == ["cancelled"]


def test_sigterm_leaves_the_run_to_the_next_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with DevModel(parse_script(STALLS_ONCE)) as model:
        release = write_release(tmp_path, model)
        with agentloom("run", release, "--ask", "hello", "--embedded", tmp_path / "state") as child:
            assert model.wait_until(lambda requests: len(requests) == 1, WAIT_S)
            child.send_signal(signal.SIGTERM)
            _, err = child.communicate(timeout=WAIT_S)
        assert child.returncode == 143
        with Agentloom.connect(f"sqlite:///{tmp_path}/state/agentloom.sqlite") as loom:
            (run,) = loom.runs()
        assert f"agentloom run --resume {run.run_id}" in err
        assert run.state == "running"
        assert leave("run", "--resume", run.run_id, "--embedded", tmp_path / "state") == 0
    assert capsys.readouterr().out == "at last\n"


def test_run_uses_a_database_with_workers_of_its_own(
    postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with DevModel(parse_script(ANSWERS)) as model:
        release = write_release(tmp_path, model)
        assert leave("run", release, "--ask", "hello", "--database", postgres_url, "--json") == 0
    assert json.loads(capsys.readouterr().out)["answer"] == f"{SECRET} → echo: {SECRET}"
    assert leave("audit", "--database", postgres_url) == 0


def test_without_workers_a_run_is_left_to_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("migrate", "--embedded", tmp_path / "state") == 0
    with DevModel(parse_script(ANSWERS)) as model:
        release = write_release(tmp_path, model)
        state = tmp_path / "state"
        assert leave("run", release, "--ask", "hi", "--embedded", state, "--no-workers", "--timeout", 0.1) == 1
        assert "error WAIT_TIMEOUT" in capsys.readouterr().err
        assert model.requests == ()
    with Agentloom.connect(f"sqlite:///{state}/agentloom.sqlite") as loom:
        assert [run.state for run in loom.runs()] == ["queued"]


def test_the_demo_works_through_tools_and_leaves_a_clean_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave("demo", "--json", "--keep", tmp_path / "kept") == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert shown.err == ""
    assert found["run"]["status"] == "succeeded"
    assert "CHG-4471" in found["run"]["answer"]
    assert found["tool_calls"] >= 3
    assert {step["capability"] for step in found["steps"]} == {"main", "search_log", "summarize_csv", "correlate"}
    assert found["tokens"]["input_tokens"] > found["tokens"]["output_tokens"] > 0
    assert [event["run_seq"] for event in found["events"]] == list(range(1, len(found["events"]) + 1))
    assert found["audit"] == {"ok": True, "invariants": len(INVARIANTS), "findings": []}
    assert leave("runs", "show", found["run"]["run_id"], "--embedded", tmp_path / "kept") == 0


def test_the_demo_shows_each_step_and_no_model_text_before_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("demo") == 0
    shown = capsys.readouterr()
    assert "loop 2: correlate completed" in shown.err
    assert "CHG-4471" not in shown.err
    for words in ("CHG-4471", "summarize_csv", "tokens: ", "audit: "):
        assert words in shown.out
