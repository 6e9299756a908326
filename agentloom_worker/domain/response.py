"""The persisted form of a model's complete response: the raw body of a model operation, version 1."""

from typing import Any

from agentloom_worker.canonical import canonical_bytes, parse
from agentloom_worker.domain.model import ModelResponse, Partial, ReasoningItem, ResponseCall, Usage
from agentloom_worker.errors import InvariantError

VERSION = 1


def _encode_calls(calls: tuple[ResponseCall, ...]) -> list[dict[str, object]]:
    return [{"id": call.provider_call_id, "name": call.name, "arguments": call.arguments_text} for call in calls]


def _decode_calls(calls: list[dict[str, str]]) -> tuple[ResponseCall, ...]:
    return tuple(
        ResponseCall(ordinal, call["id"], call["name"], call["arguments"]) for ordinal, call in enumerate(calls)
    )


def _encode_reasoning(item: ReasoningItem) -> dict[str, object]:
    optional: dict[str, object] = {
        "id": item.item_id,
        "summary": list(item.summary),
        "content": list(item.content),
        "encrypted": item.encrypted,
    }
    document = {name: value for name, value in optional.items() if value}
    return document if item.before_call is None else {**document, "before_call": item.before_call}


def _decode_reasoning(item: dict[str, Any]) -> ReasoningItem:
    return ReasoningItem(
        item_id=item.get("id", ""),
        summary=tuple(item.get("summary", ())),
        content=tuple(item.get("content", ())),
        encrypted=item.get("encrypted", ""),
        before_call=item.get("before_call"),
    )


def encode_response(response: ModelResponse) -> bytes:
    """Canonical bytes; absent parts are left out, texts stand verbatim."""
    document: dict[str, object] = {"v": VERSION, "text": response.text}
    if response.calls:
        document["calls"] = _encode_calls(response.calls)
    if response.usage:
        usage = response.usage
        counts = [usage.input_tokens, usage.output_tokens, usage.cached_tokens]
        document["usage"] = [*counts, usage.reasoning_tokens] if usage.reasoning_tokens else counts
    if response.reasoning_items:
        document["reasoning_items"] = [_encode_reasoning(item) for item in response.reasoning_items]
    optional = {
        "finish": response.finish_reason,
        "reasoning": response.reasoning,
        "refusal": response.refusal,
        "request_id": response.provider_request_id,
        "sha256": response.transport_sha256,
        "bytes": response.transport_bytes,
        "model": response.served_model,
    }
    document.update({name: value for name, value in optional.items() if value})
    return canonical_bytes(document)


def decode_response(body: bytes) -> ModelResponse:
    """Read a persisted response. Raises InvariantError for a version that this code does not know."""
    document = parse(body)
    if document.get("v") != VERSION:
        raise InvariantError(f"a model response of version {document.get('v')} cannot be read by this version")
    usage = document.get("usage")
    return ModelResponse(
        text=document["text"],
        calls=_decode_calls(document.get("calls", [])),
        finish_reason=document.get("finish"),
        reasoning=document.get("reasoning", ""),
        refusal=document.get("refusal", ""),
        usage=Usage(*usage) if usage else None,
        provider_request_id=document.get("request_id"),
        transport_sha256=document.get("sha256", ""),
        transport_bytes=document.get("bytes", 0),
        reasoning_items=tuple(_decode_reasoning(item) for item in document.get("reasoning_items", [])),
        served_model=document.get("model"),
    )


def encode_partial(partial: Partial) -> bytes | None:
    """What had arrived of a broken stream, for audit; None where nothing had."""
    if partial.empty:
        return None
    document: dict[str, object] = {
        "v": VERSION,
        "complete": False,
        "text": partial.text,
        "reasoning": partial.reasoning,
        "calls": _encode_calls(partial.calls),
    }
    if partial.refusal:
        document["refusal"] = partial.refusal
    return canonical_bytes(document)
