"""The rows of one run, and of one session, as the audit reads them (audit.py)."""

from dataclasses import dataclass
from uuid import UUID

from agentloom_worker.domain.context import RoleContext
from agentloom_worker.domain.model import Executed
from agentloom_worker.domain.operation import AttemptState, OperationKind, OperationStatus
from agentloom_worker.domain.run import (
    AgentInvocation,
    CallBatch,
    GraphExecution,
    LoopTicket,
    Phase,
    Run,
    RunStatus,
)
from agentloom_worker.domain.session import DeliveryState, InputKind, QueuedQuestion
from agentloom_worker.ids import (
    BatchId,
    BlobId,
    CallId,
    ContextId,
    DeliveryId,
    DispatchId,
    InputId,
    InvocationId,
    NodeId,
    OperationId,
    RecordId,
    ReleaseId,
    RunId,
    SessionId,
)


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event without its fields."""

    run_seq: int
    kind: str


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node task; its continuation is undecoded, since it may be damaged."""

    node_id: NodeId
    invocation_id: InvocationId
    phase: Phase
    continuation: bytes


@dataclass(frozen=True, slots=True)
class OperationRow:
    """An operation without the bodies of its result; `request` is the recipe."""

    operation_id: OperationId
    run_id: RunId
    node_id: NodeId
    kind: OperationKind
    status: OperationStatus
    loop_no: int
    batch_id: BatchId | None
    ordinal: int | None
    call_id: CallId | None
    model_operation_id: OperationId | None
    request: bytes | None
    request_hash: bytes | None
    attempts_made: int
    executed: Executed | None
    code: str | None
    has_raw: bool


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt without what it brought back."""

    operation_id: OperationId
    attempt_no: int
    state: AttemptState
    epoch: int
    maybe_sent: bool
    first_output_at: int | None
    ended_at: int | None
    code: str | None


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A context record."""

    context_id: ContextId
    context_seq: int
    record_id: RecordId
    run_id: RunId
    role: str
    message_kind: str
    raw_ref: str
    operation_id: OperationId | None
    call_id: CallId | None
    origin_input_id: InputId | None
    release_id: ReleaseId | None


@dataclass(frozen=True, slots=True)
class EntryRow:
    """An effective entry; its lists are undecoded."""

    context_id: ContextId
    context_seq: int
    revision: int
    raw_ref: str
    effective_hash: bytes
    tokens: int
    source_refs: bytes
    visible_fields: bytes
    dependency_refs: bytes


@dataclass(frozen=True, slots=True)
class RevisionRow:
    """An effective revision."""

    context_id: ContextId
    revision: int
    record_watermark: int
    manifest_hash: bytes


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A delivery beside the place of its input."""

    delivery_id: DeliveryId
    input_id: InputId
    input_seq: int
    session_id: SessionId
    target_run_id: RunId | None
    operation_id: OperationId | None
    previous_delivery_id: DeliveryId | None
    state: DeliveryState
    context_seq: int | None
    first_output_receipt: str | None
    delivered_at: int | None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A row of pending_dispatch with its claim's columns as they stand."""

    dispatch_id: DispatchId
    scope_id: UUID
    run_id: RunId | None
    step: str
    subject_id: UUID
    epoch: int
    claim_token: UUID | None
    claimed_by: UUID | None
    claimed_until: int | None
    last_error: str | None
    parked_at: int | None


@dataclass(frozen=True, slots=True)
class RunRows:
    """One run and everything under it. Every tuple is ordered by the row's number within the run."""

    run: Run
    session_input_head: int | None
    events: tuple[EventRow, ...]
    graphs: tuple[GraphExecution, ...]
    invocations: tuple[AgentInvocation, ...]
    nodes: tuple[NodeRow, ...]
    contexts: tuple[RoleContext, ...]
    tickets: tuple[LoopTicket, ...]
    batches: tuple[CallBatch, ...]
    operations: tuple[OperationRow, ...]
    attempts: tuple[AttemptRow, ...]
    records: tuple[RecordRow, ...]
    entries: tuple[EntryRow, ...]
    revisions: tuple[RevisionRow, ...]
    deliveries: tuple[DeliveryRow, ...]
    dispatches: tuple[QueueRow, ...]


@dataclass(frozen=True, slots=True)
class InputRow:
    """A user input without its body."""

    input_id: InputId
    input_seq: int
    kind: InputKind
    origin_run_id: RunId | None


@dataclass(frozen=True, slots=True)
class SessionRunRow:
    """A run as its session sees it."""

    run_id: RunId
    run_no: int
    status: RunStatus
    question_seq: int
    input_head: int


@dataclass(frozen=True, slots=True)
class SessionRows:
    """One session: its inputs by input_seq, their deliveries and what these name, its runs by number."""

    session_id: SessionId
    input_head: int
    run_head: int
    inputs: tuple[InputRow, ...]
    queue: tuple[QueuedQuestion, ...]
    deliveries: tuple[DeliveryRow, ...]
    operations: tuple[OperationRow, ...]
    attempts: tuple[AttemptRow, ...]
    runs: tuple[SessionRunRow, ...]


@dataclass(frozen=True, slots=True)
class BodyRow:
    """A user input's body: inline, or the blob that holds it."""

    input_id: InputId
    inline: bytes | None
    blob_id: BlobId | None
