"""A fleet of Celery workers beside the embedded dispatcher: loops/s, messages, and what a split into services costs.

Real `celery -A tasks worker` processes on the same PostgreSQL, with a Redis of their own. All runs are accepted and
held back until every process is there, so that a case counts from one instant; the embedded one does the same.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import redis

from agentloom_worker.domain.dispatch import WakeUp
from bench import latency, recovery, streams, throughput
from bench.celery_workers import ALL_QUEUES, fresh_fleet
from bench.database import Postgres
from bench.process import cpu_ms
from bench.throughput import Case
from bench.workload import Load, accept_runs, client_ports, wait_for
from tests.fleet import Fleet, FleetProcessHandle
from tests.servers import Origin, RedisServer, open_redis

# An own server comes first: nobody else's commands are counted.
REDIS_WAYS = (Origin.INSTALLED, Origin.WHEEL, Origin.FOUND)
# Far enough that no worker takes a run before it is told to go.
_HELD_US = 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class FleetSize:
    """How much of everything."""

    load: Load
    handed_load: Load  # where every step is handed over by a message, which takes several times as long
    rounds: int  # of embedded and fleet by turns: what they are compared by
    single_loops: int
    victims: int
    streams: int
    stream_s: int


@dataclass(frozen=True, slots=True)
class FleetCase:
    """What runs where: the queues of each worker process, and settings that are not default."""

    name: str
    workers: tuple[str, ...]
    settings: tuple[tuple[str, str], ...] = ()


EMBEDDED = "embedded, two workers"
ONE = FleetCase("one worker, all queues", (ALL_QUEUES,))
TWO = FleetCase("two workers, all queues", (ALL_QUEUES,) * 2)
HOPS = FleetCase("two workers, a message a step", (ALL_QUEUES,) * 2, (("INLINE_HOPS", "0"),))
SERVICES = FleetCase("a service for each queue", ("control", "model", "tools", "maintenance"))


def measure(database: Postgres, size: FleetSize, threads: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything about the fleet. `say` is told what is measured now."""
    with closing(open_redis(REDIS_WAYS)) as cache:
        cases: list[dict[str, Any]] = []
        for number in range(size.rounds):
            say(f"fleet, embedded, round {number + 1}")
            embedded = throughput.measure(database, Case(EMBEDDED, 2, False, size.load, threads))
            cases.append({**embedded, "messages_per_run": 0.0})
            say(f"fleet, {TWO.name}, round {number + 1}")
            cases.append(measure_rate(database, cache, TWO, size.load, threads))
        for case, load in ((HOPS, size.handed_load), (ONE, size.load), (SERVICES, size.handed_load)):
            say(f"fleet, {case.name}")
            cases.append(measure_rate(database, cache, case, load, threads))
        say("fleet, one run alone")
        single = measure_single(database, cache, size.single_loops, threads)
        found: dict[str, Any] = {"redis": {"version": cache.version, "origin": str(cache.origin)}}
        found |= {"rates": cases, "inline_share": inline_share(cases), "single": single}
        for how in (recovery.KILL, recovery.DRAIN):
            say(f"fleet, recovery, {how.name}")
            found[how.name] = recovery.measure(database, cache, how, victims=size.victims)
        say(f"fleet, {size.streams} streams")
        found["streams"] = streams.measure(database, cache, size.streams, size.stream_s)
    return found


def inline_share(cases: Sequence[dict[str, Any]]) -> float | None:
    """The rate of two workers of all queues, as a share of the embedded one's; over all rounds together."""
    embedded_s, fleet_s = (
        sum(case["elapsed_s"] for case in cases if case["name"] == name) for name in (EMBEDDED, TWO.name)
    )
    return embedded_s / fleet_s if embedded_s and fleet_s else None


