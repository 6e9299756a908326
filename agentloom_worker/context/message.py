"""Records become messages: one function a message kind, from the effective body to the provider-free form."""

from uuid import UUID

from agentloom_worker.canonical import effective_text, parse
from agentloom_worker.domain.model import Message, MessageCall, ModelResponse, Role


def prompt_message(prompt: str) -> Message:
    """The system prompt of the role."""
    return Message(Role.SYSTEM, effective_text(prompt)[0])


def user_message(body: bytes) -> Message:
    """The user's words, verbatim but for lone surrogates (RULINGS R13). `body` is a canonical JSON string."""
    return Message(Role.USER, effective_text(parse(body))[0])


def note_message(body: bytes) -> Message:
    """What the runtime has to say, never the user and never the model. `body` is a canonical JSON string."""
    return note(parse(body))


def note(text: str) -> Message:
    """The same for a text that is no stored body: a marker of the projection."""
    return Message(Role.SYSTEM, effective_text(text)[0], note=True)


def assistant_message(response: ModelResponse, call_ids: tuple[UUID, ...]) -> tuple[Message, tuple[str, ...]]:
    """An accepted response and the wire ids of its calls: the provider's own where it gave one (CASES W03)."""
    wire_ids = tuple(
        call.provider_call_id or str(call_id) for call, call_id in zip(response.calls, call_ids, strict=True)
    )
    calls = tuple(
        MessageCall(wire_id, call.name, call.arguments_text)
        for call, wire_id in zip(response.calls, wire_ids, strict=True)
    )
    text, reasoning = effective_text(response.text or response.refusal)[0], effective_text(response.reasoning)[0]
    message = Message(Role.ASSISTANT, text, calls, reasoning=reasoning, reasoning_items=response.reasoning_items)
    return message, wire_ids


def tool_message(text: str, wire_id: str) -> Message:
    """One call's result; `text` is effective already."""
    return Message(Role.TOOL, text, (), wire_id)
