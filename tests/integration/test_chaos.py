"""A small fleet on servers of its own, of which everything goes away in turn; tests/soak has the same for longer."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentloom_worker.storage.schema import migrate
from tests.chaos import Chaos, busy_model
from tests.fleet import QUICK, open_fleet
from tests.servers import OWN, PostgresServer, RedisServer, open_redis

ACTS = ["kill", "flush", "kill", "stop redis", "kill", "restart postgres", "kill", "drain"]
# A machine that is busy otherwise must not look like a worker that is gone.
SETTINGS = {**QUICK, "CLAIM_TTL_S": "4", "SUSPECT_GRACE_S": "2"}


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
        open_fleet(url, own_redis.url, tmp_path, key_prefix=own_redis.key_prefix, settings_of=SETTINGS) as fleet,
    ):
        chaos = Chaos(fleet, own_postgres_server, own_redis, model, tmp_path / "effects")
        chaos.start()
        chaos.suffer(ACTS, pause_s=1.5, count=30)
        assert chaos.done == {"kill": 4, "flush": 1, "stop redis": 1, "restart postgres": 1, "drain": 1}
        chaos.assert_right(timeout_s=120)
