"""What a Redis says about itself: version, role, what it does when memory or disk run out, its clock."""

from typing import Any

import redis

from agentloom_worker.clock import US, Clock, ClockOffset
from agentloom_worker.domain.health import RedisFacts, Unreachable
from agentloom_worker.leases.redis import ERRORS, connect, disconnect


def probe_redis(url: str, clock: Clock, sentinel_master: str = "mymaster") -> RedisFacts | Unreachable:
    """Ask one server; reads only, and needs no right to CONFIG. `url` is one that `connect` takes."""
    try:
        client: Any = connect(url, retries=0, sentinel_master=sentinel_master)
    except ValueError as error:
        return Unreachable(f"the URL cannot be used: {type(error).__name__}")
    try:
        before_us = clock.wall_us()
        seconds, microseconds = client.time()
        offset = ClockOffset.between(before_us, seconds * US + microseconds, clock.wall_us())
        # By section, since a server may hide some of them from a user.
        said: dict[str, Any] = {}
        for section in ("server", "replication", "cluster", "memory", "persistence"):
            said |= client.info(section)
    except ERRORS as error:
        return Unreachable(_reason(error))
    finally:
        disconnect(client)
    valkey = said.get("valkey_version")
    return RedisFacts(
        product="Valkey" if valkey else "Redis",
        version=str(valkey or said.get("redis_version", "")),
        role=str(said.get("role", "")),
        cluster=bool(said.get("cluster_enabled", 0)),
        eviction=str(said.get("maxmemory_policy", "")),
        memory_used=int(said.get("used_memory", 0)),
        memory_max=int(said.get("maxmemory", 0)),
        persistence=_persistence(said),
        saving_fails="err" in (said.get("rdb_last_bgsave_status"), said.get("aof_last_write_status")),
        clock=offset,
    )


def _persistence(said: dict[str, Any]) -> tuple[str, ...]:
    """What it writes to disk, as far as it says so: whether snapshots are configured only CONFIG would tell."""
    kinds = []
    if said.get("aof_enabled"):
        kinds.append("append-only file")
    if said.get("rdb_last_bgsave_time_sec", -1) != -1:
        kinds.append("snapshots")
    return tuple(kinds)


def _reason(error: Exception) -> str:
    """Its kind, and what a server answered; a failed connection's text holds the address."""
    name = type(error).__name__
    return f"{name}: {error}"[:200] if isinstance(error, redis.ResponseError) else name
