"""freeze_request: the hard gate, then recipe, hash, input claims, ticket, permit and attempt intent at once."""

from agentloom_worker.context.message import user_message
from agentloom_worker.context.request import Breakdown, break_down, estimate_tokens, hash_request
from agentloom_worker.domain.commit import Put
from agentloom_worker.domain.dispatch import Successor
from agentloom_worker.domain.operation import Attempt, AttemptState, Operation, OperationStatus
from agentloom_worker.domain.recipe import Recipe
from agentloom_worker.domain.run import EndCause, LoopTicket, Phase, TicketState
from agentloom_worker.domain.session import DeliveryState, PendingInput
from agentloom_worker.errors import Code, InvariantError
from agentloom_worker.frozen import replace
from agentloom_worker.limits import HISTORY_BUDGETS
from agentloom_worker.llm.adapter import ModelAdapter
from agentloom_worker.runtime.ending import end_node, settle_successor
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.request import head_of
from agentloom_worker.runtime.result import StepResult, hash_command
from agentloom_worker.runtime.slice import Slice, adapter_of
from agentloom_worker.runtime.view import history_of


def freeze_request(ports: Ports, slice_: Slice) -> StepResult:
    """A frozen request with its permit, or the typed end where it does not fit (seed 000, 7: I <= B)."""
    operation, node = slice_.operation, slice_.node
    if operation is None:
        raise InvariantError(f"node {node.node_id} has no operation to freeze")
    key = f"model-freeze:{operation.operation_id}"
    adapter = adapter_of(ports, slice_.release)
    head = head_of(ports, slice_.run, slice_.release)
    arguments = (adapter, head.parameters, head.tools, slice_.view)
    tokens = estimate_tokens(*arguments, head.tool_count)
    if tokens > slice_.release.budget.input_budget_tokens:
        return _too_large(slice_, operation, key, break_down(*arguments, head.tool_count))
    _check_protected(adapter, slice_)
    cutoff = node.continuation.input_cutoff
    claimed = tuple(pending for pending in slice_.inputs if _is_due(pending, cutoff))
    recipe = Recipe(
        revision=slice_.context.effective_revision,
        record_head=slice_.context.record_head,
        input_cutoff=cutoff,
        claimed=tuple(pending.delivery.input_id for pending in claimed),
        tokens=tokens,
        history=history_of(slice_.run),
    )
    frozen = replace(
        operation,
        status=OperationStatus.ATTEMPTING,
        attempts_made=1,
        request=recipe.to_bytes(),
        request_hash=hash_request(*arguments),
        revision=operation.revision + 1,
    )
    attempt = Attempt(operation.operation_id, 1, AttemptState.INTENT, slice_.run.epoch)
    ticket = LoopTicket(slice_.run.run_id, operation.loop_no, operation.operation_id, TicketState.RESERVED)
    waiting = replace(node, phase=Phase.AWAIT_MODEL, revision=node.revision + 1)
    inputs, claims = _claim(slice_.inputs, operation, cutoff)
    run = replace(slice_.run, loops_reserved=slice_.run.loops_reserved + 1)
    return StepResult(
        replace(
            slice_,
            run=run,
            node=waiting,
            operation=frozen,
            attempt=attempt,
            ticket=ticket,
            inputs=inputs,
        ),
        key,
        hash_command(key, frozen.request_hash.hex() if frozen.request_hash else ""),
        puts=(Put(operation, frozen), Put(None, attempt), Put(None, ticket), Put(node, waiting), *claims),
        successors=(Successor("attempt_model", operation.operation_id, "attempt:1"),),
        reserved=1,
    )


def _is_due(pending: PendingInput, cutoff: int) -> bool:
    """Whether this request claims an input: one that came after the prepare waits for the next loop (seed 000, 5)."""
    return pending.delivery.state is DeliveryState.PENDING and pending.input_seq <= cutoff


def _claim(
    inputs: tuple[PendingInput, ...], operation: Operation, cutoff: int
) -> tuple[tuple[PendingInput, ...], tuple[Put, ...]]:
    """Claim what is pending for this operation; each delivery by compare-and-set (RULINGS A7)."""
    after: list[PendingInput] = []
    puts: list[Put] = []
    for pending in inputs:
        delivery = pending.delivery
        if _is_due(pending, cutoff):
            claimed = replace(
                delivery,
                state=DeliveryState.CLAIMED,
                operation_id=operation.operation_id,
                revision=delivery.revision + 1,
            )
            puts.append(Put(delivery, claimed))
            after.append(replace(pending, delivery=claimed))
        else:
            after.append(pending)
    return tuple(after), tuple(puts)


def _check_protected(adapter: ModelAdapter, slice_: Slice) -> None:
    """What is about to be claimed stands in the request, word for word (seed 000, 5). Costs what is new only."""
    for pending in slice_.inputs:
        if not _is_due(pending, slice_.node.continuation.input_cutoff):
            continue
        seq = pending.delivery.context_seq
        if seq is None or slice_.view.record(seq) != adapter.encode_message(user_message(pending.body)):
            raise InvariantError(f"input {pending.delivery.input_id} does not stand in the request that claims it")


def _too_large(slice_: Slice, operation: Operation, key: str, size: Breakdown) -> StepResult:
    """End the role; nothing is sent and no protected input is dropped (seed 000, 11). Numbers and sources only."""
    budget = slice_.release.budget
    available = budget.input_budget_tokens
    code = Code.CONTEXT_PROTECTED_INPUT_TOO_LARGE if size.fixed > available else Code.CONTEXT_WINDOW_EXCEEDED
    # A history that is far too large is not read to its end.
    more = " or more" if size.total > HISTORY_BUDGETS * available else ""
    detail = (
        f"the request is estimated at {size.total} tokens{more} ({size.fixed} of them fixed): system prompt"
        f" {size.system_prompt} + tools {size.tools} + protected inputs {size.protected_inputs} + history"
        f" {size.history} ({history_of(slice_.run)} earlier runs) + own records {size.own_records} + envelope"
        f" {size.envelope}; the budget is {available} = window {budget.window_tokens} - output reserve"
        f" {budget.output_reserve_tokens} - safety margin {budget.safety_margin_tokens}"
    )
    closed = replace(operation, status=OperationStatus.CANCELLED, code=code, revision=operation.revision + 1)
    ended = end_node(slice_.node, EndCause.FAILURE, code, detail)
    return StepResult(
        replace(slice_, operation=closed, node=ended),
        key,
        hash_command(key, code),
        puts=(Put(operation, closed), Put(slice_.node, ended)),
        successors=(settle_successor(ended),),
    )
