"""Workers in processes of their own, and what a client does while its store is down."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentloom_worker.errors import PersistenceUnavailableError
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.ports import Ports, Settings
from tests.acceptance.harness import ask, over
from tests.acceptance.worker import DATABASE_VARIABLE, SETTINGS_VARIABLE

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def worker_process(url: str, settings: Settings, path: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A worker process that has begun; what stands in `path` is imported before anything else."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(folder) for folder in (path, ROOT) if folder),
        DATABASE_VARIABLE: url,
        SETTINGS_VARIABLE: json.dumps(asdict(settings)),
    }
    command = [sys.executable, "-m", "tests.acceptance.worker"]
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            if path is None:
                assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def leave(process: subprocess.Popen[str]) -> dict[str, int]:
    """Let a worker drain and end; what it counted."""
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    counters: dict[str, int] = json.loads(said.splitlines()[-1])
    return counters


def poison_folder(folder: Path, step: str) -> Path:
    """A folder for `worker_process`: the process and its children die as soon as they have loaded this step."""
    poison = folder / "poison"
    poison.mkdir()
    (poison / "sitecustomize.py").write_text(
        "import os, signal\n"
        "from agentloom_worker import faults\n"
        "def trigger(point, step):\n"
        f"    if (point, step) == ('step.loaded', {step!r}):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "faults.install(trigger)\n"
    )
    return poison


def ask_at_last(ports: Ports, document: dict[str, Any], text: str = "What now?") -> RunId:
    """As a client does: a store that is down for the moment is asked again."""
    for _ in range(20):
        try:
            return ask(ports, document, text)
        except PersistenceUnavailableError:
            continue
    raise AssertionError("the store does not come back")


def over_at_last(ports: Ports, run_ids: list[RunId]) -> bool:
    """Whether these runs have ended; a store that is down for the moment says no."""
    try:
        return over(ports, *run_ids)()
    except PersistenceUnavailableError:
        return False
