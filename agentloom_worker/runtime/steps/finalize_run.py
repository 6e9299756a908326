"""finalize_run: the run's terminal state, with everything that is still open closed in the same commit.

It waits for nothing: an operation that may have been sent becomes unknown, any other cancelled (RULINGS A3);
the first cause recorded under the run's lock decides the status (A4). Supplements that no output has delivered
are carried on, and a question that waits in the session's queue becomes the next run, to which they are bound
(A5, A10). That no input came since is asserted by the same commit.
"""

from dataclasses import dataclass

from agentloom_worker.domain.commit import Event, Part, Put, RunAccept, RunMove
from agentloom_worker.domain.dispatch import Successor
from agentloom_worker.domain.operation import Attempt, Operation
from agentloom_worker.domain.run import END_STATUS, Continuation, EndCause, Phase, Run
from agentloom_worker.domain.session import DeliveryState, InputKind, PendingInput, QueueState, UserInputDelivery
from agentloom_worker.errors import Code, InvariantError
from agentloom_worker.frozen import replace
from agentloom_worker.ids import DeliveryId
from agentloom_worker.runtime.ending import close_operation, close_ticket, sent_of
from agentloom_worker.runtime.opening import open_run
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
    carried = [_carry(ports, pending) for pending in slice_.inputs if _is_carried(pending)]
    following = _open_next(ports, run)
    puts.extend(put for one in (*carried, following) for put in one.puts)
    fields: list[tuple[str, object]] = [("loops", run.loops_used + consumed)]
    if end.code is not None:
        fields.append(("code", end.code))
    return StepResult(
        slice_,
        key,
        hash_command(key, end.cause, end.code),
        puts=tuple(puts),
        events=(Event(f"run.{end.status}", tuple(fields)),),
        successors=(Successor("clean_up", run.run_id, f"cleanup:{run.run_id}:run"),),
        move=RunMove.END,
        consumed=consumed,
        reserved=reserved,
        deletes_run_rows=True,
        saw_inputs=True,
        end=end,
        more=tuple(part for one in (*carried, following) for part in one.parts),
        opens=following.opens,
    )


@dataclass(frozen=True, slots=True)
class _Onward:
    """What goes on after the run: rows, their keys, perhaps a run."""

    puts: tuple[Put, ...] = ()
    parts: tuple[Part, ...] = ()
    opens: RunAccept | None = None


def _is_carried(pending: PendingInput) -> bool:
    """The run's own question is answered by its end, whatever that is (RULINGS R3)."""
    waits = pending.delivery.state in (DeliveryState.PENDING, DeliveryState.CLAIMED)
    return waits and pending.kind is InputKind.SUPPLEMENT


def _carry(ports: Ports, pending: PendingInput) -> _Onward:
    """The old delivery ends, and a new one that names it waits for the next run (seed 004, 3.2)."""
    old = pending.delivery
    carried = replace(old, state=DeliveryState.CARRIED, revision=old.revision + 1)
    new = UserInputDelivery(
        DeliveryId(ports.ids.new()),
        old.input_id,
        old.session_id,
        None,
        DeliveryState.PENDING,
        1,
        previous_delivery_id=old.delivery_id,
    )
    key = f"carry:{old.target_run_id}:{old.input_id}:{old.delivery_id}"
    return _Onward((Put(old, carried), Put(None, new)), (Part(key, hash_command(key)),))


def _open_next(ports: Ports, run: Run) -> _Onward:
    """The question that is next in the session's queue becomes a run, of the release that was frozen with it."""
    waiting = ports.store.list_queue(run.session_id, limit=1)
    if not waiting:
        return _Onward()
    question = waiting[0]
    opened = open_run(ports, run.session_id, question.release_id, question.input_id, run.run_no + 1)
    started = replace(question, state=QueueState.STARTED, run_id=opened.run_id)
    key = f"accept:{question.input_id}"
    return _Onward((Put(question, started),), (Part(key, hash_command(key)),), opened)


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
