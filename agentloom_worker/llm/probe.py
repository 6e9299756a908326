"""One small call that shows how an endpoint answers: stream, tools, ids, usage, reasoning, end of the stream.

The call is an attempt of the protocol's own adapter, so what is read, refused and waited for is what a run would see.
Beside it the bytes themselves are looked at, for what an adapter does not tell (llm/sights.py). It says what it found,
and what one call cannot show. It changes nothing: what to write into a release is for a person.
"""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum

from agentloom_worker import limits
from agentloom_worker.cancellation import Cancellation
from agentloom_worker.clock import Clock
from agentloom_worker.domain.model import (
    Cancelled,
    Completed,
    Failed,
    Failure,
    Message,
    ModelOutcome,
    ModelResponse,
    Partial,
    RequestParameters,
    ResponseCall,
    Role,
    ToolSchema,
)
from agentloom_worker.domain.seam import SeamOf
from agentloom_worker.errors import Code, RequestError, RunError
from agentloom_worker.http.recording import Recording
from agentloom_worker.llm.adapter import AttemptContext, ModelAdapter, ModelCall
from agentloom_worker.llm.adapters import ADAPTERS, AdapterPorts
from agentloom_worker.llm.discover import discover
from agentloom_worker.llm.endpoint import Endpoint, EndpointClient, shown
from agentloom_worker.llm.profiles import Profile, ReasoningReplay
from agentloom_worker.llm.sights import NOTES, Sights, look_at
from agentloom_worker.secrecy import known_secrets

PROTOCOLS = tuple(NOTES)

TOOL_NAME = "report_word"
_WORD = "ready"
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

# A server says so of a path, or of a method on it, that it does not have. 404 may mean the model as well.
_ABSENT_STATUSES = frozenset({404, 405, 501})
_KEY_STATUSES = frozenset({401, 403})
_MODELS_NAMED_MAX = 8


# As a frozen release has them: sorted by name.
ExtraParameters = tuple[tuple[str, object], ...]


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

    protocol: str
    findings: tuple[Finding, ...]
    contradictions: tuple[str, ...]
    not_shown: tuple[str, ...] = NOT_SHOWN


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long the call may take: until something of the answer is output, and in all."""

    first_output_s: float = limits.FIRST_OUTPUT_TIMEOUT_MS / 1000
    total_s: float = limits.PROBE_TIMEOUT_S


BOUNDS = Bounds()


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


@dataclass(frozen=True, slots=True)
class _Answer:
    """What came back. `failure` says why a run could not use it; `response` is there where it could."""

    sights: Sights
    response: ModelResponse | None = None
    failure: Failure | None = None
    partial: Partial = field(default_factory=Partial)

    @property
    def calls(self) -> tuple[ResponseCall, ...]:
        return self.partial.calls if self.response is None else self.response.calls

    @property
    def text(self) -> str:
        return self.partial.text if self.response is None else self.response.text


def protocol_of(profile: Profile, wanted: str | None = None) -> str:
    """The protocol to ask in: the wanted one, else the profile's first. Raises RequestError."""
    offered = PROTOCOLS if profile.protocols is None else profile.protocols
    if wanted is None:
        return offered[0]
    if wanted not in PROTOCOLS:
        raise RequestError(Code.INPUT_INVALID, f"no protocol {wanted}: there are {', '.join(PROTOCOLS)}")
    if wanted not in offered:
        listed = " or ".join(offered)
        raise RequestError(Code.MODEL_FEATURE_UNSUPPORTED, f"profile {profile.name} offers {listed}, not {wanted}")
    return wanted


def probe(
    client: EndpointClient,
    endpoint: Endpoint,
    model: str,
    *,
    protocol: str | None = None,
    parameters: ExtraParameters | None = None,
    bounds: Bounds = BOUNDS,
) -> Probe:
    """Make the call, with a release's `parameters`, or with those that the profile puts into every release.

    Raises RequestError where nothing that could be read as an answer came, with the code of a run. Its other codes:
    INPUT_INVALID for an address that is none; MODEL_FEATURE_UNSUPPORTED for a protocol that the profile or the endpoint
    does not offer; WAIT_TIMEOUT for an answer that goes on beyond the bounds.
    """
    profile, chosen = endpoint.profile, protocol_of(endpoint.profile, protocol)
    where = f"{chosen} at {shown(endpoint.url(''))}"
    recording = Recording()
    with closing(_adapter(client.clock, profile, chosen)) as adapter:
        extra = tuple(sorted(profile.settled.items())) if parameters is None else parameters
        asked = RequestParameters(model, limits.PROBE_OUTPUT_TOKENS, extra)
        outcome = _attempt(adapter, endpoint, asked, bounds, recording)
    sights = look_at(recording.finish(known_secrets()), chosen)
    match outcome:
        case Completed(response=response):
            answer = _Answer(sights, response)
        case Failed(failure=failure, partial=partial):
            if not _was_answered(failure, sights):
                raise _refused(client, endpoint, model, chosen, failure, where)
            answer = _Answer(sights, failure=failure, partial=partial)
        case Cancelled():
            raise RequestError(
                Code.WAIT_TIMEOUT,
                f"{where}: the answer had not ended after {bounds.total_s:g} s and {sights.events} events",
            )
    return Probe(chosen, tuple(_findings(answer, chosen)), tuple(_contradictions(answer, profile, chosen)))


