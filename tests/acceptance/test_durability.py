"""Duplicates, reapers, dead claims, skewed clocks, malformed rows: what the rows say afterwards."""

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from agentloom_worker import faults
from agentloom_worker.bootstrap import make_ports
from agentloom_worker.clock import SystemClock
from agentloom_worker.domain.dispatch import DispatchRow
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.embedded import Dispatcher, WakeUps
from agentloom_worker.errors import AgentloomError, Code, PersistenceUnavailableError, RequestError
from agentloom_worker.ids import ClaimToken, DispatchId, ProcessId
from agentloom_worker.llm.adapters.scripted import ScriptedRequest, ScriptedTurn, TextTurn
from agentloom_worker.runtime.ports import US, Ports, Settings
from agentloom_worker.storage import schema
from tests.acceptance.harness import (
    ONE_BY_ONE,
    answer,
    ask,
    at_fault,
    attempts,
    dev_model,
    dispatching,
    events,
    execute,
    http_release,
    over,
    query,
    rows,
    run_of,
    simulated,
    wait_for,
)
from tests.factories import release_document
from tests.server_process import free_port
from tests.servers import PostgresServer
from tests.simulator import Worker, make_worker

DUPLICATES = 500
DEAD_CLAIMS = 8
SWEEPERS = 16
SKEW_S = 300
TABLES = ("pending_dispatch", "run", "run_event", "scope_commit", "operation", "attempt", "context_record")


def _says_done(_request: ScriptedRequest) -> ScriptedTurn:
    return TextTurn("done")


def _state(ports: Ports) -> dict[str, list[str]]:
    """Everything that a duplicate could change, in a form that compares."""

    def shown(value: object) -> object:
        return bytes(value) if isinstance(value, memoryview) else value

    return {
        table: sorted(repr([shown(v) for v in row]) for row in query(ports, f"SELECT * FROM {table}"))
        for table in TABLES
    }


