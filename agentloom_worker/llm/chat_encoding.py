"""The request bytes of the chat-completions protocol: version 1, frozen by golden tests.

A body is canonical JSON (sorted keys, UTF-8) of the whole request; since its keys are sorted, it is also the
join of a head, the message fragments and a tail, and every fragment can be encoded once and kept.
"""

import json
from typing import assert_never

from agentloom_worker.canonical import canonical_bytes, effective_text
from agentloom_worker.domain.model import Message, MessageCall, RequestParameters, Role, ToolSchema
from agentloom_worker.errors import Code, RunError
from agentloom_worker.llm.envelope import Enveloped, refuse_reserved
from agentloom_worker.llm.profiles import Profile, ReasoningReplay
from agentloom_worker.llm.role_order import EMPTY_ASSISTANT_TEXT, NOTE_LABEL, Marks, order_seam

ENCODING_VERSION = 1

# Both stand between content and role, so that a fragment's end still tells its role.
REASONING_FIELDS = frozenset({"reasoning", "reasoning_content"})

_MARKS = Marks(
    user_start=b'{"content":"',
    user_end=b'","role":"user"}',
    answer_end=b'"role":"assistant"}',
    system_end=b'"role":"system"}',
    calls_end=b"]}",
)

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


class ChatEncoding(Enveloped):
    """Encodes for one profile; pure. Raises MODEL_FEATURE_UNSUPPORTED for flags it does not implement."""

    def __init__(self, profile: Profile) -> None:
        if profile.reasoning_field not in REASONING_FIELDS:
            raise RunError(
                Code.MODEL_FEATURE_UNSUPPORTED,
                f"profile {profile.name}: reasoning cannot be sent back as {profile.reasoning_field}",
            )
        self.profile = profile
        super().__init__("messages", self._parameter_document, order_seam(profile, _MARKS, self.encode_message))

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
        if message.role is Role.ASSISTANT and self._replays(message):
            document[self.profile.reasoning_field] = effective_text(message.reasoning)[0]
        return canonical_bytes(document)

    def _replays(self, message: Message) -> bool:
        match self.profile.reasoning_replay:
            case ReasoningReplay.NEVER:
                return False
            case ReasoningReplay.IN_TOOL_TURNS:
                return bool(message.calls) and (bool(message.reasoning) or self.profile.reasoning_if_empty)
            case ReasoningReplay.ALWAYS:
                return bool(message.reasoning) or (bool(message.calls) and self.profile.reasoning_if_empty)
            case _:
                assert_never(self.profile.reasoning_replay)

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
