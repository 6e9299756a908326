"""The scopes around a node: its invocation and the graph execution, closed with it."""

from agentloom_worker.domain.commit import Put
from agentloom_worker.domain.run import AgentInvocation, GraphExecution, ScopeStatus
from agentloom_worker.frozen import replace
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.slice import Slice


def close_scopes(ports: Ports, slice_: Slice) -> tuple[Put, ...]:
    """Settle the invocation and the graph of a node, where they still run."""
    puts: list[Put] = []
    for scope in ports.store.load_scopes(slice_.node):
        if scope.status is ScopeStatus.RUNNING:
            puts.append(Put(scope, settled(scope)))
    return tuple(puts)


def settled(scope: GraphExecution | AgentInvocation) -> GraphExecution | AgentInvocation:
    """The same scope, over."""
    return replace(scope, status=ScopeStatus.SETTLED, revision=scope.revision + 1)
