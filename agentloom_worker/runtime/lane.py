"""Lanes: at most so many model attempts at once at one endpoint, over every process of a fleet.

A full lane is a hand-back that does not count (RULINGS A1): the row waits, not a slot of the worker. The place is a
lease in the fast path, so one whose process died falls free by itself, and a fast path that is away limits nothing.
"""

import threading
from urllib.parse import urlsplit

from agentloom_worker import limits
from agentloom_worker.clock import US
from agentloom_worker.domain.dispatch import Claim
from agentloom_worker.leases import FastPath
from agentloom_worker.runtime.ports import Chance, Ports

ANY_ENDPOINT = "*"


def endpoint_of(base_url: str) -> str:
    """Whom a lane is for: host and port as the address has them; all of an address without a host."""
    return (urlsplit(base_url).netloc or base_url).lower()


class Lane:
    """One attempt's place at an endpoint: taken, renewed by the keeper, given back. Safe for use by many threads."""

    def __init__(self, fast: FastPath, endpoint: str, places: int, owner: str, ttl_ms: int) -> None:
        self.endpoint = endpoint
        self._fast = fast
        self._name = f"model:{endpoint}"
        self._places = places
        self._owner = owner
        self._ttl_ms = ttl_ms
        # A renewal that came after the return would hold the place for nobody until it expires.
        self._lock = threading.Lock()
        self._taken = False

    def take(self) -> bool:
        """Take a place; False: all are taken."""
        with self._lock:
            self._taken = self._fast.take_slot(self._name, self._places, self._owner, self._ttl_ms)
            return self._taken

    def renew(self) -> None:
        """Keep the place, or take it again where it was lost; the attempt goes on in any case."""
        with self._lock:
            if self._taken:
                self._fast.take_slot(self._name, self._places, self._owner, self._ttl_ms)

    def give(self) -> None:
        """Give the place back."""
        with self._lock:
            if self._taken:
                self._taken = False
                self._fast.give_slot(self._name, self._owner)


def open_lane(ports: Ports, base_url: str, claim: Claim) -> Lane | None:
    """The lane of an attempt, not taken yet; None where nobody limits its endpoint."""
    lanes = ports.settings.model_lanes
    endpoint = endpoint_of(base_url)
    places = lanes.get(endpoint, lanes.get(ANY_ENDPOINT))
    if places is None:
        return None
    return Lane(ports.fast, endpoint, places, claim.token.hex, ports.settings.claim_ttl_ms)


def pause_us(chance: Chance, waited_us: int) -> int:
    """When a row that met a full lane asks again: the longer it has waited, the later, within bounds."""
    pause_s = min(max(waited_us / US / 2, limits.LANE_PAUSE_S), limits.LANE_PAUSE_MAX_S)
    return int(US * pause_s * (0.5 + chance.random() / 2))
