"""The tree of a run: graph, invocation, node task, loop tickets, call batches. The Run row is its mutex (run.py)."""

from typing import Any
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.domain.run import (
    AgentInvocation,
    BatchState,
    CallBatch,
    Continuation,
    GraphExecution,
    LoopTicket,
    NodeTask,
    Phase,
    ScopeStatus,
    TicketState,
)
from agentloom_worker.ids import (
    BatchId,
    GraphId,
    InvocationId,
    NodeId,
    OperationId,
    RunId,
)
from agentloom_worker.storage.tables import HOT, Bytes, metadata, one_of
from agentloom_worker.storage.template import Miss, Statement, Template

graph_execution = sa.Table(
    "graph_execution",
    metadata,
    sa.Column("graph_id", sa.Uuid, primary_key=True),
    sa.Column("run_id", sa.Uuid, sa.ForeignKey("run.run_id"), nullable=False, unique=True),
    *one_of("status", "graph_execution_status", ScopeStatus),
    sa.Column("revision", sa.Integer, nullable=False),
)

agent_invocation = sa.Table(
    "agent_invocation",
    metadata,
    sa.Column("invocation_id", sa.Uuid, primary_key=True),
    sa.Column("run_id", sa.Uuid, sa.ForeignKey("run.run_id"), nullable=False),
    sa.Column("graph_id", sa.Uuid, nullable=False),
    sa.Column("binding_key", sa.Text, nullable=False),
    *one_of("status", "agent_invocation_status", ScopeStatus),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.UniqueConstraint("run_id", "binding_key"),
)

node_task = sa.Table(
    "node_task",
    metadata,
    sa.Column("node_id", sa.Uuid, primary_key=True),
    sa.Column("run_id", sa.Uuid, sa.ForeignKey("run.run_id"), nullable=False),
    sa.Column("invocation_id", sa.Uuid, nullable=False),
    sa.Column("role_key", sa.Text, nullable=False),
    *one_of("phase", "node_task_phase", Phase),
    sa.Column("continuation", Bytes, nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),
    # Serves the load of a slice by run.
    sa.Index("node_task_run_ix", "run_id"),
    **HOT,
)

loop_ticket = sa.Table(
    "loop_ticket",
    metadata,
    sa.Column("run_id", sa.Uuid, primary_key=True),
    sa.Column("loop_no", sa.Integer, primary_key=True),
    sa.Column("operation_id", sa.Uuid, nullable=False),
    *one_of("state", "loop_ticket_state", TicketState),
    **HOT,
)

