"""Many slow streams in one worker process: its memory, CPU, connections and sockets, by /proc and pg_stat_activity."""

import os
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy.engine import make_url

from bench.celery_workers import ALL_QUEUES, fresh_fleet
from bench.database import Postgres
from bench.process import cpu_ms, model_running
from bench.workload import ask_all, release, wait_for
from tests.servers import RedisServer

CHUNKS_PER_S = 5
_LOOK_EVERY_S = 0.1
_START_S = 120.0
# The worker's own sessions, and the model calls that it holds.
_COUNTS = (
    "SELECT (SELECT count(*) FROM pg_stat_activity WHERE client_port = ANY(%s)),"
    " (SELECT count(*) FROM pending_dispatch WHERE step = 'attempt_model' AND claim_token IS NOT NULL)"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the worker."""

    at_s: float
    streams: int
    cpu_ms: float
    rss_mb: float
    threads: int
    model_sockets: int
    database_sockets: int
    redis_sockets: int
    database_sessions: int


def script(stream_s: int) -> dict[str, Any]:
    """One text that comes in small pieces for so long."""
    pause_ms = 1000 // CHUNKS_PER_S
    return {
        "schema_version": 1,
        "chunk_chars": 20,
        "delay": {"first_chunk_ms": pause_ms, "between_chunks_ms": pause_ms},
        "turns": [{"answer": {"text": "twenty characters.. " * (stream_s * CHUNKS_PER_S)}}],
    }


def measure(database: Postgres, cache: RedisServer, count: int, stream_s: int) -> dict[str, Any]:
    """Ask so many questions at once, look at the worker until all are answered."""
    with (
        model_running(script(stream_s)) as (model, base_url),
        fresh_fleet(database, cache) as (fleet, url),
        closing(database.connect(url)) as connection,
        connection.cursor() as cursor,
    ):
        worker = fleet.worker(ALL_QUEUES, slots=count)
        ports = {
            int(urlsplit(base_url).port or 80): "model",
            int(make_url(url).port or 5432): "database",
            int(make_url(cache.url).port or 6379): "redis",
        }
        idle = _look(worker.pid, ports, cursor)
        model_before_ms = model.cpu_ms()
        runs = ask_all(fleet.ports, release(base_url), ["Tell me something long."] * count)
        readings = [idle]
        until_s = time.monotonic() + _START_S + stream_s
        while not all(one.status.terminal for one in fleet.ports.store.load_standings(runs).values()):
            if time.monotonic() > until_s:
                raise RuntimeError(f"{readings[-1].streams} streams have not ended in time")
            time.sleep(_LOOK_EVERY_S)
            readings.append(_look(worker.pid, ports, cursor))
        wait_for(fleet.ports, runs)
        model_ms = model.cpu_ms() - model_before_ms
    asked = {"slots": count, "stream_s": stream_s, "chunks_per_s": CHUNKS_PER_S, "model_cpu_ms": model_ms}
    return asked | summary(readings)


def summary(readings: list[Reading]) -> dict[str, Any]:
    """The most of everything, and the CPU while most streams were open."""
    at_once = max(reading.streams for reading in readings)
    plateau = [reading for reading in readings if reading.streams >= 0.95 * at_once]
    span_s = plateau[-1].at_s - plateau[0].at_s
    most = {
        f"{name}_max": max(getattr(reading, name) for reading in readings)
        for name in asdict(readings[0])
        if name not in ("at_s", "cpu_ms")
    }
    return {
        **most,
        "rss_mb_idle": readings[0].rss_mb,
        "database_sessions_streaming": max(reading.database_sessions for reading in plateau[len(plateau) // 2 :]),
        "streaming_s": span_s,
        "cpu_share": (plateau[-1].cpu_ms - plateau[0].cpu_ms) / 1000 / span_s if span_s else None,
    }


def _look(pid: int, servers: dict[int, str], cursor: Any) -> Reading:
    sockets = _sockets(pid)
    counted = dict.fromkeys(servers.values(), 0)
    for _local, remote in sockets:
        if remote in servers:
            counted[servers[remote]] += 1
    locals_ = [local for local, remote in sockets if servers.get(remote) == "database"]
    cursor.execute(_COUNTS, (locals_,))
    sessions, streams = cursor.fetchone()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return Reading(
        at_s=time.monotonic(),
        streams=int(streams),
        cpu_ms=cpu_ms(pid),
        rss_mb=int(status["VmRSS"].split()[0]) / 1024,
        threads=int(status["Threads"]),
        model_sockets=counted["model"],
        database_sockets=counted["database"],
        redis_sockets=counted["redis"],
        database_sessions=int(sessions),
    )


def _sockets(pid: int) -> list[tuple[int, int]]:
    """(local port, remote port) of every TCP connection that the process has open now."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "01" and fields[9] in inodes:
                found.append((int(fields[1].rpartition(":")[2], 16), int(fields[2].rpartition(":")[2], 16)))
    return found
