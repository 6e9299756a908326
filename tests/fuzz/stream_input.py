"""One input of the fuzzing: bytes that claim to be a stream, read in every way in which they may arrive."""

import random  # noqa: TID251 -- the same for the same seed
from collections.abc import Callable, Iterable
from functools import partial

from agentloom_worker.domain.model import FirstOutputKind
from agentloom_worker.domain.response import decode_response, encode_partial, encode_response
from agentloom_worker.llm.assembly import (
    Assembly,
    IncompleteAnswerError,
    ModelProtocolError,
    ProviderReportedError,
)
from agentloom_worker.llm.chat_assembly import ChatAssembly
from agentloom_worker.llm.http_failures import failure_of_frame
from agentloom_worker.llm.profiles import Profile, ReasoningReplay
from agentloom_worker.llm.responses_assembly import ResponsesAssembly
from agentloom_worker.llm.sse import SseParser, SseProtocolError
from tests import oracle_sse
from tests.oracle_sse import Reading

EVENT_MAX = 2_000
STREAM_MAX = 6_000
_BYTEWISE_MAX = 200  # a longer input is cut at chance places only
_CHAT: tuple[Callable[[], Assembly], ...] = (
    partial(ChatAssembly, Profile("strict", 1)),
    partial(ChatAssembly, Profile("reopening", 1, new_id_opens_call=True)),
)
_RESPONSES: tuple[Callable[[], Assembly], ...] = (
    partial(ResponsesAssembly, Profile("strict", 1)),
    partial(ResponsesAssembly, Profile("replaying", 1, reasoning_replay=ReasoningReplay.ALWAYS)),
)


def check(data: bytes) -> str:
    """Read the input; say how it ended. Anything wrong is an exception: AssertionError, or one that escaped.

    The first two bytes choose where the rest is cut and the profile that reads it.
    """
    choice, body = data[:2], data[2:]
    expected = oracle_sse.read(body, event_max=EVENT_MAX, stream_max=STREAM_MAX)
    cuts = [[body], _chance_cuts(body, int.from_bytes(choice))]
    if len(body) <= _BYTEWISE_MAX:
        cuts.append([body[i : i + 1] for i in range(len(body))])
    for chunks in cuts:
        assert parse(chunks) == expected, chunks
    protocol = _RESPONSES if b'"response.' in body else _CHAT
    return assemble(expected.events, protocol[sum(choice) % 2]())


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


def assemble(events: Iterable[str], assembly: Assembly) -> str:
    """Put the events of one answer together, as an adapter does; what came of it is kept and read again."""
    kinds: list[FirstOutputKind] = []
    try:
        for event in events:
            kind = assembly.apply_payload(event)
            kinds += [] if kind is None else [kind]
            if assembly.complete:
                break
        response = assembly.response(request_id=None, transport_sha256="", transport_bytes=0)
    except IncompleteAnswerError:
        outcome = "incomplete"
    except ModelProtocolError:
        outcome = "protocol"
    except ProviderReportedError as error:
        failure_of_frame(error.error, secret="sk-secret")
        outcome = "provider"
    else:
        kept = encode_response(response)
        assert encode_response(decode_response(kept)) == kept
        said = response.text or response.reasoning or response.refusal or response.calls
        assert bool(kinds) == bool(said), (kinds, response)
        outcome = "complete" if assembly.complete else "incomplete"
    encode_partial(assembly.partial())
    return outcome


def _chance_cuts(body: bytes, seed: int) -> list[bytes]:
    chance = random.Random(seed)
    chunks, start = [], 0
    while start < len(body):
        end = start + chance.choice((0, 1, 1, 2, 3, 7, 40, 300))
        chunks.append(body[start:end])
        start = end
    return chunks
