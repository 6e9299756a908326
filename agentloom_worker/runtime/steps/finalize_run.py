"""finalize_run: the run's terminal state, with everything that is still open closed in the same commit.

It waits for nothing: an operation that may have been sent becomes unknown, any other cancelled (RULINGS A3);
the first cause recorded under the run's lock decides the status (A4). Supplements that no output has delivered
are carried on, and a question that waits in the session's queue becomes the next run, to which they are bound
(A5, A10). That no input came since is asserted by the same commit.
"""

from agentloom_worker.domain.commit import Event, Put, RunMove
from agentloom_worker.domain.dispatch import Successor
from agentloom_worker.domain.operation import Attempt, Operation
from agentloom_worker.domain.run import END_STATUS, Continuation, EndCause, Phase, Run
from agentloom_worker.errors import Code, InvariantError
from agentloom_worker.frozen import replace
from agentloom_worker.runtime.ending import close_operation, close_ticket, sent_of
from agentloom_worker.runtime.onward import go_on
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.result import RunEnd, StepResult, hash_command
from agentloom_worker.runtime.scopes import close_scopes
from agentloom_worker.runtime.slice import Slice


def finalize_run(ports: Ports, slice_: Slice) -> StepResult:
    """End the run."""
    run, node = slice_.run, slice_.node
    end = _decide(run, node.continuation)
    key = f"finalize:{run.run_id}"
    code = end.code or Code.RUN_STOPPED
    puts: list[Put] = []
    if node.phase is not Phase.SETTLED:
        puts.append(Put(node, replace(node, phase=Phase.SETTLED, revision=node.revision + 1)))
        puts.extend(close_scopes(ports, slice_))
    if slice_.operation is not None:
        puts.extend(close_operation(slice_.operation, _open(slice_.attempt, slice_.operation), code))
    for member in slice_.members:
        attempt = _open(slice_.member_attempt(member.operation_id), member)
        puts.extend(close_operation(member, attempt, code))
    ticket, consumed, reserved = close_ticket(slice_.ticket, sent_of(slice_))
    if ticket is not None:
        puts.append(Put(slice_.ticket, ticket))
    queue = ports.store.list_queue(run.session_id)
    onward = go_on(ports, run, [(pending.delivery, pending.kind) for pending in slice_.inputs], queue)
    puts.extend(onward.puts)
    fields: list[tuple[str, object]] = [("loops", run.loops_used + consumed)]
    if end.code is not None:
        fields.append(("code", end.code))
    return StepResult(
        slice_,
        key,
        hash_command(key, end.cause, end.code),
        puts=tuple(puts),
        events=(*onward.events, Event(f"run.{end.status}", tuple(fields))),
        successors=(Successor("clean_up", run.run_id, f"cleanup:{run.run_id}:run"),),
        move=RunMove.END,
        consumed=consumed,
        reserved=reserved,
        deletes_run_rows=True,
        saw_inputs=True,
        end=end,
        more=onward.parts,
        opens=onward.opens,
    )


def _open(attempt: Attempt | None, operation: Operation) -> Attempt | None:
    return attempt if attempt is not None and attempt.operation_id == operation.operation_id else None


def _decide(run: Run, todo: Continuation) -> RunEnd:
    """A stop or a deadline stands on the run already; otherwise the role's own end counts."""
    if run.end_cause is not None:
        return RunEnd(END_STATUS[run.end_cause], run.end_cause, run.end_code, run.end_detail, None)
    cause = todo.end_cause
    if cause is None:
        raise InvariantError(f"run {run.run_id} has no reason to end")
    answer = todo.answer_operation_id if cause is EndCause.ANSWER else None
    return RunEnd(END_STATUS[cause], cause, todo.end_code, todo.end_detail, answer)
