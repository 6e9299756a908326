"""A message as it goes to the model, read from its bytes, and whether the calls of many pair with their results."""

from dataclasses import dataclass

from agentloom_worker.canonical import parse, sha256
from agentloom_worker.context.request import fragment_tokens
from agentloom_worker.domain.model import Role


@dataclass(frozen=True, slots=True)
class WireMessage:
    """A message without its text. `tokens` is the estimate of its fragment."""

    role: Role
    text_hash: bytes
    call_ids: tuple[str, ...]
    wire_id: str | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Pairing:
    """Behind some messages: the calls that have no result yet, and whether one was missed or stood alone before."""

    open_calls: tuple[str, ...] = ()
    broken: bool = False

    @property
    def whole(self) -> bool:
        """Whether the messages so far may be a request."""
        return not self.broken and not self.open_calls

    def after(self, message: WireMessage) -> "Pairing":
        """Behind one more message."""
        if message.role is not Role.TOOL:
            return Pairing(message.call_ids, self.broken or bool(self.open_calls))
        if self.open_calls and self.open_calls[0] == message.wire_id:
            return Pairing(self.open_calls[1:], self.broken)
        return Pairing(self.open_calls, broken=True)


def read_message(fragment: bytes) -> WireMessage:
    """A fragment of either protocol: a message of chat completions, or the items of a Responses request that make one.

    No other form of a fragment is stored or sent anywhere.
    """
    role, text, wire_id = Role.ASSISTANT, "", None
    calls: list[str] = []
    for item in parse(b"[" + fragment + b"]"):
        match item.get("type"):
            case "function_call":
                calls.append(item["call_id"])
            case "function_call_output":
                role, text, wire_id = Role.TOOL, item["output"], item["call_id"]
            case "reasoning":
                pass  # of the assistant's message that follows
            case _:
                role, text, wire_id = Role(item["role"]), _text(item["content"]), item.get("tool_call_id")
                calls += [call["id"] for call in item.get("tool_calls", ())]
    return WireMessage(role, sha256(text.encode()), tuple(calls), wire_id, fragment_tokens(fragment))


def _text(content: str | list[dict[str, str]] | None) -> str:
    return "".join(part["text"] for part in content) if isinstance(content, list) else content or ""
