"""How much of a request repeats an earlier one, as a provider's prefix cache sees it.

`hit` of a request: the longest prefix that it shares with an earlier request, in whole blocks of 128 tokens, 0 below
1,024; the ratio is the sum of the hits over the sum of the lengths. A token is a byte, as the estimator
`utf8-envelope-v1` counts; beside it stands the ratio where four bytes are a token, as tokenizers come out on JSON.
A provider puts tools before messages, whatever their order on the wire.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentloom_worker.domain.budget import prefix_hit_tokens
from agentloom_worker.limits import PREFIX_BLOCK_TOKENS

PROMPT = "You are careful. " + "Look before you act, and say what you have seen and where. " * 40


@dataclass(frozen=True, slots=True)
class Segments:
    """One request in the order of a provider's cache: each part with its name."""

    names: tuple[str, ...]
    bodies: tuple[bytes, ...]

    @property
    def joined(self) -> bytes:
        """All parts in one."""
        return b"".join(self.bodies)


def segments_of(requests: Sequence[dict[str, Any]]) -> list[Segments]:
    """The requests of one run, parsed. What stands between the prompt and the question of the first is history."""
    history = len(requests[0]["messages"]) - 2
    found = []
    for request in requests:
        messages = request["messages"]
        own = (f"record {number}" for number in range(2, len(messages) - history + 1))
        names = ("tools", "system", *["history"] * history, *own)
        found.append(Segments(names, tuple(map(_encode, (request.get("tools"), *messages)))))
    return found


def first_difference(before: Segments, after: Segments) -> str | None:
    """The name of the first segment that is not as it was; None where the request before stands whole in front."""
    for place, body in enumerate(before.bodies):
        if place >= len(after.bodies):
            return "end"
        if after.bodies[place] != body:
            return after.names[place]
    return None


@dataclass(slots=True)
class PrefixCache:
    """What earlier requests have left: hashes of their blocks, each chained to those before it."""

    bytes_per_token: int = 1
    _seen: set[bytes] = field(default_factory=set)

    def hit(self, request: bytes) -> int:
        """Tokens that the cache holds of a request, which it holds from now on."""
        block = PREFIX_BLOCK_TOKENS * self.bytes_per_token
        chain, hits, missed = b"", 0, False
        for start in range(0, len(request) - block + 1, block):
            chain = hashlib.sha256(chain + request[start : start + block]).digest()
            missed = missed or chain not in self._seen
            hits += 0 if missed else PREFIX_BLOCK_TOKENS
            self._seen.add(chain)
        return prefix_hit_tokens(hits)


def ratio(contexts: Iterable[Sequence[Segments]], *, bytes_per_token: int = 1) -> float:
    """Hits over lengths of the requests of some contexts; each is compared with its own earlier requests only."""
    hits = length = 0.0
    for requests in contexts:
        cache = PrefixCache(bytes_per_token)
        for request in requests:
            body = request.joined
            hits += cache.hit(body)
            length += len(body) / bytes_per_token
    return hits / length


def summary(runs: Sequence[Sequence[Segments]]) -> dict[str, object]:
    """The ratio within contexts and over the session as a whole, and every break with the segment that differed.

    `append_only` is what no request can surpass that says anything new: all of the one before, without blocks.
    """
    session = [request for requests in runs for request in requests]
    sizes = [[len(request.joined) for request in requests] for requests in runs]
    repeated, total = sum(sum(each[:-1]) for each in sizes), sum(map(sum, sizes))
    within = [_breaks(requests) for requests in runs]
    between = [first_difference(before[-1], after[0]) for before, after in itertools.pairwise(runs)]
    return {
        "runs": len(runs),
        "requests": len(session),
        "ratio": ratio(runs),
        "ratio_4_bytes": ratio(runs, bytes_per_token=4),
        "append_only": repeated / total,
        "breaks": [found for each in within for found in each],
        "session_ratio": ratio([session]),
        "session_breaks": between,
    }


def _breaks(requests: Sequence[Segments]) -> list[str]:
    found = (first_difference(before, after) for before, after in itertools.pairwise(requests))
    return [name for name in found if name is not None]


def _encode(part: object) -> bytes:
    return json.dumps(part, ensure_ascii=False, separators=(",", ":")).encode()
