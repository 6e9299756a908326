"""One input of the fuzzing: bytes that claim to be a stream, read in every way in which they may arrive."""

import random  # noqa: TID251 -- the same for the same seed
from collections.abc import Iterable
from itertools import accumulate

from agentloom_worker.llm.sse import SseParser, SseProtocolError
from tests import oracle_sse
from tests.fuzz.attempt_input import attempt
from tests.fuzz.mutation import HEAD
from tests.oracle_sse import Reading

EVENT_MAX = 2_000
STREAM_MAX = 6_000
_BYTEWISE_MAX = 200  # a longer input is cut at chance places only


def check(data: bytes) -> str:
    """Read the input; say how it ended. Anything wrong is an exception: AssertionError, or one that escaped.

    The first HEAD bytes choose where the rest is cut, the profile that reads it, and how it is sent.
    """
    choice, body = data[:HEAD].ljust(HEAD, b"\0"), data[HEAD:]
    expected = oracle_sse.read(body, event_max=EVENT_MAX, stream_max=STREAM_MAX)
    seed = int.from_bytes(choice[:2])
    cuts = [[body], _chance_cuts(body, seed)]
    if len(body) <= _BYTEWISE_MAX:
        cuts.append([body[i : i + 1] for i in range(len(body))])
    for chunks in cuts:
        assert parse(chunks) == expected, chunks
    ends = list(accumulate(map(len, _chance_cuts(body, seed))))
    return attempt(body, choice[2], choice[3], [ends])


def parse(chunks: Iterable[bytes]) -> Reading:
    """What the parser makes of chunks."""
    parser = SseParser(event_bytes_max=EVENT_MAX, stream_bytes_max=STREAM_MAX)
    events: list[str] = []
    ends: list[int] = []
    try:
        for chunk in chunks:
            for number, event in enumerate(parser.feed(chunk)):
                events.append(event)
                ends.append(parser.end_of(number))
    except SseProtocolError:
        return Reading(tuple(events), True, False, (*ends, parser.fault_at))
    return Reading(tuple(events), False, parser.pending, tuple(ends))


def _chance_cuts(body: bytes, seed: int) -> list[bytes]:
    chance = random.Random(seed)
    chunks, start = [], 0
    while start < len(body):
        end = start + chance.choice((0, 1, 1, 2, 3, 7, 40, 300))
        chunks.append(body[start:end])
        start = end
    return chunks
