"""A program on a terminal of its own: what it shows, and keys that are pressed."""

import os
import pty
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentloom_worker.clock import SystemClock

ROOT = Path(__file__).resolve().parents[1]
CTRL_C, CTRL_D = "\x03", "\x04"
# The child makes the terminal its own, so that Ctrl-C is a signal to it; a fork in a process with threads would not do.
OWN = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    " os.execv(sys.executable, [sys.executable, '-m', 'agentloom_worker', *sys.argv[1:]])"
)


class Terminal:
    """`shown` is all that the program has written so far, with what the terminal echoed."""

    def __init__(self, child: subprocess.Popen[bytes], fd: int) -> None:
        self.child = child
        self._fd = fd
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, text: str, *, after: int = 0, timeout_s: float = 60.0) -> int:
        """Read until the text stands behind a place; the place behind it."""
        clock = SystemClock()
        until_s = clock.monotonic_s() + timeout_s
        while (found := self.shown.find(text, after)) < 0:
            left_s = until_s - clock.monotonic_s()
            assert left_s > 0, f"{text!r} is not shown:\n{self.shown}"
            assert self._read(left_s), f"the program left without {text!r}:\n{self.shown}"
        return found + len(text)

    def leave(self, timeout_s: float = 60.0) -> int:
        """Read until the program has left; its exit code."""
        while self._read(timeout_s):
            pass
        return self.child.wait(timeout_s)

    def _read(self, timeout_s: float) -> bool:
        ready, _, _ = select.select([self._fd], [], [], timeout_s)
        if not ready:
            return False
        try:
            found = os.read(self._fd, 65_536)
        except OSError:
            return False  # Linux: every other end of the terminal is closed
        self.shown += found.decode(errors="replace").replace("\r\n", "\n")
        return bool(found)


@contextmanager
def terminal(*arguments: object) -> Iterator[Terminal]:
    """`agentloom ARGUMENTS` on a terminal, killed at the end if it is still there."""
    held, given = pty.openpty()
    termios.tcsetwinsize(held, (50, 200))
    child = subprocess.Popen(
        [sys.executable, "-c", OWN, *map(str, arguments)],
        cwd=ROOT,
        stdin=given,
        stdout=given,
        stderr=given,
        start_new_session=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "TERM": "dumb"},
    )
    os.close(given)
    try:
        yield Terminal(child, held)
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        os.close(held)
