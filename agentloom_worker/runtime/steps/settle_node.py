"""settle_node: the role is over; its invocation and the one-node graph with it."""

from agentloom_worker.domain.commit import Put
from agentloom_worker.domain.dispatch import Successor
from agentloom_worker.domain.run import Phase
from agentloom_worker.errors import InvariantError
from agentloom_worker.frozen import replace
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.result import StepResult, hash_command
from agentloom_worker.runtime.scopes import close_scopes
from agentloom_worker.runtime.slice import Slice


def settle_node(ports: Ports, slice_: Slice) -> StepResult:
    """Settle the node; the run ends next."""
    node = slice_.node
    if node.phase is not Phase.SETTLE:
        raise InvariantError(f"node {node.node_id} is in phase {node.phase}, not on its way to settle")
    settled = replace(node, phase=Phase.SETTLED, revision=node.revision + 1)
    key = f"settle:{node.node_id}"
    return StepResult(
        replace(slice_, node=settled),
        key,
        hash_command(key, node.continuation.end_cause, node.continuation.end_code),
        puts=(Put(node, settled), *close_scopes(ports, slice_)),
        successors=(Successor("finalize_run", slice_.run.run_id, f"finalize:{slice_.run.run_id}"),),
    )
