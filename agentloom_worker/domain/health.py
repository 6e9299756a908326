"""What the servers of a fleet say about themselves: facts, without a judgement."""

from collections.abc import Mapping
from dataclasses import dataclass

from agentloom_worker.clock import ClockOffset


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A server that could not be asked; `reason` holds no address and no secret."""

    reason: str


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """PostgreSQL. `settings` are those of a plain session; `oldest_*` is what keeps dead rows alive.

    `pooled`: one client met more than one server session, so that prepared statements are lost between two
    transactions. `standbys` is how many stream from it.
    """

    version: str
    version_number: int
    settings: Mapping[str, str]
    standby: bool
    standbys: int
    connections: int
    pooled: bool
    oldest_age_xids: int
    oldest_held_s: float
    clock: ClockOffset


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """Redis, Valkey, or what speaks like them. Sizes in bytes; `memory_max` 0: no limit.

    `saving_fails`: its last write to disk failed, and it may refuse writes because of that.
    """

    product: str
    version: str
    role: str
    cluster: bool
    eviction: str
    memory_used: int
    memory_max: int
    persistence: tuple[str, ...]
    saving_fails: bool
    clock: ClockOffset


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """A broker as its messages are published to it. `waiting` has None for a queue that nobody has declared yet."""

    product: str
    version: str
    waiting: Mapping[str, int | None]
