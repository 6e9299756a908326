"""attempt_call: what one call of a batch leaves behind; the database decides who was last (RULINGS A8)."""

from agentloom_worker.cancellation import CancelReason
from agentloom_worker.capabilities.result import encode_result, failed, present
from agentloom_worker.domain.capability import CapabilityKind, CapabilitySpec, ResultStatus, ToolResult
from agentloom_worker.domain.commit import BlobPut, Event, Put
from agentloom_worker.domain.dispatch import Successor
from agentloom_worker.domain.model import Category, Executed, Failure
from agentloom_worker.domain.operation import (
    Attempt,
    AttemptState,
    Operation,
    OperationKind,
    OperationStatus,
    Payload,
)
from agentloom_worker.errors import Code, InvariantError
from agentloom_worker.frozen import replace
from agentloom_worker.runtime.ending import worse
from agentloom_worker.runtime.live import Live
from agentloom_worker.runtime.outcome import Answered, MaybeSent, Outcome, ToolEnded
from agentloom_worker.runtime.payload import make_payload
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.result import StepResult, hash_command
from agentloom_worker.runtime.retry import RetryAt, retry_failure, retry_unknown
from agentloom_worker.runtime.slice import Slice


def attempt_call(ports: Ports, slice_: Slice, live: Live, outcome: Outcome) -> StepResult:
    """The write set of the attempt's end: another attempt, or the settled member."""
    operation = slice_.member(live.claim.subject_id)
    if operation.status.settled:
        raise InvariantError(f"operation {operation.operation_id} is settled already")
    attempt = slice_.member_attempt(operation.operation_id)
    match outcome:
        case Answered(result=result):
            return _settle(ports, slice_, operation, None, None, result)
        case ToolEnded(result=result, reason=reason):
            assert attempt is not None, "a tool has an attempt"
            return _ended(ports, slice_, live, operation, attempt, result, reason)
        case MaybeSent():
            assert attempt is not None, "a tool has an attempt"
            return _unknown(ports, slice_, operation, attempt)
        case _:
            raise InvariantError(f"a call cannot end as {type(outcome).__name__}")


def _spec_of(slice_: Slice, operation: Operation) -> CapabilitySpec:
    for spec in slice_.release.catalog.capabilities:
        if spec.key == operation.capability:
            return spec
    raise InvariantError(f"operation {operation.operation_id} names no capability of its release")


def _ended(
    ports: Ports,
    slice_: Slice,
    live: Live,
    operation: Operation,
    attempt: Attempt,
    result: ToolResult,
    reason: CancelReason | None,
) -> StepResult:
    failure = result.failure
    state = {
        ResultStatus.SUCCEEDED: AttemptState.COMPLETE,
        ResultStatus.FAILED: AttemptState.FAILED,
        ResultStatus.CANCELLED: AttemptState.CANCELLED,
    }[result.status]
    if failure is not None and failure.external_outcome is Executed.UNKNOWN:
        state = AttemptState.UNKNOWN
    ended = replace(
        attempt,
        state=state,
        code=failure.code if failure else None,
        category=failure.category.value if failure else None,
        detail=failure.message[:500] if failure else None,
        reason=reason.value if reason else None,
    )
    again = None
    # A drain ends this process's part in the call, not the run: its policy decides as after a death (R10, R11).
    if failure is not None and reason in (None, CancelReason.DRAIN):
        again = _retry(ports, slice_, live, operation, failure)
    if again is not None:
        executed = failure.external_outcome if failure is not None else Executed.EXECUTED
        return _again(slice_, operation, attempt, ended, again, executed=executed)
    return _settle(ports, slice_, operation, attempt, ended, result)


def _retry(ports: Ports, slice_: Slice, live: Live, operation: Operation, failure: Failure) -> RetryAt | None:
    """A tool's own error is an answer for the model; only unknown outcomes and transport may be repeated."""
    spec = _spec_of(slice_, operation)
    if failure.external_outcome is Executed.UNKNOWN:
        return retry_unknown(spec.retry, operation, ports.chance)
    remaining = slice_.run.deadline_at - live.now_us()
    return retry_failure(spec.retry, operation, failure, ports.chance, remaining)


def _unknown(ports: Ports, slice_: Slice, operation: Operation, attempt: Attempt) -> StepResult:
    """The process that made the call left no outcome: only `on_unknown` decides (RULINGS A1, R11)."""
    spec = _spec_of(slice_, operation)
    ended = replace(
        attempt,
        state=AttemptState.UNKNOWN,
        maybe_sent=True,
        code=Code.TOOL_OUTCOME_UNKNOWN,
        category=Category.UNKNOWN.value,
    )
    again = retry_unknown(spec.retry, operation, ports.chance)
    if again is not None:
        return _again(slice_, operation, attempt, ended, again, executed=Executed.UNKNOWN)
    failure = Failure(
        Code.TOOL_OUTCOME_UNKNOWN,
        Category.UNKNOWN,
        "the worker that made this call died before it could record the outcome: it may or may not have been executed",
        Executed.UNKNOWN,
    )
    return _settle(ports, slice_, operation, attempt, ended, failed(failure))


