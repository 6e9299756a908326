"""Beat does the sweeps itself instead of sending a message to have them done.

So nothing piles up where no worker serves a queue, a dead broker stops no sweep, and the process keeps no state:
no schedule file, no message.
"""

import logging
from typing import Any

from celery import Celery
from celery.beat import ScheduleEntry, Scheduler

from agentloom_worker import telemetry
from agentloom_worker.bootstrap import make_fleet_ports
from agentloom_worker.cleanup.sweeps import REDISPATCH, SWEEPS
from agentloom_worker.cleanup.upkeep import Upkeep
from agentloom_worker.errors import AgentloomError
from agentloom_worker.fleet import begin_when_reachable
from agentloom_worker.metrics import serve_metrics
from agentloom_worker.settings import FleetSettings
from config import settings

_EX_UNAVAILABLE = 69


def make_schedule(fleet: FleetSettings) -> dict[str, dict[str, Any]]:
    """An entry for every sweep of the table; its task is the sweep's name."""
    paces = {REDISPATCH: fleet.sweep_tick_s, **{name: sweep.every_s for name, sweep in SWEEPS.items()}}
    return {name: {"task": name, "schedule": every_s} for name, every_s in paces.items()}


class SweepScheduler(Scheduler):  # type: ignore[misc]
    """Runs what is due in this process; a turn that another process has is left to it."""

    # Celery's own would connect to the broker before the first entry is due.
    producer = None

    def __init__(self, app: Celery, *args: Any, lazy: bool = False, **kwargs: Any) -> None:
        super().__init__(app, *args, lazy=lazy, **kwargs)
        self._upkeep = None if lazy else _make_upkeep()

    def apply_async(self, entry: ScheduleEntry, producer: object = None, advance: bool = True, **kwargs: Any) -> None:
        """Do the sweep; what fails is logged and done again when it is due again."""
        if advance:
            self.reserve(entry)
        assert self._upkeep is not None, "a lazy scheduler runs nothing"
        self._upkeep.do(entry.task)


def _make_upkeep() -> Upkeep:
    """Wait for a database that is away; refuse one that is not ready, and say why (CASES D16)."""
    ports = make_fleet_ports(settings, (), 1).ports
    try:
        begin_when_reachable(ports.clock, ports.store.check_schema, wait_s=settings.start_wait_s)
    except AgentloomError as error:
        telemetry.log(logging.CRITICAL, "not_ready", code=error.code, error=error.message)
        raise SystemExit(_EX_UNAVAILABLE) from None
    if settings.metrics_port:
        serve_metrics(settings.metrics_host, settings.metrics_port, ports.clock, ports.store.count_queues)
    telemetry.log(logging.INFO, "beat_started")
    return Upkeep(ports)
