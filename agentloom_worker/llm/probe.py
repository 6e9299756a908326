"""One small call that shows how an endpoint answers: stream, tools, ids, usage, reasoning, end of the stream.

It says what it found, and what one call cannot show. It changes nothing: what to write into a release is for a person.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import httpx

from agentloom_worker import limits
from agentloom_worker.domain.model import Message, ModelResponse, RequestParameters, Role, ToolSchema
from agentloom_worker.domain.seam import SeamOf
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.http.decoding import iter_decoded
from agentloom_worker.llm.assembly import ModelProtocolError, ProviderReportedError
from agentloom_worker.llm.chat_assembly import ChatAssembly
from agentloom_worker.llm.chat_encoding import ChatEncoding
from agentloom_worker.llm.endpoint import Endpoint, EndpointClient
from agentloom_worker.llm.http_failures import failure_of_frame
from agentloom_worker.llm.profiles import Profile, ReasoningReplay
from agentloom_worker.llm.sse import SseParser, SseProtocolError

TOOL_NAME = "report_word"
_WORD = "ready"
_DONE = "[DONE]"
_TOOL = ToolSchema(
    TOOL_NAME,
    "Reports one word.",
    {
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
        "additionalProperties": False,
    },
)
_MESSAGES = (
    Message(Role.SYSTEM, "You are being tested. Call the tool that you are given, once, and say nothing else."),
    Message(Role.USER, f"Call {TOOL_NAME} with the word {_WORD}."),
)

# What one call cannot show, whatever it answers.
NOT_SHOWN = (
    "the window of the model: `agentloom models discover` shows what the endpoint tells of it",
    "which sequences of roles are refused, and what of a model's reasoning must come back",
    "which parameters exist, and which are ignored silently",
    "how errors are coded",
)


class Found(StrEnum):
    """What a call showed of one thing."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """`about` names the thing, `detail` says in words what was seen."""

    about: str
    found: Found
    detail: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What the call showed. `contradictions` are sentences on what the profile says otherwise."""

    findings: tuple[Finding, ...]
    contradictions: tuple[str, ...]
    not_shown: tuple[str, ...] = NOT_SHOWN


@dataclass(slots=True)
class _Seen:
    """What went by while the answer was read."""

    assembly: ChatAssembly
    streamed: bool = False
    frames: int = 0
    done: bool = False
    indexes: list[object] = field(default_factory=list)
    reasoning_fields: set[str] = field(default_factory=set)
    problem: str | None = None
    response: ModelResponse | None = None


@dataclass(frozen=True, slots=True)
class _Fragments:
    """The two messages of a probe; they meet with a comma in every dialect."""

    encoded: tuple[bytes, ...]
    seam: SeamOf | None = None

    @property
    def length(self) -> int:
        return len(self.encoded)

    @property
    def joined_bytes(self) -> int:
        return sum(map(len, self.encoded)) + len(self.encoded) - 1

    def fragments(self) -> Sequence[bytes]:
        return self.encoded


def probe(client: EndpointClient, endpoint: Endpoint, model: str) -> Probe:
    """Make the call, in chat completions. Raises RequestError where it is not answered with a 200."""
    encoding = ChatEncoding(endpoint.profile)
    fragments = _Fragments(tuple(encoding.encode_message(message) for message in _MESSAGES))
    parameters = RequestParameters(model, limits.PROBE_OUTPUT_TOKENS)
    body = encoding.frame_body(parameters, fragments, encoding.encode_tools((_TOOL,))).join()
    url = endpoint.url("/chat/completions")
    seen = _Seen(ChatAssembly(endpoint.profile))
    with client.answer(endpoint, "POST", url, body, timeout_s=limits.PROBE_TIMEOUT_S) as response:
        try:
            _read(response, seen)
            seen.response = seen.assembly.response(request_id=None, transport_sha256="", transport_bytes=0)
        except (ModelProtocolError, SseProtocolError) as error:
            seen.problem = str(error)
        except ProviderReportedError as error:
            failure = failure_of_frame(error.error, secret=endpoint.api_key, profile=endpoint.profile)
            raise RequestError(Code(failure.code), failure.message) from None
    return Probe(tuple(_findings(seen)), tuple(_contradictions(seen, endpoint.profile)))


def _read(response: httpx.Response, seen: _Seen) -> None:
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        body = bytearray()
        for chunk in iter_decoded(response, limits.SSE_EVENT_BYTES_MAX):
            body += chunk
            if len(body) > limits.SSE_EVENT_BYTES_MAX:
                raise ModelProtocolError("the answer is too large")
        document = _parsed(bytes(body))
        _note_names(document, seen, "message")
        seen.assembly.apply_document(document)
        return
    parser = SseParser()
    for chunk in iter_decoded(response, limits.STREAM_BYTES_MAX):
        for payload in parser.feed(chunk):
            seen.streamed = True
            if payload.strip() == _DONE:
                seen.done = True
                return
            frame = _parsed(payload)
            seen.frames += 1
            _note_names(frame, seen, "delta")
            seen.assembly.apply_frame(frame)
    if not seen.streamed:
        raise ModelProtocolError(f"the answer is neither an event stream nor JSON ({kind or 'no content type'})")


