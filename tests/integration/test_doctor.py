"""The doctor before real servers: sound ones, one that is away, a pooler between, a schema that is behind."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from agentloom_worker import Agentloom
from agentloom_worker.cli.app import main
from agentloom_worker.clock import SystemClock
from agentloom_worker.domain.health import DatabaseFacts, RedisFacts, Unreachable
from agentloom_worker.leases.probe import probe_redis
from agentloom_worker.settings import settings_reference
from agentloom_worker.storage.probe import probe_database
from tests.databases import connect
from tests.pooler import TransactionPooler
from tests.servers import PostgresServer, RedisServer

SERVERS = {"database.fsync", "database.full_page_writes", "database.synchronous_commit", "database.snapshot"}
NOWHERE = "redis://:secret@127.0.0.1:1/0"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in settings_reference():
        monkeypatch.delenv(line.env, raising=False)


@pytest.fixture
def pooler(postgres_url: str) -> Iterator[TransactionPooler]:
    with closing(TransactionPooler(postgres_url)) as opened:
        yield opened


def examine(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, dict[str, Any], str]:
    """The exit code, the lines by name, and everything that was printed."""
    with pytest.raises(SystemExit) as left:
        main(["doctor", "--json", *arguments])
    printed = capsys.readouterr()
    said = json.loads(printed.out)
    assert set(said) == {"ok", "version", "lines"}
    assert all(set(line) == {"name", "state", "found", "advice"} for line in said["lines"])
    return left.value.code, {line["name"]: line for line in said["lines"]}, printed.out + printed.err


def test_a_fleet_s_servers_are_examined_and_only_their_faults_make_it_fail(
    postgres_url: str, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, lines, _ = examine(capsys, "--database", postgres_url, "--broker", redis_url)
    assert set(lines) >= SERVERS
    for name in ("reachable", "version", "schema", "pooling", "clock", "connections"):
        assert lines[f"database.{name}"]["state"] == "ok", lines[f"database.{name}"]
    for name in ("reachable", "version", "persistence", "clock", "publish"):
        assert lines[f"broker.{name}"]["state"] == "ok", lines[f"broker.{name}"]
    assert lines["fleet.workers"]["state"] == "warn"


def test_a_variable_that_nothing_reads_is_to_be_looked_at(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTLOOM_MODEL_LANE", "*=1")
    _, lines, _ = examine(capsys, "--database", "sqlite:///nowhere")
    line = lines["settings.unread"]
    assert (line["state"], line["found"]) == ("warn", "nothing reads AGENTLOOM_MODEL_LANE")
    assert line["advice"] == "is AGENTLOOM_MODEL_LANES meant? `agentloom settings` lists what is read"


def test_a_server_that_is_away_fails_and_its_password_is_not_shown(
    postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines, printed = examine(capsys, "--database", postgres_url, "--broker", NOWHERE)
    assert code == 1
    assert [lines[f"broker.{name}"]["state"] for name in ("reachable", "publish")] == ["fail", "fail"]
    code, lines, more = examine(capsys, "--database", "postgresql://me:secret@127.0.0.1:1/x", "--broker", NOWHERE)
    assert (code, lines["database.reachable"]["found"]) == (1, "connection refused")
    assert "secret" not in printed + more


def test_a_schema_that_is_behind_fails_with_its_remedy(
    postgres_server: PostgresServer, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = postgres_server.create_database()
    try:
        code, lines, _ = examine(capsys, "--database", empty, "--broker", redis_url)
    finally:
        postgres_server.drop_database(empty)
    assert (code, lines["database.schema"]["state"]) == (1, "fail")
    assert "agentloom migrate" in lines["database.schema"]["advice"]


def test_a_pooler_that_lends_by_the_transaction_is_recognized(postgres_url: str, pooler: TransactionPooler) -> None:
    direct, pooled = (probe_database(url, SystemClock()) for url in (postgres_url, pooler.url))
    assert isinstance(direct, DatabaseFacts) and not direct.pooled
    assert isinstance(pooled, DatabaseFacts) and pooled.pooled


def test_a_session_that_holds_a_snapshot_is_measured(postgres_url: str) -> None:
    with closing(connect(postgres_url)) as holder, closing(connect(postgres_url)) as writer:
        writer.autocommit = True
        with holder.cursor() as cursor, writer.cursor() as other:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT 1 FROM run")
            for _ in range(3):
                other.execute("SELECT pg_current_xact_id()")
            facts = probe_database(postgres_url, SystemClock())
    assert isinstance(facts, DatabaseFacts)
    assert facts.oldest_age_xids >= 3 and facts.oldest_held_s > 0


def test_a_redis_says_what_it_is(redis_server: RedisServer) -> None:
    facts = probe_redis(redis_server.url, SystemClock())
    assert isinstance(facts, RedisFacts)
    assert facts.version[:1].isdigit() and facts.role == "master" and facts.eviction
    assert isinstance(probe_redis(NOWHERE, SystemClock()), Unreachable)


def test_workers_and_queues_are_listed_with_stable_keys(postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    def listed(command: str) -> Any:
        with pytest.raises(SystemExit):
            main([command, "--json", "--database", postgres_url])
        return json.loads(capsys.readouterr().out)

    with Agentloom.connect(postgres_url, run_workers=True, threads=3):
        (worker,) = listed("workers")
        queues = {queue["queue"]: queue for queue in listed("queues")}
    assert set(worker) == {
        "process_id", "host", "pid", "queues", "slots", "version", "draining", "started_at", "seen_at", "silent_ms",
        "state",
    }  # fmt: skip
    assert (worker["state"], worker["slots"], worker["queues"]) == (
        "here",
        3,
        ["control", "model", "tools", "compaction", "maintenance"],
    )
    assert set(queues["model"]) == {
        "queue", "due", "oldest_due_ms", "waiting", "claimed", "suspect", "parked", "processes", "slots",
    }  # fmt: skip
    assert (queues["model"]["slots"], queues["solitary"]["slots"]) == (3, 0)
    assert listed("workers") == []
