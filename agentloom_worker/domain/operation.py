"""Operations and their attempts: one logical call, and each time it was tried outside."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from agentloom_worker.canonical import sha256
from agentloom_worker.domain.model import Executed, FirstOutput
from agentloom_worker.errors import Code
from agentloom_worker.frozen import quick_init
from agentloom_worker.ids import BatchId, BlobId, CallId, NodeId, OperationId, RunId, derived_id

_OK, _CONFLICT = 200, 409
_BROKEN_OFF = frozenset({Code.MODEL_TRANSPORT_FAILED, Code.MODEL_FIRST_OUTPUT_TIMEOUT})


class OperationKind(StrEnum):
    """What is called."""

    MODEL = "model"
    TOOL = "tool"
    INTERNAL = "internal"  # answered by us, without an attempt (RULINGS A23)


class OperationStatus(StrEnum):
    """prepared → attempting → completed | failed | cancelled | unknown (RUNTIME 6)."""

    PREPARED = "prepared"
    ATTEMPTING = "attempting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def settled(self) -> bool:
        """Nothing more will happen to it."""
        return self not in (OperationStatus.PREPARED, OperationStatus.ATTEMPTING)


@quick_init
@dataclass(frozen=True, slots=True)
class Payload:
    """A body: canonical JSON bytes inline, or the id of a blob of the same owner."""

    inline: bytes | None = None
    blob_id: BlobId | None = None


@quick_init
@dataclass(frozen=True, slots=True)
class Operation:
    """`request` is the frozen recipe of a model operation; a call's arguments stand in its model operation.

    `raw` is what came back; `effective` is None while it equals raw. `unknown_attempts` counts those
    followed by `on_unknown` (RULINGS R11), `drain_interrupts` those ended by a drain (R10).
    """

    operation_id: OperationId
    run_id: RunId
    node_id: NodeId
    kind: OperationKind
    status: OperationStatus
    revision: int
    loop_no: int
    capability: str
    request: bytes | None = None
    request_hash: bytes | None = None
    batch_id: BatchId | None = None
    ordinal: int | None = None
    call_id: CallId | None = None
    model_operation_id: OperationId | None = None
    raw: Payload | None = None
    effective: Payload | None = None
    code: str | None = None
    executed: Executed | None = None
    attempts_made: int = 0
    unknown_attempts: int = 0
    drain_interrupts: int = 0


class AttemptState(StrEnum):
    """What is persisted of an attempt; what lies between intent and outcome lives in the process."""

    INTENT = "intent"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


@quick_init
@dataclass(frozen=True, slots=True)
class Attempt:
    """One try. `maybe_sent` is set where a claim that may have begun the effect was voided (RULINGS R3).

    `partial` is what had arrived of a broken answer, `transport` the bytes that it was read from (domain/transport.py).
    """

    operation_id: OperationId
    attempt_no: int
    state: AttemptState
    epoch: int
    maybe_sent: bool = False
    first_output: FirstOutput | None = None
    first_output_at: int | None = None
    code: str | None = None
    category: str | None = None
    detail: str | None = None
    http_status: int | None = None
    reason: str | None = None
    partial: bytes | None = None
    late: bytes | None = None
    transport: Payload | None = None
    started_at: int | None = None
    ended_at: int | None = None

    @property
    def answered_failure(self) -> bool:
        """Whether an error answered it: a status, or an error inside of a 200.

        What broke off is no answer, and neither is a conflict: the request before is still at work.
        """
        if self.state is not AttemptState.FAILED or self.http_status in (None, _CONFLICT):
            return False
        return self.http_status != _OK or self.code not in _BROKEN_OFF


def idempotency_key_of(operation_id: OperationId, earlier: Iterable[Attempt]) -> str:
    """What a model operation's next attempt is to be recognised by, behind these.

    Who honours the key answers a repetition with the result that it keeps, an error as well (IETF draft
    idempotency-key-header-06, 2.6): so behind an error it is a new one. Where the outcome is unknown it stays, for it
    is all that keeps a second execution off.
    """
    answered = sum(attempt.answered_failure for attempt in earlier)
    return f"{operation_id}-{answered}" if answered else str(operation_id)


def call_id_of(operation_id: OperationId, ordinal: int) -> CallId:
    """The identity of one call of a model operation: stable from the moment its raw result is saved.

    Derived (a UUIDv8 of the operation and the ordinal), so that saving raw and accepting it, in one commit
    or in two, name the call alike (RULINGS A24).
    """
    return CallId(derived_id(sha256(operation_id.bytes + ordinal.to_bytes(4, "big"))))
