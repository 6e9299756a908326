"""The request bytes of the chat-completions protocol: version 1, frozen by golden tests.

A body is canonical JSON (sorted keys, UTF-8) of the whole request; since its keys are sorted, it is also the
join of a head, the message fragments and a tail, and every fragment can be encoded once and kept.
"""

import json
from typing import assert_never

from agentloom_worker.canonical import canonical_bytes, effective_text
from agentloom_worker.domain.model import Message, MessageCall, RequestParameters, Role, ToolSchema
from agentloom_worker.domain.seam import Seam, SeamOf
from agentloom_worker.errors import Code, RunError
from agentloom_worker.llm.envelope import Enveloped, refuse_reserved
from agentloom_worker.llm.profiles import Profile, ReasoningReplay

ENCODING_VERSION = 1

# Strict providers refuse an assistant message without visible text, a single space included (CASES W04).
EMPTY_ASSISTANT_TEXT = "(no content)"

# Stands before the runtime's own words where a provider takes no system message behind the first (RULINGS A12).
NOTE_LABEL = "[agentloom] "

# Stands where a provider wants a word of the user and nobody has said one.
CONTINUED = NOTE_LABEL + "(continued)"

# Both stand between content and role, so that a fragment's end still tells its role.
REASONING_FIELDS = frozenset({"reasoning", "reasoning_content"})

# A fragment is canonical JSON, so its end tells whose message it is: quotes inside of texts are escaped.
_USER_END = b'","role":"user"}'
_ASSISTANT_END = b'"role":"assistant"}'
_SYSTEM_END = b'"role":"system"}'
_CALLS_END = b"]}"
_USER_START = b'{"content":"'
_PARAGRAPH = b"\\n\\n"

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
        adapts = profile.strict_alternation or profile.first_must_be_user
        if adapts and profile.mid_system:
            # Seen from a system message, nobody could tell whether the conversation has begun.
            raise RunError(
                Code.MODEL_FEATURE_UNSUPPORTED,
                f"profile {profile.name}: in a strict order of roles no system message can stand in the middle",
            )
        if profile.reasoning_field not in REASONING_FIELDS:
            raise RunError(
                Code.MODEL_FEATURE_UNSUPPORTED,
                f"profile {profile.name}: reasoning cannot be sent back as {profile.reasoning_field}",
            )
        self.profile = profile
        self._seam = chat_seam(profile) if adapts else None
        super().__init__("messages", self._parameter_document)

    @property
    def seam(self) -> SeamOf | None:
        """How two fragments meet; None: with a comma."""
        return self._seam

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


def chat_seam(profile: Profile) -> SeamOf:
    """The seams of a provider that takes only certain sequences of roles (RULINGS A12).

    `strict_alternation`: two texts of the user become one, a paragraph apart; where an exchange of calls and results
    is followed by the user, an empty answer stands between; where the assistant speaks twice, a labelled text of the
    user. `first_must_be_user`: such a text also opens a conversation that the assistant would open.
    """
    comma, start = Seam(), Seam(between=b"")
    merged = Seam(len(_USER_END), _PARAGRAPH, len(_USER_START), -1)
    user = canonical_bytes({"role": Role.USER.value, "content": CONTINUED})
    assistant = canonical_bytes({"role": Role.ASSISTANT.value, "content": EMPTY_ASSISTANT_TEXT})
    opened, opened_first = Seam(between=b"," + user + b",", messages=1), Seam(between=user + b",", messages=1)
    answered = Seam(between=b"," + assistant + b",", messages=1)

    def seam(before: bytes, after: bytes) -> Seam:
        by_user = after.endswith(_USER_END)
        if not before or before.endswith(_SYSTEM_END):
            if profile.first_must_be_user and not by_user and not after.endswith(_SYSTEM_END):
                return opened if before else opened_first
            return comma if before else start
        if not profile.strict_alternation:
            return comma
        if before.endswith(_USER_END):
            return merged if by_user else comma
        if before.endswith(_ASSISTANT_END):
            return comma if by_user else opened
        return answered if by_user and not before.endswith(_CALLS_END) else comma

    return seam


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
