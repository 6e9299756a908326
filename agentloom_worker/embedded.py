"""The in-process dispatcher: threads that claim due rows straight from the table, no broker (RUNTIME 5).

The same dispatcher runs on SQLite and on PostgreSQL, in one process or in several on one database.
"""

import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

from agentloom_worker import limits, telemetry
from agentloom_worker.bootstrap import make_ports
from agentloom_worker.cleanup.blobs import collect_blobs
from agentloom_worker.domain.dispatch import Queue, WakeUp
from agentloom_worker.errors import AgentloomError
from agentloom_worker.ids import DispatchId, ProcessId, RunId
from agentloom_worker.llm.adapters.scripted import Script
from agentloom_worker.runtime.dispatch import Sweeper
from agentloom_worker.runtime.lease import Keeper
from agentloom_worker.runtime.ports import Ports, Settings
from agentloom_worker.runtime.step import StepRunner

POLL_S = 0.05
IDLE_POLL_S = 0.25  # rows of other processes, and those whose time has come, wait so long at most
SEEN_EVERY_S = 5.0
COLLECT_EVERY_S = 3600.0
_SIGNAL_WAIT_S = 0.25  # the waits of a client that watches a run
_POLL_FIRST_S = 0.02
POLL_LONGEST_S = 0.5


class WakeUps:
    """Rows that somebody in this process should look at; each stands in the queue once.

    A wake-up for a queue that this process does not serve is left to whoever does (RULINGS T13).
    """

    def __init__(self, queues: tuple[str, ...] = Settings().queues) -> None:
        self._queues = queues
        self._queue: queue.SimpleQueue[DispatchId | None] = queue.SimpleQueue()
        self._waiting: set[DispatchId] = set()
        self._lock = threading.Lock()

    def publish(self, due: list[WakeUp]) -> None:
        """Wake somebody up; never blocks."""
        self.put([row.dispatch_id for row in due if row.queue in self._queues])

    def put(self, due: list[DispatchId]) -> None:
        """Queue rows that are not queued yet."""
        for dispatch_id in due:
            with self._lock:
                if dispatch_id in self._waiting:
                    continue
                self._waiting.add(dispatch_id)
            self._queue.put(dispatch_id)

    def get(self, timeout_s: float) -> DispatchId | None:
        """The next row, or None after the timeout or at `release`."""
        try:
            dispatch_id = self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if dispatch_id is not None:
            with self._lock:
                self._waiting.discard(dispatch_id)
        return dispatch_id

    def release(self, count: int) -> None:
        """Let so many waiting threads return."""
        for _ in range(count):
            self._queue.put(None)

    def __len__(self) -> int:
        with self._lock:
            return len(self._waiting)


class RunSignal:
    """Tells waiters of this process that a run has new events; others poll."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    def notify(self, _run_id: RunId) -> None:
        """A commit of this process wrote events."""
        self.wake()

    def wake(self) -> None:
        """Let every waiter look again."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    @property
    def count(self) -> int:
        """How often anything happened; read it before looking at the rows, then pass it to `wait`."""
        with self._changed:
            return self._count

    def wait(self, seen: int, timeout_s: float) -> int:
        """Wait until something happened after `seen`, at most so long; the new count."""
        with self._changed:
            if self._count == seen:
                self._changed.wait(timeout_s)
            return self._count


class RunWatch:
    """Bounded waits for news of a run: this process's signal, and polls that grow slower where others work."""

    def __init__(self, ports: Ports, signal: RunSignal, closed: threading.Event, *, local: bool) -> None:
        self._ports = ports
        self._signal = signal
        self._closed = closed
        self._local = local
        self._seen = 0
        self._pause_s = _POLL_FIRST_S

    def look(self) -> None:
        """Call it before reading the rows: news that comes after it ends the next wait at once."""
        self._seen = self._signal.count

    def wait(self, longest_s: float) -> None:
        """Wait for news; a little while at most, since another process may have it."""
        if self._local:
            self._signal.wait(self._seen, min(longest_s, _SIGNAL_WAIT_S))
            return
        self._ports.clock.wait(self._closed, min(longest_s, self._pause_s))
        self._pause_s = min(2 * self._pause_s, POLL_LONGEST_S)


