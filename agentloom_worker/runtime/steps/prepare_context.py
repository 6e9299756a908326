"""prepare_context: project inputs into the context and make the loop's model operation.

A re-run finds the operation and the cutoff that it made; a fused one asserts that no input arrived since
its slice was read (RULINGS A6).
"""

from agentloom_worker.canonical import canonical_bytes, sha256
from agentloom_worker.context.append import NewRecord, append_records
from agentloom_worker.context.message import prompt_message, user_message
from agentloom_worker.domain.commit import Event, Put, RunMove
from agentloom_worker.domain.context import MessageKind, RawRef, prompt_message_key
from agentloom_worker.domain.dispatch import Successor
from agentloom_worker.domain.model import Role
from agentloom_worker.domain.operation import Operation, OperationKind, OperationStatus
from agentloom_worker.domain.run import EndCause, Phase, RunStatus
from agentloom_worker.errors import Code
from agentloom_worker.frozen import replace
from agentloom_worker.ids import OperationId
from agentloom_worker.runtime.ending import end_node, settle_successor
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.result import StepResult, hash_command
from agentloom_worker.runtime.slice import Slice, adapter_of
from agentloom_worker.runtime.view import add_history

PROMPT_SLOT = "system"


def prepare_context(ports: Ports, slice_: Slice) -> StepResult:
    """The next loop's operation, or the typed end where no loop is left."""
    run, node = slice_.run, slice_.node
    loop_no = node.continuation.loop_no + 1
    key = f"prepare:{node.node_id}:{loop_no}"
    command = hash_command(key)
    started = run.status is RunStatus.QUEUED
    events = (Event("run.started"),) if started else ()
    move = RunMove.START if started else RunMove.FENCE
    if started:
        slice_ = replace(slice_, run=replace(run, status=RunStatus.RUNNING))
    if run.loops_used + run.loops_reserved >= run.max_loops:
        detail = f"all {run.max_loops} loops of the run are used"
        ended = end_node(node, EndCause.QUOTA, Code.LOOP_BUDGET_EXHAUSTED, detail)
        return StepResult(
            replace(slice_, node=ended),
            key,
            command,
            puts=(Put(node, ended),),
            events=events,
            successors=(settle_successor(ended),),
            move=move,
        )
    slice_, puts = _project(ports, slice_)
    operation = Operation(
        operation_id=OperationId(ports.ids.new()),
        run_id=run.run_id,
        node_id=node.node_id,
        kind=OperationKind.MODEL,
        status=OperationStatus.PREPARED,
        revision=1,
        loop_no=loop_no,
        capability=slice_.release.model.key,
    )
    context = replace(
        slice_.context,
        last_model_operation_id=operation.operation_id,
        revision=slice_.context.revision + 1,
    )
    todo = replace(
        node.continuation,
        loop_no=loop_no,
        input_cutoff=run.input_head,
        model_operation_id=operation.operation_id,
        batch_id=None,
    )
    prepared = replace(node, phase=Phase.FREEZE, continuation=todo, revision=node.revision + 1)
    return StepResult(
        replace(
            slice_,
            node=prepared,
            context=context,
            operation=operation,
            attempt=None,
            ticket=None,
            batch=None,
            members=(),
            member_attempts=(),
        ),
        key,
        command,
        puts=(*puts, Put(slice_.context, context), Put(None, operation), Put(node, prepared)),
        events=events,
        successors=(Successor("freeze_request", operation.operation_id, f"freeze:{node.node_id}:{loop_no}"),),
        move=move,
        saw_inputs=True,
    )


def _project(ports: Ports, slice_: Slice) -> tuple[Slice, tuple[Put, ...]]:
    """The prompt, the session's earlier runs and the first inputs; later, inputs that are new to the context."""
    adapter = adapter_of(ports, slice_.release)
    context, view = slice_.context, slice_.view
    puts: list[Put] = []
    if context.record_head == 0:
        prompt = slice_.release.prompt
        record = NewRecord(
            Role.SYSTEM,
            MessageKind.PROMPT,
            RawRef.PROMPT,
            prompt_message_key(PROMPT_SLOT),
            sha256(canonical_bytes(prompt)),
            adapter.encode_message(prompt_message(prompt)),
            release_id=slice_.run.release_id,
            prompt_slot=PROMPT_SLOT,
        )
        cause = f"prompt:{context.context_id}"
        appended = append_records(context, view, [record], ids=ports.ids, cause_key=cause, protected=True)
        puts.extend((*appended.puts, Put(context, appended.context)))
        context = appended.context
        view = add_history(ports, slice_.run, context, slice_.release, appended.view)
    inputs = list(slice_.inputs)
    for position, pending in enumerate(inputs):
        if pending.delivery.context_seq is not None:
            continue
        input_id = pending.delivery.input_id
        record = NewRecord(
            Role.USER,
            MessageKind.USER_REF,
            RawRef.INPUT,
            f"input:{input_id}",
            sha256(pending.body),
            adapter.encode_message(user_message(pending.body)),
            origin_input_id=input_id,
        )
        cause = f"input-project:{context.context_id}:{input_id}"
        appended = append_records(context, view, [record], ids=ports.ids, cause_key=cause, protected=True)
        delivery = replace(
            pending.delivery,
            context_seq=appended.context.record_head,
            revision=pending.delivery.revision + 1,
        )
        puts.extend((*appended.puts, Put(context, appended.context), Put(pending.delivery, delivery)))
        context, view = appended.context, appended.view
        inputs[position] = replace(pending, delivery=delivery)
    return replace(slice_, context=context, view=view, inputs=tuple(inputs)), tuple(puts)
