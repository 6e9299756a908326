"""Results of fused steps become one commit: one put a row, parents first, the strongest move (RUNTIME 6)."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloom_worker.domain.commit import Part, Put, RunMove
from agentloom_worker.domain.operation import Attempt, AttemptState, Operation, OperationKind, OperationStatus
from agentloom_worker.domain.run import Continuation, EndCause, NodeTask, Phase, RunStatus
from agentloom_worker.domain.session import DeliveryState, UserInputDelivery
from agentloom_worker.ids import DeliveryId, InputId, InvocationId, NodeId, OperationId, RunId, SessionId
from agentloom_worker.runtime.result import (
    RunEnd,
    StepResult,
    hash_command,
    locks_session,
    merge_fence,
    merge_parts,
    merge_puts,
)
from agentloom_worker.storage.commit import command_hash

RUN = RunId(UUID(int=1))
NODE = NodeTask(NodeId(UUID(int=2)), RUN, InvocationId(UUID(int=3)), "assistant", Phase.FREEZE, Continuation(), 1)
DELIVERY = UserInputDelivery(
    DeliveryId(UUID(int=4)), InputId(UUID(int=5)), SessionId(UUID(int=6)), RUN, DeliveryState.PENDING, 1
)


def _operation(number: int, revision: int) -> Operation:
    return Operation(
        OperationId(UUID(int=100 + number)),
        RUN,
        NODE.node_id,
        OperationKind.TOOL,
        OperationStatus.ATTEMPTING,
        revision,
        1,
        "echo",
    )


def _result(*puts: Put, **values: Any) -> StepResult:
    # The slice is of no interest to any of these functions.
    return StepResult(None, values.pop("key", "k"), values.pop("command", b"c"), puts=puts, **values)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12), st.lists(st.integers(0, 3), max_size=4))
def test_however_steps_are_cut_the_merged_puts_lead_from_the_first_state_to_the_last(
    moves: list[tuple[int, bool]], existing: list[int]
) -> None:
    """Each move takes one row on; cutting the moves into steps changes nothing."""
    state: dict[int, Operation | None] = {
        number: _operation(number, 7) if number in existing else None for number in range(4)
    }
    first = dict(state)
    steps: list[list[Put]] = [[]]
    for number, cut in moves:
        before = state[number]
        after = _operation(number, before.revision + 1 if before else 1)
        steps[-1].append(Put(before, after))
        state[number] = after
        if cut:
            steps.append([])
    merged = merge_puts([_result(*puts) for puts in steps])
    touched = {number for number, _ in moves}
    assert {put.after.operation_id: put for put in merged if isinstance(put.after, Operation)} == {
        OperationId(UUID(int=100 + number)): Put(first[number], state[number]) for number in touched
    }
    assert len(merged) == len(touched)


def test_parents_come_before_children_whatever_the_order_of_the_steps() -> None:
    attempt = Attempt(OperationId(UUID(int=100)), 1, AttemptState.INTENT, 1)
    merged = merge_puts([_result(Put(None, attempt)), _result(Put(None, _operation(0, 1)), Put(None, NODE))])
    assert [type(put.after) for put in merged] == [NodeTask, Operation, Attempt]


def test_rows_that_are_only_appended_are_never_merged() -> None:
    two = [_result(Put(None, replace(DELIVERY, delivery_id=DeliveryId(UUID(int=number))))) for number in (1, 2)]
    assert len(merge_puts(two)) == 2


MOVES = [RunMove.FENCE, RunMove.START, RunMove.STOP, RunMove.END]


@given(st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 2), st.integers(-2, 2)), min_size=1, max_size=5))
def test_the_fence_takes_the_strongest_move_and_the_sum_of_the_counters(parts: list[tuple[RunMove, int, int]]) -> None:
    results = [_result(move=move, consumed=consumed, reserved=reserved) for move, consumed, reserved in parts]
    fence = merge_fence(RUN, results, 3)
    assert fence.move is max((move for move, _, _ in parts), key=MOVES.index)
    assert (fence.consumed, fence.reserved) == (sum(part[1] for part in parts), sum(part[2] for part in parts))
    assert fence.started is any(move is RunMove.START for move, _, _ in parts)
    assert fence.input_head is None


def test_the_last_end_counts_and_what_one_part_saw_is_asserted_for_all() -> None:
    end = RunEnd(RunStatus.FAILED, EndCause.FAILURE, "CODE", "why", None)
    fence = merge_fence(RUN, [_result(saw_inputs=True), _result(move=RunMove.END, end=end)], 9)
    assert (fence.status, fence.cause, fence.code, fence.detail, fence.input_head) == (
        RunStatus.FAILED,
        EndCause.FAILURE,
        "CODE",
        "why",
        9,
    )


@pytest.mark.parametrize(
    ("result", "locks"),
    [
        (_result(Put(None, NODE)), False),
        (_result(Put(None, DELIVERY)), True),
        (_result(move=RunMove.END), True),
        (_result(move=RunMove.STOP), False),
    ],
)
def test_T2_the_write_set_says_whether_the_session_is_locked(result: StepResult, *, locks: bool) -> None:
    assert locks_session([_result(), result]) is locks


def test_A24_fused_or_alone_a_part_keeps_its_key_and_hash() -> None:
    results = [_result(key="raw:x", command=b"1"), _result(key="accept:x", command=b"2")]
    parts = merge_parts(results)
    assert parts == (Part("raw:x", b"1"), Part("accept:x", b"2"))
    assert command_hash(parts[:1]) == b"1"
    assert command_hash(parts) != command_hash(parts[::-1])


@given(st.lists(st.text(st.characters(codec=None, categories=None), max_size=5), max_size=3))
def test_A24_a_command_hash_takes_any_words_and_tells_them_apart(words: list[str]) -> None:
    assert len(hash_command(*words)) == 16
    assert hash_command(*words) == hash_command(*words)
    assert hash_command(*words, "x") != hash_command(*words, "y")
