"""How long to wait before the next attempt (RULINGS U6, U7)."""

from hypothesis import given
from hypothesis import strategies as st

from agentloom_worker.domain.policy import Jitter, OnUnknown, OnUnknownAction, RetryPolicy, backoff_ms

NO_RETRY = OnUnknown(OnUnknownAction.FAIL, 0)
CHANCES = st.floats(0, 1, exclude_max=True)
POLICIES = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 20),
    initial_ms=st.integers(1, 10_000),
    multiplier=st.floats(1, 10),
    max_ms=st.integers(1, 600_000),
    jitter=st.sampled_from(Jitter),
    on_unknown=st.just(NO_RETRY),
)


@given(POLICIES, st.integers(1, 10_000), CHANCES)
def test_a_delay_is_never_longer_than_the_cap_and_never_negative(
    policy: RetryPolicy, attempt: int, chance: float
) -> None:
    assert 0 <= backoff_ms(policy, attempt, chance, None) <= policy.max_ms


@given(POLICIES, st.integers(1, 100))
def test_without_jitter_delays_never_shrink(policy: RetryPolicy, attempt: int) -> None:
    plain = RetryPolicy(policy.max_attempts, policy.initial_ms, policy.multiplier, policy.max_ms, Jitter.NONE, NO_RETRY)
    assert backoff_ms(plain, attempt, 0.5, None) <= backoff_ms(plain, attempt + 1, 0.5, None)


@given(POLICIES, st.integers(1, 100), CHANCES, st.integers(0, 10**9))
def test_a_retry_after_is_kept_and_spread_by_at_most_the_initial_delay(
    policy: RetryPolicy, attempt: int, chance: float, retry_after_ms: int
) -> None:
    delay = backoff_ms(policy, attempt, chance, retry_after_ms)
    assert retry_after_ms <= delay <= retry_after_ms + policy.initial_ms


def test_the_default_policy_doubles_from_a_second_up_to_a_minute() -> None:
    policy = RetryPolicy(4, 1000, 2.0, 60_000, Jitter.NONE, NO_RETRY)
    assert [backoff_ms(policy, number, 0.0, None) for number in range(1, 9)] == [
        1000,
        2000,
        4000,
        8000,
        16_000,
        32_000,
        60_000,
        60_000,
    ]


def test_full_jitter_spreads_over_the_whole_delay() -> None:
    policy = RetryPolicy(4, 1000, 2.0, 60_000, Jitter.FULL, NO_RETRY)
    assert [backoff_ms(policy, 2, chance, None) for chance in (0.0, 0.25, 0.5, 0.999)] == [0, 500, 1000, 1998]