@dataclass
class Dispatcher:
    """Runs rows on threads until it is drained. `ports.publish` must lead to its wake-ups.

    The process is somebody else's and cannot be replaced as a worker can: a thread whose step ignores its end gets
    a substitute, at most as many as there are threads, and leaves when its step returns after all (RULINGS T9).
    """

    ports: Ports
    wake_ups: WakeUps
    threads: int = limits.EMBEDDED_THREADS

    def __post_init__(self) -> None:
        self.process_id = ProcessId(self.ports.ids.new())
        self.keeper = Keeper(self.ports)
        self.runner = StepRunner(self.ports, self.process_id, self.keeper)
        self._sweeper = Sweeper(self.ports)
        self._stopped = threading.Event()
        self._slots: list[threading.Thread] = []
        self._slots_lock = threading.Lock()
        self._poller: threading.Thread | None = None
        self._solitary = threading.Lock()

    def start(self) -> None:
        """Refuse a database that is not ready (CASES D16), then begin."""
        self.ports.store.check_schema()
        self.keeper.say_seen(self.process_id, self.threads)
        self.keeper.start()
        for _ in range(self.threads):
            self._open_slot()
        self._poller = threading.Thread(target=self._poll, name="agentloom-poller", daemon=True)
        self._poller.start()

    def drain(self, timeout_s: float | None = None) -> bool:
        """End every effect cooperatively and stop; True if all slots returned in time.

        The keeper renews to the last, so that nothing is taken over while a step still commits (CASES D08).
        """
        self._stopped.set()
        self.keeper.drain()
        with self._slots_lock:
            slots = list(self._slots)
        self.wake_ups.release(len(slots))
        clock = self.ports.clock
        until_s = clock.monotonic_s() + (self.ports.settings.drain_s if timeout_s is None else timeout_s)
        for slot in slots:
            slot.join(max(0.0, until_s - clock.monotonic_s()))
        if self._poller is not None:
            self._poller.join(max(0.0, until_s - clock.monotonic_s()))
        returned = not any(slot.is_alive() for slot in slots)
        self.keeper.stop()
        try:
            self.ports.store.worker_gone(self.process_id)
        except AgentloomError as error:
            telemetry.log(logging.WARNING, "farewell_failed", code=error.code)
        return returned

    def _open_slot(self) -> None:
        slot = threading.Thread(target=self._serve, name="agentloom-slot", daemon=True)
        with self._slots_lock:
            self._slots.append(slot)
        slot.start()

    def _replace_lost(self) -> None:
        """Open a slot for each that a step holds past its end. More than twice the threads are never there."""
        self.keeper.is_worn_out(self.threads)
        lost = self.keeper.count_lost()
        with self._slots_lock:
            wanted = min(self.threads + lost, 2 * self.threads) - len(self._slots)
        for _ in range(0 if self._stopped.is_set() else wanted):
            self._open_slot()

    def _is_spare(self) -> bool:
        """Whether the calling slot is one too many, since a lost one has come back; it leaves the list then."""
        with self._slots_lock:
            spare = len(self._slots) > self.threads + self.keeper.count_lost()
            if spare:
                self._slots.remove(threading.current_thread())
            return spare

    def _serve(self) -> None:
        while not self._stopped.is_set():
            if len(self._slots) > self.threads and self._is_spare():
                return
            dispatch_id = self.wake_ups.get(1.0)
            if dispatch_id is None:
                continue
            try:
                # What wakes a slot here comes from the table or from a commit of this process.
                self.runner.run(dispatch_id, force=True)
            except Exception as error:  # noqa: BLE001 - the slot must outlive whatever the claim met; the row stays
                telemetry.count("slot_crashes")
                telemetry.log(logging.ERROR, "slot_crashed", traceback=telemetry.frames_of(error))

    def _poll(self) -> None:
        """Look for due rows while slots are idle, sweep, say that this process is there."""
        clock = self.ports.clock
        sweep_at = seen_at = solitary_at = clock.monotonic_s()
        collect_at = clock.monotonic_s() + COLLECT_EVERY_S
        pause_s = POLL_S
        while not clock.wait(self._stopped, pause_s):
            now_s = clock.monotonic_s()
            try:
                if now_s >= sweep_at:
                    sweep_at = now_s + self.ports.settings.sweep_tick_s
                    self._sweeper.sweep()
                if now_s >= seen_at:
                    seen_at = now_s + SEEN_EVERY_S
                    self.keeper.say_seen(self.process_id, self.threads)
                    self._replace_lost()
                if now_s >= collect_at:
                    collect_at = now_s + COLLECT_EVERY_S
                    collect_blobs(self.ports)
                pause_s = self._take_due(pause_s)
                if now_s >= solitary_at:
                    solitary_at = now_s + 1.0
                    self._serve_solitary()
            except AgentloomError as error:
                telemetry.log(logging.WARNING, "poll_failed", code=error.code)
            except Exception as error:  # noqa: BLE001 - a poller that dies would stop the process's work unseen
                telemetry.count("poll_crashes")
                telemetry.log(logging.ERROR, "poll_crashed", traceback=telemetry.frames_of(error))

    def _take_due(self, pause_s: float) -> float:
        """Queue due rows where none is queued; how long to pause then: longer and longer while there is nothing to do.

        What this process makes due itself wakes a slot without the table.
        """
        if len(self.wake_ups) == 0:
            self.wake_ups.put(self.ports.store.list_due(self.ports.settings.queues, 2 * self.threads))
        busy = len(self.wake_ups) > 0 or self.keeper.held()
        return POLL_S if busy else min(2 * pause_s, IDLE_POLL_S)

    def _serve_solitary(self) -> None:
        """A row that cost two processes their life runs in a fresh child process, one at a time (T8)."""
        due = self.ports.store.list_suspect((Queue.SOLITARY.value,), self.ports.settings.grace_us, 1)
        if due and self._solitary.acquire(blocking=False):
            threading.Thread(target=self._run_solitary, args=(due[0],), name="agentloom-solitary", daemon=True).start()

    def _run_solitary(self, dispatch_id: DispatchId) -> None:
        try:
            command = [sys.executable, "-m", "agentloom_worker.solitary", str(dispatch_id)]
            settings = json.dumps(asdict(self.ports.settings))
            # The release's tools stand where this process found them, which need not be the working directory.
            found = os.pathsep.join(dict.fromkeys(os.path.abspath(place) for place in sys.path))
            given = {
                "AGENTLOOM_DATABASE": self.ports.store.url,
                "AGENTLOOM_SETTINGS": settings,
                "PYTHONPATH": found,
            }
            environment = {**os.environ, **given}
            with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) as child:
                while child.poll() is None:
                    if self.ports.clock.wait(self._stopped, 0.2):
                        child.terminate()
                        break
            telemetry.log(logging.INFO, "solitary_ended", dispatch_id=dispatch_id, exit_code=child.returncode)
        finally:
            self._solitary.release()


def make_dispatcher(
    database_url: str,
    *,
    settings: Settings | None = None,
    threads: int = limits.EMBEDDED_THREADS,
    scripts: Mapping[str, Script] | None = None,
    on_event: Callable[[RunId], None] | None = None,
) -> Dispatcher:
    """A dispatcher of this process on a database; not started yet."""
    settings = settings or Settings()
    wake_ups = WakeUps(settings.queues)
    ports = make_ports(
        database_url,
        settings=settings,
        scripts=scripts,
        publish=wake_ups.publish,
        pool_size=threads + 4,
    )
    if on_event is not None:
        ports = replace(ports, on_event=on_event)
    return Dispatcher(ports, wake_ups, threads)
