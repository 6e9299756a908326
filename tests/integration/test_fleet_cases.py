"""Fleets that are held up: by streams, by a broker that is away, by a worker that hangs, by too few connections.

Times that are compared are the database's: of rows, not of a clock on the wall.
"""

import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from agentloom_worker.audit import run_audit
from agentloom_worker.clock import US
from agentloom_worker.devmodel import DevModel, Outcome
from agentloom_worker.domain.dispatch import DispatchRow, WakeUp
from agentloom_worker.domain.operation import AttemptState
from agentloom_worker.ids import DispatchId, RunId
from agentloom_worker.leases import redis
from agentloom_worker.limits import WAKE_UP_BYTES_MAX
from agentloom_worker.runtime.dispatch import Sweeper
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.request import rebuild_request
from agentloom_worker.runtime.table import STEPS as EVERY_STEP
from agentloom_worker.storage.schema import migrate
from tests.acceptance.harness import (
    ask,
    attempts,
    dev_model,
    http_release,
    kinds,
    model_operations,
    over,
    query,
    rows,
    run_of,
    wait_for,
)
from tests.databases import connect
from tests.factories import python_tool
from tests.fleet import Fleet, FleetProcessHandle, open_fleet
from tests.server_process import free_port
from tests.servers import OWN, PostgresServer, RedisServer, open_redis

AGAIN = {"main": {"retry": {"initial_ms": 50, "jitter": "none"}}}
# What is given back at once must not look like what was waited for.
UNHURRIED = {"CLAIM_TTL_S": "600", "CLAIM_RENEW_S": "100"}


def held(gate: str, **answer: Any) -> dict[str, Any]:
    """A turn whose answer to a question that names the gate begins, and ends when the gate opens."""
    answer = {"text": "a long answer that is held", "chunk_chars": 4, **answer}
    return {"when": {"user_text_contains": gate}, "answer": {**answer, "hold": {"gate": gate, "after_chunks": 1}}}


@pytest.fixture(scope="module")
def shared_model() -> Iterator[DevModel]:
    with dev_model(held("first"), held("second"), {"answer": {"text": "done"}}) as served:
        yield served


@pytest.fixture
def model(shared_model: DevModel) -> DevModel:
    """The provider, with every gate closed and nothing in its log."""
    shared_model.clear()
    return shared_model


@pytest.fixture
def fleet(
    postgres_server: PostgresServer, postgres_url: str, redis_server: RedisServer, redis_prefix: str, tmp_path: Path
) -> Iterator[Fleet]:
    with open_fleet(postgres_url, redis_server.url, tmp_path, key_prefix=redis_prefix) as opened:
        yield opened


@dataclass(frozen=True)
class OwnRedisFleet:
    """A fleet whose broker may be stopped."""

    fleet: Fleet
    redis: RedisServer


@pytest.fixture
def on_own_redis(postgres_url: str, tmp_path: Path) -> Iterator[OwnRedisFleet]:
    with (
        closing(open_redis(OWN)) as server,
        open_fleet(postgres_url, server.url, tmp_path, key_prefix=server.key_prefix) as opened,
    ):
        yield OwnRedisFleet(opened, server)


def questions(fleet: Fleet, model: DevModel, text: str, count: int) -> list[RunId]:
    return [ask(fleet.ports, http_release(model, models=AGAIN), f"{text} {number}") for number in range(count)]


def wait_for_streams(model: DevModel, count: int) -> None:
    """Until so many answers have begun and not ended."""
    assert model.wait_until(lambda seen: sum(one.outcome is Outcome.OPEN for one in seen) == count, 60)


def wait_for_rest(ports: Ports, runs: list[RunId]) -> None:
    wait_for(over(ports, *runs), f"{len(runs)} runs end")
    wait_for(lambda: ports.store.list_dispatches() == [], "no row is left")


def assert_one_attempt_each(ports: Ports, runs: list[RunId]) -> None:
    """Succeeded with the one model attempt that a run of one loop needs, and nothing amiss in the database."""
    for run_id in runs:
        found = run_of(ports, run_id)
        assert found.status == "succeeded", (found.end_code, found.end_detail)
        assert [one.state for one in attempts(ports, run_id)] == [AttemptState.COMPLETE]
    assert run_audit(ports) == ()


def streamed_at(ports: Ports, runs: list[RunId]) -> list[int]:
    """When each run's newest stream began, by the database's clock."""
    found = [attempts(ports, run_id)[-1].first_output_at for run_id in runs]
    return [instant for instant in found if instant is not None]


