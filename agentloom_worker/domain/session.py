"""Sessions, the user's inputs and their deliveries (seed 000, sections 2 and 5)."""

from dataclasses import dataclass
from enum import StrEnum

from agentloom_worker.domain.operation import Payload
from agentloom_worker.ids import DeliveryId, InputId, OperationId, OwnerId, RunId, SessionId


class InputKind(StrEnum):
    """What the user sent."""

    QUESTION = "question"


class DeliveryState(StrEnum):
    """pending → claimed (freeze) → delivered (first output saved)."""

    PENDING = "pending"
    CLAIMED = "claimed"
    DELIVERED = "delivered"


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation of one agent. `input_head` is the newest input_seq."""

    session_id: SessionId
    owner_id: OwnerId
    agent_id: str
    input_head: int


@dataclass(frozen=True, slots=True)
class UserInput:
    """The user's words, verbatim. The body is the canonical JSON of the raw string."""

    input_id: InputId
    session_id: SessionId
    input_seq: int
    origin_run_id: RunId
    kind: InputKind
    body: Payload


@dataclass(frozen=True, slots=True)
class UserInputDelivery:
    """Whether a run's model has begun to answer a request that held this input.

    `first_output_receipt` names the attempt whose first output delivered it, as `operation/attempt_no`.
    """

    delivery_id: DeliveryId
    input_id: InputId
    session_id: SessionId
    target_run_id: RunId
    state: DeliveryState
    revision: int
    operation_id: OperationId | None = None
    context_seq: int | None = None
    first_output_receipt: str | None = None
    delivered_at: int | None = None


@dataclass(frozen=True, slots=True)
class PendingInput:
    """A delivery of a run beside the input's place and body (canonical JSON of the raw string)."""

    delivery: UserInputDelivery
    input_seq: int
    body: bytes
