"""One input of the fuzzing as an attempt sees it: behind a profile, a content type, a framing and a packing."""

import gzip
import random  # noqa: TID251 -- the same for the same seed
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from types import SimpleNamespace
from typing import Any, cast

import httpcore
import httpx

from agentloom_worker.cancellation import Cancellation
from agentloom_worker.clock import SystemClock
from agentloom_worker.context.view import View
from agentloom_worker.domain.model import Category, Completed, Failed, FirstOutput, ModelOutcome, RequestParameters
from agentloom_worker.domain.response import decode_response, encode_partial, encode_response
from agentloom_worker.domain.transport import Transport
from agentloom_worker.errors import Code
from agentloom_worker.http.recording import Recording
from agentloom_worker.http.transport import WATCH_EXTENSION, ResponseBody, WatchedTransport
from agentloom_worker.llm.adapter import AttemptContext, ModelCall, RequestBody
from agentloom_worker.llm.chat_assembly import ChatAssembly
from agentloom_worker.llm.http_attempt import ModelHttp
from agentloom_worker.llm.profiles import PROFILES, Profile, ReasoningReplay
from agentloom_worker.llm.responses_assembly import ResponsesAssembly

_PROFILES = (
    Profile("strict", 1),
    Profile("reopening", 1, new_id_opens_call=True),
    Profile("replaying", 1, reasoning_replay=ReasoningReplay.ALWAYS),
    *PROFILES.values(),
)
_TYPES = (b"text/event-stream", b"text/event-stream", b"application/json", b"text/plain", b"")
_FRAMINGS: tuple[tuple[bytes, bytes], ...] = ((b"Transfer-Encoding", b"chunked"), (b"Connection", b"close"))
_ASKED = RequestParameters("dev-model", 16)
_SECRET = "sk-secret-0123456789"


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes over the wire. `said` is what it was packed from; None where the packing was spoilt.

    `closes`: the end of the connection ends it; `broken`: the connection fails behind it.
    """

    said: bytes | None
    packed: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    closes: bool
    broken: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """All that is left of an attempt."""

    outcome: ModelOutcome
    transport: Transport | None
    first_outputs: tuple[FirstOutput, ...]


def attempt(body: bytes, profile: int, way: int, splits: Sequence[Sequence[int]]) -> str:
    """Make an attempt for each of the splits, which must not differ; say how it ended."""
    responses = b'"response' in body
    answer = _answer(body, way)
    whole, *others = (_once(_model(responses, profile % len(_PROFILES)), answer, ends) for ends in ((), *splits))
    for other in others:
        assert other == whole
    match whole.outcome:
        case Completed(response=response):
            kept = encode_response(response)
            assert encode_response(decode_response(kept)) == kept
            if answer.said is not None:
                taken = answer.said[: response.transport_bytes]
                assert response.transport_sha256 == sha256(taken).hexdigest()
                final = responses or b"[DONE]" in taken or taken.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
                assert final or not (answer.closes or answer.broken), "the end of a connection was taken for a proof"
            said = response.text or response.reasoning or response.refusal or response.calls
            assert [first.has_display_content for first in whole.first_outputs] == [bool(said)], whole
            return "complete"
        case Failed(failure=failure, partial=partial):
            encode_partial(partial)
            protocol = failure.category is Category.PROTOCOL
            assert answer.said is None or not protocol or "pack" not in failure.message, "a cut body is not wrong"
            if failure.code == Code.MODEL_TRANSPORT_FAILED:
                return "incomplete"
            return "protocol" if protocol else "provider"
    raise AssertionError(whole)


def _answer(body: bytes, way: int) -> Answer:
    """The answer that a byte chooses."""
    way, kind = divmod(way, len(_TYPES))
    way, framing = divmod(way, len(_FRAMINGS))
    way, broken = divmod(way, 4)
    headers: tuple[tuple[bytes, bytes], ...] = ((b"Content-Type", _TYPES[kind]), _FRAMINGS[framing])
    closes = _FRAMINGS[framing][0] == b"Connection"
    if way % 2:
        packed, spoilt = _gzip(body)
        headers = (*headers, (b"Content-Encoding", b"gzip"))
        return Answer(None if spoilt else body, packed, headers, closes=closes, broken=broken == 0)
    return Answer(body, body, headers, closes=closes, broken=broken == 0)


def _gzip(body: bytes) -> tuple[bytes, bool]:
    """The body in one member or several, whole or cut, or spoilt: as the body itself chooses."""
    chance = random.Random(zlib.crc32(body))
    ends = sorted(chance.randrange(len(body) + 1) for _ in range(chance.choice((0, 0, 1, 3))))
    parts = [body[first:last] for first, last in zip([0, *ends], [*ends, len(body)], strict=True)]
    packed = b"".join(gzip.compress(part, 1, mtime=0) for part in parts)
    match chance.randrange(4):
        case 0:
            return packed, False
        case 1:
            return packed[: chance.randrange(len(packed) + 1)], False
        case 2:
            at = chance.randrange(len(packed))
            return packed[:at] + chance.randbytes(1) + packed[at + 1 :], True
        case _:
            return packed + chance.choice((b"\0", b"more", b"\x1f\x8c", gzip.compress(b"more", mtime=0))), True


class _Replaying(WatchedTransport):
    """Answers without a socket."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.answer: Answer | None = None
        self.ends: Sequence[int] = ()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        assert self.answer is not None
        request.extensions[WATCH_EXTENSION].before_send()
        core = httpcore.Response(200, headers=list(self.answer.headers), content=_Chunks(self.answer, self.ends))
        connection: Any = SimpleNamespace(
            stream=SimpleNamespace(take_back=lambda: None), http=SimpleNamespace(is_idle=lambda: False), leftover=None
        )
        body = ResponseBody(connection, core, cast(Any, SimpleNamespace(put=lambda connection: None)))
        return httpx.Response(core.status, headers=core.headers, stream=body)


class _Chunks:
    def __init__(self, answer: Answer, ends: Sequence[int]) -> None:
        self._answer = answer
        self._ends = ends

    def __iter__(self) -> Iterator[bytes]:
        start = 0
        for end in (*self._ends, len(self._answer.packed)):
            if end > start:
                yield self._answer.packed[start:end]
                start = end
        if self._answer.broken:
            raise httpx.ReadError("the connection was reset")


@cache
def _model(responses: bool, number: int) -> tuple[ModelHttp, _Replaying]:
    profile = _PROFILES[number]
    protocol = ResponsesAssembly if responses else ChatAssembly
    model, transport = ModelHttp(SystemClock(), "chat", lambda asked: protocol(profile, asked), profile), _Replaying()
    model._transport = transport
    return model, transport


def _once(model: tuple[ModelHttp, _Replaying], answer: Answer, ends: Sequence[int]) -> Seen:
    http, transport = model
    transport.answer, transport.ends = answer, ends
    recording, first_outputs = Recording(), list[FirstOutput]()
    context = AttemptContext(
        deadline_s=60.0,
        first_output_timeout_s=60.0,
        idle_timeout_s=None,
        cancellation=Cancellation(),
        on_first_output=first_outputs.append,
        on_sent=lambda: None,
        api_key=_SECRET,
        recording=recording,
    )
    outcome = http.stream_once(ModelCall(RequestBody(b"{", View(), b"}"), "http://127.0.0.1/v1", asked=_ASKED), context)
    return Seen(outcome, recording.finish((_SECRET,)), tuple(first_outputs))
