"""Which rule retries, and when (RULINGS A20, R10, R11, U7). Pure but for the dice."""

from dataclasses import dataclass

from agentloom_worker.domain.model import Failure
from agentloom_worker.domain.operation import Operation
from agentloom_worker.domain.policy import OnUnknownAction, RetryPolicy, backoff_ms
from agentloom_worker.limits import DRAIN_INTERRUPTS_MAX
from agentloom_worker.runtime.ports import Chance


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Another attempt, after a delay."""

    delay_us: int


def retry_failure(
    policy: RetryPolicy, operation: Operation, failure: Failure, chance: Chance, remaining_us: int
) -> RetryAt | None:
    """After an error that a living process classified: its class decides.

    A `Retry-After` beyond the run's deadline fails at once (U7).
    """
    counted = operation.attempts_made - operation.drain_interrupts
    if failure.retry_class is None or counted >= policy.max_attempts:
        return None
    delay_us = 1000 * backoff_ms(policy, counted, chance.random(), failure.retry_after_ms)
    return RetryAt(delay_us) if delay_us < remaining_us else None


def retry_unknown(policy: RetryPolicy, operation: Operation, chance: Chance) -> RetryAt | None:
    """After an attempt that may have been sent and has no outcome: only `on_unknown` decides."""
    rule = policy.on_unknown
    counted = operation.attempts_made - operation.drain_interrupts
    if rule.action is OnUnknownAction.FAIL or operation.unknown_attempts >= rule.maximum:
        return None
    if counted >= policy.max_attempts:
        return None
    return RetryAt(1000 * backoff_ms(policy, counted, chance.random(), None))


def retry_drain(operation: Operation) -> RetryAt | None:
    """After a model attempt that a drain ended: at once, counted by itself (R10)."""
    return RetryAt(0) if operation.drain_interrupts < DRAIN_INTERRUPTS_MAX else None
