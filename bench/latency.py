"""Engine time per loop of a single run, from the instants of its committed events (one `model.completed` a loop)."""

import itertools

from agentloom_worker.ids import RunId
from agentloom_worker.runtime.ports import Ports
from bench.database import Database
from bench.process import Child, running
from bench.workload import Load, accept_runs, client_ports, wait_for

_PAGE = 1000
# Connections, caches and prepared plans are made in the first loops.
_WARM_LOOPS = 10


def measure(database: Database, *, loops: int, threads: int) -> dict[str, object]:
    """One run, alone, with the in-process model: all the time between two loops is the engine's."""
    url = database.fresh()
    ports = client_ports(url)
    load = Load(1, loops)
    try:
        (run_id,) = accept_runs(ports, "script:main", load.runs)
        worker = Child("bench.worker", loops, threads, environment={"BENCH_DATABASE": url})
        with running(worker):
            worker.read_line()
            worker.write_line("go")
            wait_for(ports, [run_id])
            worker.end()
        gaps_ms = loop_gaps_ms(ports, run_id)
    finally:
        ports.store.close()
    return {"database": database.name, "loops": loops, **summary(gaps_ms)}


def loop_gaps_ms(ports: Ports, run_id: RunId) -> list[float]:
    """The times between a run's loops after the first ones, in ascending order."""
    instants: list[int] = []
    after = 0
    while events := ports.store.list_events(run_id, after=after, limit=_PAGE):
        instants.extend(event.created_at for event in events if event.kind == "model.completed")
        after = events[-1].run_seq
    return sorted((later - earlier) / 1000 for earlier, later in itertools.pairwise(instants[_WARM_LOOPS:]))


def summary(ordered: list[float]) -> dict[str, float]:
    """What is told of times in ascending order, ms."""
    return {
        "p50_ms": quantile(ordered, 0.50),
        "p90_ms": quantile(ordered, 0.90),
        "p99_ms": quantile(ordered, 0.99),
        "mean_ms": sum(ordered) / len(ordered),
    }


def quantile(ordered: list[float], share: float) -> float:
    """The value at this share of a sorted list."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
