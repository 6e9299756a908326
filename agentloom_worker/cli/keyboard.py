"""What a person types: lines of stdin and Ctrl-C, in one wait of the main thread. Works for pipes and files too."""

import os
import select
import signal
from collections import deque
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Self

from agentloom_worker.clock import Clock
from agentloom_worker.limits import INPUT_BYTES_MAX

TWICE_S = 1.0
_READ_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Heard:
    """What came: one line without its end, the end of all lines, the instants (monotonic) of each Ctrl-C."""

    line: str | None = None
    ended: bool = False
    interrupts: tuple[float, ...] = ()


class Interrupts:
    """Whether a Ctrl-C stops what goes on or leaves: it leaves while nothing goes on, and twice within a second."""

    def __init__(self) -> None:
        self._last_s: float | None = None

    def leaves(self, at_s: float, *, working: bool) -> bool:
        """To be asked once for each, in order."""
        twice = self._last_s is not None and at_s - self._last_s <= TWICE_S
        self._last_s = at_s
        return twice or not working


class Keyboard:
    """Reads a file descriptor in its own pace. Inside the `with`, Ctrl-C raises nothing: `hear` tells of it.

    A line is cut off one byte above the largest input, so that it is refused, not kept in memory.
    """

    def __init__(self, clock: Clock, fd: int) -> None:
        self._clock = clock
        self._fd = fd
        self._bytes = bytearray()
        self._lines: deque[bytes] = deque()
        self._ended = False
        self._interrupts: deque[float] = deque()

    @property
    def is_terminal(self) -> bool:
        """Whether a person sits there."""
        return os.isatty(self._fd)

    def __enter__(self) -> Self:
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        self._previous = signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._previous)
        os.close(self._woken)
        os.close(self._wake)

    def hear(self, timeout_s: float, *, reading: bool) -> Heard:
        """Wait for a line, where lines are read now, or for Ctrl-C, at most so long."""
        taking = reading and not self._lines and not self._ended
        if not reading or taking:
            self._wait(timeout_s, reading=taking)
        interrupts = tuple(self._interrupts.popleft() for _ in range(len(self._interrupts)))
        line = self._lines.popleft() if reading and self._lines else None
        text = None if line is None else line.decode("utf-8", "surrogateescape")
        return Heard(text, self._ended and not self._lines and line is None, interrupts)

    def _wait(self, timeout_s: float, *, reading: bool) -> None:
        # Not epoll: it takes no regular file.
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if reading:
            poll.register(self._fd, select.POLLIN)
        for fd, _ in poll.poll(timeout_s * 1000):
            if fd == self._fd:
                self._read()
            else:
                os.read(self._woken, _READ_BYTES)

    def _read(self) -> None:
        try:
            found = os.read(self._fd, _READ_BYTES)
        except OSError:
            found = b""  # the terminal has gone away
        if not found:
            self._ended = True
            self._end_line(partial=True)
            return
        *whole, rest = found.split(b"\n")
        for part in whole:
            self._add(part)
            self._end_line(partial=False)
        self._add(rest)

    def _add(self, part: bytes) -> None:
        room = INPUT_BYTES_MAX + 1 - len(self._bytes)
        self._bytes += part[:room]

    def _end_line(self, *, partial: bool) -> None:
        if self._bytes or not partial:
            self._lines.append(bytes(self._bytes))
        self._bytes.clear()

    def _pressed(self, _number: int, _frame: FrameType | None) -> None:
        self._interrupts.append(self._clock.monotonic_s())
        try:
            os.write(self._wake, b"\0")
        except BlockingIOError:
            return  # it is full: the wait ends in any case
