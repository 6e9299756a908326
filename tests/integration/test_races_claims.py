"""Who holds a row: claims, losses, suspicion and takeover, each interleaving forced (RULINGS T7, T8, T10)."""

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from agentloom_worker import telemetry
from agentloom_worker.clock import SystemClock
from agentloom_worker.domain.dispatch import DispatchRow
from agentloom_worker.ids import DispatchId, ProcessId
from agentloom_worker.limits import STEP_FAILURES_MAX
from agentloom_worker.runtime.commit import commit
from agentloom_worker.storage.store import open_store
from tests.ground import GRACE_S, STEPWISE, TTL_S, Ground, dump, stand, step_commit
from tests.locks import Running, holding, together, wait_for_waiters

_HOLD_ROW = "SELECT 1 FROM pending_dispatch WHERE dispatch_id = %s FOR NO KEY UPDATE"
_RENEW = (
    "UPDATE pending_dispatch SET claimed_until = claimed_until + 60000000, suspect_at = NULL WHERE dispatch_id = %s"
)


def _row(ground: Ground, dispatch_id: DispatchId) -> DispatchRow:
    (found,) = [row for row in ground.store.list_dispatches() if row.dispatch_id == dispatch_id]
    return found


def _process(ground: Ground) -> ProcessId:
    return ProcessId(ground.new())


