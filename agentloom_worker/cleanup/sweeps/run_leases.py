"""Run leases of runs that wait for nothing but a timer (RULINGS R7).

A lease governs writable environments and nothing else. A run has one from the moment a step that can write an
environment sets its end; no step can yet, so in production this renews none.
"""

from agentloom_worker import limits
from agentloom_worker.runtime.ports import US, Ports


def renew_run_leases(ports: Ports) -> int:
    """Extend the leases of live runs without a claimed row; how many. A claim's keeper renews its own run's."""
    return ports.store.renew_run_leases(ttl_us=int(limits.RUN_LEASE_TTL_S * US), limit=limits.RUN_LEASES_BATCH)
