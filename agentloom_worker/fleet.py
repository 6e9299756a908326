"""One process of the fleet: its slots, keeper, upkeep, and a look at the table while slots are idle (RUNTIME 5).

What brings wake-ups is not known here. `run` takes one; a row whose wake-up was lost, or went to a process that
is busy, is found in the table by whoever has a free slot. `embedded.py` is the same without a broker.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from agentloom_worker import limits, telemetry
from agentloom_worker.bootstrap import FleetPorts
from agentloom_worker.cleanup.upkeep import Upkeep
from agentloom_worker.clock import Clock
from agentloom_worker.domain.dispatch import Queue
from agentloom_worker.errors import AgentloomError, PersistenceUnavailableError, PersistenceUnreachableError
from agentloom_worker.ids import DispatchId, ProcessId
from agentloom_worker.runtime.lease import Keeper
from agentloom_worker.runtime.ports import US
from agentloom_worker.runtime.step import StepRunner

_UPKEEP_LOOK_S = 0.2


def begin_when_reachable(
    clock: Clock,
    begin: Callable[[], None],
    *,
    wait_s: float,
    awaited: type[PersistenceUnavailableError] = PersistenceUnreachableError,
    given_up: Callable[[], bool] = lambda: False,
) -> None:
    """Call `begin` until the database can be reached, for `wait_s` at most or until `given_up`; say once that it waits.

    Raises what `begin` raises: an `awaited` error when the time is over, any other one at once (CASES D16).
    """
    until_s = clock.monotonic_s() + wait_s
    waiting = threading.Event()
    said = False
    while True:
        try:
            begin()
        except awaited as error:
            left_s = until_s - clock.monotonic_s()
            if left_s <= 0 or given_up():
                raise
            if not said:
                said = True
                telemetry.log(
                    logging.WARNING, "waiting_for_database", code=error.code, error=error.message, at_most_s=wait_s
                )
            clock.wait(waiting, min(limits.START_LOOK_S, left_s))
        else:
            return


class FleetProcess:
    """Runs rows for one process until it is drained. Make it after a fork, not before.

    `worn_out` is called once when a quarter of the slots is lost to steps and tools that ignore their end
    (RULINGS T9): the process should be replaced.
    """

    def __init__(self, made: FleetPorts, *, slots: int, worn_out: Callable[[], None] = lambda: None) -> None:
        self.ports = ports = made.ports
        self.slots = slots
        self.process_id = ProcessId(ports.ids.new())
        self.keeper = Keeper(ports)
        self.solitary = ports.settings.queues == (Queue.SOLITARY.value,)
        self.publisher = made.publisher
        self._relay = made.relay
        self._worn_out = worn_out
        self._runner = StepRunner(ports, self.process_id, self.keeper, solitary=self.solitary)
        self._upkeep = Upkeep(ports)
        self._free = threading.Semaphore(slots)
        self._busy = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._own = ThreadPoolExecutor(max_workers=slots, thread_name_prefix="agentloom-idle")
        self._threads: list[threading.Thread] = []
        self._processes = 1
        self._worn = False

    def start(self) -> None:
        """Refuse a database that is not ready (CASES D16), then begin. Raises AgentloomError."""
        self.ports.store.check_schema()
        self.keeper.say_seen(self.process_id, self.slots)
        self.keeper.start()
        for name, work in (("poller", self._poll), ("upkeep", self._keep_up)):
            thread = threading.Thread(target=work, name=f"agentloom-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    @property
    def busy(self) -> int:
        """How many slots run a step now."""
        return self._busy

    @property
    def draining(self) -> bool:
        """Whether the process takes nothing new."""
        return self.keeper.draining

    def run(self, dispatch_id: DispatchId, *, force: bool = False) -> bool:
        """Carry out a wake-up in the calling thread; False if the row was not to be had or no slot was free.

        Then the row stays for the table's next reader. `force` skips the look-up of who may hold it (T11).
        Leaves no exception but what ends the process.
        """
        if not self._free.acquire(timeout=limits.SLOT_WAIT_S):
            telemetry.count("wake_ups_left")
            return False
        return self._run(dispatch_id, force=force)

    def drain(self) -> None:
        """End every effect cooperatively and take nothing new; claims are renewed until `stop`."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self.keeper.drain()
        telemetry.log(logging.INFO, "draining", process_id=self.process_id, held=len(self.keeper.held()))

    def stop(self, timeout_s: float) -> bool:
        """Wait until every step has returned, then say farewell; whether all did in time."""
        self.drain()
        clock = self.ports.clock
        until_s = clock.monotonic_s() + timeout_s
        returned = all(self._free.acquire(timeout=max(0.0, until_s - clock.monotonic_s())) for _ in range(self.slots))
        for thread in self._threads:
            thread.join(max(0.1, until_s - clock.monotonic_s()))
        self._own.shutdown(wait=False, cancel_futures=True)
        self.keeper.stop()
        try:
            self.ports.store.worker_gone(self.process_id)
        except AgentloomError as error:
            telemetry.log(logging.WARNING, "farewell_failed", code=error.code)
        for port in (self.publisher, self.ports.fast, self.ports.store):
            port.close()
        return returned

    def _run(self, dispatch_id: DispatchId, *, force: bool) -> bool:
        """With a slot taken: run the row, free the slot."""
        self._count_busy(1)
        try:
            return self._runner.run(dispatch_id, force=force)
        except Exception as error:  # noqa: BLE001 - the slot must outlive whatever the claim met; the row stays
            telemetry.count("slot_crashes")
            telemetry.log(logging.ERROR, "slot_crashed", dispatch_id=dispatch_id, traceback=telemetry.frames_of(error))
            return False
        finally:
            self._count_busy(-1)
            self._free.release()

    def _count_busy(self, by: int) -> None:
        with self._lock:
            self._busy += by
        telemetry.gauge("slots_busy", self._busy)

    # -- the look at the table -----------------------------------------------------------------------

    def _poll(self) -> None:
        clock = self.ports.clock
        while not clock.wait(self._stopped, self._poll_s()):
            try:
                self._take_due()
            except AgentloomError as error:
                telemetry.log(logging.WARNING, "poll_failed", code=error.code)
                clock.wait(self._stopped, 1.0)
            except Exception as error:  # noqa: BLE001 - a poller that dies would leave lost wake-ups to the sweep alone
                telemetry.count("poll_crashes")
                telemetry.log(logging.ERROR, "poll_crashed", traceback=telemetry.frames_of(error))

    def _poll_s(self) -> float:
        return limits.IDLE_POLL_S if self.publisher.available else limits.BROKERLESS_POLL_S

    def _take_due(self) -> None:
        """Fill idle slots with rows that nobody came for; without a broker with every row that is due."""
        free = self.slots - self._busy
        if free <= 0 or not self.ports.settings.queues:
            return
        settings = self.ports.settings
        if self.solitary:
            due = self.ports.store.list_suspect(settings.queues, settings.grace_us, free)
        else:
            patience_us = int(limits.IDLE_PATIENCE_S * US) if self.publisher.available else 0
            due = self.ports.store.list_due(settings.queues, free, patience_us=patience_us)
        for dispatch_id in due:
            if self._stopped.is_set() or not self._free.acquire(blocking=False):
                return
            telemetry.count("taken_from_table")
            self._own.submit(self._run, dispatch_id, force=True)

    # -- upkeep --------------------------------------------------------------------------------------

    def _keep_up(self) -> None:
        clock = self.ports.clock
        seen_at = clock.monotonic_s()
        while not clock.wait(self._stopped, _UPKEEP_LOOK_S):
            try:
                if clock.monotonic_s() >= seen_at:
                    seen_at = clock.monotonic_s() + limits.WORKER_SEEN_EVERY_S
                    self.keeper.say_seen(self.process_id, self.slots)
                    self._count_fleet()
                    self._look_for_lost_slots()
                self._upkeep.do_due(self._processes)
            except AgentloomError as error:
                telemetry.log(logging.WARNING, "upkeep_failed", code=error.code)
            except Exception as error:  # noqa: BLE001 - the fleet's duties must not end with one that failed
                telemetry.count("upkeep_crashes")
                telemetry.log(logging.ERROR, "upkeep_crashed", traceback=telemetry.frames_of(error))

    def _count_fleet(self) -> None:
        slots: dict[str, int] = defaultdict(int)
        there = [
            process for process in self.ports.store.list_workers() if process.silent_us < limits.WORKER_SILENT_S * US
        ]
        for process in there:
            for queue in process.queues:
                slots[queue] += process.slots
        self._processes = max(1, len(there))
        self._relay.note_slots(slots)

    def _look_for_lost_slots(self) -> None:
        if self.keeper.is_worn_out(self.slots) and not self._worn:
            self._worn = True
            self._worn_out()
