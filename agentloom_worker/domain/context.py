"""A role's context: append-only records, their effective entries and revisions (seed 000, 2; seed 004, 2.1)."""

from dataclasses import dataclass
from enum import StrEnum

from agentloom_worker.canonical import canonical_bytes, sha256
from agentloom_worker.domain.model import Role
from agentloom_worker.domain.operation import Payload
from agentloom_worker.frozen import quick_init
from agentloom_worker.ids import (
    BlobId,
    CallId,
    ContextId,
    InputId,
    InvocationId,
    NodeId,
    OperationId,
    RecordId,
    ReleaseId,
    RunId,
)

EMPTY_MANIFEST = sha256(b"")


class MessageKind(StrEnum):
    """What a record is, apart from its role in the message protocol."""

    PROMPT = "prompt"
    USER_REF = "user_ref"
    ASSISTANT = "assistant"
    TOOL_RESULT = "tool_result"
    FEEDBACK = "feedback"


class RawRef(StrEnum):
    """Where the raw body of a record stands; each body is stored once, where its fact was made."""

    PROMPT = "prompt"  # the release's prompt, by release_id and prompt_slot
    INPUT = "input"  # the user input, by origin_input_id
    OPERATION = "operation"  # the operation's raw result, by operation_id
    RECORD = "record"  # the record's own body: a fact that was made nowhere else


@dataclass(frozen=True, slots=True)
class RoleContext:
    """The heads of one role's context; revision 0 is the empty manifest."""

    context_id: ContextId
    run_id: RunId
    invocation_id: InvocationId
    node_id: NodeId
    role_key: str
    record_head: int
    effective_revision: int
    manifest_hash: bytes
    last_model_operation_id: OperationId | None
    revision: int


@quick_init
@dataclass(frozen=True, slots=True)
class ContextRecord:
    """One message fact. Never updated."""

    context_id: ContextId
    context_seq: int
    record_id: RecordId
    run_id: RunId
    role: Role
    message_kind: MessageKind
    raw_ref: RawRef
    logical_result_key: str
    operation_id: OperationId | None = None
    call_id: CallId | None = None
    origin_input_id: InputId | None = None
    release_id: ReleaseId | None = None
    prompt_slot: str | None = None
    body: Payload | None = None


@quick_init
@dataclass(frozen=True, slots=True)
class EffectiveEntry:
    """What a record counts as from one revision on. `effective_ref` is None while effective equals raw.

    The lists are canonical JSON; an empty `visible_fields` means every field of the kind's catalog v1
    (RULINGS U16). `tokens` is the estimate of the wire fragment by `estimator`.
    """

    context_id: ContextId
    context_seq: int
    revision: int
    raw_ref: RawRef
    effective_hash: bytes
    tokens: int
    estimator: str
    effective_ref: str | None = None
    effective_blob_id: BlobId | None = None
    source_refs: tuple[str, ...] = ()
    visible_fields: tuple[str, ...] = ()
    dependency_refs: tuple[str, ...] = ()


@quick_init
@dataclass(frozen=True, slots=True)
class EffectiveRevision:
    """One link of the manifest's hash chain."""

    context_id: ContextId
    revision: int
    record_watermark: int
    manifest_hash: bytes
    cause_key: str


def next_manifest_hash(parent: bytes, entries: tuple[EffectiveEntry, ...]) -> bytes:
    """manifest_hash = sha256(parent ‖ canonical(delta)); the delta names each entry's place and content."""
    delta = [
        [
            entry.context_seq,
            entry.effective_hash.hex(),
            list(entry.source_refs),
            list(entry.visible_fields),
            list(entry.dependency_refs),
        ]
        for entry in entries
    ]
    return sha256(parent + canonical_bytes(delta))


def prompt_message_key(slot: str) -> str:
    """The logical result key of a prompt projection."""
    return f"prompt:{slot}"
