"""The servers that the tests stand on: started from wheels, as a fresh machine starts them."""

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
import redis
from sqlalchemy.engine import make_url

from tests.server_process import NoServerError, free_port
from tests.servers import (
    OWN,
    POSTGRES_VARIABLE,
    REDIS_VARIABLE,
    Origin,
    PostgresServer,
    RedisServer,
    open_postgres,
    open_redis,
)

ROOT = Path(__file__).resolve().parents[2]
DEATH_WAIT_S = 20


@pytest.fixture(scope="module")
def wheel_postgres() -> Iterator[PostgresServer]:
    with closing(open_postgres(wish="wheel")) as server:
        yield server


@pytest.fixture(scope="module")
def wheel_redis() -> Iterator[RedisServer]:
    with closing(open_redis(wish="wheel")) as server:
        yield server


def query(url: str, statement: str) -> list[tuple[object, ...]]:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg2.connect(plain)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        rows = cursor.fetchall() if cursor.description else []
        connection.commit()
        return rows


def databases(server: PostgresServer) -> set[object]:
    return {row[0] for row in query(server.admin_url, "SELECT datname FROM pg_database")}


def test_wheel_postgres_listens_on_loopback_only_and_runs_unprivileged(
    wheel_postgres: PostgresServer,
) -> None:
    assert wheel_postgres.origin is Origin.WHEEL
    assert query(wheel_postgres.admin_url, "SHOW listen_addresses") == [("127.0.0.1",)]
    [(data,)] = query(wheel_postgres.admin_url, "SHOW data_directory")
    assert Path(str(data)).stat().st_uid != 0


def test_an_immediate_restart_keeps_what_was_committed(wheel_postgres: PostgresServer) -> None:
    url = wheel_postgres.create_database()
    query(url, "CREATE TABLE kept (n int)")
    query(url, "INSERT INTO kept VALUES (1)")
    wheel_postgres.restart_immediate()
    assert query(url, "SELECT n FROM kept") == [(1,)]


def test_a_copy_of_a_sealed_template_holds_its_tables(wheel_postgres: PostgresServer) -> None:
    template = wheel_postgres.create_database("sealed")
    query(template, "CREATE TABLE copied (n int)")
    wheel_postgres.seal_template(template)
    assert query(wheel_postgres.create_database(template=template), "SELECT n FROM copied") == []
    with pytest.raises(psycopg2.OperationalError, match="not currently accepting connections"):
        query(template, "SELECT 1")


def test_a_server_not_started_here_keeps_every_database_but_ours(wheel_postgres: PostgresServer) -> None:
    before = databases(wheel_postgres)
    guest = open_postgres(wish=wheel_postgres.admin_url)
    created = {make_url(guest.create_database()).database, make_url(guest.create_database("named")).database}
    assert databases(wheel_postgres) == before | created
    assert all(str(name).startswith(f"{guest.prefix}_") for name in created)
    guest.close()
    assert databases(wheel_postgres) == before


def test_a_server_not_started_here_drops_no_database_of_others(wheel_postgres: PostgresServer) -> None:
    other = wheel_postgres.create_database()
    with closing(open_postgres(wish=wheel_postgres.admin_url)) as guest:
        with pytest.raises(AssertionError, match="was not created here"):
            guest.drop_database(other)
        with pytest.raises(AssertionError, match="was not started here"):
            guest.restart_immediate()


def test_a_redis_not_started_here_keeps_every_key_but_ours(wheel_redis: RedisServer) -> None:
    with closing(redis.Redis.from_url(wheel_redis.url)) as client:
        client.set("somebody:else", "1")
        guest = open_redis(wish=wheel_redis.url)
        client.set(f"{guest.key_prefix}a", "1")
        guest.close()
        assert client.keys("*") == [b"somebody:else"]


def test_a_url_that_does_not_answer_is_an_error_and_not_replaced() -> None:
    port = free_port()
    with pytest.raises(NoServerError, match=f"{POSTGRES_VARIABLE} does not answer"):
        open_postgres(wish=f"postgresql://postgres@127.0.0.1:{port}/postgres")
    with pytest.raises(NoServerError, match=f"{REDIS_VARIABLE} does not answer"):
        open_redis(wish=f"redis://127.0.0.1:{port}/0")


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(NoServerError, match="neither a URL nor one of found, installed, wheel"):
        open_postgres(wish="docker")


def test_a_url_does_not_stand_in_for_a_server_of_our_own(wheel_redis: RedisServer) -> None:
    with closing(open_redis(OWN, wish=wheel_redis.url)) as server:
        assert server.url != wheel_redis.url


def test_each_test_gets_a_database_of_its_own(postgres_server: PostgresServer, postgres_url: str) -> None:
    database = make_url(postgres_url).database
    assert query(postgres_url, "SELECT current_database()") == [(database,)]
    assert str(database).startswith(f"{postgres_server.prefix}_")


def test_servers_die_with_a_killed_starter() -> None:
    starter = subprocess.Popen(
        [sys.executable, "-m", "tests.servers", "cat"],
        cwd=ROOT,
        env={**os.environ, POSTGRES_VARIABLE: "wheel", REDIS_VARIABLE: "wheel"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        assert starter.stdout is not None
        text = [starter.stdout.readline() for _ in range(4)]
        urls = dict(line.strip().split("=", 1) for line in (text[1], text[3]))
        [(data,)] = query(urls[POSTGRES_VARIABLE], "SHOW data_directory")
        homes = [Path(str(data)).parent]
        postmaster = int((homes[0] / "data" / "postmaster.pid").read_text().split()[0])
        with closing(redis.Redis.from_url(urls[REDIS_VARIABLE])) as client:
            cache = int(client.info("server")["process_id"])
            homes.append(Path(str(client.config_get("dir")["dir"])))
        ends = [os.pidfd_open(postmaster), os.pidfd_open(cache)]
        starter.send_signal(signal.SIGKILL)
        ended = [select.select([end], [], [], DEATH_WAIT_S)[0] == [end] for end in ends]
    for end in ends:
        os.close(end)
    for home in homes:
        assert home.name.startswith("agentloom-test-")
        shutil.rmtree(home)
    assert ended == [True, True]
