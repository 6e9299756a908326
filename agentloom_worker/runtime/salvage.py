"""The end of a run whose rows cannot all be read: a stop, an operator or the deadline ends it all the same.

Only the steps of an end that stands on the run's own row are salvaged; any other step parks with its evidence. What
can be read is closed as ever (RULINGS A3) and goes on as ever (A5, A10), what cannot is named on the run and left as it
is.
"""

from collections.abc import Callable
from dataclasses import dataclass

from agentloom_worker.domain.commit import Event, Part, Put, RunAccept, RunFence, RunMove, RuntimeCommit
from agentloom_worker.domain.damage import DAMAGED, describe
from agentloom_worker.domain.dispatch import Claim, Successor
from agentloom_worker.domain.model import Executed
from agentloom_worker.domain.operation import Attempt, Operation, OperationStatus
from agentloom_worker.domain.run import END_STATUS, EndCause, Phase, Run
from agentloom_worker.errors import Code
from agentloom_worker.frozen import replace
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.dispatch import outbox_row
from agentloom_worker.runtime.ending import close_operation, close_ticket, executed_so_far, worse
from agentloom_worker.runtime.onward import go_on
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.result import RunEnd, hash_command
from agentloom_worker.runtime.scopes import settled
from agentloom_worker.runtime.slice import load_owned_release
from agentloom_worker.runtime.stopping import stop_command, stop_end, stop_event, stop_successor
from agentloom_worker.storage.wreck import Wreck

_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class _End:
    """What one step of an end writes of a wreck."""

    parts: tuple[Part, ...]
    fence: RunFence
    puts: tuple[Put, ...] = ()
    events: tuple[Event, ...] = ()
    successors: tuple[Successor, ...] = ()
    opens: RunAccept | None = None


@dataclass(frozen=True, slots=True)
class Salvaged:
    """The commit of a step on what can be read, and the rows that cannot (`table key (why)`)."""

    commit: RuntimeCommit
    unreadable: tuple[str, ...]


def salvage(ports: Ports, claim: Claim, run_id: RunId, error: Exception, *, loaded: bool) -> Salvaged | None:
    """Do a step of a run's end on what can be read of it.

    None for any other step, and where everything can be read: then `error`, which the step raised, is no damage.
    `loaded` says that the slice was whole. Raises what reading the run's own row raises. Its commit may conflict with
    one that came since: then it is to be done again.
    """
    make = _SALVAGE.get(claim.step)
    wreck = ports.store.load_wreck(run_id) if make is not None else None
    if make is None or wreck is None:
        return None
    lost = _lost(ports, wreck)
    if not lost and not loaded:
        lost = (f"what run {run_id} has heard and said ({describe(error)})",)
    end = make(ports, wreck, lost) if lost else None
    if end is None:
        return None
    todo = RuntimeCommit(
        scope_id=run_id,
        key=claim.token.bytes,
        parts=end.parts,
        session_id=wreck.run.session_id if end.fence.move is RunMove.END else None,
        claim=claim,
        fence=end.fence,
        puts=end.puts,
        events=end.events,
        delete_run_rows=end.fence.move is not RunMove.CLEANED,
        outbox=tuple(outbox_row(ports, successor) for successor in end.successors),
        accept=end.opens,
        first=outbox_row(ports, end.opens.first) if end.opens is not None else None,
        deadline=outbox_row(ports, end.opens.expiry) if end.opens is not None else None,
    )
    return Salvaged(todo, lost)


def _lost(ports: Ports, wreck: Wreck) -> tuple[str, ...]:
    """The rows that cannot be read."""
    try:
        load_owned_release(ports, wreck.run.release_id)
    except DAMAGED as damage:
        return (*wreck.unreadable, f"release {wreck.run.release_id} ({describe(damage)})")
    return wreck.unreadable


