"""Which rule retries: the class of a failure, on_unknown, or the drain's own count (RULINGS A20, R10, R11, U7)."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloom_worker.domain.model import Category, Executed, Failure
from agentloom_worker.domain.operation import Operation, OperationKind, OperationStatus
from agentloom_worker.domain.policy import Jitter, OnUnknown, OnUnknownAction, RetryClass, RetryPolicy
from agentloom_worker.errors import Code
from agentloom_worker.ids import NodeId, OperationId, RunId
from agentloom_worker.limits import DRAIN_INTERRUPTS_MAX
from agentloom_worker.runtime.retry import RetryAt, retry_drain, retry_failure, retry_unknown


class _Half:
    """Dice that always show one half."""

    def random(self) -> float:
        return 0.5


POLICY = RetryPolicy(4, 1000, 2.0, 60_000, Jitter.NONE, OnUnknown(OnUnknownAction.RETRY, 1))
BUSY = Failure(Code.MODEL_RATE_LIMITED, Category.RATE_LIMIT, "busy", Executed.NOT_EXECUTED, RetryClass.RATE_LIMIT)
DICE = _Half()
HOUR_US = 3_600_000_000


def _operation(attempts: int, *, unknown: int = 0, drains: int = 0) -> Operation:
    return Operation(
        OperationId(UUID(int=1)),
        RunId(UUID(int=2)),
        NodeId(UUID(int=3)),
        OperationKind.MODEL,
        OperationStatus.ATTEMPTING,
        1,
        1,
        "main",
        attempts_made=attempts,
        unknown_attempts=unknown,
        drain_interrupts=drains,
    )


@pytest.mark.parametrize(("attempts", "delay_ms"), [(1, 1000), (2, 2000), (3, 4000), (4, None), (5, None)])
def test_A20_max_attempts_counts_every_attempt(attempts: int, delay_ms: int | None) -> None:
    expected = RetryAt(1000 * delay_ms) if delay_ms else None
    assert retry_failure(POLICY, _operation(attempts), BUSY, DICE, HOUR_US) == expected


def test_a_failure_without_a_class_is_never_retried() -> None:
    plain = replace(BUSY, retry_class=None)
    assert retry_failure(POLICY, _operation(1), plain, DICE, HOUR_US) is None


def test_U7_a_retry_after_beyond_the_deadline_fails_at_once() -> None:
    late = replace(BUSY, retry_after_ms=10_000)
    assert retry_failure(POLICY, _operation(1), late, DICE, 10_000_000) is None
    assert retry_failure(POLICY, _operation(1), late, DICE, 11_000_000) == RetryAt(10_500_000)


@pytest.mark.parametrize(
    ("action", "maximum", "unknown", "again"),
    [
        (OnUnknownAction.RETRY, 1, 0, True),
        (OnUnknownAction.RETRY, 1, 1, False),
        (OnUnknownAction.RETRY, 2, 1, True),
        (OnUnknownAction.RETRY, 0, 0, False),
        (OnUnknownAction.FAIL, 5, 0, False),
    ],
)
def test_R11_only_on_unknown_decides_after_an_unknown_outcome(
    action: OnUnknownAction, maximum: int, unknown: int, *, again: bool
) -> None:
    policy = replace(POLICY, on_unknown=OnUnknown(action, maximum))
    assert (retry_unknown(policy, _operation(unknown + 1, unknown=unknown), DICE) is not None) is again


def test_R11_unknown_attempts_count_towards_max_attempts() -> None:
    policy = replace(POLICY, on_unknown=OnUnknown(OnUnknownAction.RETRY, 99))
    assert retry_unknown(policy, _operation(3, unknown=2), DICE) is not None
    assert retry_unknown(policy, _operation(4, unknown=3), DICE) is None


@given(st.integers(0, DRAIN_INTERRUPTS_MAX), st.integers(1, 4))
def test_R10_attempts_that_a_drain_ended_count_by_themselves(drains: int, others: int) -> None:
    alone, both = _operation(others), _operation(others + drains, drains=drains)
    assert retry_failure(POLICY, both, BUSY, DICE, HOUR_US) == retry_failure(POLICY, alone, BUSY, DICE, HOUR_US)
    assert retry_drain(both) == (RetryAt(0) if drains < DRAIN_INTERRUPTS_MAX else None)
