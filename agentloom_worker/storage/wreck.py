"""A run whose rows cannot all be read: each is read by itself, and those that cannot be are named.

What a slice loads in one go fails as one. The end of a run needs less, so it may ask here what there is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.domain.context import RoleContext
from agentloom_worker.domain.damage import DAMAGED, describe
from agentloom_worker.domain.operation import Attempt, Operation, OperationStatus
from agentloom_worker.domain.run import (
    AgentInvocation,
    GraphExecution,
    LoopTicket,
    NodeTask,
    Run,
    ScopeStatus,
    TicketState,
)
from agentloom_worker.domain.session import DeliveryState, InputKind, QueuedQuestion, QueueState, UserInputDelivery
from agentloom_worker.storage import context, operation, run, session, tree

_OPEN = [status.value for status in OperationStatus if not status.settled]
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class Wreck:
    """What can be read of a run for its end, and what cannot (`table key (why)`).

    `operations` are the open ones and those of a reserved ticket, `attempts` all of theirs, `tickets` the
    reserved ones, `scopes` those that run. `deliveries` are those that no output has delivered, with the kind of their
    input, in the order of the inputs; `queue` the session's questions that wait, the next one first.
    """

    run: Run
    nodes: tuple[NodeTask, ...]
    scopes: tuple[GraphExecution | AgentInvocation, ...]
    operations: tuple[Operation, ...]
    attempts: tuple[Attempt, ...]
    tickets: tuple[LoopTicket, ...]
    deliveries: tuple[tuple[UserInputDelivery, InputKind], ...]
    queue: tuple[QueuedQuestion, ...]
    unreadable: tuple[str, ...]


def load_wreck(conn: sa.Connection, run_id: UUID) -> Wreck | None:
    """Read a run piece by piece; None if it is missing. Raises where the run's own row cannot be read."""
    found = run.load_run(conn, run_id)
    if found is None:
        return None
    reader = _Reader(conn)
    nodes = reader.read(tree.node_task, tree.node_task.c.run_id == run_id, tree.to_node, least=1)
    graphs: list[GraphExecution] = reader.read(
        tree.graph_execution, tree.graph_execution.c.run_id == run_id, tree.to_graph, least=1
    )
    invocations: list[AgentInvocation] = reader.read(
        tree.agent_invocation, tree.agent_invocation.c.run_id == run_id, tree.to_invocation, least=1
    )
    contexts: list[RoleContext] = reader.read(
        context.role_context, context.role_context.c.run_id == run_id, context.to_context, least=1
    )
    del contexts  # of them only what cannot be read counts
    ticket = tree.loop_ticket.c
    reserved = sa.and_(ticket.run_id == run_id, ticket.state == TicketState.RESERVED.value)
    tickets = reader.read(tree.loop_ticket, reserved, tree.to_ticket)
    held = sa.select(ticket.operation_id).where(reserved)
    one = operation.operation.c
    wanted = sa.and_(one.run_id == run_id, sa.or_(one.status.in_(_OPEN), one.operation_id.in_(held)))
    operations = reader.read(operation.operation, wanted, operation.to_operation)
    theirs = operation.attempt.c.operation_id.in_([each.operation_id for each in operations])
    attempts = reader.read(operation.attempt, theirs, operation.to_attempt) if operations else []
    scopes: tuple[GraphExecution | AgentInvocation, ...] = (*graphs, *invocations)
    deliveries = _read_deliveries(reader, run_id)
    one_queued = session.queued_question.c
    queued = sa.and_(one_queued.session_id == found.session_id, one_queued.state == QueueState.QUEUED.value)
    queue = reader.read(session.queued_question, queued, session.to_queued)
    return Wreck(
        found,
        tuple(nodes),
        tuple(scope for scope in scopes if scope.status is ScopeStatus.RUNNING),
        tuple(operations),
        tuple(attempts),
        tuple(tickets),
        tuple(deliveries),
        tuple(sorted(queue, key=lambda question: question.place)),
        tuple(reader.unreadable),
    )


def _read_deliveries(reader: "_Reader", run_id: UUID) -> list[tuple[UserInputDelivery, InputKind]]:
    """What no output has delivered, whatever became of the words; without its input's row it cannot be carried on."""
    one = session.user_input_delivery.c
    open_ = [DeliveryState.PENDING.value, DeliveryState.CLAIMED.value]
    where = sa.and_(one.target_run_id == run_id, one.state.in_(open_))
    deliveries = reader.read(session.user_input_delivery, where, session.to_delivery)
    wanted = session.user_input.c.input_id.in_([each.input_id for each in deliveries])
    inputs = reader.read(session.user_input, wanted, _to_kind, least=len(deliveries)) if deliveries else []
    kinds = {input_id: kind for input_id, _, kind in sorted(inputs, key=lambda each: each[1])}
    places = {input_id: place for place, input_id in enumerate(kinds)}
    known = [(each, kinds[each.input_id]) for each in deliveries if each.input_id in kinds]
    return sorted(known, key=lambda each: places[each[0].input_id])


def _to_kind(row: Any) -> tuple[UUID, int, InputKind]:
    return row.input_id, row.input_seq, InputKind(row.kind)


class _Reader:
    """Reads row by row and remembers what it could not read."""

    def __init__(self, conn: sa.Connection) -> None:
        self._conn = conn
        self.unreadable: list[str] = []

    def read(
        self, table: sa.Table, where: sa.ColumnElement[bool], parse: Callable[[Any], _Row], *, least: int = 0
    ) -> list[_Row]:
        """The rows that can be read; with fewer than `least` in the table, their absence is noted."""
        keys = [column.name for column in table.primary_key.columns]
        try:
            rows = self._conn.execute(sa.select(table).where(where).order_by(*table.primary_key.columns)).all()
        except DAMAGED as error:
            self.unreadable.append(f"{table.name} ({describe(error)})")
            return []
        if len(rows) < least:
            self.unreadable.append(f"{table.name} (missing)")
        found = []
        for row in rows:
            try:
                found.append(parse(row))
            except DAMAGED as error:
                name = "/".join(str(getattr(row, key)) for key in keys)
                self.unreadable.append(f"{table.name} {name} ({describe(error)})")
        return found
