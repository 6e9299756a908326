"""Sessions, the user's inputs and their deliveries (seed 000, sections 2 and 5)."""

from dataclasses import dataclass
from enum import StrEnum

from agentloom_worker.domain.operation import Payload
from agentloom_worker.ids import DeliveryId, InputId, OperationId, OwnerId, ReleaseId, RunId, SessionId


class InputKind(StrEnum):
    """What the user sent: a question opens a run, a supplement goes to a run that there is."""

    QUESTION = "question"
    SUPPLEMENT = "supplement"


class DeliveryState(StrEnum):
    """pending → claimed (freeze) → delivered (first output saved), or carried when the run ends before that."""

    PENDING = "pending"
    CLAIMED = "claimed"
    DELIVERED = "delivered"
    CARRIED = "carried"


class OnBusy(StrEnum):
    """What a session does with a question while a run of it lives (RULINGS A10)."""

    REJECT = "reject"
    SUPPLEMENT = "supplement"
    ENQUEUE = "enqueue"
    INTERRUPT = "interrupt"


class QueueState(StrEnum):
    """A queued question waits, has become a run, was withdrawn before, or could become none."""

    QUEUED = "queued"
    STARTED = "started"
    WITHDRAWN = "withdrawn"
    FAILED = "failed"  # its release cannot be read: RELEASE_UNREADABLE


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation of one agent. `input_head` is the newest input_seq, `run_head` the newest run_no."""

    session_id: SessionId
    owner_id: OwnerId
    agent_id: str
    input_head: int
    run_head: int = 0
    on_busy: OnBusy = OnBusy.REJECT


@dataclass(frozen=True, slots=True)
class UserInput:
    """The user's words, verbatim. The body is the canonical JSON of the raw string.

    `origin_run_id` is the run that took it when it came; None where none could (RULINGS A9, A10).
    """

    input_id: InputId
    session_id: SessionId
    input_seq: int
    origin_run_id: RunId | None
    kind: InputKind
    body: Payload


@dataclass(frozen=True, slots=True)
class UserInputDelivery:
    """Whether a run's model has begun to answer a request that held this input.

    `target_run_id` is None while no run is there to take it: the next one binds it. `previous_delivery_id`
    is the carried delivery that this one follows.
    `first_output_receipt` names the attempt whose first output delivered it, as `operation/attempt_no`.
    """

    delivery_id: DeliveryId
    input_id: InputId
    session_id: SessionId
    target_run_id: RunId | None
    state: DeliveryState
    revision: int
    operation_id: OperationId | None = None
    context_seq: int | None = None
    first_output_receipt: str | None = None
    delivered_at: int | None = None
    previous_delivery_id: DeliveryId | None = None


@dataclass(frozen=True, slots=True)
class QueuedQuestion:
    """A question that waits for the live run to end; the smallest place comes first (RULINGS A10).

    `release_id` is frozen when it is queued. `run_id` is the run that it became.
    """

    input_id: InputId
    session_id: SessionId
    place: int
    release_id: ReleaseId
    state: QueueState
    run_id: RunId | None = None


@dataclass(frozen=True, slots=True)
class PendingInput:
    """A delivery of a run beside the input's place, kind and body (canonical JSON of the raw string)."""

    delivery: UserInputDelivery
    input_seq: int
    body: bytes
    kind: InputKind = InputKind.QUESTION