def _adapter(clock: Clock, profile: Profile, protocol: str) -> ModelAdapter:
    try:
        return ADAPTERS[protocol](AdapterPorts(clock), profile)
    except RunError as error:
        raise RequestError(error.code, error.message) from None


def _attempt(
    adapter: ModelAdapter, endpoint: Endpoint, parameters: RequestParameters, bounds: Bounds, recording: Recording
) -> ModelOutcome:
    fragments = _Fragments(tuple(adapter.encode_message(message) for message in _MESSAGES))
    body = adapter.frame_body(parameters, fragments, adapter.encode_tools((_TOOL,)))
    attempt = AttemptContext(
        deadline_s=bounds.total_s,
        first_output_timeout_s=bounds.first_output_s,
        idle_timeout_s=None,
        cancellation=Cancellation(),
        on_first_output=lambda _output: None,
        on_sent=lambda: None,
        api_key=endpoint.api_key,
        recording=recording,
    )
    return adapter.stream_once(ModelCall(body, endpoint.base_url, asked=parameters), attempt)


def _was_answered(failure: Failure, sights: Sights) -> bool:
    """Whether something came that a report can be made of, though a run could not use it."""
    if failure.http_status != 200:
        return False
    if failure.code == Code.MODEL_PROTOCOL_ERROR:
        return sights.readable or sights.events > 0
    # A stream that says that it is over, and is not: another one broke off, or said an error.
    return failure.code == Code.MODEL_TRANSPORT_FAILED and (sights.finish is not None or sights.done)


def _refused(
    client: EndpointClient, endpoint: Endpoint, model: str, protocol: str, failure: Failure, where: str
) -> RequestError:
    code, hint = failure.code, ""
    if failure.http_status in _KEY_STATUSES:
        hint = "; no key was sent: name one as the credential" if endpoint.api_key is None else "; the key was sent"
    elif failure.http_status in _ABSENT_STATUSES:
        code, hint = _absent(client, endpoint, model, protocol, failure)
    elif failure.code == Code.MODEL_FIRST_OUTPUT_TIMEOUT:
        hint = "; a server that still loads its model may need more (--first-output)"
    return RequestError(Code(code), f"{where}: {failure.message}{hint}")


def _absent(client: EndpointClient, endpoint: Endpoint, model: str, protocol: str, failure: Failure) -> tuple[str, str]:
    """What a path that is not there means, as far as the endpoint's own list of models tells."""
    offered = endpoint.profile.protocols or PROTOCOLS
    others = [one for one in offered if one != protocol]
    other = f"try --protocol {others[0]}" if others else f"profile {endpoint.profile.name} offers no other"
    try:
        listed = [one.provider_model_id for one in discover(client, endpoint)]
    except RequestError:
        hint = f"; it lists no models either: is the base URL right? It may not offer {protocol}: {other}"
        return failure.code, hint
    if model not in listed:
        named = ", ".join(listed[:_MODELS_NAMED_MAX]) or "none"
        more = f" and {len(listed) - _MODELS_NAMED_MAX} more" if len(listed) > _MODELS_NAMED_MAX else ""
        hint = f"; it lists no model {model} (but {named}{more}), or does not offer {protocol}: {other}"
        return failure.code, hint
    return Code.MODEL_FEATURE_UNSUPPORTED, f"; it lists {model}, so it does not offer {protocol}: {other}"


def _findings(answer: _Answer, protocol: str) -> list[Finding]:
    sights, failure = answer.sights, answer.failure
    read = answer.response is not None or answer.calls or answer.text
    return [
        Finding(
            "streaming",
            Found.YES if sights.streamed and sights.events > 1 else Found.NO,
            f"{sights.events} events" if sights.streamed else "one JSON document in place of a stream",
        ),
        Finding("protocol", Found.YES, "every frame is of the protocol")
        if failure is None
        else Finding("protocol", Found.NO, failure.message),
        _end(answer, protocol),
        *((_tools(answer), _ids(answer)) if read else (_unread("tools"), _unread("tool call ids"))),
        _unread("usage") if answer.response is None else _usage(answer.response),
        _reasoning(sights),
    ]


