"""deliver_batch: every result of a batch into the context at once, by ordinal (seed 000, 6)."""

from agentloom_worker.canonical import sha256
from agentloom_worker.capabilities.result import decode_result, model_text
from agentloom_worker.context.append import NewRecord, append_records
from agentloom_worker.context.message import tool_message
from agentloom_worker.domain.commit import Put
from agentloom_worker.domain.context import MessageKind, RawRef
from agentloom_worker.domain.dispatch import Successor
from agentloom_worker.domain.model import Role
from agentloom_worker.domain.operation import Operation
from agentloom_worker.domain.run import BatchState, Phase
from agentloom_worker.errors import InvariantError
from agentloom_worker.frozen import replace
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.result import StepResult, hash_command
from agentloom_worker.runtime.slice import Slice, adapter_of, load_body


def deliver_batch(ports: Ports, slice_: Slice) -> StepResult:
    """Append the tool records once; the order is the calls', never that of their completion."""
    batch = slice_.batch
    if batch is None or batch.state is not BatchState.OPEN or batch.settled != batch.size:
        raise InvariantError(f"node {slice_.node.node_id} has no settled batch to deliver")
    key = f"batch:{batch.batch_id}:deliver"
    records = [_record(ports, slice_, member) for member in slice_.members]
    if len(records) != batch.size:
        raise InvariantError(f"batch {batch.batch_id} has {len(records)} of {batch.size} members")
    appended = append_records(slice_.context, slice_.view, records, ids=ports.ids, cause_key=key)
    delivered = replace(batch, state=BatchState.DELIVERED)
    node = replace(slice_.node, phase=Phase.PREPARE_CONTEXT, revision=slice_.node.revision + 1)
    loop_no = node.continuation.loop_no + 1
    return StepResult(
        replace(slice_, context=appended.context, view=appended.view, batch=delivered, node=node),
        key,
        hash_command(key, *(record.effective_hash.hex() for record in records)),
        puts=(
            *appended.puts,
            Put(slice_.context, appended.context),
            Put(batch, delivered),
            Put(slice_.node, node),
        ),
        successors=(Successor("prepare_context", node.node_id, f"prepare:{node.node_id}:{loop_no}"),),
    )


def _record(ports: Ports, slice_: Slice, member: Operation) -> NewRecord:
    payload = member.effective or member.raw
    if payload is None or member.ordinal is None:
        raise InvariantError(f"member {member.operation_id} has no result")
    body = load_body(ports, slice_, payload)
    text = model_text(decode_result(body)).text
    message = tool_message(text, slice_.view.wire_ids[member.ordinal])
    return NewRecord(
        Role.TOOL,
        MessageKind.TOOL_RESULT,
        RawRef.OPERATION,
        "result",
        sha256(body),
        adapter_of(ports, slice_.release).encode_message(message),
        effective_ref="operation.effective" if member.effective else None,
        operation_id=member.operation_id,
        call_id=member.call_id,
    )
