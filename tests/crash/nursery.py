"""A warm process that forks victims: Celery workers that have imported everything, one at a time.

A worker spends most of a short life on imports. A victim is a copy of a process that has done those and has neither
thread nor connection; it takes its environment, and then runs `python -m celery` with the command of any other worker.
This file run as a program is that process.
"""

import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.crash.armed import Order, arm

LIFE_LIMIT_S = 60.0
LOOK_EVERY_S = 0.01
# What a worker imports; `tasks` and `config` read the environment and are the victim's own.
WARM = (
    "celery.apps.worker",
    "celery.bin.celery",
    "celery.concurrency.thread",
    "celery.worker.consumer",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "agentloom_worker.fleet",
    "agentloom_worker.metrics",
)


class Nursery:
    """The tests' side."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.crash.nursery"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def live(self, arguments: list[str], environment: Mapping[str, str], log: Path, order: Order) -> int:
        """Let one victim live; how it ended, as `Popen.returncode` says it. One that does not end is aborted."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"arguments": arguments, "environment": dict(environment), "log": str(log), "order": asdict(order)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=LIFE_LIMIT_S)


def _serve() -> None:
    for name in WARM:
        import_module(name)
    # What a child's collector does not look at is not copied for it.
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _be_a_worker(request)
        sys.stdout.write(f"{_wait(pid)}\n")
        sys.stdout.flush()


def _be_a_worker(request: dict[str, Any]) -> None:
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(request["environment"])
    arm(Order(**request["order"]))
    sys.argv = ["celery", *request["arguments"]]
    runpy.run_module("celery", run_name="__main__")
    os._exit(0)


def _wait(pid: int) -> int:
    pause = threading.Event()
    for _ in range(round(LIFE_LIMIT_S / LOOK_EVERY_S)):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        pause.wait(LOOK_EVERY_S)
    # No signal that a strike could be taken for.
    os.killpg(pid, signal.SIGABRT)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    _serve()
