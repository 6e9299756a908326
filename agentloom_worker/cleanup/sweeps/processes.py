"""Processes that died without a farewell."""

from agentloom_worker import limits
from agentloom_worker.runtime.ports import US, Ports


def forget_processes(ports: Ports) -> int:
    """Drop the rows of processes that have been silent for a quarter of an hour; how many."""
    return ports.store.prune_workers(int(limits.WORKER_FORGOTTEN_S * US))
