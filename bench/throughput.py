"""Loops per second of many concurrent runs, and the CPU time that a loop costs, by process."""

import json
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass

from bench.database import Database, Postgres
from bench.process import Child, cpu_ms, model_running, running
from bench.workload import Load, accept_runs, client_ports, dev_model_script, wait_for

# Long enough for idle backends to have reported their share of the server's counters.
_COUNTERS_SETTLE_S = 1.5


@dataclass(frozen=True, slots=True)
class Case:
    """What runs where."""

    name: str
    workers: int
    over_http: bool
    load: Load
    threads: int


def measure(database: Database, case: Case) -> dict[str, object]:
    """Accept all runs, tell the workers to go, wait for the last one to end."""
    url = database.fresh()
    load = case.load
    with ExitStack() as stack:
        model = None
        base_url = "script:main"
        if case.over_http:
            model, base_url = stack.enter_context(model_running(dev_model_script(load.loops)))
        ports = client_ports(url)
        stack.callback(ports.store.close)
        runs = accept_runs(ports, base_url, load.runs)
        environment = {"BENCH_DATABASE": url}
        workers = [
            Child("bench.worker", load.loops, case.threads, environment=environment) for _ in range(case.workers)
        ]
        stack.enter_context(running(*workers))
        for worker in workers:
            worker.read_line()
        wal_before = _wal(database)
        names = {"workers": sum(map(Child.cpu_ms, workers)), "client": cpu_ms(os.getpid())}
        names["model"] = model.cpu_ms() if model else 0.0
        names["postgresql"] = database.cpu_ms() or 0.0
        began_s = time.monotonic()
        for worker in workers:
            worker.write_line("go")
        wait_for(ports, runs)
        elapsed_s = time.monotonic() - began_s
        after = {"workers": sum(map(Child.cpu_ms, workers)), "client": cpu_ms(os.getpid())}
        after["model"] = model.cpu_ms() if model else 0.0
        after["postgresql"] = database.cpu_ms() or 0.0
        counters = [json.loads(worker.end() or "{}") for worker in workers]
        wal = _wal(database)
    total = load.loops_total
    result: dict[str, object] = {
        "name": case.name,
        "database": database.name,
        "workers": case.workers,
        "threads": case.threads,
        "over_http": case.over_http,
        "runs": load.runs,
        "loops": load.loops,
        "elapsed_s": elapsed_s,
        "loops_per_s": total / elapsed_s,
        "cpu_ms_per_loop": {name: (after[name] - before) / total for name, before in names.items()},
        "commits_per_loop": sum(int(counted.get("commits", 0)) for counted in counters) / total,
        "counters": counters,
    }
    if wal_before and wal:
        result["wal_bytes_per_loop_with_images"] = (wal[2] - wal_before[2]) / total
        result["page_images_per_loop"] = (wal[1] - wal_before[1]) / total
    return result


def _wal(database: Database) -> tuple[int, int, int] | None:
    if not isinstance(database, Postgres):
        return None
    time.sleep(_COUNTERS_SETTLE_S)
    count = database.wal_count()
    return count.records, count.images, count.size_bytes
