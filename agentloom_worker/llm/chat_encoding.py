"""The request bytes of the chat-completions protocol: version 1, frozen by golden tests.

A body is canonical JSON (sorted keys, UTF-8) of the whole request; since its keys are sorted, it is also the
join of a head, the message fragments and a tail, and every fragment can be encoded once and kept.
"""

import json

from agentloom_worker.canonical import canonical_bytes, effective_text
from agentloom_worker.domain.model import Message, MessageCall, RequestParameters, Role, ToolSchema
from agentloom_worker.errors import Code, RunError
from agentloom_worker.llm.adapter import Fragments, RequestBody
from agentloom_worker.llm.envelope import Envelopes, refuse_reserved
from agentloom_worker.llm.profiles import Profile, ReasoningReplay

ENCODING_VERSION = 1

# Strict providers refuse an assistant message without visible text, a single space included (CASES W04).
EMPTY_ASSISTANT_TEXT = "(no content)"

# Stands before the runtime's own words where a provider takes no system message behind the first (RULINGS A12).
NOTE_LABEL = "[agentloom] "

RESERVED_PARAMETERS = frozenset(
    {
        "functions",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "n",
        "stream",
        "stream_options",
        "tools",
    }
)


class ChatEncoding:
    """Encodes for one profile; pure. Raises MODEL_FEATURE_UNSUPPORTED for flags it does not implement."""

    def __init__(self, profile: Profile) -> None:
        if (
            profile.strict_alternation
            or profile.first_must_be_user
            or profile.reasoning_replay is not ReasoningReplay.NEVER
        ):
            raise RunError(
                Code.MODEL_FEATURE_UNSUPPORTED,
                f"profile {profile.name}: encoding {ENCODING_VERSION} of chat completions neither"
                " reorders messages nor replays reasoning",
            )
        self.profile = profile
        self._envelopes = Envelopes("messages", self._parameter_document)

    def encode_message(self, message: Message) -> bytes:
        """One message. Lone surrogates become U+FFFD; see `wire_arguments` for broken calls.

        A note is a system message, or a labelled text of the user where the profile takes none in the middle.
        """
        text = effective_text(message.text)[0]
        document: dict[str, object] = {"role": message.role.value, "content": text}
        if message.note and not self.profile.mid_system:
            document = {"role": Role.USER.value, "content": NOTE_LABEL + text}
        if message.role is Role.TOOL:
            document["tool_call_id"] = effective_text(message.wire_id or "")[0]
        elif message.role is Role.ASSISTANT and not text.strip():
            document["content"] = None if message.calls else EMPTY_ASSISTANT_TEXT
        if message.calls:
            document["tool_calls"] = [_call_document(call) for call in message.calls]
        return canonical_bytes(document)

    def encode_tools(self, tools: tuple[ToolSchema, ...]) -> bytes:
        """All tools in the given order, or nothing."""
        if not tools:
            return b""
        return canonical_bytes(
            [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.input_schema,
                    },
                }
                for tool in tools
            ]
        )

    def encode_parameters(self, parameters: RequestParameters) -> bytes:
        """The body without messages and tools."""
        return self._envelopes.hashed(parameters)

    def frame_body(self, parameters: RequestParameters, messages: Fragments, tools: bytes) -> RequestBody:
        """The whole body, as it is sent."""
        envelope = self._envelopes.of(parameters, tools)
        return RequestBody(envelope.head, messages, envelope.tail)

    def envelope_bytes(self, parameters: RequestParameters, tools: bytes) -> int:
        """Bytes of the body around the fragments and their commas."""
        envelope = self._envelopes.of(parameters, tools)
        return len(envelope.head) + len(envelope.tail)

    def _parameter_document(self, parameters: RequestParameters) -> dict[str, object]:
        refuse_reserved(parameters, RESERVED_PARAMETERS)
        document: dict[str, object] = dict(parameters.extra)
        document["model"] = parameters.model
        document[self.profile.output_limit_field] = parameters.max_output_tokens
        document["stream"] = True
        if self.profile.stream_options:
            document["stream_options"] = {"include_usage": True}
        return document


def wire_arguments(arguments_text: str) -> str:
    """What the history shows as a call's arguments: always the text of a JSON object (CASES W05, W07).

    Empty text and `null` become `{}`. A text that is a JSON object stays as the model wrote it. Anything else
    is shown whole as `{"unparsed_arguments": "<raw text>"}`.
    """
    text, replaced = effective_text(arguments_text)
    if text.strip() in ("", "null"):
        return "{}"
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return canonical_bytes({"unparsed_arguments": text}).decode()
    if not replaced and "\\u" not in text:
        return text
    # An escaped lone surrogate is legal JSON, but servers that parse the text choke on it.
    _, escaped = effective_text(json.dumps(value, ensure_ascii=False))
    return canonical_bytes(_without_surrogates(value)).decode() if escaped else text


def _call_document(call: MessageCall) -> dict[str, object]:
    return {
        "id": effective_text(call.wire_id)[0],
        "type": "function",
        "function": {"name": effective_text(call.name)[0], "arguments": wire_arguments(call.arguments_text)},
    }


def _without_surrogates(value: object) -> object:
    match value:
        case str():
            return effective_text(value)[0]
        case dict():
            return {effective_text(key)[0]: _without_surrogates(item) for key, item in value.items()}
        case list():
            return [_without_surrogates(item) for item in value]
        case _:
            return value


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