def _parsed(payload: bytes | str) -> object:
    try:
        value: object = json.loads(payload)
    except (ValueError, RecursionError):
        raise ModelProtocolError("what came is not JSON") from None
    return value


def _note_names(frame: object, seen: _Seen, part: str) -> None:
    """Which fields a frame uses; the assembly has the contents."""
    choices = frame.get("choices") if isinstance(frame, dict) else None
    for choice in choices if isinstance(choices, list) else ():
        delta = choice.get(part) if isinstance(choice, dict) else None
        if not isinstance(delta, dict):
            continue
        seen.reasoning_fields |= {name for name in ("reasoning", "reasoning_content") if delta.get(name)}
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict) and call.get("id"):
                seen.indexes.append(call.get("index"))


def _findings(seen: _Seen) -> list[Finding]:
    response = seen.response
    return [
        Finding(
            "streaming",
            Found.YES if seen.streamed and seen.frames > 1 else Found.NO,
            f"{seen.frames} events" if seen.streamed else "one JSON document in place of a stream",
        ),
        Finding("protocol", Found.NO, seen.problem or "the answer could not be read")
        if response is None
        else Finding("protocol", Found.YES, "every frame is of the protocol"),
        _end(seen),
        *(_unread() if response is None else (_tools(response), _ids(seen, response), _usage(response))),
        _reasoning(seen),
    ]


def _end(seen: _Seen) -> Finding:
    finished = seen.assembly.finished
    reason = seen.response.finish_reason if seen.response else None
    said = f"finish reason {reason}" if reason else ("a finish reason" if finished else "no finish reason")
    if not seen.streamed:
        return Finding("end of stream", Found.UNKNOWN, f"nothing was streamed; {said}")
    end = "then [DONE]" if seen.done else "no [DONE]"
    return Finding("end of stream", Found.YES if finished else Found.NO, f"{said}, {end}")


def _unread() -> tuple[Finding, ...]:
    return tuple(
        Finding(about, Found.UNKNOWN, "the answer could not be read") for about in ("tools", "tool call ids", "usage")
    )


def _tools(response: ModelResponse) -> Finding:
    if not response.calls:
        said = "text" if response.text else "nothing"
        return Finding("tools", Found.UNKNOWN, f"the model answered with {said} and called no tool")
    call = response.calls[0]
    try:
        right = call.name == TOOL_NAME and json.loads(call.arguments_text) == {"word": _WORD}
    except (ValueError, RecursionError):
        return Finding("tools", Found.NO, f"the arguments of {TOOL_NAME} are no JSON")
    detail = "called with the arguments asked for" if right else "called, with other arguments than asked for"
    return Finding("tools", Found.YES, detail)


def _ids(seen: _Seen, response: ModelResponse) -> Finding:
    ids = [call.provider_call_id for call in response.calls]
    if not ids:
        return Finding("tool call ids", Found.UNKNOWN, "no tool was called")
    if None in ids:
        return Finding("tool call ids", Found.NO, "calls come without ids; they get ids of ours")
    if len(set(ids)) < len(ids) or any(call.provider_call_id == call.name for call in response.calls):
        return Finding("tool call ids", Found.NO, "ids are not unique; calls have ids of ours inside")
    indexed = "" if seen.indexes and None not in seen.indexes else ", without indexes"
    return Finding("tool call ids", Found.YES, f"one for each call{indexed}")


def _usage(response: ModelResponse) -> Finding:
    usage = response.usage
    if usage is None:
        return Finding("usage", Found.NO, "no tokens are reported")
    cached = f", {usage.cached_tokens} of them cached" if usage.cached_tokens else ""
    return Finding("usage", Found.YES, f"{usage.input_tokens} tokens in{cached}, {usage.output_tokens} out")


def _reasoning(seen: _Seen) -> Finding:
    if not seen.reasoning_fields:
        return Finding("reasoning", Found.UNKNOWN, "none came apart from the text")
    return Finding("reasoning", Found.YES, f"apart from the text, in {' and '.join(sorted(seen.reasoning_fields))}")


def _contradictions(seen: _Seen, profile: Profile) -> list[str]:
    found: list[str] = []
    if seen.streamed and profile.done_required and not seen.done:
        found.append(
            f"profile {profile.name} waits for [DONE], which did not come: every answer would count as incomplete"
        )
    if seen.streamed and profile.stream_options and seen.response is not None and seen.response.usage is None:
        found.append(f"profile {profile.name} asks for usage, which did not come")
    replays = profile.reasoning_replay is not ReasoningReplay.NEVER
    if replays and seen.reasoning_fields and profile.reasoning_field not in seen.reasoning_fields:
        came = " and ".join(sorted(seen.reasoning_fields))
        found.append(f"profile {profile.name} sends reasoning back as {profile.reasoning_field}; it came as {came}")
    return found
