"""`result.read`: read on in a result whose preview was cut (seed 004, 7.2).

An internal operation: it has an operation and a result of its own, no attempt, and its effect set
commits with its raw result (RULINGS A23). Whoever runs it decides whether the caller may read the
reference; these functions are pure.
"""

from dataclasses import asdict, dataclass
from typing import Any

from agentloom_worker import limits
from agentloom_worker.canonical import sha256_hex
from agentloom_worker.capabilities.declare import schema_fingerprint
from agentloom_worker.capabilities.result import boundary_at_or_before, failed
from agentloom_worker.domain.capability import (
    CapabilityKind,
    CapabilitySpec,
    Effect,
    ResultStatus,
    ToolResult,
)
from agentloom_worker.domain.model import Category, Executed, Failure
from agentloom_worker.domain.policy import Jitter, OnUnknown, OnUnknownAction, RetryPolicy
from agentloom_worker.errors import Code

KEY = "result.read"
MODEL_NAME = "result_read"

_DESCRIPTION = (
    "Read a part of an earlier tool result that was too large to be shown in full. Offsets and limits"
    " count UTF-8 bytes. Start at the offset that the preview names, then go on at next_offset; null"
    " means that the end is reached."
)
_INPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "result_ref": {"type": "string", "description": "The result_ref that the preview names."},
        "offset": {"type": "integer", "minimum": 0, "default": 0, "description": "First byte to read."},
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": limits.RESULT_READ_MAX_BYTES,
            "default": limits.RESULT_READ_DEFAULT_BYTES,
            "description": "At most so many bytes.",
        },
    },
    "required": ["result_ref"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class ResultRead:
    """Arguments that fit the schema, defaults filled in."""

    result_ref: str
    offset: int
    limit: int


@dataclass(frozen=True, slots=True)
class ResultSlice:
    """What was read: bytes `offset` to `end_offset` (excluded) of the effective text.

    `etag` is the hash of the whole text, the same as the preview's `effective_result_hash`.
    """

    result_ref: str
    offset: int
    end_offset: int
    next_offset: int | None
    total_bytes: int
    text: str
    etag: str


def result_read_spec() -> CapabilitySpec:
    """The capability as it stands in every catalog."""
    return CapabilitySpec(
        key=KEY,
        kind=CapabilityKind.BUILTIN,
        model_name=MODEL_NAME,
        description=_DESCRIPTION,
        input_schema=_INPUT_SCHEMA,
        output_schema=None,
        schema_fingerprint=schema_fingerprint(_INPUT_SCHEMA, None),
        handler_ref=f"builtin:{KEY}",
        effect=Effect.READ,
        timeout_ms=limits.TOOL_TIMEOUT_MS,
        # There is no attempt that could be retried or be of unknown outcome.
        retry=RetryPolicy(1, 0, 1.0, 0, Jitter.NONE, OnUnknown(OnUnknownAction.FAIL, 0)),
    )


def read_arguments(arguments: dict[str, Any]) -> ResultRead:
    """Arguments that `check_arguments` accepted, typed (JSON Schema takes `3.0` for an integer)."""
    return ResultRead(
        result_ref=arguments["result_ref"],
        offset=int(arguments.get("offset", 0)),
        limit=int(arguments.get("limit", limits.RESULT_READ_DEFAULT_BYTES)),
    )


def read_slice(text_bytes: bytes, request: ResultRead, *, etag: str | None = None) -> ToolResult:
    """Read from the whole effective text in UTF-8; `etag` is its hash if the caller has it already.

    The slice ends at a character's boundary at or before `offset + limit`; where not even one character
    fits, it holds that one (up to 3 bytes above the limit), so that reading on always gets on. At or
    past the end it is empty and `next_offset` null. An offset inside a character is INVALID_OFFSET.
    """
    offset, total = request.offset, len(text_bytes)
    if boundary_at_or_before(text_bytes, offset) not in (offset, total):
        before = boundary_at_or_before(text_bytes, offset)
        text = f"offset {offset} lies inside of a character, which starts at {before}"
        return failed(Failure(Code.INVALID_OFFSET, Category.VALIDATION, text, Executed.NOT_EXECUTED))
    end = max(offset, boundary_at_or_before(text_bytes, offset + request.limit))
    if end == offset < total:
        end = offset + 1
        while end < total and text_bytes[end] & 0xC0 == 0x80:
            end += 1
    part = ResultSlice(
        result_ref=request.result_ref,
        offset=offset,
        end_offset=end,
        next_offset=end if end < total else None,
        total_bytes=total,
        text=text_bytes[offset:end].decode(),
        etag=etag if etag is not None else sha256_hex(text_bytes),
    )
    return ToolResult(ResultStatus.SUCCEEDED, structured=(asdict(part),))


def result_not_found(result_ref: str) -> ToolResult:
    """The same answer for a reference that does not exist and for one that the caller may not read."""
    text = f"there is no result {result_ref[:80]!r} that this call may read; use a result_ref from a preview"
    return failed(Failure(Code.RESULT_NOT_FOUND, Category.NOT_FOUND, text, Executed.NOT_EXECUTED))
