"""Who starts before the database: waits for one that is away, and leaves at once where waiting cannot help."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg2
import pytest
import sqlalchemy as sa
from psycopg2 import sql

from agentloom_worker.clock import SystemClock
from agentloom_worker.domain.dispatch import Queue
from agentloom_worker.errors import AgentloomError, PersistenceUnavailableError, PersistenceUnreachableError
from agentloom_worker.storage.schema import migrate
from agentloom_worker.storage.store import open_store
from tests.acceptance.harness import wait_for
from tests.fleet import Fleet, FleetProcessHandle, open_fleet
from tests.servers import PostgresServer, RedisServer

PATIENCE = {"START_WAIT_S": "600"}


@pytest.fixture
def fleet(
    own_postgres_server: PostgresServer, redis_server: RedisServer, redis_prefix: str, tmp_path: Path
) -> Iterator[Fleet]:
    """A fleet without processes whose database is up and may be stopped."""
    url = own_postgres_server.create_database()
    migrate(url)
    with open_fleet(url, redis_server.url, tmp_path, key_prefix=redis_prefix) as opened:
        yield opened


@pytest.fixture
def away(own_postgres_server: PostgresServer, fleet: Fleet) -> Iterator[PostgresServer]:
    """The fleet's server, stopped."""
    own_postgres_server.stop()
    try:
        yield own_postgres_server
    finally:
        # Others use the server too; one that a test has started again is left alone.
        own_postgres_server.stop()
        own_postgres_server.start()


def everybody(fleet: Fleet, **extra: str) -> list[FleetProcessHandle]:
    """One process of each kind, of which nothing is awaited."""
    return [
        fleet.worker(ready="", **extra),
        fleet.worker("solitary", pool="prefork", slots=1, ready="", **extra),
        fleet.beat(ready="", **extra),
    ]


def test_D16_whoever_starts_before_the_database_waits_for_it_and_serves(fleet: Fleet, away: PostgresServer) -> None:
    processes = everybody(fleet, **PATIENCE)
    for process in processes:
        process.wait_for_line("waiting_for_database")
    away.start()
    for process, ready in zip(processes, ("process_started", "process_started", "beat_started"), strict=True):
        process.wait_for_line(ready)
        assert len(process.lines("waiting_for_database")) == 1
    assert [process.end() for process in processes] == [0, 0, 0]


def test_D16_whoever_may_not_wait_for_the_database_leaves_at_once(fleet: Fleet, away: PostgresServer) -> None:
    for process in everybody(fleet, START_WAIT_S="0"):
        assert process.exit_code() == 69, process.tail()
        assert [line["code"] for line in process.lines("not_ready")] == ["PERSISTENCE_UNAVAILABLE"]
        assert process.lines("waiting_for_database") == []


def test_D16_a_worker_that_waits_for_its_database_can_be_told_to_end(fleet: Fleet, away: PostgresServer) -> None:
    worker = fleet.worker(ready="waiting_for_database", **PATIENCE)
    assert worker.end() == 69


def test_D16_nobody_waits_for_a_database_that_does_not_exist_or_was_never_migrated(
    fleet: Fleet, own_postgres_server: PostgresServer
) -> None:
    unknown = sa.engine.make_url(fleet.ports.store.url).set(database="nobody_made_this", drivername="postgresql")
    for url, code in (
        (unknown.render_as_string(hide_password=False), "PERSISTENCE_UNAVAILABLE"),
        (own_postgres_server.create_database(), "SCHEMA_BEHIND"),
    ):
        for process in everybody(fleet, DATABASE=url, **PATIENCE):
            assert process.exit_code() == 69, process.tail()
            assert [line["code"] for line in process.lines("not_ready")] == [code]
            assert process.lines("waiting_for_database") == []


