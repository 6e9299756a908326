"""A process of the fleet as the database knows it: for people, and for the sweep's sense of slots (RULINGS U18)."""

from dataclasses import dataclass

from agentloom_worker.ids import ProcessId


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """Instants in microseconds of the database; `silent_us` is how long ago it was heard of."""

    process_id: ProcessId
    host: str
    pid: int
    queues: tuple[str, ...]
    slots: int
    version: str
    draining: bool
    started_at: int
    seen_at: int
    silent_us: int
