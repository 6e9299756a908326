"""Assemble the deltas of one chat-completions stream into one response. Knows no transport."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from agentloom_worker import limits
from agentloom_worker.domain.model import (
    FirstOutputKind,
    ModelResponse,
    Partial,
    RequestParameters,
    ResponseCall,
    Usage,
)
from agentloom_worker.llm.assembly import (
    IncompleteAnswerError,
    ModelProtocolError,
    ProviderReportedError,
    arguments_text,
    join_deltas,
    other_model,
    parse_payload,
    refuse_error,
    text_of,
    usage_of,
)
from agentloom_worker.llm.profiles import Ending, ErrorClass, Profile

_DONE = "[DONE]"
_DECODER = json.JSONDecoder()
_SAID = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls")
_NOT_TEXT = ("images", "audio")
# How a message ends that the model ended, or that was cut where the runtime knows it. A provider's other words mean
# what its profile says; the rest are no proof of an answer, and no call of such a message may be executed.
_ENDS = frozenset(ending.value for ending in Ending)


@dataclass(slots=True)
class _OpenCall:
    """A call as far as it has come.

    `named_again`: how many pieces of arguments stood before the fragment that last told its name once more.
    """

    provider_call_id: str | None = None
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    named_again: int | None = None

    @property
    def joined(self) -> bool:
        """Whether these may be two calls of one name in one place (CASES S04).

        Some servers tell the name with each fragment; but behind arguments that are whole it is another call's.
        """
        if self.named_again is None:
            return False
        text = "".join(self.arguments)
        try:
            _, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip()))
        except (ValueError, RecursionError):
            return not text.strip()
        return end <= len("".join(self.arguments[: self.named_again]))


class ChatAssembly:
    """The state of one attempt. For one thread."""

    def __init__(self, profile: Profile, asked: RequestParameters | None = None) -> None:
        self._profile = profile
        self._asked = asked
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[_OpenCall] = []
        self._by_index: dict[int | str, _OpenCall] = {}
        self._finish_reason: str | None = None
        self._usage: Usage | None = None
        self._not_text = ""
        self._completion_id: str | None = None
        self._model = ""
        self._done = False

    @property
    def complete(self) -> bool:
        """As Assembly says: `[DONE]` was read behind a finish reason."""
        return self._done

    @property
    def may_end(self) -> bool:
        """As Assembly says; only where the profile's streams end without `[DONE]`."""
        return self.finished and not self._profile.done_required

    @property
    def finished(self) -> bool:
        """Whether a finish reason was seen."""
        return self._finish_reason is not None

    def apply_payload(self, payload: str) -> FirstOutputKind | None:
        """As Assembly says."""
        if payload.strip() != _DONE:
            return self.apply_frame(parse_payload(payload))
        if not self.finished:
            # Seen from proxies that lost their upstream and close politely.
            raise IncompleteAnswerError("the stream said [DONE] without a finish reason")
        self._done = True
        return None

    def apply_frame(self, frame: object) -> FirstOutputKind | None:
        """Take one JSON value of the stream; say what its first effective output is, if it has any.

        Role, empty deltas and usage are none (seed 004, 6.2). Raises ModelProtocolError and
        ProviderReportedError.
        """
        if not isinstance(frame, dict):
            raise ModelProtocolError("a frame is not a JSON object")
        refuse_error(frame, self._profile)
        self._take_envelope(frame)
        choices = frame.get("choices") or []
        if not isinstance(choices, list):
            raise ModelProtocolError("choices is not a list")
        kind = None
        for choice in choices:
            if not isinstance(choice, dict):
                raise ModelProtocolError("a choice is not a JSON object")
            # We ask for one choice; a proxy's further ones are not ours to merge.
            if not choice.get("index"):
                delta = choice.get("delta")
                choice_kind = self._take_choice(choice, self._whole_of(choice) if delta in (None, {}) else delta)
                kind = kind or choice_kind
        return kind

    def apply_document(self, document: object) -> FirstOutputKind | None:
        """Take a whole `chat.completion`, as servers send that do not stream (CASES S10)."""
        if not isinstance(document, dict):
            raise ModelProtocolError("the answer is not a JSON object")
        refuse_error(document, self._profile)
        self._take_envelope(document)
        choices = document.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise ModelProtocolError("the answer is no chat completion: it has no choices")
        message = choices[0].get("message")
        if not isinstance(message, dict):
            raise ModelProtocolError("the answer is no chat completion: it has no message")
        kind = self._take_choice(choices[0], _numbered(message))
        if not self.finished:
            raise ModelProtocolError("the answer has no finish reason")
        return kind

    def response(self, *, request_id: str | None, transport_sha256: str, transport_bytes: int) -> ModelResponse:
        """The complete response. The caller has seen the legal final frame. Raises ModelProtocolError.

        `finish_reason` is the ending that the provider named, in the words of chat completions where its profile
        translates its own; also `stop` beside calls (CASES S08). One that says neither how the model ended nor where it
        was cut is an error (seed 004, 6.2).
        """
        if self._finish_reason is not None and self._finish_reason not in _ENDS:
            known = re.fullmatch(r"[\w.\-]{1,64}", self._finish_reason)
            named = self._finish_reason if known else "of another form"
            raise ModelProtocolError(f"the finish reason is {named}: one of {', '.join(sorted(_ENDS))} ends an answer")
        if self._finish_reason == Ending.TOOL_CALLS and not self._calls:
            # What it says is missing may be what the model meant to do.
            raise ModelProtocolError("the finish reason is tool_calls, and there is no call")
        if self._not_text and not (self._text or self._refusal or self._calls):
            raise ModelProtocolError(f"the answer is made of {self._not_text}, which nobody here reads")
        for ordinal, call in enumerate(self._calls):
            if not call.name:
                raise ModelProtocolError(f"tool call {ordinal} has no name")
            if call.joined:
                raise ModelProtocolError(f"tool call {ordinal} is named again behind its whole arguments")
        return ModelResponse(
            text=join_deltas(self._text),
            calls=self._response_calls(),
            finish_reason=self._finish_reason,
            reasoning=join_deltas(self._reasoning),
            refusal=join_deltas(self._refusal),
            usage=self._usage,
            provider_request_id=request_id or self._completion_id,
            transport_sha256=transport_sha256,
            transport_bytes=transport_bytes,
            served_model=other_model(self._model, self._asked),
        )

    def partial(self) -> Partial:
        """What has arrived so far, for audit only."""
        return Partial(
            join_deltas(self._text), join_deltas(self._reasoning), self._response_calls(), join_deltas(self._refusal)
        )

    def _take_envelope(self, frame: dict[str, Any]) -> None:
        usage = _usage(frame.get("usage"))
        if usage is not None:
            self._usage = usage
        if self._completion_id is None and isinstance(frame.get("id"), str):
            self._completion_id = frame["id"] or None
        if isinstance(frame.get("model"), str):
            self._model = frame["model"] or self._model

    def _whole_of(self, choice: dict[str, Any]) -> object:
        """The message of a completion that came as one event, if nothing was streamed before it: as one delta.

        MiniMax's last event says again what was streamed. Pieces of messages are of no protocol.
        """
        message = choice.get("message")
        if not isinstance(message, dict) or self._text or self._reasoning or self._refusal or self._calls:
            return None
        if not choice.get("finish_reason") and any(message.get(name) for name in _SAID):
            raise ModelProtocolError("a message in place of a delta")
        return _numbered(message)

    def _take_choice(self, choice: dict[str, Any], delta: object) -> FirstOutputKind | None:
        kind = None
        if delta is not None:
            if not isinstance(delta, dict):
                raise ModelProtocolError("a delta is not a JSON object")
            kind = self._take_delta(delta)
        error = choice.get("error")
        if error:
            raise ProviderReportedError(error)
        # Moonshot tells it there.
        self._usage = _usage(choice.get("usage")) or self._usage
        reason = choice.get("finish_reason")
        if reason is not None:
            if not isinstance(reason, str):
                raise ModelProtocolError("a finish reason is not a text")
            self._take_reason(reason)
        return kind

    def _take_reason(self, reason: str) -> None:
        meaning = self._profile.finish_reasons.get(reason)
        if isinstance(meaning, ErrorClass):
            raise ProviderReportedError({"message": f"the finish reason is {reason}"}, meaning)
        ending = reason if meaning is None else meaning.value
        # Some say in every frame that they have nothing to say, also behind the last word.
        if not ending or ending == self._finish_reason:
            return
        # A filter that runs beside the model may speak up behind its end: what it blocks is blocked all the same
        # (https://learn.microsoft.com/en-us/azure/foundry/openai/concepts/content-streaming, asynchronous filtering).
        if self._finish_reason is not None and ending != Ending.CONTENT_FILTER:
            raise ModelProtocolError("two different finish reasons")
        self._finish_reason = ending

    def _take_delta(self, delta: dict[str, Any]) -> FirstOutputKind | None:
        if delta.get("function_call"):
            raise ModelProtocolError("the provider answers with the retired function_call field")
        # Some send one reasoning text under both names.
        reasoning = text_of(delta, "reasoning_content") or text_of(delta, "reasoning")
        text = text_of(delta, "content")
        refusal = text_of(delta, "refusal")
        self._not_text = next((name for name in _NOT_TEXT if delta.get(name)), self._not_text)
        fragments = delta.get("tool_calls") or []
        if not isinstance(fragments, list):
            raise ModelProtocolError("tool_calls is not a list")
        if self.finished and (reasoning or text or refusal or fragments):
            raise ModelProtocolError("output after the finish reason")
        kind = None
        if reasoning:
            self._reasoning.append(reasoning)
            kind = FirstOutputKind.REASONING
        if text:
            self._text.append(text)
            kind = kind or FirstOutputKind.TEXT
        if refusal:
            self._refusal.append(refusal)
            kind = kind or FirstOutputKind.TEXT
        for fragment in fragments:
            fragment_kind = self._take_call_fragment(fragment)
            kind = kind or fragment_kind
        return kind

    def _take_call_fragment(self, fragment: object) -> FirstOutputKind | None:
        if not isinstance(fragment, dict):
            raise ModelProtocolError("a tool call is not a JSON object")
        function = fragment.get("function") or {}
        if not isinstance(function, dict):
            raise ModelProtocolError("a tool call's function is not a JSON object")
        name = text_of(function, "name")
        call = self._call_of(fragment.get("index"), text_of(fragment, "id"), named=bool(name))
        kind = None
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            # Some local servers send the parsed object in place of its text.
            arguments = arguments_text(arguments)
        if name:
            if call.name not in ("", name):
                raise ModelProtocolError("a tool call has two names")
            if call.name and (arguments or not fragment.get("id")):
                call.named_again = len(call.arguments)
            call.name = name
            kind = FirstOutputKind.TOOL_NAME
        if arguments is not None and not isinstance(arguments, str):
            raise ModelProtocolError("a tool call's arguments are not a text")
        if arguments:
            call.arguments.append(arguments)
            kind = kind or FirstOutputKind.TOOL_ARGUMENTS
        return kind

    def _call_of(self, index: object, call_id: str, *, named: bool) -> _OpenCall:
        """The call that a fragment continues, or a new one (CASES S04). Never two calls in one."""
        if index is None and not call_id:
            raise ModelProtocolError("a tool call fragment has neither index nor id")
        if index is not None and (not isinstance(index, int) or isinstance(index, bool)):
            raise ModelProtocolError("a tool call's index is not a number")
        key: int | str = call_id if index is None else index
        call = self._by_index.get(key)
        if call is not None and call_id and call.provider_call_id not in (None, call_id):
            if not self._profile.new_id_opens_call:
                raise ModelProtocolError(f"index {index} is used by two tool calls")
            if any(other.provider_call_id == call_id for other in self._calls):
                raise ModelProtocolError(f"a fragment for a closed tool call at index {index}")
            call = None
        if index is None and named:
            # Servers without indexes send each call whole, and some give two calls one id (CASES W03).
            call = None
        if call is None:
            if len(self._calls) >= limits.CALLS_PER_MESSAGE_MAX:
                raise ModelProtocolError(f"more than {limits.CALLS_PER_MESSAGE_MAX} tool calls in one message")
            call = _OpenCall()
            self._calls.append(call)
            self._by_index[key] = call
        if call_id:
            call.provider_call_id = call_id
        return call

    def _response_calls(self) -> tuple[ResponseCall, ...]:
        return tuple(
            ResponseCall(ordinal, call.provider_call_id, call.name, join_deltas(call.arguments))
            for ordinal, call in enumerate(self._calls)
        )


def _numbered(message: dict[str, Any]) -> dict[str, Any]:
    """A whole message, its calls in their order."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    numbered = [{**call, "index": n} for n, call in enumerate(calls) if isinstance(call, dict)]
    if len(numbered) != len(calls):
        raise ModelProtocolError("a tool call is not a JSON object")
    return {**message, "tool_calls": numbered}


def _usage(value: object) -> Usage | None:
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    # Moonshot tells it without details: https://github.com/MoonshotAI/kimi-cli/tree/main/packages/kosong.
    cached = details.get("cached_tokens") if isinstance(details, dict) else value.get("cached_tokens")
    details = value.get("completion_tokens_details")
    reasoning = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return usage_of(value.get("prompt_tokens"), value.get("completion_tokens"), cached, reasoning)
