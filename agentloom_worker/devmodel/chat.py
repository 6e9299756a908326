"""A request as a script sees it: what was said, how often the model spoke, what the tools gave back."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Wire(StrEnum):
    """The protocol that a request came by, and that its answer goes by."""

    CHAT = "chat"
    RESPONSES = "responses"


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The facts of one request body. `messages` are in the form of chat completions, whatever the wire."""

    model: str
    messages: tuple[dict[str, Any], ...]
    stream: bool
    include_usage: bool
    tool_names: frozenset[str]
    assistant_turns: int
    turns_since_user: int
    tool_results: int
    last_role: str
    last_text: str
    size_bytes: int
    fields: frozenset[str] = frozenset()
    wire: Wire = Wire.CHAT
    encrypted_reasoning: bool = False


class ChatRequestError(ValueError):
    """The body is no chat request; the message says why, `code` where providers have a word for it."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


def parse_chat_request(body: bytes) -> ChatRequest:
    """Read the body of a request for a chat completion. Raises ChatRequestError."""
    document = read_document(body)
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ChatRequestError("`messages` must be a list that is not empty")
    if not all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages):
        raise ChatRequestError("each message must be an object with a role")
    options = document.get("stream_options")
    return describe(
        document,
        messages,
        size_bytes=len(body),
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def read_document(body: bytes) -> dict[str, Any]:
    """The JSON object of a body. Raises ChatRequestError."""
    try:
        document = json.loads(body)
    except ValueError as error:
        raise ChatRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ChatRequestError("the body is not a JSON object")
    return document


def describe(
    document: dict[str, Any],
    messages: list[dict[str, Any]],
    *,
    size_bytes: int,
    include_usage: bool,
    wire: Wire = Wire.CHAT,
    encrypted_reasoning: bool = False,
) -> ChatRequest:
    """The facts of a request whose messages are these, at least one. Raises ChatRequestError."""
    model = document.get("model")
    if not isinstance(model, str):
        raise ChatRequestError("`model` must be a text")
    roles = [message["role"] for message in messages]
    return ChatRequest(
        model=model,
        messages=tuple(messages),
        stream=document.get("stream") is True,
        include_usage=include_usage,
        tool_names=_tool_names(document.get("tools")),
        assistant_turns=roles.count("assistant"),
        turns_since_user=_turns_since_user(roles),
        tool_results=roles.count("tool"),
        last_role=roles[-1],
        last_text=text_of(messages[-1]),
        size_bytes=size_bytes,
        wire=wire,
        encrypted_reasoning=encrypted_reasoning,
        fields=frozenset(document),
    )


def _tool_names(tools: object) -> frozenset[str]:
    if not isinstance(tools, list):
        return frozenset()
    # Responses have no object `function` around name and schema.
    functions = [tool.get("function", tool) for tool in tools if isinstance(tool, dict)]
    return frozenset(str(function.get("name")) for function in functions if isinstance(function, dict))


def _turns_since_user(roles: list[str]) -> int:
    turns = 0
    for role in reversed(roles):
        if role == "user":
            break
        turns += role == "assistant"
    return turns


def text_of(message: dict[str, Any]) -> str:
    """The text of a message; parts of other kinds than text are left out."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def user_text(request: ChatRequest, *, first: bool) -> str:
    """The first or the last text of the user, empty if there is none."""
    messages = request.messages if first else reversed(request.messages)
    return next((text_of(message) for message in messages if message["role"] == "user"), "")


def results_of(request: ChatRequest, tool: str | None) -> list[str]:
    """The texts that a tool (None: any) gave back, in the order of the messages.

    Within one assistant message a result belongs to the call with its id; where ids are given twice, the
    results go by position.
    """
    found: list[str] = []
    open_calls: list[tuple[str, str]] = []
    for message in request.messages:
        if message["role"] == "assistant":
            open_calls = [(call_id, name) for call_id, name in _calls(message)]
        elif message["role"] == "tool":
            wanted = message.get("tool_call_id")
            place = next((i for i, (call_id, _) in enumerate(open_calls) if call_id == wanted), None)
            name = open_calls.pop(place)[1] if place is not None else ""
            if tool is None or name == tool:
                found.append(text_of(message))
    return found


def protocol_problem(request: ChatRequest) -> str | None:
    """What a strict provider would refuse: a call without its result, or a result without its call."""
    awaited: list[str] = []
    for number, message in enumerate(request.messages):
        if message["role"] == "tool":
            call_id = str(message.get("tool_call_id"))
            if call_id not in awaited:
                return f"messages[{number}] answers no call of the assistant message before it: {call_id!r}"
            awaited.remove(call_id)
        elif awaited:
            return f"messages[{number}] stands where results are missing for: {awaited}"
        elif message["role"] == "assistant":
            awaited = [call_id for call_id, _ in _calls(message)]
            if not awaited and not message.get("refusal") and not text_of(message).strip():
                return f"messages[{number}] is an assistant message without text and without calls"
    return f"results are missing for: {awaited}" if awaited else None


def _calls(message: dict[str, Any]) -> list[tuple[str, str]]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return []
    return [
        (str(call.get("id")), str((call.get("function") or {}).get("name"))) for call in calls if isinstance(call, dict)
    ]
