"""accept_model: the assistant record, the ticket, and either a batch of calls or the candidate answer.

Odd but complete answers are typed here (RULINGS A21); an invalid call is a settled member with an error,
never a lost one (RUNTIME 6).
"""

from agentloom_worker.canonical import sha256
from agentloom_worker.capabilities.arguments import check_arguments
from agentloom_worker.capabilities.catalog import capability_not_found, find
from agentloom_worker.capabilities.result import encode_result, failed
from agentloom_worker.context.append import NewRecord, append_records
from agentloom_worker.context.message import assistant_message
from agentloom_worker.domain.capability import CapabilityKind
from agentloom_worker.domain.commit import BlobPut, Event, Put
from agentloom_worker.domain.context import MessageKind, RawRef
from agentloom_worker.domain.dispatch import Successor
from agentloom_worker.domain.model import Category, Executed, Failure, ModelResponse, ResponseCall, Role
from agentloom_worker.domain.operation import (
    Attempt,
    AttemptState,
    Operation,
    OperationKind,
    OperationStatus,
    call_id_of,
)
from agentloom_worker.domain.response import decode_response
from agentloom_worker.domain.run import BatchState, CallBatch, EndCause, Phase
from agentloom_worker.errors import Code, InvariantError
from agentloom_worker.frozen import replace
from agentloom_worker.ids import BatchId, OperationId
from agentloom_worker.limits import CALLS_PER_MESSAGE_MAX
from agentloom_worker.runtime.ending import close_ticket, end_node, settle_successor
from agentloom_worker.runtime.payload import make_payload
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.result import StepResult, hash_command
from agentloom_worker.runtime.slice import Slice, adapter_of, call_ids, load_body

# A message that ends so may end inside of any of its calls (CASES W06, S09).
_CUTS = {
    "length": "the message was cut at its output limit, so this call was not executed; send it again, shorter",
    "content_filter": "the provider's content filter cut the message, so this call was not executed",
}


def accept_model(ports: Ports, slice_: Slice) -> StepResult:
    """Accept the completed operation once."""
    operation = slice_.operation
    if operation is None or operation.status is not OperationStatus.COMPLETED or operation.raw is None:
        raise InvariantError(f"node {slice_.node.node_id} has no completed operation to accept")
    body = load_body(ports, slice_, operation.effective or operation.raw)
    response = decode_response(body)
    key = f"model:{operation.operation_id}:accept"
    command = hash_command(key, operation.raw.inline or operation.raw.blob_id)
    ticket, consumed, reserved = close_ticket(slice_.ticket, Executed.EXECUTED)
    if ticket is None:
        raise InvariantError(f"operation {operation.operation_id} has no reserved ticket to consume")
    run = slice_.run
    run = replace(run, loops_used=run.loops_used + consumed, loops_reserved=run.loops_reserved + reserved)
    base = StepResult(
        replace(slice_, run=run, ticket=ticket),
        key,
        command,
        puts=(Put(slice_.ticket, ticket),),
        consumed=consumed,
        reserved=reserved,
    )
    refusal = _refuse(response)
    if refusal is not None:
        ended = end_node(slice_.node, EndCause.FAILURE, refusal.code, refusal.message)
        return replace(
            base,
            slice=replace(base.slice, node=ended),
            puts=(*base.puts, Put(slice_.node, ended)),
            successors=(settle_successor(ended),),
        )
    base = _append(ports, base, operation, response, body)
    return _call(ports, base, operation, response) if response.calls else _answer(base, operation, response)


def _refuse(response: ModelResponse) -> Failure | None:
    """Complete answers that the role cannot go on from."""
    if response.finish_reason == "content_filter" and not (response.text or response.calls or response.refusal):
        return Failure(
            Code.MODEL_CONTENT_FILTERED,
            Category.DENIED,
            "the provider's content filter withheld the whole answer",
            Executed.EXECUTED,
        )
    if len(response.calls) > CALLS_PER_MESSAGE_MAX:
        return Failure(
            Code.MODEL_PROTOCOL_ERROR,
            Category.PROTOCOL,
            f"the message holds {len(response.calls)} calls, at most {CALLS_PER_MESSAGE_MAX} are taken",
            Executed.EXECUTED,
        )
    return None


def _append(ports: Ports, base: StepResult, operation: Operation, response: ModelResponse, body: bytes) -> StepResult:
    slice_ = base.slice
    message, wire_ids = assistant_message(response, call_ids(operation.operation_id, response))
    record = NewRecord(
        Role.ASSISTANT,
        MessageKind.ASSISTANT,
        RawRef.OPERATION,
        "assistant",
        sha256(body),
        adapter_of(ports, slice_.release).encode_message(message),
        operation_id=operation.operation_id,
    )
    appended = append_records(
        slice_.context, slice_.view, [record], ids=ports.ids, cause_key=base.key, wire_ids=wire_ids
    )
    return replace(
        base,
        slice=replace(slice_, context=appended.context, view=appended.view),
        puts=(*base.puts, *appended.puts, Put(slice_.context, appended.context)),
    )


