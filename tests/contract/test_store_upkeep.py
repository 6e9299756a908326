"""What the fleet's upkeep asks of the store, the same on both databases."""

from contextlib import ExitStack, closing
from dataclasses import replace

import pytest
from sqlalchemy.pool import QueuePool

from agentloom_worker import telemetry
from agentloom_worker.cancellation import CancelReason
from agentloom_worker.cleanup.sweeps.run_leases import renew_run_leases
from agentloom_worker.domain.dispatch import Claim
from agentloom_worker.domain.run import Phase, RunStatus
from agentloom_worker.errors import PersistenceUnavailableError
from agentloom_worker.ids import ClaimToken, DispatchId, ProcessId, RunId
from agentloom_worker.limits import RUN_LEASE_TTL_S
from agentloom_worker.runtime.ports import US
from agentloom_worker.storage.tables import metadata
from tests.databases import connect
from tests.ground import TTL_S, Ground, stand, step_commit


def _seen(ground: Ground, queues: str = "control,model") -> ProcessId:
    process_id = ProcessId(ground.new())
    ground.store.worker_seen(process_id, host="here", pid=7, queues=queues, slots=4, version="1", draining=False)
    return process_id


def _lease(ground: Ground) -> int | None:
    table = metadata.tables["run"]
    with ground.store.driver.engine.connect() as conn:
        found = conn.execute(table.select().where(table.c.run_id == ground.run_id)).one()
    lease: int | None = found.lease_expires_at
    return lease


def test_a_row_is_listed_once_it_has_been_due_for_the_patience(database_url: str) -> None:
    ground = stand(database_url)
    row = ground.row_of("prepare_context")
    assert ground.store.list_due(("control",), 10) == [row]
    assert ground.store.list_due(("control",), 10, patience_us=US) == []
    ground.clock.advance(1.1)
    assert ground.store.list_due(("control",), 10, patience_us=US) == [row]
    assert ground.store.list_due(("model",), 10) == []


def test_a_woken_row_is_met_by_the_next_sweep_and_a_claimed_one_stays_as_it_is(database_url: str) -> None:
    ground = stand(database_url)
    row = ground.row_of("prepare_context")
    assert ground.worker.sweeper.sweep().seen == 0
    ground.store.wake([row])
    assert ground.worker.sweeper.sweep().published == 1
    assert [wake_up.dispatch_id for wake_up in ground.worker.published][-1] == row
    ground.claim("prepare_context")
    before = ground.store.list_dispatches()
    ground.store.wake([row])
    assert ground.store.list_dispatches() == before


def test_queues_are_counted_by_what_their_rows_wait_for(database_url: str) -> None:
    ground = stand(database_url)
    ground.clock.advance(3.0)
    (depth,) = ground.store.count_queues()
    assert (depth.queue, depth.due, depth.waiting, depth.claimed, depth.parked) == ("control", 1, 1, 0, 0)
    assert 3 * US <= depth.oldest_due_us < 4 * US
    ground.claim("prepare_context")
    ground.set_row(ground.row_of("expire_run"), parked_at=1, losses=2)
    (depth,) = ground.store.count_queues()
    assert (depth.due, depth.waiting, depth.claimed, depth.parked, depth.lost) == (0, 0, 1, 1, 1)
    assert (depth.suspect, depth.oldest_due_us) == (0, 0)
    ground.clock.advance(TTL_S + 1)
    ground.worker.sweeper.sweep()
    (depth,) = ground.store.count_queues()
    assert (depth.claimed, depth.suspect) == (1, 1)


