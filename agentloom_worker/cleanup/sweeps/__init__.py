"""SWEEPS: what somebody has to do now and then, whoever it is. Beat reads this table, and so does every worker.

A new sweep is one file beside this one, one line here, its tests. Each may run at any time, any number of
times, on any number of processes: no beat, one, two and a beat that died give the same result.
"""

from collections.abc import Callable
from dataclasses import dataclass

from agentloom_worker import limits
from agentloom_worker.cleanup.blobs import collect_blobs
from agentloom_worker.cleanup.sweeps.dead_rows import free_dead_rows
from agentloom_worker.cleanup.sweeps.processes import forget_processes
from agentloom_worker.cleanup.sweeps.run_leases import renew_run_leases
from agentloom_worker.runtime.ports import Ports


@dataclass(frozen=True, slots=True)
class Sweep:
    """A duty: how often the fleet as a whole does it, and what it does."""

    every_s: float
    run: Callable[[Ports], object]


# The sweep of due rows stands in runtime/dispatch.py, since the embedded dispatcher needs it as well.
REDISPATCH = "redispatch"
SWEEPS: dict[str, Sweep] = {
    "free_dead_rows": Sweep(limits.VACUUM_EVERY_S, free_dead_rows),
    "renew_run_leases": Sweep(limits.RUN_LEASE_RENEW_S, renew_run_leases),
    "forget_processes": Sweep(60.0, forget_processes),
    "collect_blobs": Sweep(limits.COLLECT_EVERY_S, collect_blobs),
}
