"""What the server refuses because the provider that it stands for would: the dialect of a script."""

from itertools import pairwise
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from agentloom_worker.devmodel.chat import ChatRequest, Wire
from agentloom_worker.devmodel.connection import HttpRequest

_LIMITS = ("max_tokens", "max_completion_tokens")
_ALWAYS = {
    Wire.CHAT: frozenset({"messages", "model", "n", "stream", "stream_options", "tools", *_LIMITS}),
    Wire.RESPONSES: frozenset(
        {"include", "input", "instructions", "max_output_tokens", "model", "store", "stream", "stream_options", "tools"}
    ),
}


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Auth(_Shape):
    """The header that must carry exactly this value."""

    header: str
    value: str


class Dialect(_Shape):
    """Nothing of it is on unless the script says so, but for the name of the field that reasoning comes in."""

    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    wants_reasoning: Literal["never", "in_tool_turns"] = "never"
    sealed_reasoning: bool = False
    mid_system: bool = True
    strict_alternation: bool = False
    first_must_be_user: bool = False
    output_limit_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    parameters: tuple[str, ...] | None = None
    auth: Auth | None = None


def is_authorized(dialect: Dialect, request: HttpRequest) -> bool:
    """Whether the key stands where the provider looks for it."""
    auth = dialect.auth
    return auth is None or request.header(auth.header.lower()) == auth.value


def dialect_problem(dialect: Dialect, request: ChatRequest) -> str | None:
    """What this provider would say of a request, in its words; None if it takes it."""
    wrong_limit = [name for name in _LIMITS if name in request.fields and name != dialect.output_limit_field]
    if dialect.output_limit_field is not None and wrong_limit:
        return f"Unsupported parameter: '{wrong_limit[0]}'. Use '{dialect.output_limit_field}' instead."
    unknown = sorted(request.fields - _ALWAYS[request.wire] - set(dialect.parameters or ()))
    if dialect.parameters is not None and unknown:
        return f"Unknown parameter: '{unknown[0]}'."
    return _role_problem(dialect, request.messages) or _reasoning_problem(dialect, request)


def _role_problem(dialect: Dialect, messages: tuple[dict[str, Any], ...]) -> str | None:
    roles = [message["role"] for message in messages]
    if not dialect.mid_system and "system" in roles[1:]:
        return "System message must be at the beginning."
    behind = roles[1:] if roles[0] == "system" else roles
    if dialect.first_must_be_user and behind and behind[0] != "user":
        return "The first message must be the user's."
    # As chat templates count: exchanges of calls and results stand aside.
    spoken = [
        message["role"]
        for message in messages
        if message["role"] == "user" or (message["role"] == "assistant" and not message.get("tool_calls"))
    ]
    if dialect.strict_alternation and any(a == b for a, b in pairwise(spoken)):
        return "Conversation roles must alternate user/assistant/user/assistant/..."
    return None


def _reasoning_problem(dialect: Dialect, request: ChatRequest) -> str | None:
    if dialect.wants_reasoning == "never":
        return None
    for number, message in enumerate(request.messages):
        if not message.get("tool_calls"):
            continue
        if request.wire is Wire.RESPONSES:
            # Nothing is kept here: to a provider that takes reasoning sealed, an id alone names nothing.
            items = message.get("reasoning_items", ())
            if not any(item.get("encrypted_content") or not dialect.sealed_reasoning for item in items):
                kind = "encrypted reasoning" if dialect.sealed_reasoning else "reasoning"
                return f"{kind} is missing in front of the calls of assistant turn {number}"
        elif not isinstance(message.get(dialect.reasoning_field), str):
            return f"{dialect.reasoning_field} is missing in assistant tool call message at index {number}"
    return None