# -- D01 ---------------------------------------------------------------------------------------------


def test_D01_a_stream_of_several_lives_of_its_claim_is_one_call_one_claim_and_one_outcome(
    fleet: Fleet, model: DevModel
) -> None:
    ports = fleet.ports
    fleet.workers(2)
    (run_id,) = questions(fleet, model, "first", 1)
    wait_for_streams(model, 1)
    (claimed,) = rows(ports, run_id, "attempt_model")
    until_us = ports.store.now_us() + 2 * ports.settings.claim_ttl_us
    redelivered = 0
    while ports.store.now_us() < until_us:
        (row,) = rows(ports, run_id, "attempt_model")
        assert _who(row) == _who(claimed)
        fleet.made.publisher.wake(
            [WakeUp(row.dispatch_id, row.step, row.queue, 1, force=force) for force in (False, True)]
        )
        redelivered += 2
        # The pace of the redeliveries.
        threading.Event().wait(0.2)
    wait_for(lambda: fleet.made.publisher.backlog("model") == 0, "every redelivery was taken")
    assert redelivered > 10
    model.open_gate("first")
    wait_for_rest(ports, [run_id])
    assert_one_attempt_each(ports, [run_id])
    assert len(model.requests) == 1
    assert [one.attempts_made for one in model_operations(ports, run_id)] == [1]
    assert kinds(ports, run_id).count("assistant") == 1
    assert [process.end() for process in fleet.processes] == [0, 0]


def _who(row: DispatchRow) -> tuple[object, ...]:
    """Whose claim it is and which; the same while nobody else has claimed it."""
    return row.claimed_by, row.attempts, row.losses


# -- D03 ---------------------------------------------------------------------------------------------


def test_D03_what_a_killed_worker_held_is_dispatched_again_by_the_sweep(fleet: Fleet, model: DevModel) -> None:
    ports = fleet.ports
    victim = fleet.worker(slots=4)
    runs = questions(fleet, model, "first", 4)
    wait_for_streams(model, 4)
    victim.kill_session()
    sweeper, published = Sweeper(ports), 0

    def sweeps_all() -> bool:
        nonlocal published
        published += sweeper.sweep().published
        return published >= 4

    # Nobody else is there: what is dispatched again, this sweep has found.
    wait_for(sweeps_all, "the sweep finds the four claims of the dead")
    assert {row.claimed_by for row in rows(ports, runs[0], "attempt_model")} != {None}
    fleet.worker(slots=4)
    model.open_gate("first")
    wait_for_rest(ports, runs)
    for run_id in runs:
        assert run_of(ports, run_id).status == "succeeded"
        assert [one.state for one in attempts(ports, run_id)] == [AttemptState.UNKNOWN, AttemptState.COMPLETE]
    assert run_audit(ports) == ()


# -- D04, D21 ----------------------------------------------------------------------------------------


def _restart(server: RedisServer) -> None:
    """Three seconds without it; then it is there again, empty."""
    server.stop()
    threading.Event().wait(3.0)
    server.start()


def _flush(server: RedisServer) -> None:
    with closing(redis.connect(server.url, retries=0)) as client:
        client.flushall()


@pytest.mark.parametrize("lose", [_restart, _flush], ids=["stopped for 3 s", "flushed"])
def test_D04_D21_all_slots_are_busy_again_soon_after_redis_has_lost_everything(
    on_own_redis: OwnRedisFleet, model: DevModel, lose: Callable[[RedisServer], None]
) -> None:
    fleet, slots = on_own_redis.fleet, 8
    ports = fleet.ports
    worker = fleet.worker(slots=slots)
    runs = questions(fleet, model, "first", slots)
    wait_for_streams(model, slots)
    waiting = questions(fleet, model, "second", slots)
    lose(on_own_redis.redis)
    back_us = ports.store.now_us()
    model.open_gate("first")
    wait_for(over(ports, *runs), "the streams of before end")
    wait_for_streams(model, slots)
    claimed = [row for run_id in waiting for row in rows(ports, run_id, "attempt_model")]
    assert [row.losses for row in claimed] == [0] * slots
    assert len({row.claimed_by for row in claimed} - {None}) == 1
    wait_for(lambda: len(streamed_at(ports, waiting)) == slots, "the first output of each is noted")
    assert max(streamed_at(ports, waiting)) - back_us < 30 * US
    model.open_gate("second")
    wait_for_rest(ports, [*runs, *waiting])
    assert_one_attempt_each(ports, [*runs, *waiting])
    assert len(model.requests) == 2 * slots
    assert worker.end() == 0


