"""freeze_request: the hard gate, then recipe, hash, input claims, ticket, permit and attempt intent at once."""

from agentloom_worker.context.request import (
    estimate_fixed_tokens,
    estimate_tokens,
    hash_request,
)
from agentloom_worker.domain.commit import Put
from agentloom_worker.domain.dispatch import Successor
from agentloom_worker.domain.operation import Attempt, AttemptState, Operation, OperationStatus
from agentloom_worker.domain.recipe import Recipe
from agentloom_worker.domain.run import EndCause, LoopTicket, Phase, TicketState
from agentloom_worker.domain.session import DeliveryState, PendingInput
from agentloom_worker.errors import Code, InvariantError
from agentloom_worker.frozen import replace
from agentloom_worker.runtime.ending import end_node, settle_successor
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.request import head_of
from agentloom_worker.runtime.result import StepResult, hash_command
from agentloom_worker.runtime.slice import Slice, adapter_of


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
        return _too_large(slice_, operation, key, tokens, estimate_fixed_tokens(*arguments, head.tool_count))
    cutoff = node.continuation.input_cutoff
    claimed = tuple(pending for pending in slice_.inputs if _claims(pending, cutoff))
    recipe = Recipe(
        revision=slice_.context.effective_revision,
        record_head=slice_.context.record_head,
        input_cutoff=cutoff,
        claimed=tuple(pending.delivery.input_id for pending in claimed),
        tokens=tokens,
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


def _claims(pending: PendingInput, cutoff: int) -> bool:
    """What came after the cutoff of the prepare is in no record yet and waits for the next loop (seed 004, 3.2)."""
    return pending.delivery.state is DeliveryState.PENDING and pending.input_seq <= cutoff


def _claim(
    inputs: tuple[PendingInput, ...], operation: Operation, cutoff: int
) -> tuple[tuple[PendingInput, ...], tuple[Put, ...]]:
    """Claim what was prepared for this operation; each delivery by compare-and-set (RULINGS A7)."""
    after: list[PendingInput] = []
    puts: list[Put] = []
    for pending in inputs:
        delivery = pending.delivery
        if _claims(pending, cutoff):
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


def _too_large(slice_: Slice, operation: Operation, key: str, tokens: int, fixed: int) -> StepResult:
    """End the role; nothing is sent and no protected input is dropped (seed 000, 11). Numbers only."""
    budget = slice_.release.budget
    available = budget.input_budget_tokens
    code = Code.CONTEXT_PROTECTED_INPUT_TOO_LARGE if fixed > available else Code.CONTEXT_WINDOW_EXCEEDED
    detail = (
        f"the request is estimated at {tokens} tokens ({fixed} of them fixed), the budget is {available}"
        f" = window {budget.window_tokens} - output reserve {budget.output_reserve_tokens}"
        f" - safety margin {budget.safety_margin_tokens}"
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
