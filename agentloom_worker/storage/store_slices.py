"""The store's part of steps: what they read of their run."""

from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.domain.context import RoleContext
from agentloom_worker.domain.operation import Attempt, Operation, Payload
from agentloom_worker.domain.run import (
    AgentInvocation,
    CallBatch,
    GraphExecution,
    LoopTicket,
    NodeTask,
    Run,
    RunStanding,
)
from agentloom_worker.domain.session import DeliveryState, InputKind, PendingInput
from agentloom_worker.ids import OperationId, RunId
from agentloom_worker.storage import context, operation, run, session, tree
from agentloom_worker.storage.access import Access
from agentloom_worker.storage.context import ViewRow
from agentloom_worker.storage.wreck import Wreck, load_wreck


@dataclass(frozen=True, slots=True)
class SliceRows:
    """What one load of a slice reads, in one round of plain reads."""

    run: Run
    node: NodeTask
    context: RoleContext
    operation: Operation | None
    attempt: Attempt | None
    ticket: LoopTicket | None
    batch: CallBatch | None
    members: tuple[Operation, ...]
    member_attempts: tuple[Attempt, ...]
    inputs: tuple[PendingInput, ...]


_INPUTS = (
    sa.select(
        session.user_input_delivery,
        session.user_input.c.input_seq,
        session.user_input.c.kind,
        session.user_input.c.body,
        session.user_input.c.blob_id,
    )
    .join(session.user_input, session.user_input.c.input_id == session.user_input_delivery.c.input_id)
    .where(session.user_input_delivery.c.target_run_id == sa.bindparam("run_id", type_=sa.Uuid))
    .where(session.user_input_delivery.c.state.in_([str(DeliveryState.PENDING), str(DeliveryState.CLAIMED)]))
    .order_by(session.user_input.c.input_seq)
)


class Slices(Access):
    """What a step may look at."""

    def load_run(self, run_id: UUID) -> Run | None:
        """One run."""
        with self.read() as conn:
            return run.load_run(conn, run_id)

    def load_standings(self, run_ids: list[RunId]) -> dict[RunId, RunStanding]:
        """How many runs stand."""
        with self.keep() as conn:
            return run.load_standings(conn, list(run_ids))

    def load_slice(self, run_id: RunId) -> SliceRows | None:
        """Everything that a step of this run may look at, but its history."""
        with self.read() as conn:
            loaded = run.load_run(conn, run_id)
            node = tree.load_node(conn, run_id)
            if loaded is None or node is None:
                return None
            held = context.load_context(conn, node.node_id)
            assert held is not None, f"run {run_id} has no context"
            todo = node.continuation
            op = attempt = ticket = batch = None
            members: tuple[Operation, ...] = ()
            member_attempts: tuple[Attempt, ...] = ()
            if todo.model_operation_id is not None:
                op = operation.load_operation(conn, todo.model_operation_id)
                if op is not None and op.attempts_made:
                    attempt = operation.load_attempt(conn, op.operation_id, op.attempts_made)
                ticket = tree.load_ticket(conn, run_id, todo.loop_no)
            if todo.batch_id is not None:
                batch = tree.load_batch(conn, todo.batch_id)
                members = operation.load_members(conn, run_id, todo.batch_id)
                newest = {member.operation_id: member.attempts_made for member in members}
                member_attempts = tuple(
                    row
                    for row in operation.load_attempts(conn, [member.operation_id for member in members])
                    if row.attempt_no == newest[row.operation_id]
                )
            inputs = self._load_inputs(conn, loaded)
        return SliceRows(loaded, node, held, op, attempt, ticket, batch, members, member_attempts, inputs)

    def load_wreck(self, run_id: RunId) -> Wreck | None:
        """What the end of a run needs, row by row, where its slice cannot be read."""
        with self.read() as conn:
            return load_wreck(conn, run_id)

    def _load_inputs(self, conn: sa.Connection, loaded: Run) -> tuple[PendingInput, ...]:
        found = []
        for row in conn.execute(_INPUTS, {"run_id": loaded.run_id}):
            body = bytes(row.body) if row.body is not None else self.read_blob(conn, loaded.owner_id, row.blob_id)
            found.append(PendingInput(session.to_delivery(row), row.input_seq, body, InputKind(row.kind)))
        return tuple(found)

    def load_view_rows(self, context_id: UUID, *, after_seq: int, revision: int, limit: int) -> list[ViewRow]:
        """A page of records with their effective content."""
        with self.read() as conn:
            return context.load_view_rows(conn, context_id, after_seq=after_seq, revision=revision, limit=limit)

    def load_payload(self, owner_id: UUID, payload: Payload) -> bytes:
        """A body, inline or from its owner's blob."""
        if payload.inline is not None:
            return payload.inline
        assert payload.blob_id is not None, "an empty payload has no body"
        with self.read() as conn:
            return self.read_blob(conn, owner_id, payload.blob_id)

    def load_operation(self, operation_id: UUID) -> Operation | None:
        """One operation."""
        with self.read() as conn:
            return operation.load_operation(conn, operation_id)

    def list_operations(self, run_id: UUID) -> list[Operation]:
        """A run's operations in order."""
        with self.read() as conn:
            return operation.list_operations(conn, run_id)

    def list_attempts(self, operation_ids: list[OperationId]) -> list[Attempt]:
        """The attempts of some operations."""
        with self.read() as conn:
            return operation.load_attempts(conn, operation_ids)

    def load_scopes(self, node: NodeTask) -> tuple[GraphExecution | AgentInvocation, ...]:
        """The invocation of a node and its graph execution."""
        with self.read() as conn:
            invocation, graph = (
                tree.load_invocation(conn, node.invocation_id),
                tree.load_graph(conn, node.run_id),
            )
        assert invocation is not None and graph is not None, f"node {node.node_id} has no scopes"
        return invocation, graph
