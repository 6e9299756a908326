"""What waits in which queue, and who serves it: for people and for `agentloom doctor`."""

from dataclasses import dataclass

from agentloom_worker import limits
from agentloom_worker.domain.dispatch import Queue, QueueDepth
from agentloom_worker.domain.process import WorkerProcess
from agentloom_worker.runtime.ports import US, Ports


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue: its rows at one instant, and who serves it. `oldest_due_ms` is the longest wait of a due row.

    `claimed` counts `suspect` rows too: those whose claim has expired and is about to pass on. `processes` and
    `slots` are those that take new work; in-process workers (`Agentloom.embedded`) count as well.
    """

    queue: str
    due: int
    oldest_due_ms: int
    waiting: int
    claimed: int
    suspect: int
    parked: int
    processes: int
    slots: int


def list_queues(ports: Ports) -> tuple[QueueState, ...]:
    """Every queue, empty ones too, in the order of their declaration; then those that only another version knows."""
    depths = {depth.queue: depth for depth in ports.store.count_queues()}
    serving = [worker for worker in ports.store.list_workers() if is_present(worker) and not worker.draining]
    names = [queue.value for queue in Queue]
    names += sorted(set(depths) - set(names))
    return tuple(_state(name, depths.get(name), serving) for name in names)


def is_present(worker: WorkerProcess) -> bool:
    """Whether the process was heard of lately; one that was not has died or cannot reach the database."""
    return worker.silent_us < limits.WORKER_SILENT_S * US


def _state(name: str, depth: QueueDepth | None, serving: list[WorkerProcess]) -> QueueState:
    there = [worker for worker in serving if name in worker.queues]
    slots = sum(worker.slots for worker in there)
    if depth is None:
        return QueueState(name, 0, 0, 0, 0, 0, 0, len(there), slots)
    return QueueState(
        queue=name,
        due=depth.due,
        oldest_due_ms=depth.oldest_due_us // 1000,
        waiting=depth.waiting,
        claimed=depth.claimed,
        suspect=depth.suspect,
        parked=depth.parked,
        processes=len(there),
        slots=slots,
    )
