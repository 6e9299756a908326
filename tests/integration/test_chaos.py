"""A minute in which everything goes away, with the claims that every deployment has; tests/soak has longer ones.

Two workers with a kill -9 every second, a beat and the process that serves alone, on servers of their own: 200 runs,
sessions with several of them and with supplements included. A worker that is killed is followed by one that is forked
from a warm process: else most of them would die while they import.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentloom_worker.storage.schema import migrate
from tests.chaos import Chaos, busy_model
from tests.fleet import open_fleet
from tests.nursery import Nursery
from tests.servers import OWN, PostgresServer, RedisServer, open_redis

RUNS = 200
KILLS = 60
EVERY_S = 1.0
# What else is done, and behind how many kills.
ELSE = {12: "flush", 24: "stop redis", 36: "restart postgres", 48: "drain"}
PATIENCE_S = 300.0


def _acts() -> list[str]:
    acts = []
    for number in range(1, KILLS + 1):
        acts.append("kill")
        if number in ELSE:
            acts.append(ELSE[number])
    return acts


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with closing(open_redis(OWN)) as server:
        yield server


def test_D03_D04_D08_D11_D21_every_run_succeeds_whatever_is_killed_flushed_stopped_restarted_or_drained(
    own_postgres_server: PostgresServer, own_redis: RedisServer, tmp_path: Path
) -> None:
    url = own_postgres_server.create_database()
    migrate(url)
    with (
        busy_model() as model,
        Nursery() as nursery,
        open_fleet(
            url, own_redis.url, tmp_path, key_prefix=own_redis.key_prefix, settings_of={"METRICS_HOST": "127.0.0.1"}
        ) as fleet,
    ):
        fleet.nursery = nursery
        chaos = Chaos(fleet, own_postgres_server, own_redis, model, tmp_path / "effects")
        chaos.start(beat=True)
        chaos.suffer(_acts(), pause_s=EVERY_S, count=RUNS)
        assert chaos.done == {"kill": KILLS, **dict.fromkeys(ELSE.values(), 1)}
        chaos.assert_right(timeout_s=PATIENCE_S)
