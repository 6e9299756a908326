"""How what is still open is closed when a run ends."""

from dataclasses import replace
from uuid import UUID

import pytest

from agentloom_worker.domain.model import Executed
from agentloom_worker.domain.operation import Attempt, AttemptState, Operation, OperationKind, OperationStatus
from agentloom_worker.errors import Code
from agentloom_worker.ids import NodeId, OperationId, RunId
from agentloom_worker.runtime.ending import close_operation

OPEN = Operation(
    operation_id=OperationId(UUID(int=1)),
    run_id=RunId(UUID(int=2)),
    node_id=NodeId(UUID(int=3)),
    kind=OperationKind.TOOL,
    status=OperationStatus.ATTEMPTING,
    revision=2,
    loop_no=1,
    capability="echo",
    attempts_made=2,
)
INTENT = Attempt(OPEN.operation_id, 2, AttemptState.INTENT, 1)


@pytest.mark.parametrize(
    ("so_far", "maybe_sent", "status", "executed"),
    [
        (None, False, OperationStatus.CANCELLED, Executed.NOT_EXECUTED),
        (None, True, OperationStatus.UNKNOWN, Executed.UNKNOWN),
        (Executed.EXECUTED, False, OperationStatus.CANCELLED, Executed.EXECUTED),
        (Executed.EXECUTED, True, OperationStatus.UNKNOWN, Executed.UNKNOWN),
        (Executed.UNKNOWN, False, OperationStatus.CANCELLED, Executed.UNKNOWN),
    ],
)
def test_an_operation_that_is_closed_says_what_any_of_its_attempts_may_have_done(
    so_far: Executed | None, maybe_sent: bool, status: OperationStatus, executed: Executed
) -> None:
    attempt = replace(INTENT, maybe_sent=maybe_sent)

    puts = close_operation(replace(OPEN, executed=so_far), attempt, Code.RUN_STOPPED)

    closed = puts[0].after
    assert isinstance(closed, Operation)
    assert (closed.status, closed.executed) == (status, executed)
