"""Runs: their events, their end, their tree and their loops."""

from collections.abc import Iterator

from agentloom_worker.audit.facts import RunFacts
from agentloom_worker.audit.fault import Fault
from agentloom_worker.audit.sequence import broken_sequence
from agentloom_worker.domain.damage import DAMAGED, describe
from agentloom_worker.domain.model import Executed
from agentloom_worker.domain.operation import AttemptState, OperationKind, OperationStatus
from agentloom_worker.domain.run import (
    END_STATUS,
    CleanupState,
    Continuation,
    EndCause,
    Phase,
    RunStatus,
    ScopeStatus,
    TicketState,
)

_TERMINAL_EVENTS = frozenset(f"run.{status}" for status in RunStatus if status.terminal)


def check_event_sequence(facts: RunFacts) -> Iterator[Fault]:
    """Clients follow a run by run_seq: a gap would be an event that they wait for in vain."""
    broken = broken_sequence("run_seq", [event.run_seq for event in facts.rows.events], facts.run.event_head)
    if broken is not None:
        yield Fault(facts.subject, broken)


def check_lifecycle(facts: RunFacts) -> Iterator[Fault]:
    """The first event says that the run was accepted, the last one how it ended; nothing is said after it."""
    kinds = [event.kind for event in facts.rows.events]
    if not kinds or kinds[0] != "run.accepted" or kinds.count("run.accepted") != 1:
        yield Fault(facts.subject, "its events do not begin with the one run.accepted")
    ends = [position for position, kind in enumerate(kinds) if kind in _TERMINAL_EVENTS]
    if not facts.run.status.terminal:
        if ends:
            yield Fault(facts.subject, f"is {facts.run.status} and has {len(ends)} terminal event(s)")
        return
    expected = f"run.{facts.run.status}"
    if [kinds[position] for position in ends] != [expected]:
        yield Fault(facts.subject, f"has {len(ends)} terminal event(s) instead of one {expected}")
    elif any(not kind.startswith("cleanup.") for kind in kinds[ends[0] + 1 :]):
        yield Fault(facts.subject, f"has events after its {expected}")


def check_end(facts: RunFacts) -> Iterator[Fault]:
    """The status follows from the first cause, and a live run has none of what an end leaves."""
    run = facts.run
    if run.status.terminal:
        if run.end_cause is None or END_STATUS[run.end_cause] is not run.status:
            yield Fault(facts.subject, f"is {run.status} by cause {run.end_cause}")
        if run.ended_at is None:
            yield Fault(facts.subject, f"is {run.status} without the time of its end")
        if run.end_cause is not EndCause.ANSWER and run.end_code is None:
            yield Fault(facts.subject, f"is {run.status} without a code")
        return
    if run.ended_at is not None:
        yield Fault(facts.subject, f"is {run.status} and has the time of an end")
    if (run.end_cause is not None) is not (run.status is RunStatus.STOPPING):
        yield Fault(facts.subject, f"is {run.status} with cause {run.end_cause}")


def check_cleanup(facts: RunFacts) -> Iterator[Fault]:
    """Cleanup begins with the end: none before it, one of the other states after it."""
    run = facts.run
    if run.status.terminal is (run.cleanup_state is CleanupState.NONE):
        yield Fault(facts.subject, f"is {run.status} with cleanup {run.cleanup_state}")


def check_answer(facts: RunFacts) -> Iterator[Fault]:
    """A run that succeeded, and no other, names the completed model operation that is its answer."""
    run = facts.run
    if (run.answer_operation_id is not None) is not (run.status is RunStatus.SUCCEEDED):
        yield Fault(facts.subject, f"is {run.status} with answer {run.answer_operation_id}")
    if run.answer_operation_id is None:
        return
    operation = facts.operations.get(run.answer_operation_id)
    if operation is None or operation.kind is not OperationKind.MODEL:
        yield Fault(facts.subject, f"names {run.answer_operation_id} as its answer, no model operation of its own")
    elif operation.status is not OperationStatus.COMPLETED:
        yield Fault(facts.subject, f"names {run.answer_operation_id} as its answer, which is {operation.status}")


