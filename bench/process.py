"""Processes that are measured, and the CPU time that /proc knows of them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

END_TIMEOUT_S = 30.0
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


class Child:
    """A python module in a process of its own that speaks in lines."""

    def __init__(self, module: str, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", module, *(str(argument) for argument in arguments)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.pid = self._process.pid

    def read_line(self) -> str:
        """Its next line. Raises RuntimeError if it has ended."""
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise RuntimeError(f"process {self.pid} has ended with status {self._process.wait(END_TIMEOUT_S)}")
        return line.rstrip("\n")

    def write_line(self, line: str) -> None:
        """Tell it something."""
        pipe = _pipe(self._process.stdin)
        pipe.write(line + "\n")
        pipe.flush()

    def cpu_ms(self) -> float:
        """User and system time so far."""
        return cpu_ms(self.pid)

    def end(self) -> str:
        """End its input and wait for it; what it said last."""
        output, _ = self._process.communicate(timeout=END_TIMEOUT_S)
        return output

    def kill(self) -> None:
        """Make sure that it is gone."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(END_TIMEOUT_S)


@contextmanager
def running(*children: Child) -> Iterator[None]:
    """Leave none of them behind."""
    try:
        yield
    finally:
        for child in children:
            child.kill()


@contextmanager
def model_running(script: dict[str, Any]) -> Iterator[tuple[Child, str]]:
    """The dev-model with this script, and its base URL."""
    model = Child("bench.model")
    with running(model):
        model.write_line(json.dumps(script))
        yield model, model.read_line()


def cpu_ms(pid: int) -> float:
    """User and system time of a process so far, by /proc; 0 for one that is gone."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) * _TICK_MS if fields else 0.0


def family_cpu_ms(parent: int) -> float:
    """User and system time of a process, its children, and those of them that it has buried."""
    total = cpu_ms(parent)
    fields = _stat(parent)
    if fields:
        total += (int(fields[13]) + int(fields[14])) * _TICK_MS
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            child = _stat(int(entry.name))
            if child and int(child[1]) == parent:
                total += (int(child[11]) + int(child[12])) * _TICK_MS
    return total


def parent_of(pid: int) -> int | None:
    """The parent of a process of this machine; None for one that is not here."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name: state is 0, ppid 1, utime 11, stime 12, cutime 13, cstime 14."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None, "the process was started with pipes"
    return stream
