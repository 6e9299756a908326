"""Lanes: what model attempts may take of one connection, over every process of a fleet.

At most so many at once (a Lane's places), and so many requests and tokens a minute (a Share of its window). Every limit
that names the attempt's connection has a lane or a window of its own (runtime/connection.py). An attempt that is not
let through is a hand-back that does not count (RULINGS A1): the row waits, not a slot of the worker. Both are leases in
the fast path: what a process held that died falls free by itself, and a fast path that is away limits nothing.
"""

import threading

from agentloom_worker import limits
from agentloom_worker.clock import US
from agentloom_worker.domain.dispatch import Claim
from agentloom_worker.domain.model import Cancelled, Completed, Executed, Failed, ModelOutcome
from agentloom_worker.domain.release import ModelBinding
from agentloom_worker.leases import FastPath, Rate, Waiter
from agentloom_worker.runtime.connection import limits_on
from agentloom_worker.runtime.ports import Chance, Ports


class Lane:
    """One attempt's place in a lane: taken, renewed by the keeper, given back. Safe for use by many threads."""

    def __init__(self, fast: FastPath, name: str, places: int, owner: str, ttl_ms: int) -> None:
        self.name = name
        self._fast = fast
        self._name = f"model:{name}"
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


def open_lanes(ports: Ports, model: ModelBinding, claim: Claim) -> tuple[Lane, ...]:
    """The lanes of an attempt, not taken yet: one for each limit that names it."""
    settings = ports.settings
    return tuple(
        Lane(ports.fast, name, places, claim.token.hex, settings.claim_ttl_ms)
        for name, places in limits_on(settings.model_lanes, model).items()
    )


class Share:
    """One attempt's part of what a window takes in a minute: entered before the send, corrected after it.

    It is not given back but leaves the window by itself, as the provider forgets the request. For one thread.
    """

    def __init__(
        self,
        fast: FastPath,
        name: str,
        rate: Rate,
        owner: str,
        tokens: int,
        window_ms: int,
        waiter: str,
        *,
        waited_ms: int = 0,
    ) -> None:
        self.name = name
        self._fast = fast
        self._name = f"model:{name}"
        self._rate = rate
        self._owner = owner
        # A request above the limit is let through by an empty window, or it would never go.
        self._tokens = tokens if rate.tokens is None else min(tokens, rate.tokens)
        self._window_ms = window_ms
        self._waiter = None if rate.tokens is None else Waiter(waiter, int(1000 * limits.WAITER_LATE_S), waited_ms)

    def take(self) -> int:
        """Enter the window: 0, or the milliseconds until it is worth asking again."""
        return self._fast.enter_window(self._name, self._rate, self._owner, self._tokens, self._window_ms, self._waiter)

    def leave(self, wait_ms: int) -> None:
        """Leave the window again where another one is full for so long; the place in its line is kept."""
        self._fast.leave_window(self._name, self._owner, self._tokens, self._waiter, wait_ms)

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


def open_shares(
    ports: Ports, model: ModelBinding, claim: Claim, body_bytes: int, waited_us: int = 0
) -> tuple[Share, ...]:
    """The shares of an attempt whose body has so many bytes, not taken yet: one for each name that has a limit."""
    settings = ports.settings
    requests, tokens = (limits_on(limited, model) for limited in (settings.model_requests, settings.model_tokens))
    reserved = -(-body_bytes // limits.BYTES_PER_TOKEN)
    window_ms = int(1000 * settings.model_window_s)
    owner, waiter, waited_ms = claim.token.hex, claim.dispatch_id.hex, max(0, waited_us // 1000)
    return tuple(
        Share(
            ports.fast,
            name,
            Rate(requests.get(name), tokens.get(name)),
            owner,
            reserved,
            window_ms,
            waiter,
            waited_ms=waited_ms,
        )
        for name in {**requests, **tokens}
    )


def pause_us(chance: Chance, waited_us: int) -> int:
    """When a row that met a full lane asks again: the longer it has waited, the later, within bounds."""
    pause_s = min(max(waited_us / US / 2, limits.LANE_PAUSE_S), limits.LANE_PAUSE_MAX_S)
    return int(US * pause_s * (0.5 + chance.random() / 2))


def window_pause_us(chance: Chance, free_ms: int, waited_us: int) -> int:
    """When a row that met a full window asks again: once the window lets one more through, and not all at one time."""
    spread_s = min(max(waited_us / US / 2, limits.LANE_PAUSE_S), limits.LANE_PAUSE_MAX_S)
    return 1000 * free_ms + int(US * spread_s * chance.random())
