"""What a tool's function may know about its call: who calls, how long it has, whether to stop."""

import threading
from dataclasses import dataclass, field

from agentloom_worker.clock import Clock
from agentloom_worker.frozen import replace
from agentloom_worker.ids import OperationId, RunId


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Injected into the parameter that is annotated with this type.

    `idempotency_key` is the same on every attempt of one call: hand it to a service that can
    recognise a repetition. `cancelled` is set when the run stops, the worker drains or the time is
    up; a function that works for long looks at it and returns. `attempt_no` counts from 1.
    """

    run_id: RunId
    operation_id: OperationId
    attempt_no: int
    idempotency_key: str
    cancelled: threading.Event
    clock: Clock = field(repr=False, compare=False)
    deadline_at_s: float = field(repr=False)  # a reading of `clock.monotonic_s()`

    def deadline_s(self) -> float:
        """Seconds left before the caller stops waiting; 0 when the time is up."""
        return max(0.0, self.deadline_at_s - self.clock.monotonic_s())

    def within(self, timeout_s: float) -> "ToolContext":
        """The same call with at most so many seconds left from now; never more than before."""
        return replace(self, deadline_at_s=min(self.deadline_at_s, self.clock.monotonic_s() + timeout_s))


def open_context(
    clock: Clock, run_id: RunId, operation_id: OperationId, *, attempt_no: int, deadline_s: float
) -> ToolContext:
    """Begin one attempt of a call. `deadline_s` is what the run has left, not the tool's limit."""
    return ToolContext(
        run_id=run_id,
        operation_id=operation_id,
        attempt_no=attempt_no,
        idempotency_key=str(operation_id),
        cancelled=threading.Event(),
        clock=clock,
        deadline_at_s=clock.monotonic_s() + deadline_s,
    )
