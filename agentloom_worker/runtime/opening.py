"""The rows of a new run: its tree, its question's delivery, its deadline's timer and its first dispatch.

A question that finds no run makes them, and so does the end of a run for the question that waits behind it.
"""

from agentloom_worker.domain.commit import Event, Put, RunAccept
from agentloom_worker.domain.context import EMPTY_MANIFEST, RoleContext
from agentloom_worker.domain.dispatch import Successor, first_prepare
from agentloom_worker.domain.run import (
    AgentInvocation,
    Continuation,
    GraphExecution,
    NodeTask,
    Phase,
    ScopeStatus,
)
from agentloom_worker.domain.session import DeliveryState, UserInputDelivery
from agentloom_worker.ids import (
    ContextId,
    DeliveryId,
    GraphId,
    InputId,
    InvocationId,
    NodeId,
    ReleaseId,
    RunId,
    SessionId,
)
from agentloom_worker.runtime.ports import US, Ports
from agentloom_worker.runtime.request import bind_requests
from agentloom_worker.runtime.slice import load_owned_release


def open_run(ports: Ports, session_id: SessionId, release_id: ReleaseId, input_id: InputId, run_no: int) -> RunAccept:
    """A run of a release for a question that is stored, or will be by the same commit.

    `run_no` only says whether there is a history to read first; the commit counts for itself.
    """
    new = ports.ids.new
    run_id, graph_id, invocation_id = RunId(new()), GraphId(new()), InvocationId(new())
    node_id, context_id = NodeId(new()), ContextId(new())
    owned = load_owned_release(ports, release_id)
    release = owned.release
    rows: tuple[object, ...] = (
        GraphExecution(graph_id, run_id, ScopeStatus.RUNNING, 1),
        AgentInvocation(invocation_id, run_id, graph_id, release.agent_id, ScopeStatus.RUNNING, 1),
        NodeTask(node_id, run_id, invocation_id, release.role_key, Phase.PREPARE_CONTEXT, Continuation(), 1),
        RoleContext(context_id, run_id, invocation_id, node_id, release.role_key, 0, 0, EMPTY_MANIFEST, None, 1),
        UserInputDelivery(DeliveryId(new()), input_id, session_id, run_id, DeliveryState.PENDING, 1),
    )
    return RunAccept(
        run_id=run_id,
        owner_id=owned.owner_id,
        session_id=session_id,
        release_id=release_id,
        max_loops=release.limits.max_loops,
        deadline_us=release.limits.deadline_s * US,
        binding=bind_requests(ports, release).to_bytes(),
        input_id=input_id,
        puts=tuple(Put(None, row) for row in rows),
        events=(Event("run.accepted"),),
        first=first_prepare(node_id, run_no),
        expiry=Successor("expire_run", run_id, f"expire:{run_id}"),
    )