def test_processes_are_listed_with_their_silence_and_forgotten_after_it(database_url: str) -> None:
    ground = stand(database_url)
    old = _seen(ground)
    ground.clock.advance(100.0)
    new = _seen(ground, "tools")
    listed = ground.store.list_workers()
    assert [(worker.process_id, worker.queues, worker.slots) for worker in listed] == [
        (old, ("control", "model"), 4),
        (new, ("tools",), 4),
    ]
    assert [worker.silent_us // US for worker in listed] == [100, 0]
    assert ground.store.prune_workers(50 * US) == 1
    assert [worker.process_id for worker in ground.store.list_workers()] == [new]


def test_R7_no_lease_is_renewed_that_no_writing_step_has_begun(database_url: str) -> None:
    ground = stand(database_url)
    assert renew_run_leases(ground.ports) == 0
    assert _lease(ground) is None


def test_R7_the_lease_of_a_run_that_waits_is_renewed_until_a_step_holds_it_or_it_ends(database_url: str) -> None:
    ground = stand(database_url)
    # What a step that writes an environment would have begun.
    ground.set_run(lease_expires_at=1)
    assert renew_run_leases(ground.ports) == 1
    lease = _lease(ground)
    assert lease is not None
    assert lease // US == (ground.clock.wall_us() // US) + int(RUN_LEASE_TTL_S)
    ground.claim("prepare_context")
    assert renew_run_leases(ground.ports) == 0, "the claimed step's commit renews it"
    ground.set_row(ground.row_of("prepare_context"), claim_token=None, claimed_by=None, claimed_until=None)
    assert renew_run_leases(ground.ports) == 1
    ground.set_run(status=RunStatus.SUCCEEDED.value)
    assert renew_run_leases(ground.ports) == 0


def test_R7_the_keeper_of_a_claim_renews_the_lease_of_its_run_and_of_no_other(database_url: str) -> None:
    ground = stand(database_url)
    claim = ground.claim("prepare_context")
    keeper = ground.worker.keeper
    keeper.hold(claim, ground.clock.monotonic_s())
    asked: list[object] = []
    ask = ground.store.renew_held_leases

    def ask_and_note(run_ids: list[RunId], ttl_us: int) -> set[RunId]:
        asked.append(run_ids)
        return ask(run_ids, ttl_us)

    ground.store.renew_held_leases = ask_and_note  # type: ignore[method-assign]

    def keep() -> None:
        keeper.poll_control()
        keeper.renew()

    keep()
    assert asked == [] and _lease(ground) is None, "a run without a lease costs no statement"
    # What a step that writes an environment would have begun.
    ground.set_run(lease_expires_at=1)
    keep()
    lease = _lease(ground)
    assert lease is not None and lease // US == (ground.clock.wall_us() // US) + int(RUN_LEASE_TTL_S)
    ground.clock.advance(5.0)
    keep()
    assert _lease(ground) == pytest.approx(lease + 5 * US, abs=US)
    ground.set_run(status=RunStatus.SUCCEEDED.value, lease_expires_at=1)
    keep()
    assert _lease(ground) == 1, "a run that is over writes nothing any more"


def test_R7_a_commit_extends_the_lease_of_its_run_and_begins_none(database_url: str) -> None:
    ground = stand(database_url)
    claim = ground.claim("prepare_context")
    ground.store.commit(step_commit(ground, claim, consume=False, key=b"one"), None, 1)
    assert _lease(ground) is None
    ground.set_run(lease_expires_at=1)
    ground.store.commit(step_commit(ground, claim, consume=False, key=b"two"), None, 1)
    lease = _lease(ground)
    assert lease is not None and lease // US == (ground.clock.wall_us() // US) + int(RUN_LEASE_TTL_S)


def test_R7_the_keeper_waits_for_no_commit_that_has_the_run(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    ground.set_run(lease_expires_at=1)
    with closing(connect(clean_postgres)) as conn, conn.cursor() as cursor:
        cursor.execute("UPDATE run SET event_head = event_head")
        assert ground.store.renew_held_leases([ground.run_id], US) == set()
        conn.rollback()
    assert ground.store.renew_held_leases([ground.run_id], US) == {ground.run_id}


def test_R7_the_lease_of_a_run_whose_tool_writes_is_kept_while_the_tool_works(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = stand(database_url, until=Phase.AWAIT_BATCH)
    seen: list[int | None] = []

    class Writing(list[object]):
        """What `echo` notes its calls in, here a stand-in for a capability that writes an environment: it begins
        the lease, works for a while, and looks at it.
        """

        def append(self, _call: object) -> None:
            ground.set_run(lease_expires_at=1)
            ground.worker.keeper.poll_control()
            ground.worker.keeper.renew()
            seen.append(_lease(ground))

    monkeypatch.setattr("tests.tools.CALLS", Writing())
    ground.worker.drive()
    assert len(seen) == 2 and all(lease is not None and lease > ground.clock.wall_us() - 60 * US for lease in seen)
    assert ground.slice().run.status is RunStatus.SUCCEEDED


def test_upkeep_of_the_database_itself_is_harmless(database_url: str) -> None:
    ground = stand(database_url)
    ground.store.vacuum()
    oldest = ground.store.oldest_snapshot()
    assert (oldest is None) == database_url.startswith("sqlite")
    with ground.store.turn("anything") as mine:
        assert mine


def test_a_turn_is_one_process_s_until_it_ends(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    other = ground.other_worker().ports.store
    with ground.store.turn("sweep") as mine:
        assert mine
        with other.turn("sweep") as theirs, other.turn("another duty") as different:
            assert (theirs, different) == (False, True)
    with other.turn("sweep") as theirs:
        assert theirs


def test_a_turn_whose_session_was_ended_from_outside_passes_on(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    with ground.store.turn("sweep") as mine:
        assert mine
        with closing(connect(clean_postgres)) as conn:
            conn.autocommit = True
            with conn.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND state = 'idle in transaction'"
                )
                assert cursor.rowcount == 1
    with ground.store.turn("sweep") as again:
        assert again


def test_the_oldest_snapshot_is_the_one_that_a_session_holds(clean_postgres: str) -> None:
    ground = stand(clean_postgres)
    with closing(connect(clean_postgres)) as conn, conn.cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT 1 FROM run")
        for _ in range(3):
            ground.set_run(lease_expires_at=5)
        oldest = ground.store.oldest_snapshot()
        assert oldest is not None
        assert oldest.age_xids >= 3
        assert oldest.held_s > 0


def test_a_store_that_is_away_gives_no_turn(tmp_path: object) -> None:
    from agentloom_worker.clock import SystemClock
    from agentloom_worker.storage.store import open_store

    store = open_store("postgresql://nobody@127.0.0.1:1/none", SystemClock(), pool_size=1)
    with pytest.raises(PersistenceUnavailableError), store.turn("sweep"):
        raise AssertionError("no turn without a store")


def test_T9_readers_that_have_taken_every_connection_cost_no_claim(database_url: str) -> None:
    ground = stand(database_url)
    claim = ground.claim("prepare_context")
    live = ground.worker.keeper.hold(claim, ground.clock.monotonic_s())
    before = ground.store.load_dispatch(claim.dispatch_id)
    ground.clock.advance(5.0)
    pool = ground.store.driver.engine.pool
    assert isinstance(pool, QueuePool)
    with ExitStack() as readers:
        while pool.checkedout() < pool.size() + pool._max_overflow:
            readers.enter_context(ground.store.driver.engine.connect())
        ground.worker.keeper.renew()
        ground.worker.keeper.poll_control()
        ground.worker.keeper.hear_cancel(ground.run_id)
        assert pool.checkedout() == pool.size() + pool._max_overflow
    after = ground.store.load_dispatch(claim.dispatch_id)
    assert before is not None and after is not None
    assert before.claimed_until is not None and after.claimed_until == before.claimed_until + 5 * US
    assert live.renewed_sent_s == ground.clock.monotonic_s() and not live.cancellation.cancelled


def test_T9_a_superseded_claim_and_a_stopped_run_are_heard_of_without_a_free_reader(database_url: str) -> None:
    ground = stand(database_url)
    claim = ground.claim("prepare_context")
    keeper = ground.worker.keeper
    stopped = keeper.hold(claim, ground.clock.monotonic_s())
    ground.set_run(status="stopping", end_cause="stop", epoch=claim.epoch + 1)
    lost = keeper.hold(replace(claim, dispatch_id=DispatchId(ground.new()), run_id=None), ground.clock.monotonic_s())
    pool = ground.store.driver.engine.pool
    assert isinstance(pool, QueuePool)
    with ExitStack() as readers:
        while pool.checkedout() < pool.size() + pool._max_overflow:
            readers.enter_context(ground.store.driver.engine.connect())
        keeper.renew()
        keeper.poll_control()
    assert (stopped.cancellation.reason, lost.cancellation.reason) == (CancelReason.STOP, CancelReason.SUPERSEDED)


def _counted(name: str) -> int:
    return telemetry.counters().get(name, 0)


def test_T8_losses_and_rows_that_a_sweep_parks_are_counted_once_each(database_url: str) -> None:
    ground = stand(database_url)
    row = ground.row_of("prepare_context")
    lost, parked = _counted("claims_lost"), _counted("steps_parked")

    def take(*, solitary: bool) -> Claim:
        other = ProcessId(ground.new())
        token = ClaimToken(ground.ports.ids.token())
        claims = [
            ground.store.claim(
                row,
                token,
                other,
                ttl_us=ground.ports.settings.claim_ttl_us,
                grace_us=ground.ports.settings.grace_us,
                solitary=solitary,
            )
            for _ in range(2)
        ]
        assert claims[0] == claims[1], "a claim that is sent again is the same claim"
        assert claims[0] is not None
        return claims[0]

    first = take(solitary=False)
    assert not first.took_over
    ground.store.hand_back(first, delay_us=0, failed=False, failures_max=5, error=None)
    assert not take(solitary=False).took_over, "a row that was handed back is nobody's loss"
    ground.expire()
    assert take(solitary=False).took_over
    ground.expire()
    ground.worker.sweeper.sweep()
    assert take(solitary=True).took_over
    (held,) = [found for found in ground.store.list_dispatches() if found.dispatch_id == row]
    assert (held.losses, held.wakes) == (2, 0)
    assert _counted("claims_lost") == lost, "whoever runs the row counts, not the store"
    ground.expire()
    ground.worker.sweeper.sweep()
    assert (_counted("claims_lost"), _counted("steps_parked")) == (lost + 1, parked + 1)


def test_T8_a_row_that_is_taken_over_is_one_loss_of_the_fleet(database_url: str) -> None:
    ground = stand(database_url)
    ground.claim("prepare_context", ProcessId(ground.new()))
    lost = _counted("claims_lost")
    row = ground.row_of("prepare_context")
    assert not ground.worker.runner.run(row)
    ground.expire()
    assert ground.worker.runner.run(row)
    assert _counted("claims_lost") == lost + 1
