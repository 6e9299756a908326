"""The request bytes of the Responses protocol: version 1, frozen by golden tests.

Stateless: every request carries the whole conversation, `store` is false, and nothing names what a server keeps.
A body is built as in chat_encoding: canonical JSON, whose sorted keys make it a join of a head, the fragments of
`input` and a tail. One message may be several items of `input`; its fragment then is these items with commas.

Sources: https://developers.openai.com/api/reference/resources/responses/methods/create and the generated types of
https://github.com/openai/openai-python (src/openai/types/responses).
"""

from agentloom_worker.canonical import canonical_bytes, effective_text
from agentloom_worker.domain.model import Message, MessageCall, ReasoningItem, RequestParameters, Role, ToolSchema
from agentloom_worker.llm.chat_encoding import wire_arguments
from agentloom_worker.llm.envelope import Enveloped, refuse_reserved
from agentloom_worker.llm.profiles import Profile, ReasoningReplay
from agentloom_worker.llm.role_order import EMPTY_ASSISTANT_TEXT, NOTE_LABEL, Marks, order_seam

ENCODING_VERSION = 1

# Of a message that is several items the last one tells: what led to an answer or a call stands before it.
_MARKS = Marks(
    user_start=b'{"content":"',
    user_end=b'","role":"user","type":"message"}',
    answer_end=b'"role":"assistant","type":"message"}',
    system_end=b'"role":"system","type":"message"}',
    calls_end=b'"type":"function_call"}',
)

# The adapter's own, and what would make the server keep, fetch or cut a part of the conversation.
RESERVED_PARAMETERS = frozenset(
    {
        "background",
        "context_management",
        "conversation",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "model",
        "previous_response_id",
        "prompt",
        "store",
        "stream",
        "stream_options",
        "tools",
        "truncation",
    }
)


class ResponsesEncoding(Enveloped):
    """Encodes for one profile; pure. Raises MODEL_FEATURE_UNSUPPORTED for flags it does not implement."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        super().__init__("input", self._parameter_document, order_seam(profile, _MARKS, self.encode_message))

    def encode_message(self, message: Message) -> bytes:
        """One message as the items that it is. Lone surrogates become U+FFFD; broken calls as `wire_arguments` says.

        A note is a system message, or a labelled text of the user where the profile takes none in the middle.
        """
        return b",".join(canonical_bytes(item) for item in self._items(message))

    def encode_tools(self, tools: tuple[ToolSchema, ...]) -> bytes:
        """All tools in the given order, or nothing.

        `strict` is true where it is left out (FunctionToolParam), and refuses most schemas that people write.
        """
        if not tools:
            return b""
        return canonical_bytes(
            [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.input_schema,
                    "strict": False,
                }
                for tool in tools
            ]
        )

    def _parameter_document(self, parameters: RequestParameters) -> dict[str, object]:
        refuse_reserved(parameters, RESERVED_PARAMETERS)
        document: dict[str, object] = dict(parameters.extra)
        document["model"] = parameters.model
        document["max_output_tokens"] = parameters.max_output_tokens
        document["store"] = False
        document["stream"] = True
        if self.profile.encrypted_reasoning and self.profile.reasoning_replay is not ReasoningReplay.NEVER:
            document["include"] = ["reasoning.encrypted_content"]
        return document

    def _items(self, message: Message) -> list[dict[str, object]]:
        text = effective_text(message.text)[0]
        match message.role:
            case Role.TOOL:
                call_id = effective_text(message.wire_id or "")[0]
                return [{"type": "function_call_output", "call_id": call_id, "output": text}]
            case Role.ASSISTANT:
                return self._assistant_items(message, text)
            case _:
                if message.note and not self.profile.mid_system:
                    return [_message_item(Role.USER, NOTE_LABEL + text)]
                return [_message_item(message.role, text)]

    def _assistant_items(self, message: Message, text: str) -> list[dict[str, object]]:
        """The text, then the calls; each with the reasoning that led to it in front, as the server demands."""
        reasoning = self._replayed(message)
        items = [self._reasoning_item(one) for one in reasoning if one.before_call is None]
        if text.strip():
            items.append(_answer_item(text))
        elif not message.calls:
            items.append(_answer_item(EMPTY_ASSISTANT_TEXT))
        for ordinal, call in enumerate(message.calls):
            items += [self._reasoning_item(one) for one in reasoning if one.before_call == ordinal]
            items.append(_call_item(call))
        return items

    def _replayed(self, message: Message) -> tuple[ReasoningItem, ...]:
        profile = self.profile
        match profile.reasoning_replay:
            case ReasoningReplay.NEVER:
                return ()
            case ReasoningReplay.IN_TOOL_TURNS if not message.calls:
                return ()
        # An id alone names what the server did not store: it would answer 404.
        return tuple(one for one in message.reasoning_items if one.encrypted or not profile.encrypted_reasoning)

    def _reasoning_item(self, item: ReasoningItem) -> dict[str, object]:
        document: dict[str, object] = {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": effective_text(text)[0]} for text in item.summary],
        }
        if item.item_id:
            document["id"] = effective_text(item.item_id)[0]
        if self.profile.encrypted_reasoning:
            document["encrypted_content"] = effective_text(item.encrypted)[0]
        elif item.content:
            texts = [{"type": "reasoning_text", "text": effective_text(text)[0]} for text in item.content]
            document["content"] = texts
        return document


def _message_item(role: Role, text: str) -> dict[str, object]:
    return {"type": "message", "role": role.value, "content": text}


def _answer_item(text: str) -> dict[str, object]:
    """The model's own words, in parts: llama.cpp's server takes a plain text for the user's and refuses it.

    https://github.com/ggml-org/llama.cpp/blob/master/tools/server/server-chat.cpp, convert_responses_to_chatcmpl.
    """
    return {"type": "message", "role": Role.ASSISTANT.value, "content": [{"type": "output_text", "text": text}]}


def _call_item(call: MessageCall) -> dict[str, object]:
    return {
        "type": "function_call",
        "call_id": effective_text(call.wire_id)[0],
        "name": effective_text(call.name)[0],
        "arguments": wire_arguments(call.arguments_text),
    }
