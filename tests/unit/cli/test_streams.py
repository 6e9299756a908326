"""What a command's own streams hold: nothing of its tools, and an error where one is full or closed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from agentloom_worker.cli.output import own_stdout, print_text
from tests.factories import python_tool, release_document

ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 60


def command(
    *arguments: object, stdout: int | IO[bytes] = subprocess.PIPE, shell: str = ""
) -> subprocess.CompletedProcess[bytes]:
    """Run a command as a program. `shell` is what a shell does to its streams."""
    line = [sys.executable, "-m", "agentloom_worker", *map(str, arguments)]
    if shell:
        line = ["sh", "-c", f'exec "$@" {shell}', "sh", *line]
    return subprocess.run(
        line, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, cwd=ROOT, timeout=WAIT_S, check=False
    )


def test_what_a_tool_prints_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with own_stdout():
        sys.stdout.write("a tool\n")
        print_text("the command")
    print_text("and after")
    assert capsys.readouterr() == ("the command\nand after\n", "a tool\n")


def test_what_a_tool_writes_past_python_goes_to_stderr() -> None:
    program = """
import os, subprocess, sys
from agentloom_worker.cli.output import own_stdout, print_text
with own_stdout():
    os.write(1, b"a tool\\n")
    subprocess.run(["echo", "its program"], check=True)
    print_text("the command")
print_text("and after")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=WAIT_S, check=True)
    assert done.stdout == b"the command\nand after\n"
    assert done.stderr == b"a tool\nits program\n"


def test_validate_prints_one_document_though_a_tool_speaks_when_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loud.py").write_text("print('hello')\ndef say(text: str) -> str:\n    return text\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    release = tmp_path / "release.json"
    release.write_text(json.dumps(release_document(tools={"say": python_tool(handler="loud:say")})))
    done = command("validate", release, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True
    assert done.stderr == b"hello\n"


@pytest.mark.parametrize("arguments", [("protocols",), ("protocols", "--json"), ("models", "profiles")])
def test_a_stdout_that_is_full_is_an_error_and_no_traceback(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = command(*arguments, stdout=full)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error INPUT_INVALID: cannot write to stdout: No space left on device")
    assert done.stderr.count(b"\n") == 1


def test_a_stdout_that_is_closed_is_refused_before_anything_is_done() -> None:
    done = command("protocols", shell=">&-")
    assert (done.returncode, done.stderr) == (
        1,
        b"error INPUT_INVALID: stdout is closed: send it somewhere, to /dev/null if need be\n",
    )


def test_a_stdin_that_is_closed_is_an_empty_one(tmp_path: Path) -> None:
    done = command("session", "send", "01900000-0000-7000-8000-000000000000", "-", "--embedded", tmp_path, shell="<&-")
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