def _answer(base: StepResult, operation: Operation, response: ModelResponse) -> StepResult:
    """The candidate answer; without a declared output it is final. Oddities are marked, never hidden."""
    if base.slice.release.output_schema is not None:
        return _candidate(base, operation)
    marks = [
        name
        for name, holds in (
            ("refused", bool(response.refusal)),
            ("truncated", response.finish_reason == "length"),
            ("filtered", response.finish_reason == "content_filter"),
            ("empty", not (response.text or response.refusal)),
        )
        if holds
    ]
    node = base.slice.node
    ended = end_node(node, EndCause.ANSWER, None, " ".join(marks) or None)
    todo = replace(ended.continuation, answer_operation_id=operation.operation_id)
    ended = replace(ended, continuation=todo)
    return replace(
        base,
        slice=replace(base.slice, node=ended),
        puts=(*base.puts, Put(node, ended)),
        successors=(settle_successor(ended),),
    )


def _candidate(base: StepResult, operation: Operation) -> StepResult:
    """Its form decides, oddities included: see validate_output."""
    node = base.slice.node
    waiting = replace(node, phase=Phase.VALIDATE_OUTPUT, revision=node.revision + 1)
    return replace(
        base,
        slice=replace(base.slice, node=waiting),
        puts=(*base.puts, Put(node, waiting)),
        successors=(Successor("validate_output", node.node_id, f"validate:{operation.operation_id}"),),
    )


def _call(ports: Ports, base: StepResult, operation: Operation, response: ModelResponse) -> StepResult:
    slice_ = base.slice
    batch_id = BatchId(ports.ids.new())
    cut = _CUTS.get(response.finish_reason or "")
    members: list[Operation] = []
    attempts: list[Attempt] = []
    blobs: list[BlobPut] = []
    events: list[Event] = []
    for call in response.calls:
        member, failure = _member(ports, slice_, operation, call, batch_id, cut=cut)
        if failure is not None:
            payload, more = make_payload(ports, slice_.run.owner_id, encode_result(failed(failure)))
            member = replace(member, raw=payload)
            blobs.extend(more)
            events.append(
                Event("call.settled", (("ordinal", call.ordinal), ("status", "failed"), ("code", failure.code)))
            )
        elif member.kind is OperationKind.TOOL:
            attempts.append(Attempt(member.operation_id, 1, AttemptState.INTENT, slice_.run.epoch))
        members.append(member)
    settled = sum(1 for member in members if member.status.settled)
    batch = CallBatch(
        batch_id,
        slice_.run.run_id,
        slice_.node.node_id,
        operation.operation_id,
        len(members),
        settled,
        BatchState.OPEN,
    )
    phase = Phase.DELIVER_BATCH if settled == len(members) else Phase.AWAIT_BATCH
    todo = replace(slice_.node.continuation, batch_id=batch_id)
    node = replace(slice_.node, phase=phase, continuation=todo, revision=slice_.node.revision + 1)
    successors = tuple(
        Successor("attempt_call", member.operation_id, "attempt:1") for member in members if not member.status.settled
    )
    if not successors:
        successors = (Successor("deliver_batch", batch_id, f"deliver:{batch_id}"),)
    return replace(
        base,
        slice=replace(slice_, node=node, batch=batch, members=tuple(members), member_attempts=tuple(attempts)),
        puts=(
            *base.puts,
            Put(slice_.node, node),
            Put(None, batch),
            *(Put(None, member) for member in members),
            *(Put(None, attempt) for attempt in attempts),
        ),
        blobs=(*base.blobs, *blobs),
        events=tuple(events),
        successors=successors,
    )


def _member(
    ports: Ports, slice_: Slice, model: Operation, call: ResponseCall, batch_id: BatchId, *, cut: str | None
) -> tuple[Operation, Failure | None]:
    """A member ready to be attempted, or settled at once with what was wrong (CASES W05-W07)."""
    spec = find(slice_.release.catalog, call.name)
    member = Operation(
        operation_id=OperationId(ports.ids.new()),
        run_id=slice_.run.run_id,
        node_id=slice_.node.node_id,
        kind=OperationKind.INTERNAL if spec and spec.kind is CapabilityKind.BUILTIN else OperationKind.TOOL,
        status=OperationStatus.ATTEMPTING,
        revision=1,
        loop_no=model.loop_no,
        capability=spec.key if spec else "",
        batch_id=batch_id,
        ordinal=call.ordinal,
        call_id=call_id_of(model.operation_id, call.ordinal),
        model_operation_id=model.operation_id,
    )
    failure: Failure | None = None
    if cut is not None:
        # Even where a repair would parse: nobody knows what the model was going to say (CASES W06).
        failure = Failure(
            Code.TOOL_CALL_TRUNCATED,
            Category.LIMIT,
            cut,
            Executed.NOT_EXECUTED,
        )
    elif spec is None:
        failure = capability_not_found(slice_.release.catalog, call.name)
    else:
        checked = check_arguments(spec, call.arguments_text)
        failure = checked if isinstance(checked, Failure) else None
    if failure is not None:
        member = replace(member, status=OperationStatus.FAILED, code=failure.code, executed=Executed.NOT_EXECUTED)
        return member, failure
    return replace(member, attempts_made=1 if member.kind is OperationKind.TOOL else 0), None
