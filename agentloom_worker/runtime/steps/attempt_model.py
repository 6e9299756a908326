"""attempt_model: what one model attempt leaves behind (RUNTIME 6; RULINGS R2, A20, R10)."""

from typing import assert_never

from agentloom_worker.cancellation import CancelReason
from agentloom_worker.domain.commit import Event, Put
from agentloom_worker.domain.dispatch import Successor
from agentloom_worker.domain.model import (
    Cancelled,
    Category,
    Completed,
    Executed,
    Failed,
    Failure,
    ModelResponse,
)
from agentloom_worker.domain.operation import Attempt, AttemptState, Operation, OperationStatus
from agentloom_worker.domain.response import encode_partial, encode_response
from agentloom_worker.domain.run import EndCause, Phase
from agentloom_worker.errors import AgentloomError, Code, InvariantError
from agentloom_worker.frozen import replace
from agentloom_worker.runtime.ending import close_ticket, end_node, settle_successor, worse
from agentloom_worker.runtime.live import Live
from agentloom_worker.runtime.outcome import MaybeSent, ModelEnded, Outcome
from agentloom_worker.runtime.payload import make_payload
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.result import StepResult, hash_command
from agentloom_worker.runtime.retry import RetryAt, retry_drain, retry_failure, retry_unknown
from agentloom_worker.runtime.slice import Slice
from agentloom_worker.runtime.transport import with_transport


def attempt_model(ports: Ports, slice_: Slice, live: Live, outcome: Outcome) -> StepResult:
    """The write set of the attempt's end."""
    operation, attempt = slice_.operation, slice_.attempt
    if operation is None or attempt is None:
        raise InvariantError(f"dispatch {live.claim.dispatch_id} has no attempt")
    encoded = outcome.transport if isinstance(outcome, ModelEnded) else None
    attempt, blobs = with_transport(ports, slice_.run.owner_id, attempt, encoded)
    result = _ended(ports, slice_, live, operation, attempt, outcome)
    return replace(result, blobs=(*result.blobs, *blobs)) if blobs else result


def _ended(
    ports: Ports, slice_: Slice, live: Live, operation: Operation, attempt: Attempt, outcome: Outcome
) -> StepResult:
    """The write set of an attempt that has what it received."""
    match outcome:
        case ModelEnded(outcome=Cancelled(partial=partial), reason=None, unsaved=AgentloomError() as unsaved):
            return _unsaved(ports, slice_, operation, attempt, encode_partial(partial), unsaved)
        case ModelEnded(outcome=Completed(response=response)):
            return _completed(ports, slice_, operation, attempt, response)
        case ModelEnded(outcome=Failed(failure=failure, partial=partial)):
            ended = _end(attempt, AttemptState.FAILED, failure, encode_partial(partial))
            remaining = slice_.run.deadline_at - live.now_us()
            policy = slice_.release.model.retry
            moved = replace(operation, executed=worse(operation.executed, failure.external_outcome))
            again = retry_failure(policy, operation, failure, ports.chance, remaining)
            return _next(slice_, moved, attempt, ended, again, failure.code, failure.message)
        case ModelEnded(outcome=Cancelled(partial=partial, sent=sent), reason=reason):
            return _cancelled(slice_, operation, attempt, encode_partial(partial), sent, reason)
        case MaybeSent():
            failure = Failure(
                Code.MODEL_OUTCOME_UNKNOWN,
                Category.UNKNOWN,
                "the process that made this attempt left no outcome",
                Executed.UNKNOWN,
            )
            ended = replace(_end(attempt, AttemptState.UNKNOWN, failure, None), maybe_sent=True)
            return _unknown(ports, slice_, operation, attempt, ended)
        case _:
            raise InvariantError(f"a model attempt cannot end as {type(outcome).__name__}")


def _unsaved(
    ports: Ports,
    slice_: Slice,
    operation: Operation,
    attempt: Attempt,
    partial: bytes | None,
    unsaved: AgentloomError,
) -> StepResult:
    """We ended it ourselves, amid its answer: what the provider made of it nobody knows, what came is material."""
    failure = Failure(
        Code.MODEL_OUTCOME_UNKNOWN,
        Category.PERSISTENCE,
        f"the receipt of its first output could not be saved ({unsaved.code}), so its stream was closed",
        Executed.UNKNOWN,
    )
    return _unknown(ports, slice_, operation, attempt, _end(attempt, AttemptState.UNKNOWN, failure, partial))


def _unknown(ports: Ports, slice_: Slice, operation: Operation, attempt: Attempt, ended: Attempt) -> StepResult:
    """Only `on_unknown` decides (R11)."""
    again = retry_unknown(slice_.release.model.retry, operation, ports.chance)
    moved = replace(
        operation, executed=Executed.UNKNOWN, unknown_attempts=operation.unknown_attempts + (1 if again else 0)
    )
    return _next(slice_, moved, attempt, ended, again, ended.code or "", ended.detail or "")


