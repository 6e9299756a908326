"""StepResult: what a step leaves behind, and how the results of fused steps become one RuntimeCommit."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from agentloom_worker.canonical import sha256
from agentloom_worker.domain.commit import BlobPut, Event, Part, Put, RunAccept, RunFence, RunMove
from agentloom_worker.domain.context import ContextRecord, EffectiveEntry, EffectiveRevision, RoleContext
from agentloom_worker.domain.dispatch import Successor
from agentloom_worker.domain.operation import Attempt, Operation
from agentloom_worker.domain.run import (
    AgentInvocation,
    CallBatch,
    EndCause,
    GraphExecution,
    LoopTicket,
    NodeTask,
    RunStatus,
)
from agentloom_worker.domain.session import QueuedQuestion, UserInput, UserInputDelivery
from agentloom_worker.frozen import quick_init
from agentloom_worker.ids import OperationId, RunId
from agentloom_worker.runtime.slice import Slice


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The terminal state that a finalize writes."""

    status: RunStatus
    cause: EndCause
    code: str | None
    detail: str | None
    answer_operation_id: OperationId | None


@quick_init
@dataclass(frozen=True, slots=True)
class StepResult:
    """Slice in, changed slice and writes out (RUNTIME 6).

    `key` is the step's seed key, `command` the hash of its inputs. `consumed` and `reserved` move the run's
    loop counters. `saw_inputs` asserts that no input arrived since the slice was read (A6). `settles` marks
    a member whose batch may become deliverable by this commit (A8). `more` are further seed keys of the step.
    `opens` is the run that begins where this one ends.
    """

    slice: Slice
    key: str
    command: bytes
    puts: tuple[Put, ...] = ()
    blobs: tuple[BlobPut, ...] = ()
    events: tuple[Event, ...] = ()
    successors: tuple[Successor, ...] = ()
    move: RunMove = RunMove.FENCE
    consumed: int = 0
    reserved: int = 0
    saw_inputs: bool = False
    settles: Successor | None = None
    deletes_run_rows: bool = False
    end: RunEnd | None = None
    more: tuple[Part, ...] = ()
    opens: RunAccept | None = None


def hash_command(*values: object) -> bytes:
    """The command hash of a part: over the step's inputs, never over ids made by it, times or tokens (A24).

    16 bytes of SHA-256: it tells a client's mistake from a repetition, it guards nothing.
    """
    return sha256("\0".join(str(value) for value in values).encode("utf-8", "backslashreplace"))[:16]


# What makes two puts of one commit the same row; None for rows that are only ever appended.
_IDENTITY: dict[type, Callable[[Any], Hashable] | None] = {
    Operation: lambda entity: entity.operation_id,
    Attempt: lambda entity: (entity.operation_id, entity.attempt_no),
    NodeTask: lambda entity: entity.node_id,
    RoleContext: lambda entity: entity.context_id,
    LoopTicket: lambda entity: (entity.run_id, entity.loop_no),
    CallBatch: lambda entity: entity.batch_id,
    UserInputDelivery: lambda entity: entity.delivery_id,
    QueuedQuestion: lambda entity: entity.input_id,
    GraphExecution: lambda entity: entity.graph_id,
    AgentInvocation: lambda entity: entity.invocation_id,
    ContextRecord: None,
    EffectiveEntry: None,
    EffectiveRevision: None,
    UserInput: None,
}

# Parents before children: foreign keys are checked statement by statement.
_ORDER = {
    UserInput: 0,
    GraphExecution: 1,
    AgentInvocation: 2,
    NodeTask: 3,
    RoleContext: 4,
    CallBatch: 5,
    Operation: 6,
    Attempt: 7,
    LoopTicket: 8,
    UserInputDelivery: 9,
    QueuedQuestion: 10,
    ContextRecord: 11,
    EffectiveEntry: 12,
    EffectiveRevision: 13,
}


def merge_puts(results: Sequence[StepResult]) -> tuple[Put, ...]:
    """One put a row: from what was read before the first step to what the last one left."""
    merged: dict[object, Put] = {}
    for result in results:
        for put in result.puts:
            kind = type(put.after)
            name = _IDENTITY[kind]
            identity = (kind, name(put.after)) if name else id(put)
            earlier = merged.get(identity)
            merged[identity] = Put(earlier.before, put.after) if earlier else put
    return tuple(sorted(merged.values(), key=lambda put: _ORDER[type(put.after)]))


_MOVES = (RunMove.FENCE, RunMove.START, RunMove.STOP, RunMove.END, RunMove.CLEANED)


def merge_fence(run_id: RunId, results: Sequence[StepResult], input_head: int) -> RunFence:
    """The run's move is the strongest of the parts; counters add up."""
    move = max((result.move for result in results), key=_MOVES.index)
    end = next((result.end for result in reversed(results) if result.end), None)
    return RunFence(
        run_id=run_id,
        move=move,
        consumed=sum(result.consumed for result in results),
        reserved=sum(result.reserved for result in results),
        input_head=input_head if any(result.saw_inputs for result in results) else None,
        status=end.status if end else None,
        cause=end.cause if end else None,
        code=end.code if end else None,
        detail=end.detail if end else None,
        answer_operation_id=end.answer_operation_id if end else None,
        started=any(result.move is RunMove.START for result in results),
    )


def locks_session(results: Sequence[StepResult]) -> bool:
    """Whether a commit locks the session before the run: it touches inputs or deliveries, or ends the run.

    Decided from the write set, fused parts included, so that no step can forget it (RULINGS T2, A7).
    """
    written = (put.after for result in results for put in result.puts)
    touches = any(isinstance(row, UserInput | UserInputDelivery | QueuedQuestion) for row in written)
    return touches or any(result.move is RunMove.END for result in results)


def merge_parts(results: Sequence[StepResult]) -> tuple[Part, ...]:
    """Each fused step keeps its key as a part."""
    return tuple(part for result in results for part in (Part(result.key, result.command), *result.more))
