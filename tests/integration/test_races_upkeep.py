"""The keeper and the sweep beside working steps: neither waits, neither is stopped by one bad row (T9, T11, T12)."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from agentloom_worker import limits, telemetry
from agentloom_worker.cancellation import CancelReason
from agentloom_worker.clock import SystemClock
from agentloom_worker.domain.commit import OutboxRow
from agentloom_worker.domain.dispatch import Claim, DispatchRow, Successor, WakeUp
from agentloom_worker.domain.run import Phase, RunStatus
from agentloom_worker.errors import LeaseLostError, PersistenceUnavailableError
from agentloom_worker.ids import DispatchId, ProcessId
from agentloom_worker.limits import DEADLINE_GRACE_S, STEP_FAILURES_MAX, WAKE_AFTER_S, WAKE_BACKOFF_MAX_S
from agentloom_worker.llm.adapters.scripted import StallTurn
from agentloom_worker.runtime.accept import stop_run
from agentloom_worker.runtime.commit import commit
from agentloom_worker.runtime.lease import Keeper
from agentloom_worker.runtime.ports import Settings
from tests.ground import GRACE_S, STEPWISE, TTL_S, Ground, dump, stand, step_commit
from tests.locks import Running, holding, lockable, together, wait_until, waiters

_HOLD_ROW = "SELECT 1 FROM pending_dispatch WHERE dispatch_id = %s FOR NO KEY UPDATE"
_OTHER_TOKEN = "UPDATE pending_dispatch SET claim_token = gen_random_uuid() WHERE dispatch_id = %s"
_DELETE = "DELETE FROM pending_dispatch WHERE dispatch_id = %s"
SWEEPERS = 16


def _row(ground: Ground, dispatch_id: UUID) -> DispatchRow:
    (found,) = [row for row in ground.store.list_dispatches(limit=5000) if row.dispatch_id == dispatch_id]
    return found


def _more_rows(ground: Ground, count: int) -> list[DispatchId]:
    """Rows of one run, all of them due."""
    rows = tuple(
        OutboxRow(DispatchId(ground.new()), Successor("prepare_context", ground.new(), f"n:{number}"), "control", 1, 0)
        for number in range(count)
    )
    commit(ground.ports, step_commit(ground, None, outbox=rows))
    return [row.dispatch_id for row in rows]


def _held(ground: Ground, keeper: Keeper, step: str = "prepare_context") -> tuple[Claim, Any]:
    claim = ground.claim(step)
    return claim, keeper.hold(claim, ground.clock.monotonic_s())


def test_T9_the_keeper_renews_its_own_claims_and_no_others(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    ours, theirs, free = _more_rows(ground, 3)
    keeper = ground.worker.keeper
    keeper.hold(ground.claim(ours), 0.0)
    ground.claim(theirs, ProcessId(ground.new()))
    before = {row: _row(ground, row).claimed_until for row in (ours, theirs, free)}
    ground.clock.advance(5)
    keeper.renew()

    after = {row: _row(ground, row).claimed_until for row in (ours, theirs, free)}
    # Looking at the manual clock moves it by a microsecond.
    assert (after[ours] or 0) - (before[ours] or 0) in range(5_000_000, 5_000_100)
    assert (after[theirs], after[free]) == (before[theirs], None)


def test_T9_the_keeper_never_waits_and_a_locked_row_is_unknown_not_lost(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    locked, open_ = _more_rows(ground, 2)
    keeper = ground.worker.keeper
    lives = {row: keeper.hold(ground.claim(row), 0.0) for row in (locked, open_)}
    before = _row(ground, locked).claimed_until
    ground.clock.advance(5)
    with holding(clean_postgres, _HOLD_ROW, locked):
        Running(keeper.renew).result()
        assert waiters(clean_postgres) == []
    assert _row(ground, locked).claimed_until == before
    assert (_row(ground, open_).claimed_until or 0) > (before or 0)
    assert not any(live.cancellation.cancelled for live in lives.values())
    assert (lives[locked].renewed_sent_s, lives[open_].renewed_sent_s) == (0.0, ground.clock.monotonic_s())

    keeper.renew()
    assert (_row(ground, locked).claimed_until or 0) > (before or 0)


@pytest.mark.parametrize("how", ["another token", "no row"])
def test_T9_a_claim_that_another_has_cancels_its_step(clean_postgres: str, how: str) -> None:
    ground = stand(clean_postgres)
    lost, kept = _more_rows(ground, 2)
    keeper = ground.worker.keeper
    lives = {row: keeper.hold(ground.claim(row), 0.0) for row in (lost, kept)}
    with holding(clean_postgres, "SELECT 1") as other:
        other.run(
            _OTHER_TOKEN if how == "another token" else "DELETE FROM pending_dispatch WHERE dispatch_id = %s", lost
        )
        # Not committed: nobody knows yet, and nothing is cancelled on a guess.
        keeper.renew()
        assert not lives[lost].cancellation.cancelled
        other.commit()
    keeper.renew()
    assert lives[lost].cancellation.reason is CancelReason.SUPERSEDED
    assert not lives[kept].cancellation.cancelled
    with pytest.raises(LeaseLostError):
        lives[lost].begin_effect()


def test_T9_a_claim_that_its_step_dropped_is_not_looked_for(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    keeper = ground.worker.keeper
    claim, live = _held(ground, keeper)
    commit(ground.ports, step_commit(ground, claim))
    keeper.drop(live)
    before = telemetry.counters().get("claims_superseded", 0)
    keeper.renew()
    assert not live.cancellation.cancelled
    assert telemetry.counters().get("claims_superseded", 0) == before


def test_T9_a_step_that_outlives_its_own_deadline_is_renewed_no_longer(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    keeper = ground.worker.keeper
    claim, live = _held(ground, keeper)
    live.deadline_us = live.now_us() + 1_000_000
    ground.clock.advance(DEADLINE_GRACE_S)
    keeper.renew()
    renewed = _row(ground, claim.dispatch_id).claimed_until
    ground.clock.advance(2)
    keeper.renew()
    assert _row(ground, claim.dispatch_id).claimed_until == renewed


def test_R9_without_a_renewal_in_time_no_effect_begins_and_a_renewal_gives_the_right_back(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    keeper = ground.worker.keeper
    _, live = _held(ground, keeper)
    ground.clock.advance(TTL_S + 1)
    with pytest.raises(LeaseLostError):
        live.begin_effect()
    keeper.renew()
    live.begin_effect()


def test_T9_a_stop_ends_a_silent_stream_within_a_poll_of_the_control_thread(clean_postgres: str) -> None:
    """Real time and the keeper's own thread; the stop comes from another process."""
    script = {"main": lambda _request: StallTurn("")}
    ground = stand(clean_postgres, script=script["main"], until=Phase.AWAIT_MODEL, clock=None)
    settings = Settings(fusion=False, inline_hops=0, control_poll_s=0.02)
    live = ground.other_worker(clock=SystemClock(), scripts=script, settings=settings)
    row = ground.row_of("attempt_model")
    ground.set_row(row, not_before=0)
    ground.set_run(deadline_at=live.ports.store.now_us() + 3_600_000_000)
    live.keeper.start()
    running = Running(live.runner.run, row)
    wait_until(lambda: any(held.effect_began for held in live.keeper.held()), "the model is being asked")
    assert stop_run(ground.ports, ground.run_id).applied
    assert running.result()
    live.keeper.stop()
    assert live.keeper.held() == []
    ground.worker.drive()
    assert ground.slice().run.status is RunStatus.CANCELLED