def _end(answer: _Answer, protocol: str) -> Finding:
    sights, response = answer.sights, answer.response
    said = sights.finish or ("no finish reason" if protocol == "openai-chat" else "no final event")
    if response is not None and _used_up(response) and response.finish_reason != "length":
        said += f" behind all {limits.PROBE_OUTPUT_TOKENS} tokens: a cut answer looks like a whole one"
    if not sights.streamed:
        return Finding("end of stream", Found.UNKNOWN, f"nothing was streamed; {said}")
    if protocol == "openai-chat":
        said += ", then [DONE]" if sights.done else ", no [DONE]"
    return Finding("end of stream", Found.NO if sights.finish is None else Found.YES, said)


def _used_up(response: ModelResponse) -> bool:
    return response.usage is not None and response.usage.output_tokens >= limits.PROBE_OUTPUT_TOKENS


def _unread(about: str) -> Finding:
    return Finding(about, Found.UNKNOWN, "the answer could not be read")


def _tools(answer: _Answer) -> Finding:
    if not answer.calls:
        said = "text" if answer.text else "nothing"
        return Finding("tools", Found.UNKNOWN, f"the model answered with {said} and called no tool")
    call = answer.calls[0]
    try:
        right = call.name == TOOL_NAME and json.loads(call.arguments_text) == {"word": _WORD}
    except (ValueError, RecursionError):
        return Finding("tools", Found.NO, f"the arguments of {TOOL_NAME} are no JSON")
    detail = "called with the arguments asked for" if right else "called, with other arguments than asked for"
    return Finding("tools", Found.YES, detail)


def _ids(answer: _Answer) -> Finding:
    ids = [call.provider_call_id for call in answer.calls]
    if not ids:
        return Finding("tool call ids", Found.UNKNOWN, "no tool was called")
    if None in ids:
        return Finding("tool call ids", Found.NO, "calls come without ids; they get ids of ours")
    if len(set(ids)) < len(ids) or any(call.provider_call_id == call.name for call in answer.calls):
        return Finding("tool call ids", Found.NO, "ids are not unique; calls have ids of ours inside")
    indexed = ", without indexes" if answer.sights.unnumbered or not answer.sights.streamed else ""
    return Finding("tool call ids", Found.YES, f"one for each call{indexed}")


def _usage(response: ModelResponse) -> Finding:
    usage = response.usage
    if usage is None:
        return Finding("usage", Found.NO, "no tokens are reported")
    cached = f", {usage.cached_tokens} of them cached" if usage.cached_tokens else ""
    return Finding("usage", Found.YES, f"{usage.input_tokens} tokens in{cached}, {usage.output_tokens} out")


def _reasoning(sights: Sights) -> Finding:
    if not sights.reasoning:
        return Finding("reasoning", Found.UNKNOWN, "none came apart from the text")
    return Finding("reasoning", Found.YES, f"apart from the text, in {' and '.join(sorted(sights.reasoning))}")


def _contradictions(answer: _Answer, profile: Profile, protocol: str) -> list[str]:
    sights, name = answer.sights, f"profile {profile.name}"
    found: list[str] = []
    if not sights.streamed:
        found.append(f"{name} asks for a stream, which did not come: a run sees nothing before the whole answer")
    chat = protocol == "openai-chat"
    undone = chat and sights.streamed and sights.finish is not None and profile.done_required and not sights.done
    if undone:
        found.append(f"{name} waits for [DONE], which did not come: every answer would count as incomplete")
    elif answer.failure is not None:
        found.append(f"{name} cannot be read from this: a run would see {answer.failure.code}")
    asked = chat and sights.streamed and profile.stream_options
    if asked and answer.response is not None and answer.response.usage is None:
        found.append(f"{name} asks for usage, which did not come")
    if profile.reasoning_replay is not ReasoningReplay.NEVER and sights.reasoning:
        came = " and ".join(sorted(sights.reasoning))
        if chat and profile.reasoning_field not in sights.reasoning:
            found.append(f"{name} sends reasoning back as {profile.reasoning_field}; it came as {came}")
        if not chat and profile.encrypted_reasoning and "encrypted_content" not in sights.reasoning:
            found.append(f"{name} sends reasoning back as encrypted_content; it came as {came}")
    return found
