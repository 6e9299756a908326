"""How a role ends: the node goes to settle with its cause; what is still open is closed (RULINGS A3, A19)."""

from agentloom_worker.domain.commit import Put
from agentloom_worker.domain.dispatch import Successor
from agentloom_worker.domain.model import Executed
from agentloom_worker.domain.operation import Attempt, AttemptState, Operation, OperationStatus
from agentloom_worker.domain.run import EndCause, LoopTicket, NodeTask, Phase, TicketState
from agentloom_worker.frozen import replace
from agentloom_worker.runtime.slice import Slice


def end_node(node: NodeTask, cause: EndCause, code: str | None, detail: str | None) -> NodeTask:
    """The node on its way to settle; the continuation keeps why."""
    todo = replace(node.continuation, end_cause=cause, end_code=code, end_detail=detail)
    return replace(node, phase=Phase.SETTLE, continuation=todo, revision=node.revision + 1)


def settle_successor(node: NodeTask) -> Successor:
    """The row that settles a node."""
    return Successor("settle_node", node.node_id, f"settle:{node.node_id}")


def close_ticket(ticket: LoopTicket | None, sent: Executed) -> tuple[LoopTicket | None, int, int]:
    """(ticket, consumed, reserved): released when nothing can have left, else consumed (RULINGS A19)."""
    if ticket is None or ticket.state is not TicketState.RESERVED:
        return None, 0, 0
    if sent is Executed.NOT_EXECUTED:
        return replace(ticket, state=TicketState.RELEASED), 0, -1
    return replace(ticket, state=TicketState.CONSUMED), 1, -1


def close_operation(operation: Operation, attempt: Attempt | None, code: str) -> tuple[Put, ...]:
    """End an operation that finalize found open: cancelled, or unknown where it may have been sent (A3)."""
    if operation.status.settled:
        return ()
    unknown = attempt is not None and attempt.maybe_sent
    executed = worse(operation.executed, Executed.UNKNOWN if unknown else Executed.NOT_EXECUTED)
    status = OperationStatus.UNKNOWN if unknown else OperationStatus.CANCELLED
    closed = replace(operation, status=status, executed=executed, code=code, revision=operation.revision + 1)
    puts = [Put(operation, closed)]
    if attempt is not None and attempt.state is AttemptState.INTENT:
        state = AttemptState.UNKNOWN if unknown else AttemptState.CANCELLED
        puts.append(Put(attempt, replace(attempt, state=state, code=code, reason="run ended")))
    return tuple(puts)


def executed_so_far(operation: Operation | None) -> Executed:
    """Whether any attempt of an operation may have left."""
    if operation is None or operation.executed is None:
        return Executed.NOT_EXECUTED
    return operation.executed


def worse(one: Executed | None, other: Executed) -> Executed:
    """The less certain of two: executed and unknown both mean that something may have left."""
    if one is None or one is Executed.NOT_EXECUTED:
        return other
    return one if other is Executed.NOT_EXECUTED else other


def sent_of(slice_: Slice) -> Executed:
    """Whether the current model operation may have left, by what is recorded of its attempts."""
    sent = executed_so_far(slice_.operation)
    attempt = slice_.attempt
    if attempt is not None and attempt.maybe_sent:
        sent = worse(sent, Executed.UNKNOWN)
    return sent