def _completed(
    ports: Ports, slice_: Slice, operation: Operation, attempt: Attempt, response: ModelResponse
) -> StepResult:
    body = encode_response(response)
    payload, blobs = make_payload(ports, slice_.run.owner_id, body)
    done = replace(
        operation,
        status=OperationStatus.COMPLETED,
        raw=payload,
        executed=Executed.EXECUTED,
        revision=operation.revision + 1,
    )
    ended = replace(attempt, state=AttemptState.COMPLETE)
    node = replace(slice_.node, phase=Phase.ACCEPT, revision=slice_.node.revision + 1)
    key = f"raw:{attempt.operation_id}/{attempt.attempt_no}"
    fields: list[tuple[str, object]] = [
        ("loop", operation.loop_no),
        ("calls", len(response.calls)),
    ]
    if response.usage is not None:
        fields.extend((("input_tokens", response.usage.input_tokens), ("output_tokens", response.usage.output_tokens)))
        if response.usage.cached_tokens:
            fields.append(("cached_tokens", response.usage.cached_tokens))
    return StepResult(
        replace(slice_, operation=done, attempt=ended, node=node),
        key,
        hash_command(key, body),
        puts=(Put(operation, done), Put(attempt, ended), Put(slice_.node, node)),
        blobs=blobs,
        events=(Event("model.completed", tuple(fields)),),
        successors=(Successor("accept_model", operation.operation_id, f"accept:{operation.operation_id}"),),
    )


def _end(attempt: Attempt, state: AttemptState, failure: Failure, partial: bytes | None) -> Attempt:
    return replace(
        attempt,
        state=state,
        code=failure.code,
        category=failure.category.value,
        detail=failure.message,
        http_status=failure.http_status,
        partial=partial,
    )


def _cancelled(
    slice_: Slice,
    operation: Operation,
    attempt: Attempt,
    partial: bytes | None,
    sent: bool,
    reason: CancelReason | None,
) -> StepResult:
    """A drain goes on with another attempt; a deadline leaves the run to its expiry, whose row is due."""
    ended = replace(attempt, state=AttemptState.CANCELLED, reason=reason.value if reason else None, partial=partial)
    executed = Executed.UNKNOWN if sent else Executed.NOT_EXECUTED
    moved = replace(operation, executed=worse(operation.executed, executed))
    match reason:
        case CancelReason.DRAIN:
            moved = replace(moved, drain_interrupts=operation.drain_interrupts + 1)
            again = retry_drain(operation)
            detail = "the model attempt was ended by too many drains"
            return _next(slice_, moved, attempt, ended, again, Code.MODEL_INTERRUPTED, detail)
        case CancelReason.DEADLINE | CancelReason.TIMEOUT | None:
            closed = replace(
                moved,
                status=OperationStatus.CANCELLED,
                code=Code.RUN_DEADLINE_EXCEEDED,
                revision=operation.revision + 1,
            )
            key = f"raw:{attempt.operation_id}/{attempt.attempt_no}"
            return StepResult(
                replace(slice_, operation=closed, attempt=ended),
                key,
                hash_command(key, "deadline"),
                puts=(Put(operation, closed), Put(attempt, ended)),
            )
        case CancelReason.STOP | CancelReason.SUPERSEDED:
            raise InvariantError(f"a {reason} voids the claim; its facts are late")
        case _:
            assert_never(reason)


def _next(
    slice_: Slice,
    operation: Operation,
    attempt: Attempt,
    ended: Attempt,
    again: RetryAt | None,
    code: str,
    detail: str,
) -> StepResult:
    """Another attempt of the same operation with the same bytes, or the end of the role."""
    before = slice_.operation
    assert before is not None
    key = f"raw:{attempt.operation_id}/{attempt.attempt_no}"
    command = hash_command(key, ended.state, code)
    if again is not None:
        number = attempt.attempt_no + 1
        moved = replace(operation, attempts_made=number, revision=before.revision + 1)
        intent = Attempt(attempt.operation_id, number, AttemptState.INTENT, slice_.run.epoch)
        event = Event("attempt.retrying", (("code", code), ("attempt", number), ("delay_ms", again.delay_us // 1000)))
        return StepResult(
            replace(slice_, operation=moved, attempt=intent),
            key,
            command,
            puts=(Put(before, moved), Put(attempt, ended), Put(None, intent)),
            events=(event,),
            successors=(Successor("attempt_model", attempt.operation_id, f"attempt:{number}", again.delay_us),),
        )
    unknown = ended.state is AttemptState.UNKNOWN
    status = OperationStatus.UNKNOWN if unknown else OperationStatus.FAILED
    failed = replace(operation, status=status, code=code, revision=before.revision + 1)
    ticket, consumed, reserved = close_ticket(slice_.ticket, failed.executed or Executed.NOT_EXECUTED)
    node = end_node(slice_.node, EndCause.FAILURE, code, detail)
    puts = [Put(before, failed), Put(attempt, ended), Put(slice_.node, node)]
    if ticket is not None:
        puts.append(Put(slice_.ticket, ticket))
    run = slice_.run
    run = replace(run, loops_used=run.loops_used + consumed, loops_reserved=run.loops_reserved + reserved)
    return StepResult(
        replace(slice_, run=run, operation=failed, attempt=ended, ticket=ticket or slice_.ticket, node=node),
        key,
        command,
        puts=tuple(puts),
        successors=(settle_successor(node),),
        consumed=consumed,
        reserved=reserved,
    )