call_batch = sa.Table(
    "call_batch",
    metadata,
    sa.Column("batch_id", sa.Uuid, primary_key=True),
    sa.Column("run_id", sa.Uuid, nullable=False),
    sa.Column("node_id", sa.Uuid, nullable=False),
    sa.Column("model_operation_id", sa.Uuid, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("settled", sa.Integer, nullable=False),
    *one_of("state", "call_batch_state", BatchState),
    sa.CheckConstraint("settled >= 0 AND settled <= size", name="settled"),
    **HOT,
)

GRAPH_INSERT = Template(
    "graph_insert",
    "graph_id:uuid run_id:uuid",
    "INSERT INTO graph_execution (graph_id, run_id, status, revision) VALUES (:graph_id, :run_id, 'running', 1)",
)
INVOCATION_INSERT = Template(
    "invocation_insert",
    "invocation_id:uuid run_id:uuid graph_id:uuid binding_key:text",
    "INSERT INTO agent_invocation (invocation_id, run_id, graph_id, binding_key, status, revision)"
    " VALUES (:invocation_id, :run_id, :graph_id, :binding_key, 'running', 1)",
)
GRAPH_SETTLE = Template(
    "graph_settle",
    "run_id:uuid",
    "UPDATE graph_execution SET status = 'settled', revision = revision + 1"
    " WHERE run_id = :run_id AND status = 'running'",
    entity="graph_execution",
    miss=Miss.REVISION_CONFLICT,
)
INVOCATION_SETTLE = Template(
    "invocation_settle",
    "invocation_id:uuid",
    "UPDATE agent_invocation SET status = 'settled', revision = revision + 1"
    " WHERE invocation_id = :invocation_id AND status = 'running'",
    entity="agent_invocation",
    miss=Miss.REVISION_CONFLICT,
)
NODE_INSERT = Template(
    "node_insert",
    "node_id:uuid run_id:uuid invocation_id:uuid role_key:text phase:text continuation:bytes",
    "INSERT INTO node_task (node_id, run_id, invocation_id, role_key, phase, continuation, revision)"
    " VALUES (:node_id, :run_id, :invocation_id, :role_key, :phase, :continuation, 1)",
)
NODE_MOVE = Template(
    "node_move",
    "node_id:uuid before:int after:int phase:text continuation:bytes",
    "UPDATE node_task SET phase = :phase, continuation = :continuation, revision = :after"
    " WHERE node_id = :node_id AND revision = :before",
    entity="node_task",
    miss=Miss.REVISION_CONFLICT,
)
TICKET_INSERT = Template(
    "ticket_insert",
    "run_id:uuid loop_no:int operation_id:uuid state:text",
    "INSERT INTO loop_ticket (run_id, loop_no, operation_id, state) VALUES (:run_id, :loop_no, :operation_id, :state)",
)
TICKET_MOVE = Template(
    "ticket_move",
    "run_id:uuid loop_no:int state:text",
    "UPDATE loop_ticket SET state = :state WHERE run_id = :run_id AND loop_no = :loop_no AND state = 'reserved'",
    entity="loop_ticket",
    miss=Miss.REVISION_CONFLICT,
)
BATCH_INSERT = Template(
    "batch_insert",
    "batch_id:uuid run_id:uuid node_id:uuid model_operation_id:uuid size:int settled:int state:text",
    "INSERT INTO call_batch (batch_id, run_id, node_id, model_operation_id, size, settled, state)"
    " VALUES (:batch_id, :run_id, :node_id, :model_operation_id, :size, :settled, :state)",
)
BATCH_SETTLE = Template(
    "batch_settle",
    "batch_id:uuid",
    "UPDATE call_batch SET settled = settled + 1 WHERE batch_id = :batch_id AND state = 'open' AND settled < size",
    entity="call_batch",
    miss=Miss.REVISION_CONFLICT,
)
# Settle the last member and deliver in one statement: who was last is decided by the database (A8).
BATCH_SETTLE_LAST = Template(
    "batch_settle_last",
    "batch_id:uuid",
    "UPDATE call_batch SET settled = size, state = 'delivered'"
    " WHERE batch_id = :batch_id AND state = 'open' AND settled = size - 1",
    entity="call_batch",
    miss=Miss.REVISION_CONFLICT,
)
BATCH_DELIVER = Template(
    "batch_deliver",
    "batch_id:uuid",
    "UPDATE call_batch SET state = 'delivered' WHERE batch_id = :batch_id AND state = 'open' AND settled = size",
    entity="call_batch",
    miss=Miss.REVISION_CONFLICT,
)
TEMPLATES = (
    GRAPH_INSERT,
    INVOCATION_INSERT,
    GRAPH_SETTLE,
    INVOCATION_SETTLE,
    NODE_INSERT,
    NODE_MOVE,
    TICKET_INSERT,
    TICKET_MOVE,
    BATCH_INSERT,
    BATCH_SETTLE,
    BATCH_SETTLE_LAST,
    BATCH_DELIVER,
)


def write_graph(before: GraphExecution | None, after: GraphExecution) -> list[Statement]:
    """Insert a running graph, or settle it."""
    return [GRAPH_INSERT(after.graph_id, after.run_id) if before is None else GRAPH_SETTLE(after.run_id)]


def write_invocation(before: AgentInvocation | None, after: AgentInvocation) -> list[Statement]:
    """Insert a running invocation, or settle it."""
    if before is None:
        return [INVOCATION_INSERT(after.invocation_id, after.run_id, after.graph_id, after.binding_key)]
    return [INVOCATION_SETTLE(after.invocation_id)]


def write_node(before: NodeTask | None, after: NodeTask) -> list[Statement]:
    """Insert, or move by compare-and-set on the revision."""
    body = after.continuation.to_bytes()
    if before is None:
        return [NODE_INSERT(after.node_id, after.run_id, after.invocation_id, after.role_key, str(after.phase), body)]
    return [NODE_MOVE(after.node_id, before.revision, after.revision, str(after.phase), body)]


def write_ticket(before: LoopTicket | None, after: LoopTicket) -> list[Statement]:
    """Reserve, or move out of reserved once."""
    if before is None:
        return [TICKET_INSERT(after.run_id, after.loop_no, after.operation_id, str(after.state))]
    return [TICKET_MOVE(after.run_id, after.loop_no, str(after.state))]


def write_batch(before: CallBatch | None, after: CallBatch) -> list[Statement]:
    """Insert; settle one member (the database counts); deliver."""
    if before is None:
        return [
            BATCH_INSERT(
                after.batch_id,
                after.run_id,
                after.node_id,
                after.model_operation_id,
                after.size,
                after.settled,
                str(after.state),
            )
        ]
    delivers = after.state is BatchState.DELIVERED
    if after.settled == before.settled:
        return [BATCH_DELIVER(after.batch_id)]
    return [BATCH_SETTLE_LAST(after.batch_id) if delivers else BATCH_SETTLE(after.batch_id)]


# What every step reads is written once: putting a statement together costs as much again as sending it.
_RUN_ID = sa.bindparam("run_id", type_=sa.Uuid)
_NODE = sa.select(node_task).where(node_task.c.run_id == _RUN_ID)
_TICKET = sa.select(loop_ticket).where(
    loop_ticket.c.run_id == _RUN_ID, loop_ticket.c.loop_no == sa.bindparam("loop_no", type_=sa.Integer)
)
_BATCH = sa.select(call_batch).where(call_batch.c.batch_id == sa.bindparam("batch_id", type_=sa.Uuid))


def load_node(conn: sa.Connection, run_id: UUID) -> NodeTask | None:
    """The root role's node of a run."""
    row = conn.execute(_NODE, {"run_id": run_id}).one_or_none()
    return None if row is None else to_node(row)


def find_node(conn: sa.Connection, run_id: UUID) -> NodeId | None:
    """The id of the root role's node: whoever wants no more reads no continuation, which may be damaged."""
    found = conn.scalar(sa.select(node_task.c.node_id).where(node_task.c.run_id == run_id))
    return None if found is None else NodeId(found)


def to_node(row: Any) -> NodeTask:
    """A node from a row with all of its columns."""
    return NodeTask(
        node_id=NodeId(row.node_id),
        run_id=RunId(row.run_id),
        invocation_id=InvocationId(row.invocation_id),
        role_key=row.role_key,
        phase=Phase(row.phase),
        continuation=Continuation.from_bytes(bytes(row.continuation)),
        revision=row.revision,
    )


def load_graph(conn: sa.Connection, run_id: UUID) -> GraphExecution | None:
    """The graph execution of a run."""
    row = conn.execute(sa.select(graph_execution).where(graph_execution.c.run_id == run_id)).one_or_none()
    return None if row is None else to_graph(row)


def to_graph(row: Any) -> GraphExecution:
    """A graph execution from a row with all of its columns."""
    return GraphExecution(GraphId(row.graph_id), RunId(row.run_id), ScopeStatus(row.status), row.revision)


def load_invocation(conn: sa.Connection, invocation_id: UUID) -> AgentInvocation | None:
    """One invocation."""
    query = sa.select(agent_invocation).where(agent_invocation.c.invocation_id == invocation_id)
    row = conn.execute(query).one_or_none()
    return None if row is None else to_invocation(row)


def to_invocation(row: Any) -> AgentInvocation:
    """An invocation from a row with all of its columns."""
    return AgentInvocation(
        InvocationId(row.invocation_id),
        RunId(row.run_id),
        GraphId(row.graph_id),
        row.binding_key,
        ScopeStatus(row.status),
        row.revision,
    )


def load_ticket(conn: sa.Connection, run_id: UUID, loop_no: int) -> LoopTicket | None:
    """The ticket of one loop."""
    row = conn.execute(_TICKET, {"run_id": run_id, "loop_no": loop_no}).one_or_none()
    return None if row is None else to_ticket(row)


def to_ticket(row: Any) -> LoopTicket:
    """A ticket from a row with all of its columns."""
    return LoopTicket(RunId(row.run_id), row.loop_no, OperationId(row.operation_id), TicketState(row.state))


def load_batch(conn: sa.Connection, batch_id: UUID) -> CallBatch | None:
    """One batch."""
    row = conn.execute(_BATCH, {"batch_id": batch_id}).one_or_none()
    return None if row is None else to_batch(row)


def to_batch(row: Any) -> CallBatch:
    """A batch from a row with all of its columns."""
    return CallBatch(
        BatchId(row.batch_id),
        RunId(row.run_id),
        NodeId(row.node_id),
        OperationId(row.model_operation_id),
        row.size,
        row.settled,
        BatchState(row.state),
    )
