"""Parked daemon threads for functions that cannot be interrupted (RULINGS U11, T9).

A thread per call costs twice a hand-over to a parked one. A thread whose function does not return is
abandoned: it gets an order to end once it can and is never used again, so no later call waits behind it.
"""

import contextvars
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from agentloom_worker import limits, telemetry

Work = Callable[[], None]


class ToolThread:
    """One daemon thread that runs what it is given, one after the other."""

    def __init__(self) -> None:
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="agentloom-tool", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """False once it has ended, and in a forked child, which inherits no threads."""
        return self._thread.is_alive()

    def submit(self, work: Work) -> None:
        """Run `work` in this thread, in a copy of the caller's context variables. It must not raise."""
        context = contextvars.copy_context()
        self._inbox.put(lambda: context.run(work))

    def end(self) -> None:
        """End after the work in hand."""
        self._inbox.put(None)

    def _serve(self) -> None:
        while (work := self._inbox.get()) is not None:
            work()
            del work  # a parked thread must not keep the last call's values alive


class ToolThreads:
    """A stack of parked threads. The caller's own concurrency bounds how many are busy.

    Safe for use by many threads, and after a fork: it holds no lock of its own, and a popped thread
    that is not alive in this process is dropped.
    """

    def __init__(self, idle_max: int = limits.TOOL_THREADS_IDLE_MAX) -> None:
        self._idle_max = idle_max
        self._idle: deque[ToolThread] = deque()
        self._abandoned: deque[ToolThread] = deque()

    def take(self) -> ToolThread:
        """A thread that is free. Raises RuntimeError if the system gives no more threads."""
        while True:
            try:
                thread = self._idle.pop()
            except IndexError:
                return ToolThread()
            if thread.alive:
                return thread

    def give_back(self, thread: ToolThread) -> None:
        """Park a thread whose work has ended; beyond the bound it ends."""
        if len(self._idle) >= self._idle_max:
            thread.end()
        else:
            self._idle.append(thread)

    def abandon(self, thread: ToolThread) -> None:
        """Give a thread up whose function does not return."""
        thread.end()
        telemetry.count("tool_threads_abandoned")
        self._abandoned.append(thread)

    def stuck(self) -> int:
        """How many abandoned threads still run: slots lost to this process (RULINGS T9)."""
        for _ in range(len(self._abandoned)):
            try:
                thread = self._abandoned.popleft()
            except IndexError:
                break
            if thread.alive:
                self._abandoned.append(thread)
        return len(self._abandoned)


THREADS = ToolThreads()