def test_D06_duplicate_messages_for_claimed_finished_and_vanished_rows_change_nothing(database_url: str) -> None:
    with simulated(database_url, scripts={"main": _says_done}, settings=ONE_BY_ONE) as owner:
        seen: set[DispatchId] = set()

        def note_rows() -> bool:
            seen.update(row.dispatch_id for row in owner.ports.store.list_dispatches())
            return False

        ended = ask(owner.ports, release_document())
        owner.drive(until=note_rows)
        assert over(owner.ports, ended)() and len(seen) >= 6
        other = make_worker(database_url, clock=owner.clock, scripts={"main": _says_done}, settings=ONE_BY_ONE)
        run_id = ask(owner.ports, release_document())

        def duplicate() -> None:
            (claimed,) = rows(other.ports, run_id, "attempt_model")
            before = _state(other.ports)
            for dispatch_id in [claimed.dispatch_id] * DUPLICATES + [*seen] * (DUPLICATES // len(seen)):
                assert not other.runner.run(dispatch_id)
            assert _state(other.ports) == before
            third = ask(other.ports, release_document())
            other.drive(until=over(other.ports, third))
            assert answer(other.ports, third) == "done"

        with at_fault("effect.done", "attempt_model", duplicate):
            owner.drive()
        other.close()
        assert answer(owner.ports, run_id) == "done"
        assert len(attempts(owner.ports, run_id)) == 1


def test_D09_a_reaper_that_writes_after_the_step_completed_meets_no_row(database_url: str) -> None:
    with simulated(database_url, scripts={"main": _says_done}, settings=ONE_BY_ONE) as owner:
        reaper = make_worker(database_url, clock=owner.clock, scripts={"main": _says_done}, settings=ONE_BY_ONE)
        run_id = ask(owner.ports, release_document())

        def read_and_pause() -> None:
            settings = reaper.ports.settings
            for pause_s in (settings.claim_ttl_s + 1, settings.suspect_grace_s + 1):
                owner.clock.advance(s=pause_s)
                reaper.published.clear()
                reaper.sweeper.sweep()

        with at_fault("commit.before", "attempt_model", read_and_pause):
            owner.drive(until=lambda: bool(rows(owner.ports, run_id, "accept_model")))
        read = [wake_up.dispatch_id for wake_up in reaper.published if wake_up.step == "attempt_model"]
        assert len(read) == 1
        before = _state(owner.ports)
        assert not reaper.runner.run(read[0])
        assert _state(owner.ports) == before
        owner.drive()
        reaper.close()
        assert answer(owner.ports, run_id) == "done"
        assert len(attempts(owner.ports, run_id)) == 1


def test_D12_sixteen_sweepers_on_dead_claims_make_one_claim_of_each(database_url: str) -> None:
    scripts = {"main": _says_done}
    with simulated(database_url, scripts=scripts, settings=ONE_BY_ONE) as first:
        run_ids = [ask(first.ports, release_document()) for _ in range(DEAD_CLAIMS)]
        dead = ProcessId(first.ports.ids.new())
        for run_id in run_ids:
            (row,) = rows(first.ports, run_id, "prepare_context")
            token = ClaimToken(first.ports.ids.token())
            assert first.ports.store.claim(row.dispatch_id, token, dead, ttl_us=US, grace_us=US, solitary=False)
        sweepers = [
            make_worker(database_url, clock=first.clock, scripts=scripts, settings=ONE_BY_ONE) for _ in range(SWEEPERS)
        ]
        claims = _sweep_at_once(sweepers)
        assert claims == {"prepare_context": DEAD_CLAIMS}
        for sweeper in sweepers:
            sweeper.close()
        for run_id in run_ids:
            assert [row.losses for row in rows(first.ports, run_id, "freeze_request")] == [0]
        first.drive()
        for run_id in run_ids:
            assert answer(first.ports, run_id) == "done"
            assert len(attempts(first.ports, run_id)) == 1


def _sweep_at_once(sweepers: list[Worker]) -> Counter[str]:
    """All sweep at once until the claims are suspect long enough, then all go for all rows; the claims made."""
    claims: Counter[str] = Counter()
    lock = threading.Lock()
    barrier = threading.Barrier(len(sweepers))
    published: set[DispatchId] = set()

    def count(point: str, step: str) -> None:
        if point == "claim.after":
            with lock:
                claims[step] += 1

    def sweep(worker: Worker) -> None:
        for _ in range(2):
            if barrier.wait(30) == 0:
                worker.clock.advance(s=worker.ports.settings.suspect_grace_s + 2)
            barrier.wait(30)
            worker.sweeper.sweep()
        with lock:
            published.update(wake_up.dispatch_id for wake_up in worker.published)
        barrier.wait(30)
        for dispatch_id in sorted(published):
            worker.runner.run(dispatch_id)

    faults.install(count)
    threads = [threading.Thread(target=sweep, args=(worker,)) for worker in sweepers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    faults.install(None)
    return claims


class SkewedClock(SystemClock):
    """A machine whose clock is wrong by so many seconds."""

    def __init__(self, skew_s: float) -> None:
        self._skew_s = skew_s

    def wall_us(self) -> int:
        return super().wall_us() + int(self._skew_s * US)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self._skew_s


def _skewed_dispatcher(url: str, skew_s: float) -> Dispatcher:
    settings = Settings(claim_ttl_s=2.0, claim_renew_s=0.2, suspect_grace_s=1.0, sweep_tick_s=0.1, control_poll_s=0.1)
    wake_ups = WakeUps()
    ports = make_ports(url, clock=SkewedClock(skew_s), settings=settings, publish=wake_ups.put)
    return Dispatcher(ports, wake_ups, threads=2)


@pytest.mark.parametrize("skew_s", [SKEW_S, -SKEW_S])
def test_D22_a_workers_wrong_clock_takes_no_claim_over_and_loses_none(clean_postgres: str, skew_s: int) -> None:
    holder, other = _skewed_dispatcher(clean_postgres, skew_s), _skewed_dispatcher(clean_postgres, -skew_s)
    with dev_model({"answer": {"text": "held", "hold": {"gate": "go"}}}) as model:
        holder.start()
        run_id = ask(holder.ports, http_release(model))
        wait_for(lambda: len(model.requests) == 1, "the request has arrived")
        other.start()
        (held,) = rows(other.ports, run_id, "attempt_model")
        assert held.claimed_by == holder.process_id and held.claimed_until is not None
        until = held.claimed_until + int(2.5 * US)

        def renewed_past() -> bool:
            (row,) = rows(other.ports, run_id, "attempt_model")
            assert (row.claimed_by, row.losses, row.attempts) == (holder.process_id, 0, 1)
            return row.claimed_until is not None and row.claimed_until > until

        wait_for(renewed_past, "the claim was renewed for longer than its first term")
        model.open_gate("go")
        wait_for(over(holder.ports, run_id), "the run is over")
        assert answer(holder.ports, run_id) == "held"
        assert len(attempts(holder.ports, run_id)) == len(model.requests) == 1
        for dispatcher in (holder, other):
            assert dispatcher.drain(timeout_s=10)
            dispatcher.ports.store.close()


def _insert_row(ports: Ports, *, step: str, run_id: object, scope_id: object) -> None:
    now = ports.store.now_us()
    execute(
        ports,
        "INSERT INTO pending_dispatch (dispatch_id, scope_id, run_id, step, step_version, subject_id, key, queue,"
        " priority, not_before, wake_at, epoch, attempts, losses, failures, wakes, created_at) VALUES"
        " (:dispatch_id, :scope_id, :run_id, :step, 1, :subject_id, 'bad', 'control', 0, :now, :now, 1, 0, 0, 0, 0,"
        " :now)",
        dispatch_id=ports.ids.new(),
        scope_id=scope_id,
        run_id=run_id,
        step=step,
        subject_id=ports.ids.new(),
        now=now,
    )


def test_D24_malformed_rows_of_a_sweep_batch_are_parked_and_the_others_proceed(database_url: str) -> None:
    with simulated(database_url, scripts={"main": _says_done}) as worker:
        ports = worker.ports
        before = [ask(ports, release_document()) for _ in range(3)]
        broken = ask(ports, release_document())
        execute(ports, "UPDATE node_task SET continuation = :body WHERE run_id = :run", body=b"{", run=broken)
        _insert_row(ports, step="prepare_context", run_id=None, scope_id=ports.ids.new())
        nowhere = ports.ids.new()
        _insert_row(ports, step="accept_model", run_id=nowhere, scope_id=nowhere)
        after = [ask(ports, release_document()) for _ in range(3)]
        _sweep_until(worker, lambda: over(ports, *before, *after)() and len(_parked(ports)) == 3)
        for run_id in (*before, *after):
            assert answer(ports, run_id) == "done"
        parked = _parked(ports)
        assert {row.run_id for row in parked} == {None, nowhere, broken}
        assert all(row.last_error for row in parked)
        assert not run_of(ports, broken).status.terminal
        assert events(ports, broken)[-1] == "step.parked"


def _parked(ports: Ports) -> list[DispatchRow]:
    return ports.store.list_dispatches(parked_only=True)


def _sweep_until(worker: Worker, holds: Callable[[], bool]) -> None:
    """Run only what the sweep hands out, moving the clock from wake-up to wake-up."""
    for _ in range(200):
        if holds():
            return
        wake_at = worker.ports.store.next_wake()
        assert wake_at is not None
        worker.clock.advance_to(wake_at + 1)
        worker.published.clear()
        worker.sweeper.sweep()
        for wake_up in list(worker.published):
            worker.runner.run(wake_up.dispatch_id)
    raise AssertionError("the sweep did not come to an end")


def _refused(url: str) -> AgentloomError:
    """What a dispatcher says that will not start; it has begun nothing by then."""
    before = set(threading.enumerate())
    with pytest.raises(AgentloomError) as refusal, dispatching(url):
        raise AssertionError("it started")
    assert [one.name for one in set(threading.enumerate()) - before if one.name.startswith("agentloom")] == []
    return refusal.value


@pytest.mark.parametrize("url", ["postgresql://nobody@127.0.0.1:{port}/none", "sqlite:///{folder}/missing/file.sqlite"])
def test_D16_a_worker_without_a_database_refuses_and_says_why(url: str, tmp_path: object) -> None:
    error = _refused(url.format(port=free_port(), folder=tmp_path))
    assert isinstance(error, PersistenceUnavailableError)
    assert error.code == Code.PERSISTENCE_UNAVAILABLE
    remedy = "check that the file is a store" if url.startswith("sqlite") else "check that the database is up"
    assert remedy in error.message


def test_D16_a_worker_on_an_empty_database_refuses_and_names_the_remedy(
    postgres_server: PostgresServer, tmp_path: object
) -> None:
    for url in (postgres_server.create_database(), f"sqlite:///{tmp_path}/empty.sqlite"):
        error = _refused(url)
        assert isinstance(error, RequestError)
        assert error.code == Code.SCHEMA_BEHIND
        assert "empty" in error.message and "agentloom migrate" in error.message


@pytest.mark.parametrize("remedy", ["run `agentloom migrate`", "upgrade agentloom-worker"])
def test_D16_a_worker_on_another_versions_schema_runs_nothing_and_names_the_remedy(
    database_url: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dev_model({"answer": {"text": "done"}}) as model, simulated(database_url) as platform:
        ports = platform.ports
        run_id = ask(ports, http_release(model))
        (revision,) = query(ports, "SELECT version_num FROM alembic_version")[0]
        other = "9999"
        with monkeypatch.context() as patched:
            if "migrate" in remedy:
                patched.setattr(schema, "newest_revision", lambda: other)
            else:
                execute(ports, "UPDATE alembic_version SET version_num = :other", other=other)
            try:
                error = _refused(database_url)
            finally:
                execute(ports, "UPDATE alembic_version SET version_num = :revision", revision=revision)
        assert error.code == Code.SCHEMA_BEHIND
        assert remedy in error.message and other in error.message
        assert model.requests == ()
        assert run_of(ports, run_id).status is RunStatus.QUEUED
        assert [row.attempts for row in rows(ports, run_id)] == [0, 0]
        platform.drive()
        assert answer(ports, run_id) == "done"
