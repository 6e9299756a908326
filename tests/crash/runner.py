"""The crash runner: a warm, single-threaded process that forks each life of each case (RULINGS N2).

`CrashRunner` is the test's side. The other side is this file run as a program: it imports everything once,
holds no thread and no connection, and forks; a struck child kills itself with a real SIGKILL.
"""

import gc
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from agentloom_worker.bootstrap import make_ports
from agentloom_worker.clock import ManualClock
from agentloom_worker.storage.schema import migrate
from tests.crash.case import Broken, Case, Outcome, Setup
from tests.crash.process import START_US, Stead, live, seed, warm_up
from tests.crash.wire import listener

LIFE_LIMIT_S = 60
# Together they ask every query that a life asks.
_WARMING = ("three_loops", "stopped", "deadline")
_LENGTH = struct.Struct("!Q")


class CrashRunner:
    """Runs cases, one at a time, in `directory`."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-m", "tests.crash.runner", str(directory)]
        self._directory = directory
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, case: Case) -> Outcome | Broken:
        """Carry a case out: every life but the last dies where it must."""
        assert self._process.stdin is not None and self._process.stdout is not None
        _send(self._process.stdin, case)
        answer = _receive(self._process.stdout)
        assert isinstance(answer, Outcome | Broken), "the crash runner has died"
        return answer

    def clear(self) -> None:
        """Remove what the cases left."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> "CrashRunner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(LIFE_LIMIT_S)
        self._process.stdout.close()


def _send(stream: BinaryIO, value: object) -> None:
    body = pickle.dumps(value)
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def _receive(stream: BinaryIO) -> object:
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    return pickle.loads(stream.read(_LENGTH.unpack(head)[0]))


def _serve(directory: Path, requests: BinaryIO, answers: BinaryIO) -> None:
    """The warm parent's loop; it ends when the tests close their side."""
    listener()  # before the first fork
    warm: set[str | None] = set()
    while (case := _receive(requests)) is not None:
        assert isinstance(case, Case)
        if case.database not in warm:
            warm.add(case.database)
            for scenario in _WARMING:
                setup = replace(case.setup, scenario=scenario, fusion=False, model_unknown="retry", protocol="scripted")
                warm_up(Case(setup, database=case.database), _settle(directory, setup, case.database))
            # What a child's collector does not look at is not copied for it.
            gc.collect()
            gc.freeze()
        _send(answers, _carry_out(directory, case))


def _carry_out(directory: Path, case: Case) -> Outcome | Broken:
    stead = _settle(directory, case.setup, case.database)
    for life in range(len(case.strikes) + 1):
        dies = life < len(case.strikes) and not case.strikes[life].raises
        status = _fork(lambda life=life: stead.report.write_bytes(pickle.dumps(live(case, life, stead))), stead)
        if dies and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            continue
        if status != 0:
            return Broken(f"life {life} ended with status {status}:\n{_error(stead)}")
        break
    answer = pickle.loads(stead.report.read_bytes())
    assert isinstance(answer, Outcome)
    return answer


def _settle(directory: Path, setup: Setup, database: str | None) -> Stead:
    """A fresh place for a case, always the same path, with a copy of its database."""
    stead = Stead(directory / "case")
    shutil.rmtree(stead.directory, ignore_errors=True)
    stead.directory.mkdir()
    if database is None:
        shutil.copyfile(_template(directory, setup), stead.database)
    return stead


def _template(directory: Path, setup: Setup) -> Path:
    """A SQLite file in which the scenario's question has just been accepted; made once."""
    path = directory / f"{setup.seed}.sqlite"
    if not path.exists():
        blank = directory / "blank.sqlite"
        if not blank.exists():
            _must(lambda: migrate(f"sqlite:///{blank}"), directory)
        making = path.with_suffix(".making")
        shutil.copyfile(blank, making)
        _must(lambda: _make(making, setup), directory)
        making.rename(path)
    return path


def _make(path: Path, setup: Setup) -> None:
    ports = make_ports(f"sqlite:///{path}", clock=ManualClock(START_US), seed=7)
    seed(ports, setup)
    ports.store.close()


def _must(work: object, directory: Path) -> None:
    stead = Stead(directory)
    status = _fork(work, stead)
    assert status == 0, f"a template could not be made:\n{_error(stead)}"


def _fork(work: object, stead: Stead) -> int:
    """Do the work in a child; its wait status. A child that hangs is ended by its own alarm."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    try:
        gc.disable()
        signal.setitimer(signal.ITIMER_REAL, LIFE_LIMIT_S)
        work()  # type: ignore[operator]
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the child's end, told to its parent
        (stead.directory / "error").write_text(traceback.format_exc())
        os._exit(1)


def _error(stead: Stead) -> str:
    path = stead.directory / "error"
    return path.read_text() if path.exists() else "(no error was left)"


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
