"""RuntimeCommit: everything that one transaction writes, as values; and the receipt that it returns."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from agentloom_worker.domain.dispatch import Claim, Successor
from agentloom_worker.domain.run import EndCause, RunStatus
from agentloom_worker.frozen import quick_init
from agentloom_worker.ids import (
    BatchId,
    BlobId,
    ClaimToken,
    DispatchId,
    InputId,
    OperationId,
    OwnerId,
    RunId,
    SessionId,
)


@quick_init
@dataclass(frozen=True, slots=True)
class Part:
    """A seed key and the hash of the command's inputs: never of ids, times or filled-in defaults (A24)."""

    key: str
    command_hash: bytes


@quick_init
@dataclass(frozen=True, slots=True)
class Put:
    """Insert where `before` is None, else compare-and-set from the revision that was read."""

    before: object | None
    after: object


class RunMove(StrEnum):
    """What a commit does to its run, beside the fence."""

    FENCE = "fence"  # queued or running; counters only
    START = "start"  # queued → running
    END = "end"  # live → terminal
    STOP = "stop"  # queued or running → stopping, epoch + 1
    TAKE = "take"  # queued or running; takes a new input
    QUEUE = "queue"  # live; a question waits for its end
    CLEANED = "cleaned"  # terminal; cleanup is done


@quick_init
@dataclass(frozen=True, slots=True)
class RunFence:
    """The first statement of a commit. `input_head` asserts which inputs a prepare or an end has seen (RULINGS A6).

    TAKE, QUEUE and an interrupting STOP come with one new input, and move the run's input_head to it.
    """

    run_id: RunId
    move: RunMove = RunMove.FENCE
    consumed: int = 0
    reserved: int = 0
    input_head: int | None = None
    status: RunStatus | None = None
    cause: EndCause | None = None
    code: str | None = None
    detail: str | None = None
    answer_operation_id: OperationId | None = None
    started: bool = False  # an END that also starts
    interrupted: bool = False  # a STOP that comes with a new input


@quick_init
@dataclass(frozen=True, slots=True)
class Event:
    """What clients may hear: counts, codes and times, never text."""

    kind: str
    fields: tuple[tuple[str, object], ...] = ()


@quick_init
@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A successor with its identity and queue; claimed already where it will run inline (RULINGS T13)."""

    dispatch_id: DispatchId
    successor: Successor
    queue: str
    version: int
    priority: int
    inline_token: ClaimToken | None = None


@dataclass(frozen=True, slots=True)
class BlobPut:
    """A body above the inline limit, stored by the commit that refers to it (RULINGS T14)."""

    blob_id: BlobId
    owner_id: OwnerId
    body: bytes
    media_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class RunAccept:
    """The rows of a new run (RUNTIME, table of steps: accept): `puts` are its tree and its question's delivery.

    The commit binds to it every input that waits for a run.
    """

    run_id: RunId
    owner_id: OwnerId
    session_id: SessionId
    release_id: UUID
    max_loops: int
    deadline_us: int
    binding: bytes
    input_id: InputId  # its question
    puts: tuple[Put, ...]
    events: tuple[Event, ...]
    first: Successor
    expiry: Successor


@quick_init
@dataclass(frozen=True, slots=True)
class RuntimeCommit:
    """One transaction. `key` names it in scope_commit; `parts` are the seed keys that it carries.

    `session_id` is locked first (RULINGS T2, A7). `claim` is consumed or held; commands carry none (T4).
    `accept` is a run that the commit makes, with its rows `first` and `deadline`: for a question that comes, or,
    behind the end of the run that `fence` names, for the one that waited.
    `delivery` is the batch whose delivery row appears if this commit settled its last member (A8).
    """

    scope_id: UUID
    key: bytes
    parts: tuple[Part, ...]
    session_id: SessionId | None = None
    claim: Claim | None = None
    consume: bool = True
    accept: RunAccept | None = None
    fence: RunFence | None = None
    blobs: tuple[BlobPut, ...] = ()
    puts: tuple[Put, ...] = ()
    events: tuple[Event, ...] = ()
    delete_run_rows: bool = False
    outbox: tuple[OutboxRow, ...] = ()
    delivery: tuple[OutboxRow, BatchId] | None = None
    first: OutboxRow | None = None
    deadline: OutboxRow | None = None
    receipt: bytes | None = None


@quick_init
@dataclass(frozen=True, slots=True)
class CommitReceipt:
    """What the database said in the same transaction; the next inline step knows of stops for nothing."""

    status: RunStatus
    event_head: int
    input_head: int
    epoch: int
    now_us: int