def _again(
    slice_: Slice, operation: Operation, attempt: Attempt, ended: Attempt, again: RetryAt, *, executed: Executed
) -> StepResult:
    """Another attempt; what the ended one may have done stays with the operation, however the next one ends."""
    number = attempt.attempt_no + 1
    moved = replace(
        operation,
        attempts_made=number,
        executed=worse(operation.executed, executed),
        unknown_attempts=operation.unknown_attempts + int(executed is Executed.UNKNOWN),
        revision=operation.revision + 1,
    )
    intent = Attempt(attempt.operation_id, number, AttemptState.INTENT, slice_.run.epoch)
    key = f"raw:{attempt.operation_id}/{attempt.attempt_no}"
    event = Event(
        "attempt.retrying",
        (
            ("code", ended.code),
            ("ordinal", operation.ordinal),
            ("attempt", number),
            ("delay_ms", again.delay_us // 1000),
        ),
    )
    return StepResult(
        slice_.with_member(moved, intent),
        key,
        hash_command(key, ended.state, ended.code),
        puts=(Put(operation, moved), Put(attempt, ended), Put(None, intent)),
        events=(event,),
        successors=(Successor("attempt_call", operation.operation_id, f"attempt:{number}", again.delay_us),),
    )


def _payloads(
    ports: Ports, slice_: Slice, operation: Operation, result: ToolResult, body: bytes
) -> tuple[Payload, Payload | None, tuple[BlobPut, ...]]:
    """(raw, effective where it differs, blobs): a result above 64 KiB counts as its preview (seed 004, 7.2)."""
    raw, blobs = make_payload(ports, slice_.run.owner_id, body)
    internal = operation.kind is OperationKind.INTERNAL
    kind = CapabilityKind.BUILTIN if internal else CapabilityKind.PYTHON
    shown = present(result, operation.operation_id, kind=kind)
    if shown.preview is None:
        return raw, None, blobs
    short = encode_result(ToolResult(ResultStatus.SUCCEEDED, shown.text))
    effective, more = make_payload(ports, slice_.run.owner_id, short)
    return raw, effective, (*blobs, *more)


def _settle(
    ports: Ports,
    slice_: Slice,
    operation: Operation,
    attempt: Attempt | None,
    ended: Attempt | None,
    result: ToolResult,
) -> StepResult:
    """The member settles; its batch counts it in the database, and may become deliverable by this commit."""
    batch = slice_.batch
    if batch is None:
        raise InvariantError(f"operation {operation.operation_id} has no batch")
    failure = result.failure
    if failure is None:
        status, executed = OperationStatus.COMPLETED, Executed.EXECUTED
    else:
        # The model is told what is known of the call, not only of its last attempt.
        executed = worse(operation.executed, failure.external_outcome)
        result = replace(result, failure=replace(failure, external_outcome=executed))
        status = OperationStatus.UNKNOWN if executed is Executed.UNKNOWN else OperationStatus.FAILED
    body = encode_result(result)
    raw, effective, blobs = _payloads(ports, slice_, operation, result, body)
    settled = replace(
        operation,
        status=status,
        raw=raw,
        effective=effective,
        code=failure.code if failure else None,
        executed=executed,
        revision=operation.revision + 1,
    )
    counted = replace(batch, settled=batch.settled + 1)
    name = f"{operation.operation_id}/{attempt.attempt_no}" if attempt else str(operation.operation_id)
    key = f"raw:{name}"
    fields: tuple[tuple[str, object], ...] = (
        ("loop", operation.loop_no),
        ("ordinal", operation.ordinal),
        ("capability", operation.capability),
        ("status", status.value),
    )
    if failure is not None:
        fields = (*fields, ("code", failure.code))
    puts = [Put(operation, settled), Put(batch, counted)]
    if attempt is not None and ended is not None:
        puts.append(Put(attempt, ended))
    return StepResult(
        replace(slice_.with_member(settled, ended), batch=counted),
        key,
        hash_command(key, body),
        puts=tuple(puts),
        blobs=blobs,
        events=(Event("call.settled", fields),),
        settles=Successor("deliver_batch", batch.batch_id, f"deliver:{batch.batch_id}"),
    )
