"""Lanes: what model attempts may take of one endpoint, over every process of a fleet.

At most so many at once (a Lane's places), and so many requests and tokens a minute (a Share of its window). An attempt
that is not let through is a hand-back that does not count (RULINGS A1): the row waits, not a slot of the worker. Both
are leases in the fast path: what a process held that died falls free by itself, and a fast path that is away limits
nothing.
"""

import re
import threading
from collections.abc import Mapping
from urllib.parse import urlsplit

from agentloom_worker import limits
from agentloom_worker.clock import US
from agentloom_worker.domain.dispatch import Claim
from agentloom_worker.domain.model import Cancelled, Completed, Executed, Failed, ModelOutcome
from agentloom_worker.leases import FastPath, Rate
from agentloom_worker.runtime.ports import Chance, Ports

ANY_ENDPOINT = "*"
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_LAST_DOT = re.compile(r"\.(?=$|:)")


def endpoint_of(base_url: str) -> str:
    """Whom a lane is for: host and port as the address has them; all of an address without a host.

    Spellings of one address share a lane: case, a dot behind the host and the scheme's own port mean nothing. Another
    name of the same host is another endpoint, for nobody here asks who stands behind a name.
    """
    address = urlsplit(base_url)
    if not address.netloc:
        return base_url.lower()
    place = address.netloc.rpartition("@")[2].lower()
    for own_port in (f":{_DEFAULT_PORTS.get(address.scheme, '')}", ":"):
        place = place.removesuffix(own_port)
    return _LAST_DOT.sub("", place)


def _limit_of(limits_by_endpoint: Mapping[str, int], base_url: str) -> int | None:
    """What an operator set for an endpoint, by its name or by its name with the scheme's own port; else for any."""
    endpoint = endpoint_of(base_url)
    spelt_out = f"{endpoint}:{_DEFAULT_PORTS.get(urlsplit(base_url).scheme, '')}"
    for name in (endpoint, spelt_out, ANY_ENDPOINT):
        if name in limits_by_endpoint:
            return limits_by_endpoint[name]
    return None


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
    places = _limit_of(ports.settings.model_lanes, base_url)
    if places is None:
        return None
    return Lane(ports.fast, endpoint_of(base_url), places, claim.token.hex, ports.settings.claim_ttl_ms)


class Share:
    """One attempt's part of what an endpoint takes in a minute: entered before the send, corrected after it.

    It is not given back but leaves the window by itself, as the provider forgets the request. For one thread.
    """

    def __init__(self, fast: FastPath, endpoint: str, rate: Rate, owner: str, tokens: int, window_ms: int) -> None:
        self.endpoint = endpoint
        self._fast = fast
        self._name = f"model:{endpoint}"
        self._rate = rate
        self._owner = owner
        # A request above the limit is let through by an empty window, or it would never go.
        self._tokens = tokens if rate.tokens is None else min(tokens, rate.tokens)
        self._window_ms = window_ms

    def take(self) -> int:
        """Enter the window: 0, or the milliseconds until it is worth asking again."""
        return self._fast.enter_window(self._name, self._rate, self._owner, self._tokens, self._window_ms)

    def settle(self, outcome: ModelOutcome) -> None:
        """Put what the provider reports in place of the estimate; a request that never left takes nothing."""
        match outcome:
            case Completed(response=response) if response.usage is not None:
                used = response.usage.input_tokens + response.usage.output_tokens
                self._fast.correct_window(self._name, self._owner, self._tokens, max(0, used))
            case Failed(failure=failure) if failure.external_outcome is Executed.NOT_EXECUTED and not (
                failure.http_status
            ):
                self._fast.leave_window(self._name, self._owner, self._tokens)
            case Cancelled(sent=False):
                self._fast.leave_window(self._name, self._owner, self._tokens)
            case _:
                pass  # Sent, and nobody says what it took: the estimate stands.


def open_share(ports: Ports, base_url: str, claim: Claim, body_bytes: int) -> Share | None:
    """The share of an attempt whose body has so many bytes, not taken yet; None where nobody limits its endpoint."""
    settings = ports.settings
    requests = _limit_of(settings.model_requests, base_url)
    tokens = _limit_of(settings.model_tokens, base_url)
    if requests is None and tokens is None:
        return None
    reserved = -(-body_bytes // limits.BYTES_PER_TOKEN)
    window_ms = int(1000 * settings.model_window_s)
    return Share(ports.fast, endpoint_of(base_url), Rate(requests, tokens), claim.token.hex, reserved, window_ms)


def pause_us(chance: Chance, waited_us: int) -> int:
    """When a row that met a full lane asks again: the longer it has waited, the later, within bounds."""
    pause_s = min(max(waited_us / US / 2, limits.LANE_PAUSE_S), limits.LANE_PAUSE_MAX_S)
    return int(US * pause_s * (0.5 + chance.random() / 2))


def window_pause_us(chance: Chance, free_ms: int, waited_us: int) -> int:
    """When a row that met a full window asks again: once the window lets one more through, and not all at one time."""
    spread_s = min(max(waited_us / US / 2, limits.LANE_PAUSE_S), limits.LANE_PAUSE_MAX_S)
    return 1000 * free_ms + int(US * spread_s * chance.random())