def measure_rate(database: Postgres, cache: RedisServer, case: FleetCase, load: Load, threads: int) -> dict[str, Any]:
    """Accept all runs, let every process start, wake them at one instant, wait for the last run to end."""
    with _ready(database, cache, case, load, threads) as (fleet, workers, held):
        ports = fleet.ports
        before = _readings(database, cache, workers)
        began_s = time.monotonic()
        held.release(fleet)
        wait_for(ports, held.runs)
        elapsed_s = time.monotonic() - began_s
        after = _readings(database, cache, workers)
    spent = {name: after[name] - value for name, value in before.items()}
    messages, commands = spent.pop("messages"), spent.pop("commands")
    total = load.loops_total
    return {
        "name": case.name,
        "workers": len(workers),
        "queues": list(case.workers),
        "threads": threads,
        "runs": load.runs,
        "loops": load.loops,
        "elapsed_s": elapsed_s,
        "loops_per_s": total / elapsed_s,
        "messages_per_run": messages / load.runs,
        "redis_commands_per_loop": commands / total,
        "cpu_ms_per_loop": {name: value / total for name, value in spent.items()},
    }


def measure_single(database: Postgres, cache: RedisServer, loops: int, threads: int) -> dict[str, Any]:
    """One run, alone, in a worker of all queues: the times between its loops, by the rows' instants."""
    with _ready(database, cache, ONE, Load(1, loops), threads) as (fleet, _workers, held):
        held.release(fleet)
        wait_for(fleet.ports, held.runs)
        gaps_ms = latency.loop_gaps_ms(fleet.ports, held.runs[0])
    return {"loops": loops, **latency.summary(gaps_ms)}


class _HeldRuns:
    """Accepted runs whose first rows are due in an hour, until they are released."""

    def __init__(self, database: Postgres, url: str, count: int) -> None:
        self._database, self._url = database, url
        self._wake_ups: list[WakeUp] = []
        ports = client_ports(url, self._wake_ups.extend)
        with closing(ports.store):
            self.runs = accept_runs(ports, "script:main", count)
        self._shift(_HELD_US)

    def release(self, fleet: Fleet) -> None:
        """Make all due, and publish what a client would have published."""
        self._shift(-_HELD_US)
        unsent = fleet.made.publisher.wake(self._wake_ups)
        assert not unsent, "the broker takes every wake-up"

    def _shift(self, by_us: int) -> None:
        with closing(self._database.connect(self._url)) as connection, connection.cursor() as cursor:
            cursor.execute(
                "UPDATE pending_dispatch SET not_before = not_before + %(by)s, wake_at = wake_at + %(by)s"
                " WHERE step = 'prepare_context'",
                {"by": by_us},
            )


@contextmanager
def _ready(
    database: Postgres, cache: RedisServer, case: FleetCase, load: Load, threads: int
) -> Iterator[tuple[Fleet, list[FleetProcessHandle], _HeldRuns]]:
    """A fleet whose processes are there, and runs that wait to be released."""
    with fresh_fleet(database, cache) as (fleet, url):
        held = _HeldRuns(database, url, load.runs)
        fleet.environment["BENCH_LOOPS"] = str(load.loops)
        extra = dict(case.settings)
        workers = [fleet.worker(queues, slots=threads, include="bench.scripted", **extra) for queues in case.workers]
        yield fleet, workers, held


def _readings(database: Postgres, cache: RedisServer, workers: list[FleetProcessHandle]) -> dict[str, float]:
    """CPU time so far in ms, and what Redis has counted: messages are pushes to a list."""
    with closing(redis.Redis.from_url(cache.url, decode_responses=True)) as client:
        counted: Any = client.info("commandstats")
        server: Any = client.info("cpu")
    return {
        "workers": sum(cpu_ms(worker.pid) for worker in workers),
        "client": cpu_ms(os.getpid()),
        "postgresql": database.cpu_ms() or 0.0,
        "redis": 1000 * (float(server["used_cpu_user"]) + float(server["used_cpu_sys"])),
        "messages": float(counted.get("cmdstat_lpush", {}).get("calls", 0)),
        "commands": float(sum(entry["calls"] for entry in counted.values())),
    }