def check_tree(facts: RunFacts) -> Iterator[Fault]:
    """One graph, one invocation in it, one node in that, one context for that; all settled with the run."""
    rows = facts.rows
    counts = {
        "graph executions": len(rows.graphs),
        "invocations": len(rows.invocations),
        "nodes": len(rows.nodes),
        "contexts": len(rows.contexts),
    }
    odd = [f"{count} {name}" for name, count in counts.items() if count != 1]
    if odd:
        yield Fault(facts.subject, f"has {', '.join(odd)}")
        return
    graph, invocation, node, context = rows.graphs[0], rows.invocations[0], rows.nodes[0], rows.contexts[0]
    if (invocation.graph_id, node.invocation_id, context.invocation_id, context.node_id) != (
        graph.graph_id,
        invocation.invocation_id,
        invocation.invocation_id,
        node.node_id,
    ):
        yield Fault(facts.subject, "graph, invocation, node and context do not name each other")
    settled = node.phase is Phase.SETTLED
    scopes = [graph.status is ScopeStatus.SETTLED, invocation.status is ScopeStatus.SETTLED]
    if scopes != [settled, settled]:
        yield Fault(facts.subject, f"node is {node.phase}, invocation {invocation.status}, graph {graph.status}")
    if facts.run.status.terminal and not settled:
        yield Fault(facts.subject, f"is {facts.run.status} and its node is {node.phase}")


def check_continuation(facts: RunFacts) -> Iterator[Fault]:
    """What to do next can be read, and names operations and a batch of this run."""
    for node in facts.rows.nodes:
        subject = f"node {node.node_id}"
        try:
            todo = Continuation.from_bytes(node.continuation)
        except DAMAGED as error:
            yield Fault(subject, f"its continuation cannot be read: {describe(error)}")
            continue
        for operation_id in (todo.model_operation_id, todo.answer_operation_id):
            if operation_id is not None and operation_id not in facts.operations:
                yield Fault(subject, f"its continuation names operation {operation_id}, none of its run")
        if todo.batch_id is not None and todo.batch_id not in facts.batches:
            yield Fault(subject, f"its continuation names batch {todo.batch_id}, none of its run")
        if todo.input_cutoff > facts.run.input_head:
            yield Fault(subject, f"its cutoff is {todo.input_cutoff}, the run knows inputs to {facts.run.input_head}")


def check_loops(facts: RunFacts) -> Iterator[Fault]:
    """The run's counters are what its tickets say, within the quota; an ended run holds nothing reserved."""
    run = facts.run
    states = [ticket.state for ticket in facts.rows.tickets]
    consumed, reserved = states.count(TicketState.CONSUMED), states.count(TicketState.RESERVED)
    if (run.loops_used, run.loops_reserved) != (consumed, reserved):
        yield Fault(
            facts.subject,
            f"counts {run.loops_used} loops used and {run.loops_reserved} reserved,"
            f" its tickets say {consumed} and {reserved}",
        )


def check_quota(facts: RunFacts) -> Iterator[Fault]:
    """`max_loops` is one quota for the whole run tree."""
    run = facts.run
    if run.loops_used + run.loops_reserved > run.max_loops:
        yield Fault(facts.subject, f"uses and reserves {run.loops_used + run.loops_reserved} of {run.max_loops} loops")


def check_tickets(facts: RunFacts) -> Iterator[Fault]:
    """A frozen request and its ticket come in one commit: one belongs to one, by loop."""
    frozen = {row.operation_id: row for row in facts.rows.operations if row.request_hash is not None}
    for ticket in facts.rows.tickets:
        subject = f"{facts.subject} ticket {ticket.loop_no}"
        operation = frozen.pop(ticket.operation_id, None)
        if operation is None:
            yield Fault(subject, f"names operation {ticket.operation_id}, no frozen one without another ticket")
        elif operation.loop_no != ticket.loop_no:
            yield Fault(subject, f"names operation {ticket.operation_id} of loop {operation.loop_no}")
    for operation_id in frozen:
        yield Fault(f"operation {operation_id}", "is frozen and has no ticket")


def check_ticket_states(facts: RunFacts) -> Iterator[Fault]:
    """Reserved while the run lives, consumed by an answer, released only where nothing can have left (A19)."""
    for ticket in facts.rows.tickets:
        subject = f"{facts.subject} ticket {ticket.loop_no}"
        operation = facts.operations.get(ticket.operation_id)
        if operation is None:
            continue
        if ticket.state is TicketState.RESERVED and facts.run.status.terminal:
            yield Fault(subject, f"is reserved and its run is {facts.run.status}")
        sent = operation.executed in (Executed.EXECUTED, Executed.UNKNOWN) or any(
            attempt.state in (AttemptState.COMPLETE, AttemptState.UNKNOWN) or attempt.maybe_sent
            for attempt in facts.attempts_of(ticket.operation_id)
        )
        if ticket.state is TicketState.RELEASED and sent:
            yield Fault(subject, f"is released and operation {ticket.operation_id} may have left")
        if ticket.state is TicketState.CONSUMED and not sent:
            yield Fault(subject, f"is consumed and operation {ticket.operation_id} cannot have left")