def test_D16_only_a_server_that_does_not_answer_is_called_unreachable(own_postgres_server: PostgresServer) -> None:
    here = sa.engine.make_url(own_postgres_server.admin_url)
    found = []
    for url in (here.set(port=1), here.set(database="nobody_made_this"), here.set(username="nobody_at_all")):
        store = open_store(url.render_as_string(hide_password=False), SystemClock())
        with pytest.raises(PersistenceUnavailableError) as refused:
            store.check_schema()
        store.close()
        found.append(isinstance(refused.value, PersistenceUnreachableError))
    assert found == [True, False, False]


def test_T8_a_worker_that_names_solitary_beside_other_queues_is_refused_and_says_what_to_start(fleet: Fleet) -> None:
    for pool in ("threads", "prefork"):
        worker = fleet.worker("control,solitary,model", pool=pool, slots=1, ready="")
        assert worker.exit_code() == 78, worker.tail()
        (line,) = worker.lines("not_ready")
        assert line["code"] == "INPUT_INVALID"
        assert "-Q control,model" in line["error"] and "-Q solitary" in line["error"]
        assert worker.lines("process_started") == []


def test_a_worker_that_names_a_queue_that_is_none_is_refused_and_says_which_there_are(fleet: Fleet) -> None:
    worker = fleet.worker("contrl,model", ready="")
    assert worker.exit_code() == 78, worker.tail()
    (line,) = worker.lines("not_ready")
    assert line["code"] == "INPUT_INVALID"
    prefix = fleet.queue_prefix
    known = ", ".join(sorted(prefix + queue.value for queue in Queue))
    assert line["error"] == f"-Q names {prefix}contrl: the queues are {known}"


def test_a_worker_says_which_variables_nothing_reads(fleet: Fleet) -> None:
    worker = fleet.worker("", MODEL_LANE="*=1")
    (line,) = worker.lines("setting_unread")
    assert (line["variable"], line["meant"]) == ("AGENTLOOM_MODEL_LANE", "AGENTLOOM_MODEL_LANES")
    assert worker.end() == 0


def test_T8_a_worker_that_names_no_queue_serves_all_but_solitary(fleet: Fleet) -> None:
    worker = fleet.worker("")
    (line,) = worker.lines("process_started")
    assert set(line["queues"].split(",")) == {queue.value for queue in Queue} - {"solitary"}
    assert worker.end() == 0


def test_D16_a_password_of_any_characters_is_taken_from_beside_the_url(
    own_postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docker-compose.yml gives it: no character of it has to be encoded."""
    password = "p@ss/w:rd?#%&'\\ \"é"
    database = sa.engine.make_url(own_postgres_server.create_database()).set(
        username="agentloom_asked", host="127.0.0.1"
    )
    url = database.render_as_string(hide_password=False)
    with asking_for_passwords(own_postgres_server, "agentloom_asked", password):
        monkeypatch.setenv("PGPASSWORD", "another")
        wait_for(lambda: "PERSISTENCE_UNAVAILABLE" in refusal(url), "the server asks for passwords", 60)
        monkeypatch.setenv("PGPASSWORD", password)
        assert "SCHEMA_BEHIND" in refusal(url)


def refusal(url: str) -> str:
    """What a process says that begins on this database."""
    store = open_store(url, SystemClock())
    try:
        store.check_schema()
    except AgentloomError as error:
        return f"{error.code} {error.message}"
    finally:
        store.close()
    return ""


@contextmanager
def asking_for_passwords(server: PostgresServer, role: str, password: str) -> Iterator[None]:
    """A role of an own server that must say its password, which the server trusts everybody else not to need."""
    admin = sa.engine.make_url(server.admin_url).set(drivername="postgresql")
    dsn = admin.render_as_string(hide_password=False)
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), sql.Literal(password)))
        cursor.execute("SHOW hba_file")
        (name,) = cursor.fetchone() or ("",)
        rules = Path(name)
        before = rules.read_text()
        rules.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{before}")
        try:
            cursor.execute("SELECT pg_reload_conf()")
            yield
        finally:
            rules.write_text(before)
            cursor.execute("SELECT pg_reload_conf()")
            cursor.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))