def test_T7_of_many_claimers_of_one_row_one_wins(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    row = ground.row_of("prepare_context")
    with holding(clean_postgres, _HOLD_ROW, row) as lock:
        racers = [Running(ground.try_claim, row, _process(ground)) for _ in range(6)]
        wait_for_waiters(clean_postgres, 6)
        lock.rollback()
        claims = [racer.result() for racer in racers]

    (winner,) = [claim for claim in claims if claim is not None]
    assert winner.attempts == 1
    assert ground.store.load_tokens([row]) == {row: winner.token}


def test_T7_a_claim_that_is_sent_again_with_its_token_does_not_count(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    first = ground.claim("prepare_context")
    again = ground.store.claim(
        first.dispatch_id,
        first.token,
        ground.process_id,
        ttl_us=STEPWISE.claim_ttl_us,
        grace_us=STEPWISE.grace_us,
        solitary=False,
    )
    assert again is not None
    assert (again.attempts, again.first, _row(ground, first.dispatch_id).losses) == (1, True, 0)
    assert ground.try_claim(first.dispatch_id) is None


def test_T7_a_row_that_is_not_due_yet_cannot_be_claimed(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    row = ground.row_of("expire_run")
    assert ground.try_claim(row) is None
    ground.clock.advance_to(_row(ground, row).not_before)
    assert ground.try_claim(row) is not None


def test_T10_a_claim_is_taken_over_only_after_expiry_and_suspicion_and_grace(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    claim = ground.claim("prepare_context")
    row, other = claim.dispatch_id, _process(ground)
    sweep = ground.worker.sweeper.sweep

    ground.clock.advance(TTL_S - 1)
    sweep()
    assert (_row(ground, row).suspect_at, ground.try_claim(row, other)) == (None, None)
    # Expired, but nobody has looked yet: after an outage of any length the holder comes first.
    ground.clock.advance(TTL_S + GRACE_S + 3600)
    assert ground.try_claim(row, other) is None
    sweep()
    assert _row(ground, row).suspect_at is not None
    assert ground.try_claim(row, other) is None
    ground.clock.advance(GRACE_S - 1)
    assert ground.try_claim(row, other) is None
    ground.clock.advance(2)
    taken = ground.try_claim(row, other)
    assert taken is not None
    assert (taken.attempts, taken.first, _row(ground, row).losses) == (2, False, 1)


def test_T10_a_renewal_clears_the_suspicion(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    claim = ground.claim("prepare_context")
    ground.expire()
    assert ground.store.renew([(claim.dispatch_id, claim.token)], STEPWISE.claim_ttl_us) == {claim.dispatch_id}

    assert _row(ground, claim.dispatch_id).suspect_at is None
    assert ground.try_claim(claim.dispatch_id, _process(ground)) is None
    commit(ground.ports, step_commit(ground, claim))


def test_T10_an_expired_claim_that_nobody_superseded_still_commits(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    claim = ground.claim("prepare_context")
    ground.expire()
    assert commit(ground.ports, step_commit(ground, claim)) is not None


def test_T10_nobody_takes_over_a_claim_of_its_own(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    claim = ground.claim("prepare_context")
    ground.expire()
    assert ground.try_claim(claim.dispatch_id, ground.process_id) is None
    assert ground.try_claim(claim.dispatch_id, _process(ground)) is not None


def test_T10_a_claim_from_a_clock_that_was_ahead_counts_as_expired(clean_postgres: str) -> None:
    """The database's clock jumped forward and back: what was claimed meanwhile must not wait for the jump."""
    ground = stand(clean_postgres)
    ahead = 86_400
    held = stand(clean_postgres, clock=type(ground.clock)(ground.clock.wall_us() + ahead * 1_000_000))
    row = held.row_of("prepare_context")
    ground.set_row(row, not_before=0)
    held.claim(row)
    other = _process(ground)

    # A full scan comes once a minute.
    ground.worker.sweeper.sweep()
    ground.clock.advance(GRACE_S + 1)
    taken = ground.try_claim(row, other)
    assert taken is not None
    assert _row(ground, row).losses == 1


class _SkewedClock(SystemClock):
    """A host whose clock is wrong; the database's is right."""

    def __init__(self, skew_s: int) -> None:
        self._skew_us = skew_s * 1_000_000

    def wall_us(self) -> int:
        return super().wall_us() + self._skew_us


@pytest.mark.parametrize("skew_s", [-300, 300])
def test_D22_a_worker_whose_clock_is_wrong_takes_nothing_over_early(clean_postgres: str, skew_s: int) -> None:
    ground = stand(clean_postgres, clock=SystemClock())  # type: ignore[arg-type]
    claim = ground.claim("prepare_context")
    before = _row(ground, claim.dispatch_id)
    skewed = ground.other_worker(clock=_SkewedClock(skew_s))
    for _ in range(3):
        skewed.sweeper.sweep()
        assert skewed.runner.run(claim.dispatch_id) is False
    assert _row(ground, claim.dispatch_id) == before
    assert before.claimed_until is not None
    # What the skewed worker writes is the database's time as well.
    theirs = skewed.ports.store.claim(
        ground.row_of("prepare_context"),
        claim.token,
        ground.process_id,
        ttl_us=STEPWISE.claim_ttl_us,
        grace_us=STEPWISE.grace_us,
        solitary=False,
    )
    assert theirs is not None
    assert abs(theirs.now_us - ground.store.now_us()) < 60_000_000


def test_T8_two_losses_send_a_row_to_the_solitary_process_and_a_third_parks_it(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    row = ground.row_of("prepare_context")
    sweep = ground.worker.sweeper.sweep

    ground.claim(row, _process(ground))
    ground.expire()
    assert ground.claim(row, _process(ground)).attempts == 2
    ground.expire()
    # The second loss. From here on only the solitary process may have it, whoever looks first (U3).
    assert ground.try_claim(row, _process(ground)) is None
    sweep()
    assert (_row(ground, row).queue, _row(ground, row).parked_at) == ("solitary", None)
    assert ground.try_claim(row, _process(ground)) is None
    assert ground.claim(row, _process(ground), solitary=True).attempts == 3
    assert _row(ground, row).losses == 2
    ground.expire()
    assert ground.try_claim(row, _process(ground), solitary=True) is None
    swept = sweep()

    assert swept.parked == 1
    parked = _row(ground, row)
    assert parked.parked_at is not None
    assert "died three times" in str(parked.last_error)
    assert ground.try_claim(row, _process(ground), solitary=True) is None
    assert [event.kind for event in ground.store.list_events(ground.run_id)][-1] == "step.parked"


def test_T8_only_an_expired_claim_is_a_loss(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    row = ground.row_of("prepare_context")
    for _ in range(2 * STEP_FAILURES_MAX):
        claim = ground.claim(row, _process(ground))
        assert claim.attempts == 1
        ground.store.hand_back(claim, delay_us=0, failed=False, failures_max=STEP_FAILURES_MAX, error=None)
    assert (_row(ground, row).losses, _row(ground, row).queue) == (0, "control")


def test_U2_exceptions_before_the_effect_back_off_and_park_at_the_fifth(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    row = ground.row_of("prepare_context")
    parked = []
    for _ in range(STEP_FAILURES_MAX):
        claim = ground.claim(row, _process(ground))
        parked.append(
            ground.store.hand_back(claim, delay_us=1, failed=True, failures_max=STEP_FAILURES_MAX, error="it broke")
        )
        ground.clock.advance(1)
    assert parked == [False, False, False, False, True]
    found = _row(ground, row)
    assert (found.attempts, found.failures, found.losses, found.last_error) == (0, STEP_FAILURES_MAX, 0, "it broke")


def test_U13_a_retry_of_a_parked_row_starts_its_counters_again_and_keeps_the_epoch(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    claim = ground.claim("prepare_context")
    ground.store.park(claim, "why")
    parked = _row(ground, claim.dispatch_id)
    assert ground.store.retry_dispatch(parked, "control")

    found = _row(ground, claim.dispatch_id)
    assert (found.parked_at, found.attempts, found.failures, found.losses) == (None, 0, 0, 0)
    assert ground.claim(claim.dispatch_id).epoch == claim.epoch
    before = _row(ground, claim.dispatch_id)
    assert ground.store.retry_dispatch(parked, "control"), "it was this parking that was retried"
    assert _row(ground, claim.dispatch_id) == before
    assert not ground.store.retry_dispatch(before, "control")


_ENDS: dict[str, str] = {
    "the holder renews": _RENEW,
    "the step completes": "DELETE FROM pending_dispatch WHERE dispatch_id = %s",
}


@pytest.mark.parametrize("end", _ENDS)
def test_D09_what_the_reaper_read_has_changed_when_it_writes(clean_postgres: str, end: str) -> None:
    ground = stand(clean_postgres)
    row = ground.claim("prepare_context").dispatch_id
    ground.expire()
    # The reaper reads …
    assert row in ground.store.list_suspect(("control",), STEPWISE.grace_us, 10)
    # … and meets the lock of the holder, who was only slow.
    with holding(clean_postgres, _ENDS[end], row) as holder:
        reaper = Running(ground.try_claim, row, _process(ground))
        wait_for_waiters(clean_postgres)
        holder.commit()
        assert reaper.result() is None
    found = [held for held in ground.store.list_dispatches() if held.dispatch_id == row]
    assert [(held.attempts, held.losses) for held in found] in ([], [(1, 0)])


def test_D09_a_sweep_passes_by_a_row_that_its_holder_is_just_writing(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    row = ground.claim("prepare_context").dispatch_id
    ground.clock.advance(TTL_S + 1)
    with holding(clean_postgres, _RENEW, row) as holder:
        assert ground.worker.sweeper.sweep().seen == 0
        holder.commit()
    assert _row(ground, row).suspect_at is None


def test_D06_duplicate_wake_ups_end_without_a_trace(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    claimed = ground.claim("prepare_context", _process(ground)).dispatch_id
    gone = DispatchId(ground.new())
    runner, published = ground.worker.runner, ground.worker.published
    before, noted, missed = dump(ground.store), list(published), telemetry.counters().get("claims_missed", 0)

    def repeat() -> list[bool]:
        return [runner.run(row) for _ in range(250) for row in (claimed, gone)]

    outcomes = together([repeat] * 4)
    assert sum(map(len, outcomes)) == 2000
    assert not any(ran for each in outcomes for ran in each)
    assert telemetry.counters()["claims_missed"] == missed + 2000
    assert dump(ground.store) == before
    assert published == noted


def test_T13_an_inline_successor_is_inserted_claimed_so_nobody_gets_between(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    worker = ground.other_worker(settings=replace(STEPWISE, inline_hops=1), solitary=False)
    commit_one = worker.ports.store.commit
    between: list[object] = []

    def look(*arguments: Any) -> Any:
        receipt = commit_one(*arguments)
        if not between:
            row = ground.row_of("freeze_request")
            between.extend((_row(ground, row).claimed_by, ground.try_claim(row, _process(ground))))
        return receipt

    worker.ports.store.commit = look  # type: ignore[method-assign, assignment]
    assert worker.runner.run(ground.row_of("prepare_context"))
    assert between == [worker.runner.process_id, None]


@pytest.mark.parametrize(("hops", "step"), [(0, "freeze_request"), (1, "attempt_model"), (2, "accept_model")])
def test_T13_a_wake_up_carries_a_run_no_further_than_its_hops(clean_postgres: str, hops: int, step: str) -> None:
    ground = stand(clean_postgres)
    worker = ground.other_worker(settings=replace(STEPWISE, inline_hops=hops), solitary=False)
    assert worker.runner.run(ground.row_of("prepare_context"))
    assert _row(ground, ground.row_of(step)).claimed_by is None


def test_D22_processes_with_different_clocks_agree_on_what_is_due(clean_postgres: str) -> None:
    ground = stand(clean_postgres, clock=SystemClock())  # type: ignore[arg-type]
    for skew_s in (-7200, 7200):
        with closing(open_store(clean_postgres, _SkewedClock(skew_s))) as skewed:
            due = skewed.list_due(("control", "maintenance"), 10)
            assert due == [ground.row_of("prepare_context")]
