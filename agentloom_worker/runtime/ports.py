"""What the runtime is given: the store, the clock, the adapters, the settings. Made in bootstrap.py only."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from agentloom_worker import limits
from agentloom_worker.cancellation import Cancellation
from agentloom_worker.capabilities.context import ToolContext
from agentloom_worker.capabilities.handler import PythonHandler
from agentloom_worker.capabilities.http import HttpCaller
from agentloom_worker.clock import Clock
from agentloom_worker.context.view import View
from agentloom_worker.domain.capability import CapabilitySpec, ToolResult
from agentloom_worker.domain.dispatch import Queue, WakeUp
from agentloom_worker.domain.model import RequestParameters
from agentloom_worker.domain.release import FrozenRelease
from agentloom_worker.frozen import quick_init, replace
from agentloom_worker.ids import ContextId, Ids, OwnerId, ReleaseId, RunId
from agentloom_worker.leases import FastPath
from agentloom_worker.llm.adapters import Adapters
from agentloom_worker.runtime.connection import read_name
from agentloom_worker.storage.store import Store

US = 1_000_000
Key = TypeVar("Key")
Value = TypeVar("Value")


class KeepTransport(StrEnum):
    """Of which model attempts the received bytes are kept (runtime/transport.py)."""

    ALL = "all"
    UNUSUAL = "unusual"  # those that failed, were cancelled or late, or ended oddly


ALL_QUEUES = (Queue.CONTROL, Queue.MODEL, Queue.TOOLS, Queue.COMPACTION, Queue.MAINTENANCE)


def _spelt(setting: str, limited: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for written, number in limited.items():
        try:
            name = read_name(written)
        except ValueError as error:
            raise ValueError(f"a name in {setting} {error}") from None
        if type(number) is not int or number < 1:
            raise ValueError(f"a limit in {setting} is no whole number above 0: nothing would be let through")
        if name in found:
            raise ValueError(f"two names in {setting} are one connection")
        found[name] = number
    return found


@dataclass(frozen=True, slots=True)
class Settings:
    """How this process runs steps. None of these changes what a run does, only how fast and how often."""

    fusion: bool = True
    inline_hops: int = limits.INLINE_HOPS
    inline_ms: int = limits.INLINE_MS
    queues: tuple[str, ...] = ALL_QUEUES
    claim_ttl_s: float = limits.CLAIM_TTL_S
    claim_renew_s: float = limits.CLAIM_RENEW_S
    suspect_grace_s: float = limits.SUSPECT_GRACE_S
    sweep_tick_s: float = limits.SWEEP_TICK_S
    control_poll_s: float = limits.CONTROL_POLL_S
    drain_s: float = limits.DRAIN_S
    # Whom a limit is for (runtime/connection.py) -> attempts at once in the fleet (runtime/lane.py).
    model_lanes: Mapping[str, int] = field(default_factory=dict)
    # The same -> requests, and tokens, that the whole fleet may begin within `model_window_s`.
    model_requests: Mapping[str, int] = field(default_factory=dict)
    model_tokens: Mapping[str, int] = field(default_factory=dict)
    model_window_s: float = limits.MODEL_WINDOW_S
    # Also by its value, as JSON gives it.
    keep_transport: KeepTransport = KeepTransport.ALL

    def spelt(self) -> "Settings":
        """These, with one spelling of the names of limits.

        Raises ValueError, which says of which setting, for a limit that could name no connection or let nothing
        through, and for two of one connection.
        """
        return replace(
            self,
            model_lanes=_spelt("model_lanes", self.model_lanes),
            model_requests=_spelt("model_requests", self.model_requests),
            model_tokens=_spelt("model_tokens", self.model_tokens),
        )

    @property
    def claim_ttl_us(self) -> int:
        """The claim's time to live in microseconds."""
        return int(self.claim_ttl_s * US)

    @property
    def claim_ttl_ms(self) -> int:
        """The claim's time to live in milliseconds."""
        return int(self.claim_ttl_s * 1000)

    @property
    def grace_us(self) -> int:
        """How long a claim stays suspect before it may be taken over, in microseconds."""
        return int(self.suspect_grace_s * US)


class ToolRunner(Protocol):
    """Calls a python capability: in a thread of its own, or inline in the simulator (capabilities/python.py)."""

    def __call__(
        self,
        handler: PythonHandler,
        spec: CapabilitySpec,
        arguments: dict[str, object],
        context: ToolContext,
        *,
        cancellation: Cancellation | None = None,
        entered: Callable[[], None] | None = None,
    ) -> ToolResult:
        """Run one attempt; whatever the tool does becomes its result."""
        ...


class Chance(Protocol):
    """Dice."""

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...


class BoundedCache(Generic[Key, Value]):
    """A least-recently-used cache of immutable values, bounded by number and weight. Safe for many threads."""

    def __init__(self, size: int, *, weigh: Callable[[Any], int] = lambda _value: 0, weight_max: int = 0) -> None:
        self._size = size
        self._weigh = weigh
        self._weight_max = weight_max
        self._weight = 0
        self._lock = threading.Lock()
        self._items: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The value, now the most recently used one."""
        with self._lock:
            if key not in self._items:
                return None
            self._items.move_to_end(key)
            return self._items[key]

    def put(self, key: Key, value: Value) -> None:
        """Remember a value; the least recently used one may go."""
        with self._lock:
            if key in self._items:
                self._weight -= self._weigh(self._items.pop(key))
            self._items[key] = value
            self._weight += self._weigh(value)
            while len(self._items) > self._size or (self._weight > self._weight_max and len(self._items) > 1):
                _, dropped = self._items.popitem(last=False)
                self._weight -= self._weigh(dropped)


@quick_init
@dataclass(frozen=True, slots=True)
class CachedView:
    """A view as of a revision; later revisions extend it."""

    revision: int
    record_head: int
    view: View


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What is the same in every request of a release: parameters and the tools fragment."""

    parameters: RequestParameters
    tools: bytes
    tool_count: int


@dataclass(frozen=True, slots=True)
class OwnedRelease:
    """A release beside its owner."""

    owner_id: OwnerId
    release: FrozenRelease


@dataclass(frozen=True)
class Ports:
    """The runtime's dependencies. `publish` wakes somebody up for a row; failing only delays it."""

    store: Store
    clock: Clock
    ids: Ids
    chance: Chance
    adapters: Adapters
    tools: ToolRunner
    http: HttpCaller
    resolve_credential: Callable[[str], str]
    settings: Settings
    publish: Callable[[list[WakeUp]], None]
    fast: FastPath
    releases: BoundedCache[ReleaseId, OwnedRelease] = field(default_factory=lambda: BoundedCache(limits.RELEASE_CACHE))
    views: BoundedCache[ContextId, CachedView] = field(
        default_factory=lambda: BoundedCache(
            limits.VIEW_CACHE_CONTEXTS,
            weigh=lambda cached: cached.view.size_bytes,
            weight_max=limits.VIEW_CACHE_BYTES,
        )
    )
    heads: BoundedCache[bytes, RequestHead] = field(default_factory=lambda: BoundedCache(limits.RELEASE_CACHE))
    on_event: Callable[[RunId], None] = lambda _run_id: None
