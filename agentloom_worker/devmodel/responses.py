"""A request of the Responses protocol, put into the messages of chat completions that scripts speak of."""

from typing import Any

from agentloom_worker.canonical import canonical_bytes, sha256_hex
from agentloom_worker.devmodel.chat import ChatRequest, ChatRequestError, Wire, describe, read_document, text_of

# Each would refer to what a server keeps, and this one keeps nothing.
_STATEFUL = ("background", "conversation", "previous_response_id", "prompt")
_ROLES = frozenset({"system", "developer", "user", "assistant"})


def parse_responses_request(body: bytes) -> ChatRequest:
    """Read the body of a request for a response. Raises ChatRequestError."""
    document = read_document(body)
    for name in _STATEFUL:
        if document.get(name):
            raise ChatRequestError(f"`{name}` needs a server that keeps responses")
    given = document.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise ChatRequestError("`input` must be a text or a list that is not empty")
    messages = _messages(items, document.get("model"))
    if isinstance(document.get("instructions"), str):
        messages.insert(0, {"role": "system", "content": document["instructions"]})
    if not messages:
        raise ChatRequestError("`input` holds no message")
    included = document.get("include")
    return describe(
        document,
        messages,
        size_bytes=len(body),
        include_usage=True,
        wire=Wire.RESPONSES,
        encrypted_reasoning=isinstance(included, list) and "reasoning.encrypted_content" in included,
    )


def seal(model: object, reasoning: dict[str, Any]) -> str:
    """The `encrypted_content` of a reasoning item: whoever holds it can tell nothing, and only its model opens it."""
    sealed = canonical_bytes([model, reasoning.get("id"), reasoning.get("summary")])
    return f"sealed-{sha256_hex(sealed)[:32]}"


def _messages(items: list[Any], model: object) -> list[dict[str, Any]]:
    """One message a turn: a text of the assistant, the calls behind it and the reasoning in front of either are one."""
    messages: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise ChatRequestError(f"input[{number}] is not an object")
        kind = item.get("type", "message")
        led_to = kind == "function_call" or (kind == "message" and item.get("role") == "assistant")
        if waiting and kind != "reasoning" and not led_to:
            raise _unfollowed(waiting[-1])
        match kind:
            case "message":
                if item.get("role") not in _ROLES:
                    raise ChatRequestError(f"input[{number}] is a message without a known role")
                messages.append({"role": item["role"], "content": text_of(item)})
            case "function_call":
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None})
                function = {"name": item.get("name"), "arguments": item.get("arguments")}
                call = {"id": item.get("call_id"), "type": "function", "function": function}
                messages[-1].setdefault("tool_calls", []).append(call)
            case "function_call_output":
                messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
            case "reasoning":
                waiting.append(_opened(item, model))
            case other:
                raise ChatRequestError(f"input[{number}] is a {other}, which this server does not know")
        if led_to and waiting:
            messages[-1].setdefault("reasoning_items", []).extend(waiting)
            waiting = []
    if waiting:
        raise _unfollowed(waiting[-1])
    return messages


def _opened(item: dict[str, Any], model: object) -> dict[str, Any]:
    sealed = item.get("encrypted_content")
    if sealed is not None and sealed != seal(model, item):
        message = f"The encrypted content for item {item.get('id')} could not be verified."
        raise ChatRequestError(message, "invalid_encrypted_content")
    return item


def _unfollowed(item: dict[str, Any]) -> ChatRequestError:
    named = f"Item '{item.get('id')}' of type 'reasoning'"
    return ChatRequestError(f"{named} was provided without its required following item.")
