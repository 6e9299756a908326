"""validate_output: a candidate answer ends the role, or goes back to the model with what is wrong (seed 004, 6.3).

The candidate stays a fact either way. A correction is the next loop of the run's one quota, with a ticket of its
own; this candidate's ticket was consumed when it was accepted (RULINGS A19).
"""

from agentloom_worker.canonical import canonical_bytes, sha256
from agentloom_worker.capabilities.output import validate_output as validate
from agentloom_worker.context.append import NewRecord, append_records
from agentloom_worker.context.message import note_message
from agentloom_worker.domain.commit import Event, Put
from agentloom_worker.domain.context import MessageKind, RawRef
from agentloom_worker.domain.dispatch import Successor
from agentloom_worker.domain.model import Role
from agentloom_worker.domain.operation import Operation, OperationStatus
from agentloom_worker.domain.output import OutputValidation, correction_text
from agentloom_worker.domain.response import decode_response
from agentloom_worker.domain.run import EndCause, Phase
from agentloom_worker.errors import InvariantError
from agentloom_worker.frozen import replace
from agentloom_worker.runtime.ending import end_node, settle_successor
from agentloom_worker.runtime.payload import make_payload
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.result import StepResult, hash_command
from agentloom_worker.runtime.slice import Slice, adapter_of, load_body


def validate_output(ports: Ports, slice_: Slice) -> StepResult:
    """Judge the accepted answer of the current loop, once."""
    operation, node, schema = slice_.operation, slice_.node, slice_.release.output_schema
    if node.phase is not Phase.VALIDATE_OUTPUT or schema is None:
        raise InvariantError(f"node {node.node_id} is in phase {node.phase} and has no output to validate")
    if operation is None or operation.status is not OperationStatus.COMPLETED or operation.raw is None:
        raise InvariantError(f"node {node.node_id} has no completed operation to validate")
    candidate = load_body(ports, slice_, operation.effective or operation.raw)
    verdict = validate(schema, decode_response(candidate))
    if verdict.valid:
        return _final(slice_, operation, candidate)
    return _correct(ports, slice_, operation, verdict, correction_text(verdict, schema))


def _final(slice_: Slice, operation: Operation, candidate: bytes) -> StepResult:
    node = slice_.node
    ended = end_node(node, EndCause.ANSWER, None, None)
    ended = replace(ended, continuation=replace(ended.continuation, answer_operation_id=operation.operation_id))
    key = f"format:{operation.operation_id}:valid"
    return StepResult(
        replace(slice_, node=ended),
        key,
        hash_command(key, sha256(candidate).hex()),
        puts=(Put(node, ended),),
        successors=(settle_successor(ended),),
    )


def _correct(ports: Ports, slice_: Slice, operation: Operation, verdict: OutputValidation, text: str) -> StepResult:
    """Append the feedback and go on with the next loop, where one is left: prepare decides that."""
    node = slice_.node
    body = canonical_bytes(text)
    payload, blobs = make_payload(ports, slice_.run.owner_id, body)
    key = f"format:{operation.operation_id}:feedback"
    record = NewRecord(
        Role.SYSTEM,
        MessageKind.FEEDBACK,
        RawRef.RECORD,
        "feedback",
        sha256(body),
        adapter_of(ports, slice_.release).encode_message(note_message(body)),
        operation_id=operation.operation_id,
        body=payload,
    )
    appended = append_records(slice_.context, slice_.view, [record], ids=ports.ids, cause_key=key)
    again = replace(node, phase=Phase.PREPARE_CONTEXT, revision=node.revision + 1)
    loop_no = node.continuation.loop_no
    return StepResult(
        replace(slice_, context=appended.context, view=appended.view, node=again),
        key,
        hash_command(key, sha256(body).hex()),
        puts=(*appended.puts, Put(slice_.context, appended.context), Put(node, again)),
        blobs=blobs,
        events=(Event("output.rejected", (("loop", loop_no), ("issues", len(verdict.issues)))),),
        successors=(Successor("prepare_context", node.node_id, f"prepare:{node.node_id}:{loop_no + 1}"),),
    )
