"""pending_dispatch: the table is the queue, a message is only a hint (RUNTIME 1, 4)."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from agentloom_worker.frozen import quick_init
from agentloom_worker.ids import ClaimToken, DispatchId, ProcessId, RunId


class Queue(StrEnum):
    """Who serves a row. Each queue scales alone (RUNTIME 5).

    `compaction` holds what reads a session's history: a run's first prepare (RULINGS U10). No step stands in
    `hooks` yet; `commands` carries messages only (RULINGS R6).
    """

    CONTROL = "control"
    HOOKS = "hooks"
    MODEL = "model"
    TOOLS = "tools"
    COMPACTION = "compaction"
    MAINTENANCE = "maintenance"
    COMMANDS = "commands"
    SOLITARY = "solitary"


@quick_init
@dataclass(frozen=True, slots=True)
class Successor:
    """A row to be inserted by a commit. The key names the cause (RULINGS T5).

    `delay_us` counts from the commit, `due_at` is an instant; at most one of them is set. `queue` is set where
    this row belongs elsewhere than the table of steps says.
    """

    step: str
    subject_id: UUID
    key: str
    delay_us: int = 0
    due_at: int | None = None
    queue: Queue | None = None


def first_prepare(node_id: UUID, run_no: int) -> Successor:
    """The first row of a run. Only a session's first run has no history to read (RULINGS U10)."""
    return Successor("prepare_context", node_id, f"prepare:{node_id}:1", queue=Queue.COMPACTION if run_no > 1 else None)


@dataclass(frozen=True, slots=True)
class WakeUp:
    """The hint that a row is there. `force` skips any look-up of who may hold it (RULINGS T11)."""

    dispatch_id: DispatchId
    step: str
    queue: str
    version: int
    force: bool = False


@quick_init
@dataclass(frozen=True, slots=True)
class Claim:
    """A row that this process holds. `attempts` includes this claim; `now_us` is the database's clock.

    `took_over`: the claim before this one ended by expiry, which is a loss (RULINGS T8).
    """

    dispatch_id: DispatchId
    token: ClaimToken
    scope_id: UUID
    run_id: RunId | None
    step: str
    step_version: int
    subject_id: UUID
    key: str
    epoch: int
    attempts: int
    failures: int
    now_us: int
    took_over: bool = False

    @property
    def first(self) -> bool:
        """No claim before this one can have begun the effect (RULINGS T7, A1)."""
        return self.attempts <= 1


@dataclass(frozen=True, slots=True)
class DispatchRow:
    """A row as operators see it."""

    dispatch_id: DispatchId
    run_id: RunId | None
    step: str
    subject_id: UUID
    key: str
    queue: str
    not_before: int
    wake_at: int
    claimed_by: ProcessId | None
    claimed_until: int | None
    suspect_at: int | None
    attempts: int
    losses: int
    failures: int
    wakes: int
    last_error: str | None
    parked_at: int | None
    created_at: int


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """One queue's rows, counted at one instant. `oldest_due_us` is the age of the row that has waited longest."""

    queue: str
    due: int
    waiting: int
    claimed: int
    suspect: int
    parked: int
    lost: int
    oldest_due_us: int