# -- D06 ---------------------------------------------------------------------------------------------


def _metric(port: int, name: str) -> float:
    """A counter of a worker as Prometheus reads it; one that has never counted is 0."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    assert any(line.startswith("agentloom_commits_total ") for line in lines)
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.full)])
def test_D06_each_of_many_duplicates_is_taken_once_and_changes_nothing(
    fleet: Fleet, model: DevModel, count: int
) -> None:
    ports, port = fleet.ports, free_port()
    worker = fleet.worker(METRICS_PORT=str(port))
    (held_run,) = questions(fleet, model, "first", 1)
    wait_for_streams(model, 1)
    wait_for(lambda: len(streamed_at(ports, [held_run])) == 1, "its first output is noted")
    (claimed,) = rows(ports, held_run, "attempt_model")
    before = _written(ports)

    def ended() -> float:
        return _metric(port, "agentloom_wake_ups_skipped_total") + _metric(port, "agentloom_claims_missed_total")

    # For a row that somebody has and for rows that are gone; forced or not, in two queues.
    gone = [WakeUp(DispatchId(ports.ids.new()), "prepare_context", "control", 1) for _ in range(10)]
    busy = WakeUp(claimed.dispatch_id, claimed.step, claimed.queue, 1)
    kinds_of = [*gone, *[busy] * 10]
    due = [replace(kinds_of[number % 20], force=number % 3 == 0) for number in range(count)]
    ended_before = ended()
    assert fleet.made.publisher.wake(due) == []
    wait_for(lambda: ended() >= ended_before + count, f"{count} duplicates have ended")
    # None of them came again, and none did anything.
    assert [fleet.made.publisher.backlog(queue) for queue in ("control", "model")] == [0, 0]
    assert ended() == ended_before + count
    assert _written(ports) == before
    (row,) = rows(ports, held_run, "attempt_model")
    assert _who(row) == _who(claimed)
    model.open_gate("first")
    runs = [held_run, *questions(fleet, model, "afterwards", 1)]
    wait_for_rest(ports, runs)
    assert_one_attempt_each(ports, runs)
    assert worker.end() == 0


# -- D07 ---------------------------------------------------------------------------------------------


def _started_after(ports: Ports, runs: list[RunId]) -> list[int]:
    """How long each run waited to be begun, in microseconds, in order."""
    found = [run_of(ports, run_id) for run_id in runs]
    return sorted(run.started_at - run.created_at for run in found if run.started_at is not None)


def _ask_in_turn(fleet: Fleet, model: DevModel, count: int) -> list[RunId]:
    runs = []
    for number in range(count):
        runs += questions(fleet, model, f"quick {number}", 1)
        wait_for(over(fleet.ports, runs[-1]), "the new run ends")
    return runs


def _assert_begun_soon_by(handle: FleetProcessHandle, ports: Ports, runs: list[RunId]) -> None:
    """Each was begun by this worker; most of them at once, whatever else the machine was doing."""
    begun = {line["run_id"] for line in handle.lines("step_committed") if line["step"] == "prepare_context"}
    assert {str(run_id) for run_id in runs} <= begun
    waited = _started_after(ports, runs)
    assert len(waited) == len(runs)
    assert waited[len(waited) // 2] < US, waited


def test_D07_a_new_run_begins_at_once_on_the_idle_one_of_two_workers(fleet: Fleet, model: DevModel) -> None:
    blocked = fleet.worker(slots=2)
    old = questions(fleet, model, "first", 2)
    wait_for_streams(model, 2)
    idle = fleet.worker(slots=2)
    runs = _ask_in_turn(fleet, model, 5)
    _assert_begun_soon_by(idle, fleet.ports, runs)
    # The other one was blocked all the while.
    wait_for_streams(model, 2)
    model.open_gate("first")
    wait_for_rest(fleet.ports, [*old, *runs])
    assert_one_attempt_each(fleet.ports, [*old, *runs])
    assert [blocked.end(), idle.end()] == [0, 0]


def test_D07_a_new_run_begins_at_once_although_a_worker_that_listens_stands_still(
    fleet: Fleet, model: DevModel
) -> None:
    still, idle = fleet.workers(2, slots=2)
    # It goes on listening to the broker: what it is sent now, it keeps.
    still.send(signal.SIGSTOP)
    runs = _ask_in_turn(fleet, model, 5)
    _assert_begun_soon_by(idle, fleet.ports, runs)
    still.send(signal.SIGCONT)
    wait_for_rest(fleet.ports, runs)
    assert_one_attempt_each(fleet.ports, runs)
    assert [still.end(), idle.end()] == [0, 0]


# -- D08 ---------------------------------------------------------------------------------------------


def test_D08_streams_of_a_drained_worker_go_on_elsewhere_at_once_and_not_after_their_claims(
    fleet: Fleet, model: DevModel
) -> None:
    ports, count, ttl_us = fleet.ports, 20, int(UNHURRIED["CLAIM_TTL_S"]) * US
    leaving = fleet.worker(slots=count, **UNHURRIED)
    runs = questions(fleet, model, "first", count)
    wait_for_streams(model, count)
    staying = fleet.worker(slots=count, **UNHURRIED)
    assert leaving.end(signal.SIGTERM) == 0
    assert not leaving.lines("drain_overdue")
    wait_for_streams(model, count)
    assert {row.losses for run_id in runs for row in rows(ports, run_id)} == {0}
    gaps = []
    for run_id in runs:
        before, _ = attempts(ports, run_id)
        (row,) = rows(ports, run_id, "attempt_model")
        assert before.ended_at is not None and row.claimed_until is not None
        # Nobody has renewed it yet.
        gaps.append(row.claimed_until - ttl_us - before.ended_at)
    assert sorted(gaps)[count // 2] < 2 * US, gaps
    model.open_gate("first")
    wait_for_rest(ports, runs)
    assert {run_of(ports, run_id).status for run_id in runs} == {"succeeded"}
    assert run_audit(ports) == ()
    assert staying.end() == 0


# -- D14 ---------------------------------------------------------------------------------------------

BATCHES, BATCH, RESULT_BYTES = 10, 10, 8_000


@contextmanager
def _listening(server: RedisServer) -> Iterator[list[str]]:
    """Every message that is put into a queue, as the server sees the command."""
    pushed: list[str] = []
    client = redis.connect(server.url, retries=0)
    client.connection_pool.connection_kwargs["socket_timeout"] = None

    def listen(monitor: Any) -> None:
        for seen in monitor.listen():
            if seen["command"].startswith("LPUSH "):
                pushed.append(seen["command"])
            if seen["command"].startswith("ECHO over"):
                return

    with closing(client), closing(redis.connect(server.url, retries=0)) as teller, client.monitor() as monitor:
        thread = threading.Thread(target=listen, args=(monitor,), daemon=True)
        thread.start()
        try:
            yield pushed
        finally:
            teller.echo("over")
            thread.join(60)


def test_D14_no_message_of_a_run_of_200_000_tokens_and_a_hundred_calls_has_a_kilobyte(
    on_own_redis: OwnRedisFleet,
) -> None:
    fleet, ports = on_own_redis.fleet, on_own_redis.fleet.ports
    calls = [
        {"name": "noise", "arguments": {"seed": f"{{{{assistant_turns}}}}/{number}", "size_bytes": RESULT_BYTES}}
        for number in range(BATCH)
    ]
    script = (
        {"when": {"assistant_turns": {"max": BATCHES - 1}}, "answer": {"tool_calls": calls}},
        {"answer": {"text": "done"}},
    )
    window = {"main": {"context_window_tokens": 2_000_000}}
    with dev_model(*script) as model, _listening(on_own_redis.redis) as pushed:
        # Without inline steps every one of them is a message.
        fleet.worker(INLINE_HOPS="0")
        tools = {"noise": python_tool(handler="tests.acceptance.tools:noise")}
        run_id = ask(ports, http_release(model, tools, models=window), "a long run")
        wait_for_rest(ports, [run_id])
        assert run_of(ports, run_id).status == "succeeded"
    transcript = len(rebuild_request(ports, model_operations(ports, run_id)[-1]))
    assert transcript > BATCHES * BATCH * RESULT_BYTES
    # At least the model's attempts and the calls were messages.
    assert len(pushed) > BATCHES + BATCHES * BATCH
    # The command's and the key's name included.
    assert max(len(command.encode()) for command in pushed) < WAKE_UP_BYTES_MAX


# -- D15 ---------------------------------------------------------------------------------------------

STREAMS, CONNECTIONS = 200, 20
_OPEN_SINCE = "SELECT count(*) FROM pg_stat_activity WHERE usename = :role AND xact_start < to_timestamp(:at / 1e6)"


@pytest.fixture
def limited(own_postgres_server: PostgresServer) -> Iterator[str]:
    """A migrated database as a role sees it that the server gives no more than twenty connections."""
    url = own_postgres_server.create_database()
    migrate(url)
    role = f"limited_{sa.engine.make_url(url).database}"
    with closing(connect(url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(f'CREATE ROLE "{role}" LOGIN CONNECTION LIMIT {CONNECTIONS}')
        cursor.execute(f'GRANT ALL ON ALL TABLES IN SCHEMA public TO "{role}"')
    yield sa.engine.make_url(url).set(username=role, drivername="postgresql").render_as_string(hide_password=False)
    own_postgres_server.drop_database(url)


def test_D15_two_hundred_streams_live_on_twenty_connections_and_hold_none_while_they_wait(
    limited: str, redis_server: RedisServer, redis_prefix: str, model: DevModel, tmp_path: Path
) -> None:
    role = sa.engine.make_url(limited).username
    everybody = sa.engine.make_url(limited).set(username="postgres").render_as_string(hide_password=False)
    metrics = free_port()
    with open_fleet(everybody, redis_server.url, tmp_path, key_prefix=redis_prefix) as fleet:
        ports = fleet.ports
        # The server refuses the twenty-first connection, and each refusal would be a commit sent again.
        worker = fleet.worker(
            slots=STREAMS, DATABASE=limited, DATABASE_CONNECTIONS=str(CONNECTIONS), METRICS_PORT=str(metrics)
        )
        runs = questions(fleet, model, "first", STREAMS)
        wait_for_streams(model, STREAMS)
        wait_for(lambda: len(streamed_at(ports, runs)) == STREAMS, "the first output of each is noted")
        began = streamed_at(ports, runs)
        # Longer than the five seconds after which the server ends a session that idles in a transaction.
        wait_for(lambda: ports.store.now_us() > max(began) + 6 * US, "six seconds of waiting are over")
        assert query(ports, _OPEN_SINCE, role=role, at=max(began)) == [(0,)]
        model.open_gate("first")
        wait_for_rest(ports, runs)
        assert_one_attempt_each(ports, runs)
        assert len(model.requests) == STREAMS
        for trouble in ("claim_failed", "store_unavailable", "keeper_failed", "poll_failed", "upkeep_failed"):
            assert worker.lines(trouble) == []
        assert _metric(metrics, "agentloom_commit_resent_total") == 0
        assert worker.end() == 0


# -- D20 ---------------------------------------------------------------------------------------------


def test_D20_what_was_published_to_nobody_runs_and_a_message_of_a_row_that_never_was_does_nothing(
    on_own_redis: OwnRedisFleet, model: DevModel
) -> None:
    fleet, ports = on_own_redis.fleet, on_own_redis.fleet.ports
    worker = fleet.worker()
    on_own_redis.redis.stop()
    runs = questions(fleet, model, "unheard", 10)
    assert not fleet.made.publisher.available
    wait_for_rest(ports, runs)
    on_own_redis.redis.start()
    runs += questions(fleet, model, "heard", 1)
    wait_for_rest(ports, runs)
    assert_one_attempt_each(ports, runs)
    # What a transaction that was rolled back would have left: a message that names no row.
    before = _written(ports)
    phantoms = [
        WakeUp(DispatchId(ports.ids.new()), step, entry.queue.value, entry.version, force=force)
        for step, entry in EVERY_STEP.items()
        for force in (False, True)
    ]
    wait_for(lambda: fleet.made.publisher.available, "the broker is tried again")
    assert fleet.made.publisher.wake(phantoms) == []
    queues = {entry.queue.value for entry in EVERY_STEP.values()}
    wait_for(lambda: not any(fleet.made.publisher.backlog(queue) for queue in queues), "every message was taken")
    assert worker.end() == 0
    assert _written(ports) == before


def _written(ports: Ports) -> list[Any]:
    return query(
        ports,
        "SELECT (SELECT count(*) FROM scope_commit), (SELECT count(*) FROM run_event), (SELECT count(*) FROM attempt),"
        " (SELECT count(*) FROM pending_dispatch)",
    )
