"""A request of the Responses protocol, put into the messages of chat completions that scripts speak of."""

from typing import Any

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
    messages = _messages(items)
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


def _messages(items: list[Any]) -> list[dict[str, Any]]:
    """One message a turn: a text of the assistant and the calls behind it are one."""
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise ChatRequestError(f"input[{number}] is not an object")
        match item.get("type", "message"):
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
                continue  # belongs to what follows it
            case other:
                raise ChatRequestError(f"input[{number}] is a {other}, which this server does not know")
    return messages
