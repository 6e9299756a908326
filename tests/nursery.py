"""A warm process that forks Celery processes: each a copy of one that has imported everything.

A worker spends most of its start on imports. A copy is made of a process that has done those and has neither thread
nor connection; it takes its environment, and then runs `python -m celery` with the command of any other worker.
This file run as a program is that process.
"""

import contextlib
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

LIFE_LIMIT_S = 60.0
LOOK_EVERY_S = 0.01
# What a worker imports; `tasks` and `config` read the environment and are the copy's own.
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
    """The tests' side. One process may use it at a time."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.nursery"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(
        self, arguments: list[str], environment: Mapping[str, str], log: Path, armed: Mapping[str, Any] | None = None
    ) -> "WarmProcess":
        """Start a copy, in a session of its own. `armed` is the order of a victim of the crash suite."""
        request = {
            "arguments": arguments,
            "environment": dict(environment),
            "log": str(log),
            "armed": dict(armed) if armed is not None else None,
        }
        log.touch()
        return WarmProcess(self, self.tell(request))

    def tell(self, request: Mapping[str, Any]) -> int:
        """One line there, one number back."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=LIFE_LIMIT_S)


_LIVES = 1000


class WarmProcess:
    """One copy, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended, as `Popen.returncode` says it; None while it lives."""
        if self.returncode is None:
            found = self._nursery.tell({"poll": self.pid})
            self.returncode = found if found != _LIVES else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        pause = threading.Event()
        for _ in range(max(1, round(timeout / LOOK_EVERY_S))):
            ended = self.poll()
            if ended is not None:
                return ended
            pause.wait(LOOK_EVERY_S)
        raise subprocess.TimeoutExpired("celery", timeout)

    def send_signal(self, what: int) -> None:
        """Signal it if it lives."""
        if self.poll() is None:
            os.kill(self.pid, what)

    def finish(self) -> int:
        """How it ended; one that does not end is aborted, by no signal that a strike could be taken for."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(LIFE_LIMIT_S)
        os.killpg(self.pid, signal.SIGABRT)
        return self.wait(LIFE_LIMIT_S)


def _serve() -> None:
    for name in WARM:
        import_module(name)
    # What a child's collector does not look at is not copied for it.
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.write(f"{_ended(request['poll']) if 'poll' in request else _fork(request)}\n")
        sys.stdout.flush()


def _fork(request: dict[str, Any]) -> int:
    if request["armed"] is not None:
        import_module("tests.crash.armed")  # once, by the one that is copied
    pid = os.fork()
    if pid == 0:
        _be_a_worker(request)
    return pid


def _be_a_worker(request: dict[str, Any]) -> None:
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["armed"] is not None:
        armed = sys.modules["tests.crash.armed"]
        armed.arm(armed.Order(**request["armed"]))
    sys.argv = ["celery", *request["arguments"]]
    runpy.run_module("celery", run_name="__main__", alter_sys=True)
    os._exit(0)


def _ended(pid: int) -> int:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else _LIVES


if __name__ == "__main__":
    _serve()
