"""One input of the fuzzing: bytes that claim to be a stream, read in every way in which they may arrive."""

import json
import random  # noqa: TID251 -- the same for the same seed
from collections.abc import Iterable

from agentloom_worker.domain.model import FirstOutputKind
from agentloom_worker.domain.response import decode_response, encode_partial, encode_response
from agentloom_worker.llm.chat_assembly import ChatAssembly, ChatProtocolError, ProviderReportedError
from agentloom_worker.llm.http_failures import failure_of_frame
from agentloom_worker.llm.profiles import Profile
from agentloom_worker.llm.sse import SseParser, SseProtocolError
from tests import oracle_sse
from tests.oracle_sse import Reading

EVENT_MAX = 2_000
STREAM_MAX = 6_000
_BYTEWISE_MAX = 200  # a longer input is cut at chance places only
_PROFILES = (Profile("strict", 1), Profile("reopening", 1, new_id_opens_call=True))


def check(data: bytes) -> str:
    """Read the input; say how it ended. Anything wrong is an exception: AssertionError, or one that escaped.

    The first two bytes choose where the rest is cut and how a repeated index is read.
    """
    choice, body = data[:2], data[2:]
    expected = oracle_sse.read(body, event_max=EVENT_MAX, stream_max=STREAM_MAX)
    cuts = [[body], _chance_cuts(body, int.from_bytes(choice))]
    if len(body) <= _BYTEWISE_MAX:
        cuts.append([body[i : i + 1] for i in range(len(body))])
    for chunks in cuts:
        assert parse(chunks) == expected, chunks
    return assemble(expected.events, _PROFILES[sum(choice) % 2])


def parse(chunks: Iterable[bytes]) -> Reading:
    """What the parser makes of chunks."""
    parser = SseParser(event_bytes_max=EVENT_MAX, stream_bytes_max=STREAM_MAX)
    events: list[str] = []
    try:
        for chunk in chunks:
            for event in parser.feed(chunk):
                events.append(event)
    except SseProtocolError:
        return Reading(tuple(events), True, False)
    return Reading(tuple(events), False, parser.pending)


def assemble(events: Iterable[str], profile: Profile) -> str:
    """Put the events of one answer together, as an adapter does; what came of it is kept and read again."""
    assembly = ChatAssembly(profile)
    kinds: list[FirstOutputKind] = []
    try:
        for event in events:
            if event.strip() == "[DONE]":
                break
            kind = assembly.apply_frame(_json(event))
            kinds += [kind] if kind is not None else []
        response = assembly.response(request_id=None, transport_sha256="", transport_bytes=0)
    except ChatProtocolError:
        outcome = "protocol"
    except ProviderReportedError as error:
        failure_of_frame(error.error, secret="sk-secret")
        outcome = "provider"
    else:
        kept = encode_response(response)
        assert encode_response(decode_response(kept)) == kept
        assert bool(kinds) == _says_something(response), (kinds, response)
        outcome = "complete" if assembly.finished else "incomplete"
    encode_partial(assembly.partial())
    return outcome


def _says_something(response: object) -> bool:
    fields = ("text", "reasoning", "refusal", "calls")
    return any(getattr(response, field) for field in fields)


def _json(event: str) -> object:
    if not event.strip():
        return {}
    try:
        return json.loads(event)
    except (ValueError, RecursionError) as error:
        raise ChatProtocolError("an event is not JSON") from error


def _chance_cuts(body: bytes, seed: int) -> list[bytes]:
    chance = random.Random(seed)
    chunks, start = [], 0
    while start < len(body):
        end = start + chance.choice((0, 1, 1, 2, 3, 7, 40, 300))
        chunks.append(body[start:end])
        start = end
    return chunks
