"""What an effect step brings back, in memory, until a commit makes it durable."""

from dataclasses import dataclass
from enum import StrEnum

from agentloom_worker.cancellation import CancelReason
from agentloom_worker.domain.capability import ToolResult
from agentloom_worker.domain.model import ModelOutcome
from agentloom_worker.errors import AgentloomError


@dataclass(frozen=True, slots=True)
class ModelEnded:
    """A model attempt that this process made. `reason` says who cancelled it, if anybody did.

    `transport` is what it received, encoded, where that is to be kept (runtime/transport.py). `unsaved` is why the
    receipt of its first output was not saved, where that ended it: what had come is material and no more (R2).
    """

    outcome: ModelOutcome
    reason: CancelReason | None
    transport: bytes | None = None
    unsaved: AgentloomError | None = None


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A call that this process made."""

    result: ToolResult
    reason: CancelReason | None


@dataclass(frozen=True, slots=True)
class MaybeSent:
    """An intent that an earlier claim may have sent: its outcome is unknown and nothing was done (A1)."""


class Bound(StrEnum):
    """What a connection has no more of."""

    LANE = "lane"
    WINDOW = "window"


@dataclass(frozen=True, slots=True)
class LaneFull:
    """As many attempts as a limit allows are under way, or were begun within its window.

    `name` is the limit's (runtime/connection.py). Nothing was begun (A1). Ask again after the pause.
    """

    name: str
    pause_us: int
    bound: Bound = Bound.LANE


@dataclass(frozen=True, slots=True)
class Answered:
    """An internal operation, answered from the store (RULINGS A23)."""

    result: ToolResult


Outcome = ModelEnded | ToolEnded | MaybeSent | LaneFull | Answered
