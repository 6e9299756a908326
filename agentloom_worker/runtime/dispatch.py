"""The outbox's upkeep: successors become rows, and the sweep publishes what nobody came for (RULINGS T11)."""

import logging
import threading
from dataclasses import dataclass

from agentloom_worker import limits, telemetry
from agentloom_worker.domain.commit import OutboxRow
from agentloom_worker.domain.dispatch import Successor, WakeUp
from agentloom_worker.errors import AgentloomError, InvariantError
from agentloom_worker.ids import ClaimToken, DispatchId
from agentloom_worker.runtime.ports import US, Ports
from agentloom_worker.runtime.table import STEPS
from agentloom_worker.storage.store import SweptRow


def outbox_row(ports: Ports, successor: Successor, inline_token: ClaimToken | None = None) -> OutboxRow:
    """A successor with its identity; its queue, unless it names one, and its version are the table's."""
    entry = STEPS.get(successor.step)
    if entry is None:
        raise InvariantError(f"no step is named {successor.step!r}")
    queue = (successor.queue or entry.queue).value
    return OutboxRow(DispatchId(ports.ids.new()), successor, queue, entry.version, 0, inline_token)


def wake_up(row: OutboxRow) -> WakeUp:
    """The hint for a row that a commit inserted."""
    return WakeUp(row.dispatch_id, row.successor.step, row.queue, row.version)


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep did."""

    seen: int
    published: int
    parked: int


class Sweeper:
    """One process's sweep. Any number of them may run at once: each row is taken by one (CASES D12)."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._low_us = 0
        self._full_at_s = 0.0
        self._lock = threading.Lock()

    def sweep(self) -> Swept:
        """Look at every row whose `wake_at` has come: suspect, re-publish, send to solitary, park.

        Scans start a little below the last finished sweep, so that dead index entries are not read again;
        a full scan a minute finds what a clock's jump left behind (RULINGS T12).
        """
        if not self._lock.acquire(blocking=False):
            return Swept(0, 0, 0)
        try:
            return self._sweep()
        finally:
            self._lock.release()

    def _sweep(self) -> Swept:
        ports = self._ports
        now_s, now_us = ports.clock.monotonic_s(), ports.store.now_us()
        low = self._low_us
        if now_s >= self._full_at_s:
            low, self._full_at_s = 0, now_s + 60.0
            ports.store.sweep_ahead(batch=limits.SWEEP_BATCH, ttl_us=ports.settings.claim_ttl_us)
        seen = published = parked = 0
        for _ in range(limits.SWEEP_BATCHES_MAX):
            rows = self._batch(low)
            due = [WakeUp(row.dispatch_id, row.step, row.queue, row.version, force=True) for row in rows if row.publish]
            if due:
                telemetry.count("redispatched", len(due))
                ports.publish(due)
            seen, published = seen + len(rows), published + len(due)
            parked += self._note_parked([row for row in rows if row.parked])
            if len(rows) < limits.SWEEP_BATCH:
                # Only a scan that came to its end says that nothing is left below.
                self._low_us = max(0, now_us - 10 * US)
                break
        return Swept(seen, published, parked)

    def _batch(self, low_us: int) -> list[SweptRow]:
        settings = self._ports.settings
        return self._ports.store.sweep(
            low_us=low_us,
            batch=limits.SWEEP_BATCH,
            grace_us=settings.grace_us,
            ttl_us=settings.claim_ttl_us,
            again_us=int(limits.WAKE_AFTER_S * US),
            again_max_us=int(limits.WAKE_BACKOFF_MAX_S * US),
            losses_before_solitary=limits.LOSSES_BEFORE_SOLITARY,
        )

    def _note_parked(self, rows: list[SweptRow]) -> int:
        """Say which rows the sweep has parked; the event of one run never stops the sweep."""
        telemetry.count("claims_lost", len(rows))
        telemetry.count("steps_parked", len(rows))
        for row in rows:
            telemetry.log(logging.ERROR, "step_parked", dispatch_id=row.dispatch_id, step=row.step)
            if row.run_id is None:
                continue
            try:
                key = f"parked:{row.token or row.dispatch_id}"
                self._ports.store.note_event(row.run_id, key, "step.parked", {"step": row.step})
            except AgentloomError as error:
                telemetry.log(logging.WARNING, "event_failed", run_id=row.run_id, code=error.code)
        return len(rows)
