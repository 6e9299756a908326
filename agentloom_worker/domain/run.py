"""The run tree: Run, its one graph and invocation, NodeTask with its continuation, LoopTicket, CallBatch."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from agentloom_worker.canonical import canonical_bytes, parse
from agentloom_worker.errors import InvariantError
from agentloom_worker.frozen import quick_init
from agentloom_worker.ids import (
    BatchId,
    GraphId,
    InvocationId,
    NodeId,
    OperationId,
    OwnerId,
    ReleaseId,
    RunId,
    SessionId,
    parse_short_id,
    short_id,
)


class RunStatus(StrEnum):
    """queued → running → stopping? → one terminal status (RUNTIME 6)."""

    QUEUED = "queued"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    BUDGET_EXHAUSTED = "budget_exhausted"

    @property
    def terminal(self) -> bool:
        """Nothing follows but cleanup."""
        return self not in LIVE


LIVE = frozenset({RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.STOPPING})


class EndCause(StrEnum):
    """Why a run ends; the first cause recorded under the run's lock wins (RULINGS A4, R3)."""

    ANSWER = "answer"
    FAILURE = "failure"
    STOP = "stop"
    DEADLINE = "deadline"
    QUOTA = "quota"


END_STATUS = {
    EndCause.ANSWER: RunStatus.SUCCEEDED,
    EndCause.FAILURE: RunStatus.FAILED,
    EndCause.STOP: RunStatus.CANCELLED,
    EndCause.DEADLINE: RunStatus.TIMED_OUT,
    EndCause.QUOTA: RunStatus.BUDGET_EXHAUSTED,
}


class CleanupState(StrEnum):
    """While a run owns no environment only none, pending and done occur (RULINGS R15)."""

    NONE = "none"
    PENDING = "pending"
    RETRYING = "retrying"
    DONE = "done"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class RunStanding:
    """What the control poll hears of a run; `leased`: it holds a run lease, which governs writable environments."""

    status: RunStatus
    epoch: int
    cause: EndCause | None
    leased: bool


@dataclass(frozen=True, slots=True)
class Run:
    """One question and all that was done for it. Instants in microseconds.

    Counters move by increments under the row's own lock, so a slice's copy may be behind; what a step
    decides on is asserted by the commit (RULINGS T2). `binding` is the RequestBinding of all its requests.
    `run_no` counts the session's runs from 1 in the order of their creation; since only one lives at a time,
    every run with a smaller number had ended when this one was made. `question_seq` is its question's input_seq.
    """

    run_id: RunId
    owner_id: OwnerId
    session_id: SessionId
    release_id: ReleaseId
    status: RunStatus
    epoch: int
    event_head: int
    input_head: int
    loops_used: int
    loops_reserved: int
    max_loops: int
    deadline_at: int
    binding: bytes
    created_at: int
    run_no: int
    question_seq: int
    started_at: int | None = None
    ended_at: int | None = None
    end_cause: EndCause | None = None
    end_code: str | None = None
    end_detail: str | None = None
    answer_operation_id: OperationId | None = None
    cleanup_state: CleanupState = CleanupState.NONE


class Phase(StrEnum):
    """Where a React role stands (RUNTIME 6); the phases of parts not built yet are not listed."""

    PREPARE_CONTEXT = "prepare_context"
    FREEZE = "freeze"
    AWAIT_MODEL = "await_model"
    ACCEPT = "accept"
    AWAIT_BATCH = "await_batch"
    DELIVER_BATCH = "deliver_batch"
    VALIDATE_OUTPUT = "validate_output"
    SETTLE = "settle"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class Continuation:
    """What to do next is read from here, never from a Python stack (RUNTIME 6)."""

    loop_no: int = 0
    input_cutoff: int = 0
    model_operation_id: OperationId | None = None
    batch_id: BatchId | None = None
    answer_operation_id: OperationId | None = None
    end_cause: EndCause | None = None
    end_code: str | None = None
    end_detail: str | None = None

    VERSION: ClassVar[int] = 1

    def to_bytes(self) -> bytes:
        """The persisted document."""
        document: dict[str, object] = {"v": self.VERSION, "loop": self.loop_no, "cutoff": self.input_cutoff}
        optional = {
            "model": self.model_operation_id and short_id(self.model_operation_id),
            "batch": self.batch_id and short_id(self.batch_id),
            "answer": self.answer_operation_id and short_id(self.answer_operation_id),
            "cause": self.end_cause and str(self.end_cause),
            "code": self.end_code,
            "detail": self.end_detail,
        }
        document.update({name: value for name, value in optional.items() if value is not None})
        return canonical_bytes(document)

    @classmethod
    def from_bytes(cls, body: bytes) -> "Continuation":
        """Read a persisted document. Raises InvariantError for an unknown version."""
        document = parse(body)
        if document.get("v") != cls.VERSION:
            raise InvariantError(f"a continuation of version {document.get('v')} cannot be read by this version")
        model, batch, answer = (document.get(name) for name in ("model", "batch", "answer"))
        cause = document.get("cause")
        return cls(
            loop_no=document["loop"],
            input_cutoff=document["cutoff"],
            model_operation_id=OperationId(parse_short_id(model)) if model else None,
            batch_id=BatchId(parse_short_id(batch)) if batch else None,
            answer_operation_id=OperationId(parse_short_id(answer)) if answer else None,
            end_cause=EndCause(cause) if cause else None,
            end_code=document.get("code"),
            end_detail=document.get("detail"),
        )


@dataclass(frozen=True, slots=True)
class NodeTask:
    """One role's execution; its continuation is the NodeCheckpoint of the seeds."""

    node_id: NodeId
    run_id: RunId
    invocation_id: InvocationId
    role_key: str
    phase: Phase
    continuation: Continuation
    revision: int


class ScopeStatus(StrEnum):
    """Status of the graph execution and of the invocation."""

    RUNNING = "running"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class GraphExecution:
    """The one-node graph of a direct agent run; its row is the GraphCheckpoint of the seeds."""

    graph_id: GraphId
    run_id: RunId
    status: ScopeStatus
    revision: int


@dataclass(frozen=True, slots=True)
class AgentInvocation:
    """One complete agent call inside the graph."""

    invocation_id: InvocationId
    run_id: RunId
    graph_id: GraphId
    binding_key: str
    status: ScopeStatus
    revision: int


class TicketState(StrEnum):
    """Reserved in freeze; consumed in accept; released when nothing can have left (RULINGS A19)."""

    RESERVED = "reserved"
    CONSUMED = "consumed"
    RELEASED = "released"


@quick_init
@dataclass(frozen=True, slots=True)
class LoopTicket:
    """The permission for one business model operation."""

    run_id: RunId
    loop_no: int
    operation_id: OperationId
    state: TicketState


class BatchState(StrEnum):
    """A batch is delivered once, when all of its members have settled."""

    OPEN = "open"
    DELIVERED = "delivered"


@quick_init
@dataclass(frozen=True, slots=True)
class CallBatch:
    """The calls of one accepted assistant message. A member is its operation (batch_id, ordinal)."""

    batch_id: BatchId
    run_id: RunId
    node_id: NodeId
    model_operation_id: OperationId
    size: int
    settled: int
    state: BatchState


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One low-frequency fact for clients: counts, codes and times, never text of a model or a tool."""

    run_id: RunId
    run_seq: int
    kind: str
    fields: dict[str, object] = field(default_factory=dict)
    created_at: int = 0
