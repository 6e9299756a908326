"""The statements that an operation's put becomes."""

from dataclasses import replace
from uuid import UUID

from agentloom_worker.domain.model import Executed
from agentloom_worker.domain.operation import Operation, OperationKind, OperationStatus
from agentloom_worker.errors import Code
from agentloom_worker.ids import NodeId, OperationId, RunId
from agentloom_worker.storage.operation import OPERATION_INSERT, OPERATION_MOVE, write_operation

PREPARED = Operation(
    operation_id=OperationId(UUID(int=1)),
    run_id=RunId(UUID(int=2)),
    node_id=NodeId(UUID(int=3)),
    kind=OperationKind.MODEL,
    status=OperationStatus.PREPARED,
    revision=1,
    loop_no=1,
    capability="main",
)


def test_an_open_operation_is_one_insert() -> None:
    assert [statement.template for statement in write_operation(None, PREPARED)] == [OPERATION_INSERT]


def test_an_operation_that_one_commit_makes_and_refuses_keeps_its_code() -> None:
    refused = replace(
        PREPARED,
        status=OperationStatus.CANCELLED,
        revision=2,
        code=Code.CONTEXT_WINDOW_EXCEEDED,
        executed=Executed.NOT_EXECUTED,
    )

    insert, move = write_operation(None, refused)

    assert (insert.template, move.template) == (OPERATION_INSERT, OPERATION_MOVE)
    assert Code.CONTEXT_WINDOW_EXCEEDED in move.arguments
    assert Executed.NOT_EXECUTED.value in move.arguments
