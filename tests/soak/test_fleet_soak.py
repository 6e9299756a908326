"""Fleets of real Celery workers that are killed, restarted under and deprived of everything, for long."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pytest

from agentloom_worker import limits
from agentloom_worker.audit import run_audit
from agentloom_worker.ids import RunId, SessionId
from agentloom_worker.runtime.accept import accept_question
from agentloom_worker.runtime.dispatch import Sweeper
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.publish import publish_release
from agentloom_worker.storage.schema import migrate
from tests.acceptance.harness import dev_model, http_release, query, wait_for
from tests.chaos import AGAIN, Chaos, busy_model
from tests.factories import run_of_receipt
from tests.fleet import open_fleet
from tests.servers import PostgresServer, RedisServer
from tests.soak.sizes import SIZES

pytestmark = pytest.mark.soak

ACTS = ("kill", "kill", "flush", "kill", "drain", "kill", "stop redis", "kill", "restart postgres")


def test_D03_every_one_of_ten_thousand_short_runs_ends_although_a_worker_is_killed_every_two_seconds(
    clean_postgres: str, redis_server: RedisServer, redis_prefix: str, tmp_path: Path, result: Callable[..., None]
) -> None:
    with (
        dev_model({"answer": {"text": "done"}}, delay={"first_chunk_ms": 300}) as model,
        open_fleet(
            clean_postgres, redis_server.url, tmp_path, key_prefix=redis_prefix, settings_of=SIZES.variables
        ) as fleet,
    ):
        ports, asker = fleet.ports, _Asker(fleet.ports, http_release(model, models={"main": {"retry": AGAIN}}))
        workers = [fleet.worker(ready="") for _ in range(SIZES.workers)]
        spared = fleet.worker("solitary", pool="prefork", slots=1)
        for worker in workers:
            worker.wait_for_line("process_started")
        # This process sweeps as a beat does, and since nobody kills it, its count of re-dispatched rows is whole.
        sweeper, redispatched, killed, turn = Sweeper(ports), 0, 0, cycle(range(SIZES.workers))
        clock, tick_s = ports.clock, limits.SWEEP_TICK_S
        now_s = clock.monotonic_s()
        kill_at, sweep_at, until_s = now_s + SIZES.kill_every_s, now_s, now_s + 2 * SIZES.patience_s
        left = SIZES.short_runs
        while left or _unfinished(ports):
            now_s = clock.monotonic_s()
            assert now_s < until_s, f"{left} are not asked, {_unfinished(ports)} not over"
            assert not ports.store.list_dispatches(parked_only=True)
            if now_s >= sweep_at:
                sweep_at = now_s + tick_s
                redispatched += sweeper.sweep().published
            if now_s >= kill_at and left:
                kill_at = now_s + SIZES.kill_every_s
                place = next(turn)
                workers[place].kill_session()
                workers[place] = fleet.worker(ready="")
                killed += 1
            # Twice what the slots hold: there is always a claim to be lost, and asking lasts as long as killing.
            if left and _unfinished(ports) < 16 * SIZES.workers:
                asker.ask(min(20, left))
                left -= min(20, left)
            else:
                threading.Event().wait(0.1)
        wait_for(lambda: ports.store.list_dispatches() == [], "no row is left", SIZES.patience_s)
        found = {row[0]: row[1] for row in query(ports, "SELECT status, count(*) FROM run GROUP BY status")}
        assert found == {"succeeded": SIZES.short_runs}
        assert redispatched > 0
        for worker in workers:
            worker.wait_for_line("process_started")
        assert [worker.end() for worker in (*workers, spared)] == [0] * (SIZES.workers + 1)
        assert run_audit(ports) == ()
    result(runs=SIZES.short_runs, killed=killed, redispatched=redispatched, calls=len(model.requests))


class _Asker:
    """Publishes once and then asks each question in a session of its own."""

    def __init__(self, ports: Ports, document: dict[str, object]) -> None:
        self._ports = ports
        owner = ports.store.find_owner(publish_release(ports, document).agent_id)
        assert owner is not None
        self._owner = owner

    def ask(self, count: int) -> list[RunId]:
        ports, asked = self._ports, []
        for _ in range(count):
            session_id = SessionId(ports.ids.new())
            ports.store.open_session(session_id, self._owner)
            session = ports.store.load_session(session_id)
            assert session is not None
            asked.append(run_of_receipt(accept_question(ports, session, "What now?", None, str(ports.ids.new()))))
        return asked


def _unfinished(ports: Ports) -> int:
    ((count,),) = query(ports, "SELECT count(*) FROM run WHERE ended_at IS NULL")
    return int(count)


def test_D11_no_run_is_left_behind_when_the_database_restarts_every_few_seconds_for_minutes(
    own_postgres_server: PostgresServer, own_redis: RedisServer, tmp_path: Path, result: Callable[..., None]
) -> None:
    with _chaos(own_postgres_server, own_redis, tmp_path) as chaos:
        beat = chaos.fleet.beat()
        gaps = cycle(SIZES.restart_gaps_s)
        clock = chaos.fleet.ports.clock
        until_s = clock.monotonic_s() + SIZES.restarts_s
        while clock.monotonic_s() < until_s:
            chaos.suffer(["restart postgres"], pause_s=next(gaps), count=SIZES.runs_per_restart)
        chaos.assert_right(SIZES.patience_s)
        assert beat.end() == 0
        result(runs=chaos.asked, **_named(chaos.done))


def test_D03_D04_D08_D11_D21_a_minute_of_everything_at_once_loses_nothing(
    own_postgres_server: PostgresServer, own_redis: RedisServer, tmp_path: Path, result: Callable[..., None]
) -> None:
    with _chaos(own_postgres_server, own_redis, tmp_path) as chaos:
        count = max(len(ACTS), round(SIZES.chaos_s / SIZES.chaos_every_s))
        acts = [act for act, _ in zip(cycle(ACTS), range(count), strict=False)]
        chaos.suffer(acts, pause_s=SIZES.chaos_every_s, count=SIZES.chaos_runs)
        assert set(chaos.done) == set(ACTS)
        chaos.assert_right(SIZES.patience_s)
        result(runs=chaos.asked, **_named(chaos.done))


def _named(done: Counter[str]) -> dict[str, int]:
    return {name.replace(" ", "_"): count for name, count in done.items()}


@contextmanager
def _chaos(postgres: PostgresServer, redis: RedisServer, folder: Path) -> Iterator[Chaos]:
    url = postgres.create_database()
    migrate(url)
    with (
        busy_model() as model,
        open_fleet(url, redis.url, folder, key_prefix=redis.key_prefix, settings_of=SIZES.variables) as fleet,
    ):
        chaos = Chaos(fleet, postgres, redis, model, folder / "effects")
        chaos.start()
        yield chaos
