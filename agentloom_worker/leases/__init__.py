"""Leases of the fast path: who seems to hold what, who was cancelled, who has a slot. Hints, never truth."""

from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from agentloom_worker import limits
from agentloom_worker.clock import Clock
from agentloom_worker.leases import redis
from agentloom_worker.leases.fast_path import FastPath, Rate, Waiter
from agentloom_worker.leases.guard import GuardedFastPath
from agentloom_worker.leases.local import LocalFastPath

LOCAL = "local:"
DEFAULT_PREFIX = "agentloom:"


def _open_local(_url: str, clock: Clock, _prefix: str, _master: str) -> FastPath:
    return LocalFastPath(clock)


def _open_redis(url: str, clock: Clock, prefix: str, master: str) -> FastPath:
    asking = redis.connect(url, retries=limits.REDIS_RETRIES, sentinel_master=master)
    listening = redis.connect(url, retries=0, sentinel_master=master)
    return GuardedFastPath(redis.RedisFastPath(asking, listening, clock, prefix), redis.ERRORS, clock)


# the scheme of a URL -> who keeps the hints
LEASE_STORES: Mapping[str, Callable[[str, Clock, str, str], FastPath]] = {
    "local": _open_local,
    "redis": _open_redis,
    "rediss": _open_redis,
    "sentinel": _open_redis,
    "unix": _open_redis,
}


def open_fast_path(
    url: str, clock: Clock, *, prefix: str = DEFAULT_PREFIX, sentinel_master: str = "mymaster"
) -> FastPath:
    """The fast path of a process: `local:`, or a Redis by a URL that `leases.redis.connect` takes.

    `prefix` begins every key, so that several fleets can share a server. Opens no connection yet.
    Raises ValueError for a URL that names no store; a server that does not answer is no error.
    """
    scheme = urlsplit(url).scheme
    opener = LEASE_STORES.get(scheme)
    if opener is None:
        raise ValueError(
            f"a lease store is one of {', '.join(sorted(LEASE_STORES))}, not {scheme or 'without a scheme'!r}"
        )
    return opener(url, clock, prefix, sentinel_master)


__all__ = ["DEFAULT_PREFIX", "LEASE_STORES", "LOCAL", "FastPath", "Rate", "Waiter", "open_fast_path"]
