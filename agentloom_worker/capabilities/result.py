"""Results of calls: the raw body that is stored, the text that the model sees, and its preview.

Raw is lossless: every string that Python can hold comes back from its bytes. The effective text is what
any UTF-8 consumer takes: lone surrogates are replaced, and the text says so (RULINGS R13). A text above
64 KiB is shown as a preview that names its range and how to read on (seed 004, 7.2).
"""

import json
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from agentloom_worker import limits
from agentloom_worker.canonical import canonical_bytes, effective_text, parse, sha256_hex
from agentloom_worker.domain.capability import CapabilityKind, ResultStatus, ToolResult
from agentloom_worker.domain.model import Category, Executed, Failure
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.errors import InvariantError
from agentloom_worker.ids import OperationId

MEDIA_TEXT = "text/plain; charset=utf-8"
MEDIA_JSON = "application/json"

_BODY_VERSION = 1
_REF_PREFIX = "result:"


@dataclass(frozen=True, slots=True)
class EffectiveText:
    """What the model sees; `replaced` counts the lone surrogates that became U+FFFD."""

    text: str
    replaced: int
    media_type: str


@dataclass(frozen=True, slots=True)
class Preview:
    """The ResultPreview of seed 004, 7.2. The range is in UTF-8 bytes, half open; `text` is just that range.

    `wire_text` is what stands in the tool message: the text between two marked lines.
    `structured_ref` names the whole JSON value if the result was one.
    """

    result_ref: str
    media_type: str
    total_bytes: int
    preview_start: int
    preview_end: int
    text: str
    structured_ref: str | None
    truncated: bool
    source_operation_id: OperationId
    effective_result_hash: str
    wire_text: str


@dataclass(frozen=True, slots=True)
class Presented:
    """A result as it goes into the tool message. `text` is the preview's wire text if there is one.

    `effective_hash` and `total_bytes` are those of the whole effective text.
    """

    text: str
    effective_hash: str
    total_bytes: int
    replaced: int
    preview: Preview | None


def failed(failure: Failure) -> ToolResult:
    """The result of a call that failed."""
    return ToolResult(ResultStatus.FAILED, failure=failure)


def encode_result(result: ToolResult) -> bytes:
    """The canonical bytes of a raw result."""
    body: dict[str, Any] = {"v": _BODY_VERSION, "status": result.status, "text": result.text}
    if result.structured is not None:
        body["structured"] = result.structured[0]
    if result.failure is not None:
        body["failure"] = asdict(result.failure)
    return canonical_bytes(body)


def decode_result(body: bytes) -> ToolResult:
    """The result of its canonical bytes. Raises InvariantError for another version of the body."""
    value = parse(body)
    if value.get("v") != _BODY_VERSION:
        raise InvariantError(f"result body has version {value.get('v')!r}, this code reads {_BODY_VERSION}")
    failure = value.get("failure")
    return ToolResult(
        status=ResultStatus(value["status"]),
        text=value["text"],
        structured=(value["structured"],) if "structured" in value else None,
        failure=None if failure is None else _failure(failure),
    )


def raw_text(result: ToolResult) -> str:
    """The whole text of a result without loss: what `model_text` makes fit for every UTF-8 consumer.

    Text stands as it is, a structured value as canonical JSON, a failure as
    `{"error":{"code","executed","message"}}`.
    """
    if result.failure is not None:
        failure = result.failure
        error = {"code": failure.code, "message": failure.message, "executed": failure.external_outcome}
        return _json_text({"error": error})
    return result.text if result.structured is None else _json_text(result.structured[0])


def model_text(result: ToolResult) -> EffectiveText:
    """The whole effective text of a result; a pure function of it, so that it can be had again from raw."""
    plain = result.failure is None and result.structured is None
    return _effective(raw_text(result), MEDIA_TEXT if plain else MEDIA_JSON)


def present(result: ToolResult, operation_id: OperationId, *, kind: CapabilityKind) -> Presented:
    """The text of the tool message of a call.

    The answer of a built-in is bounded by its own contract and never previewed: a preview of a slice
    that `result_read` returned could only be read by another `result_read`, and so on.
    """
    effective = model_text(result)
    body = effective.text.encode()
    digest = sha256_hex(body)
    preview = None
    if kind is not CapabilityKind.BUILTIN and len(body) > limits.PREVIEW_BYTES:
        preview = _preview(body, effective.media_type, operation_id, digest)
    text = effective.text if preview is None else preview.wire_text
    return Presented(text, digest, len(body), effective.replaced, preview)


def preview(effective: EffectiveText, operation_id: OperationId) -> Preview | None:
    """The preview of an effective text, or None for one of at most PREVIEW_BYTES."""
    body = effective.text.encode()
    if len(body) <= limits.PREVIEW_BYTES:
        return None
    return _preview(body, effective.media_type, operation_id, sha256_hex(body))


def result_ref(operation_id: OperationId) -> str:
    """How the model names the effective result of an operation. A name, not a permission."""
    return f"{_REF_PREFIX}{operation_id}"


def parse_result_ref(reference: str) -> OperationId | None:
    """The operation that a reference names, or None if it is not exactly of the form that we give out."""
    try:
        operation_id = OperationId(UUID(reference.removeprefix(_REF_PREFIX)))
    except ValueError:
        return None
    return operation_id if reference == result_ref(operation_id) else None


def boundary_at_or_before(body: bytes, position: int) -> int:
    """The last start of a character at or before a position in UTF-8 bytes; the end is a boundary too."""
    if position >= len(body):
        return len(body)
    while position > 0 and body[position] & 0xC0 == 0x80:
        position -= 1
    return position


def _preview(body: bytes, media_type: str, operation_id: OperationId, digest: str) -> Preview:
    end = boundary_at_or_before(body, limits.PREVIEW_BYTES)
    reference = result_ref(operation_id)
    text = body[:end].decode()
    header = (
        f"[truncated result: bytes 0 to {end} of {len(body)} of {reference} ({media_type}) follow;"
        " the rest has not been read]"
    )
    footer = (
        f"[end of the preview: {len(body) - end} of {len(body)} bytes are not shown; to read on, call"
        f' result_read with {{"result_ref":"{reference}","offset":{end}}}]'
    )
    return Preview(
        result_ref=reference,
        media_type=media_type,
        total_bytes=len(body),
        preview_start=0,
        preview_end=end,
        text=text,
        structured_ref=reference if media_type == MEDIA_JSON else None,
        truncated=True,
        source_operation_id=operation_id,
        effective_result_hash=digest,
        wire_text=f"{header}\n{text}\n{footer}",
    )


def _effective(raw: str, media_type: str) -> EffectiveText:
    text, replaced = effective_text(raw)
    if replaced:
        units = "code unit was" if replaced == 1 else "code units were"
        text += f"\n[{replaced} {units} not valid Unicode (lone surrogates) and replaced by U+FFFD]"
    return EffectiveText(text, replaced, media_type)


def _json_text(value: object) -> str:
    # The canonical form, but with lone surrogates as themselves, so that they are counted and replaced.
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def _failure(value: dict[str, Any]) -> Failure:
    retry_class = value["retry_class"]
    return Failure(
        code=value["code"],
        category=Category(value["category"]),
        message=value["message"],
        external_outcome=Executed(value["external_outcome"]),
        retry_class=None if retry_class is None else RetryClass(retry_class),
        retry_after_ms=value["retry_after_ms"],
        http_status=value["http_status"],
    )