def _finalize(ports: Ports, wreck: Wreck, lost: tuple[str, ...]) -> _End | None:
    run = wreck.run
    if run.end_cause is None:
        # Why the role ended stands in the node only, which may be what cannot be read.
        return None
    code = run.end_code or Code.RUN_STOPPED
    end = RunEnd(END_STATUS[run.end_cause], run.end_cause, run.end_code, _detail(run, lost), None)
    puts = [
        Put(node, replace(node, phase=Phase.SETTLED, revision=node.revision + 1))
        for node in wreck.nodes
        if node.phase is not Phase.SETTLED
    ]
    puts += [Put(scope, settled(scope)) for scope in wreck.scopes]
    for operation in wreck.operations:
        puts += _close(operation, _newest(wreck, operation), code)
    consumed = reserved = 0
    for ticket in wreck.tickets:
        closed, used, held = close_ticket(ticket, _sent(wreck, ticket.operation_id))
        puts.append(Put(ticket, closed))
        consumed, reserved = consumed + used, reserved + held
    fields: list[tuple[str, object]] = [("loops", run.loops_used + consumed)]
    if run.end_code is not None:
        fields.append(("code", run.end_code))
    onward = go_on(ports, run, wreck.deliveries, wreck.queue)
    key = f"finalize:{run.run_id}"
    return _End(
        (Part(key, hash_command(key, end.cause, end.code)), *onward.parts),
        RunFence(
            run.run_id, RunMove.END, consumed, reserved, run.input_head, end.status, end.cause, end.code, end.detail
        ),
        (*puts, *onward.puts),
        (
            *onward.events,
            Event("run.degraded", (("code", Code.ROWS_UNREADABLE.value), ("rows", len(lost)))),
            Event(f"run.{end.status}", tuple(fields)),
        ),
        (Successor("clean_up", run.run_id, f"cleanup:{run.run_id}:run"),),
        onward.opens,
    )


def _expire(_ports: Ports, wreck: Wreck, _lost: tuple[str, ...]) -> _End:
    run, cause, code = wreck.run, EndCause.DEADLINE, Code.RUN_DEADLINE_EXCEEDED
    end = stop_end(cause, code, "the run's deadline passed")
    key = f"expire:{run.run_id}"
    return _End(
        (Part(key, stop_command(key, cause, code)),),
        RunFence(run.run_id, RunMove.STOP, status=end.status, cause=cause, code=code, detail=end.detail),
        events=(stop_event(cause),),
        successors=(stop_successor(run.run_id),),
    )


def _clean(_ports: Ports, wreck: Wreck, _lost: tuple[str, ...]) -> _End:
    key = f"cleanup:{wreck.run.run_id}:run"
    return _End((Part(key, hash_command(key)),), RunFence(wreck.run.run_id, RunMove.CLEANED))


_SALVAGE: dict[str, Callable[[Ports, Wreck, tuple[str, ...]], _End | None]] = {
    "finalize_run": _finalize,
    "expire_run": _expire,
    "clean_up": _clean,
}


def _detail(run: Run, lost: tuple[str, ...]) -> str:
    """What stood there already, and the rows that were left as they are."""
    named = "; ".join(lost[:_NAMED_MAX])
    more = f" and {len(lost) - _NAMED_MAX} more" if len(lost) > _NAMED_MAX else ""
    told = f"{Code.ROWS_UNREADABLE}: left as it is: {named}{more}"
    return f"{run.end_detail}; {told}" if run.end_detail else told


def _newest(wreck: Wreck, operation: Operation) -> Attempt | None:
    name = (operation.operation_id, operation.attempts_made)
    return next((each for each in wreck.attempts if (each.operation_id, each.attempt_no) == name), None)


def _close(operation: Operation, attempt: Attempt | None, code: str) -> tuple[Put, ...]:
    """As finalize closes it; what an attempt did that cannot be read is unknown."""
    if attempt is not None or not operation.attempts_made or operation.status.settled:
        return close_operation(operation, attempt, code)
    executed = worse(operation.executed, Executed.UNKNOWN)
    revision = operation.revision + 1
    return (
        Put(
            operation,
            replace(operation, status=OperationStatus.UNKNOWN, executed=executed, code=code, revision=revision),
        ),
    )


def _sent(wreck: Wreck, operation_id: object) -> Executed:
    """Whether the operation of a ticket may have left; what cannot be read may have."""
    operation = next((each for each in wreck.operations if each.operation_id == operation_id), None)
    if operation is None:
        return Executed.UNKNOWN
    attempt = _newest(wreck, operation)
    sent = executed_so_far(operation)
    unsure = attempt.maybe_sent if attempt is not None else bool(operation.attempts_made)
    return worse(sent, Executed.UNKNOWN) if unsure else sent