def test_T11_the_sweep_publishes_after_its_transaction(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    row = ground.row_of("prepare_context")
    seen: list[tuple[bool, int]] = []

    def publish(due: list[WakeUp]) -> None:
        assert [each.dispatch_id for each in due] == [row]
        seen.append((lockable(clean_postgres, _HOLD_ROW + " NOWAIT", row), _row(ground, row).wakes))

    object.__setattr__(ground.ports, "publish", publish)
    ground.clock.advance(WAKE_AFTER_S + 1)
    ground.worker.sweeper.sweep()
    assert seen == [(True, 1)]


def test_T11_a_row_is_published_again_after_15_30_60_up_to_300_seconds(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    row = ground.row_of("prepare_context")
    waits = []
    for _ in range(8):
        wake_at = _row(ground, row).wake_at
        ground.clock.advance_to(wake_at)
        assert ground.worker.sweeper.sweep().published == 1
        waits.append((_row(ground, row).wake_at - wake_at) / 1_000_000)
    assert waits == [15, 30, 60, 120, 240, WAKE_BACKOFF_MAX_S, WAKE_BACKOFF_MAX_S, WAKE_BACKOFF_MAX_S]
    # A claim starts it again.
    ground.store.hand_back(ground.claim(row), delay_us=0, failed=False, failures_max=1, error=None)
    assert _row(ground, row).wakes == 0


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Batches of ten, at most three a sweep."""
    monkeypatch.setattr(limits, "SWEEP_BATCH", 10)
    monkeypatch.setattr(limits, "SWEEP_BATCHES_MAX", 3)
    yield


def _publish_into(ground: Ground, batches: list[list[UUID]]) -> None:
    object.__setattr__(ground.ports, "publish", lambda due: batches.append([each.dispatch_id for each in due]))


@pytest.mark.usefixtures("small_batches")
def test_T11_a_sweep_goes_on_in_batches_until_nothing_is_due(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    rows = {ground.row_of("prepare_context"), *_more_rows(ground, 24)}
    batches: list[list[UUID]] = []
    _publish_into(ground, batches)
    ground.clock.advance(WAKE_AFTER_S + 1)
    swept = ground.worker.sweeper.sweep()

    assert [len(batch) for batch in batches] == [10, 10, 5]
    assert {row for batch in batches for row in batch} == rows
    assert (swept.seen, swept.published) == (25, 25)


@pytest.mark.usefixtures("small_batches")
def test_T12_what_a_bounded_sweep_leaves_over_is_the_next_ones(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    rows = {ground.row_of("prepare_context"), *_more_rows(ground, 44)}
    batches: list[list[UUID]] = []
    _publish_into(ground, batches)
    ground.clock.advance(WAKE_AFTER_S + 14)
    assert ground.worker.sweeper.sweep().seen == 30
    ground.clock.advance(2)
    assert ground.worker.sweeper.sweep().seen == 15
    assert {row for batch in batches for row in batch} == rows


def test_T12_a_full_scan_a_minute_finds_what_lies_below(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    row = ground.row_of("prepare_context")
    ground.worker.sweeper.sweep()
    ground.clock.advance(WAKE_AFTER_S + 20)
    # As a transaction leaves it that took long to commit.
    ground.set_row(row, wake_at=ground.clock.wall_us() - 30_000_000)
    ground.worker.sweeper.sweep()
    ground.set_row(row, wake_at=ground.clock.wall_us() - 30_000_000)
    assert ground.worker.sweeper.sweep().seen == 0
    ground.clock.advance(60)
    assert ground.worker.sweeper.sweep().seen == 1


def test_D12_sixteen_sweepers_of_a_thousand_dead_claims_make_one_claim_each(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    rows = _more_rows(ground, 1000)
    with holding(clean_postgres, "SELECT 1") as session:
        session.run(
            "UPDATE pending_dispatch SET claim_token = gen_random_uuid(), claimed_by = gen_random_uuid(), attempts = 1,"
            " claimed_until = created_at, wake_at = created_at WHERE step = 'prepare_context' AND key LIKE 'n:%%'"
        )
        session.commit()
    workers = [ground.other_worker() for _ in range(SWEEPERS)]
    suspected = together([worker.sweeper.sweep for worker in workers])
    assert sum(swept.seen for swept in suspected) == len(rows)
    assert sum(swept.published for swept in suspected) == 0
    ground.clock.advance(GRACE_S + 1)
    together([worker.sweeper.sweep for worker in workers])
    published = [[row.dispatch_id for row in worker.published] for worker in workers]
    found = [row for batch in published for row in batch if row in set(rows)]
    assert sorted(found) == sorted(rows), "each dead row is published by one sweeper"

    # Two processes reach for every row: the one that published it, and its neighbour.
    def claim_all(position: int) -> Callable[[], int]:
        process_id = workers[position].runner.process_id
        wanted = [row for batch in (published[position], published[position - 1]) for row in batch if row in set(rows)]
        return lambda: sum(ground.try_claim(row, process_id) is not None for row in wanted)

    won = together([claim_all(position) for position in range(SWEEPERS)])
    assert sum(won) == len(rows)
    after = [row for row in ground.store.list_dispatches(limit=5000) if row.dispatch_id in set(rows)]
    assert {(row.attempts, row.losses) for row in after} == {(2, 1)}


MALFORMED: dict[str, dict[str, object]] = {
    "unknown step": {"step": "from_the_future"},
    "unknown version": {"step_version": 99},
    "missing run": {"run_id": UUID(int=7), "scope_id": UUID(int=7)},
    "no run": {"run_id": None},
    "unknown queue": {"queue": "nowhere"},
    "claim without an end": {"claim_token": UUID(int=8), "claimed_by": UUID(int=9), "attempts": 1},
}


def test_D24_malformed_rows_stop_nobody_and_are_parked_or_handed_back(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    healthy = ground.row_of("prepare_context")
    bad = dict(zip(MALFORMED, _more_rows(ground, len(MALFORMED)), strict=True))
    for name, row in bad.items():
        ground.set_row(row, **MALFORMED[name])
    ground.clock.advance(WAKE_AFTER_S + 1)
    assert ground.worker.sweeper.sweep().seen >= len(bad)
    published = [row.dispatch_id for row in ground.worker.published]
    assert healthy in published
    for row in published:
        ground.worker.runner.run(row)

    assert ground.slice().node.phase is Phase.FREEZE
    for name in ("unknown step", "unknown version"):
        found = _row(ground, bad[name])
        assert (found.claimed_by, found.attempts, found.parked_at) == (None, 0, None), name
        assert str(found.last_error).startswith("unknown step"), name
        assert found.not_before > ground.clock.wall_us(), name
    for name in ("missing run", "no run"):
        found = _row(ground, bad[name])
        assert (found.claimed_by, found.parked_at is not None) == (None, True), name
    assert _row(ground, bad["claim without an end"]).parked_at is None


def test_D24_a_row_of_a_run_that_is_over_backs_off_and_is_parked(clean_postgres: str) -> None:
    """Handed back at once it would come back at once, and keep a slot busy for ever."""
    ground = stand(clean_postgres)
    row = ground.row_of("prepare_context")
    ground.set_run(status="succeeded", end_cause="answer")
    for turn in range(STEP_FAILURES_MAX):
        assert ground.worker.runner.run(row)
        assert not ground.worker.runner.run(row)
        assert (_row(ground, row).failures, _row(ground, row).attempts) == (turn + 1, 0)
        ground.clock.advance_to(_row(ground, row).not_before)
    assert _row(ground, row).parked_at is not None


def test_T11_the_event_of_one_run_does_not_stop_a_sweep(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    parks, healthy = _more_rows(ground, 2)
    ground.set_row(parks, queue="solitary", losses=2, claim_token=UUID(int=8), claimed_by=UUID(int=9))
    ground.set_row(parks, claimed_until=1, suspect_at=1, wake_at=1)
    ground.clock.advance(WAKE_AFTER_S + 1)

    def away(*_arguments: object) -> None:
        raise PersistenceUnavailableError("away")

    ground.store.note_event = away  # type: ignore[method-assign, assignment]
    swept = ground.worker.sweeper.sweep()
    assert swept.parked == 1
    assert healthy in [row.dispatch_id for row in ground.worker.published]


def _fail_once(target: object, name: str, *, after: bool) -> None:
    real: Callable[..., Any] = getattr(target, name)
    left = [1]

    def failing(*arguments: Any, **options: Any) -> Any:
        if not left[0]:
            return real(*arguments, **options)
        left[0] -= 1
        if after:
            real(*arguments, **options)
        raise PersistenceUnavailableError("away")

    setattr(target, name, failing)


@pytest.mark.parametrize(
    ("call", "after", "step", "attempts"),
    [
        ("claim", True, "prepare_context", 1),
        ("claim", False, "prepare_context", 1),
        ("load_slice", False, "prepare_context", 1),
        ("load_slice", False, "attempt_model", 1),
        ("commit", False, "prepare_context", 1),
        ("commit", True, "prepare_context", 1),
        # The receipt of the first output: its loss ends the stream, and the attempt is unknown (RULINGS R2).
        ("commit", False, "attempt_model", 2),
        ("commit", True, "attempt_model", 2),
    ],
)
def test_T10_a_process_that_is_alone_goes_on_by_itself_after_the_store_was_away(
    clean_postgres: str, call: str, step: str, attempts: int, *, after: bool
) -> None:
    """Nobody takes over a claim of its own, so whoever had to leave one must give it up."""
    ground = stand(clean_postgres)
    ground.worker.drive(until=lambda: any(row.step == step for row in ground.store.list_dispatches()))
    row = ground.row_of(step)
    _fail_once(ground.store, call, after=after)
    ground.worker.runner.run(row)
    ground.worker.keeper.release()

    # No time passes: nothing waits for an expiry, and nothing counts as a loss.
    ground.worker.drive(until=lambda: ground.slice().run.status.terminal, rounds=40)
    assert ground.slice().run.status is RunStatus.SUCCEEDED
    started = ground.slice().run
    assert started.ended_at is not None
    assert started.ended_at - started.created_at < TTL_S * 1_000_000
    model = [operation for operation in ground.store.list_operations(ground.run_id) if operation.kind == "model"]
    assert [operation.attempts_made for operation in model] == [attempts, 1]


@pytest.mark.parametrize("step", ["prepare_context", "accept_model"])
@pytest.mark.parametrize("fusion", [False, True])
def test_T13_an_inline_row_of_a_commit_whose_answer_never_came_is_given_up(
    clean_postgres: str, step: str, *, fusion: bool
) -> None:
    """The commit was applied and claimed its successor for this process, which never came to hold it."""
    ground = stand(clean_postgres)
    ground.worker.drive(until=lambda: any(row.step == step for row in ground.store.list_dispatches()))
    row = ground.row_of(step)
    inline = ground.other_worker(settings=Settings(fusion=fusion), solitary=False)
    _fail_once(inline.ports.store, "commit", after=True)
    inline.runner.run(row)
    held = [left.claimed_by for left in ground.store.list_dispatches(run_id=ground.run_id)]
    assert inline.runner.process_id in held
    inline.keeper.release()

    inline.drive(until=lambda: ground.slice().run.status.terminal, rounds=40)
    assert ground.slice().run.status is RunStatus.SUCCEEDED
    # Nothing of what was claimed had begun: no attempt is in doubt.
    operations = ground.store.list_operations(ground.run_id)
    assert {operation.attempts_made for operation in operations} == {1}


def test_T10_a_claim_that_is_still_on_its_way_when_it_is_given_up_is_looked_for_again(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    row, keeper = ground.row_of("prepare_context"), ground.worker.keeper
    token = ground.ports.ids.token()
    keeper.leave(row, token, began=False)  # type: ignore[arg-type]
    keeper.release()
    late = ground.store.claim(
        row,
        token,
        ground.process_id,
        ttl_us=STEPWISE.claim_ttl_us,
        grace_us=STEPWISE.grace_us,
        solitary=False,  # type: ignore[arg-type]
    )
    assert late is not None
    keeper.release()
    assert (_row(ground, row).claimed_by, _row(ground, row).attempts) == (None, 0)
    keeper.leave(row, token, began=False)  # type: ignore[arg-type]
    ground.clock.advance(TTL_S + 1)
    keeper.release()
    before = dump(ground.store)
    keeper.release()
    assert dump(ground.store) == before


def test_a_claim_that_was_given_up_after_its_effect_began_still_counts(clean_postgres: str) -> None:
    ground = stand(clean_postgres, until=Phase.AWAIT_MODEL)
    claim = ground.claim("attempt_model")
    assert ground.store.release(claim.dispatch_id, claim.token, began=True)
    again = ground.claim("attempt_model")
    assert (again.attempts, again.first, _row(ground, claim.dispatch_id).losses) == (2, False, 0)
