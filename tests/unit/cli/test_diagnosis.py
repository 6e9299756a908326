"""What the doctor says of each fact: one rule a case, and never a complaint without a remedy."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from agentloom_worker.cli.diagnosis import (
    Line,
    State,
    judge_broker,
    judge_broker_address,
    judge_connections,
    judge_database,
    judge_fleet,
    judge_no_redis,
    judge_redis,
)
from agentloom_worker.clock import US, ClockOffset, SystemClock
from agentloom_worker.domain.health import BrokerFacts, DatabaseFacts, RedisFacts, Unreachable
from agentloom_worker.domain.process import WorkerProcess
from agentloom_worker.ids import ProcessId, SystemIds
from agentloom_worker.runtime.queues import QueueState

TOGETHER = ClockOffset(ahead_us=1000, error_us=500)
APART = ClockOffset(ahead_us=-5 * US, error_us=US)
DATABASE = DatabaseFacts(
    version="15.20",
    version_number=150020,
    settings={
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        "synchronous_standby_names": "",
        "autovacuum": "on",
        "max_connections": "100",
    },
    standby=False,
    standbys=0,
    connections=10,
    pooled=False,
    oldest_age_xids=3,
    oldest_held_s=0.5,
    clock=TOGETHER,
)
REDIS = RedisFacts(
    product="Redis",
    version="7.0.15",
    role="master",
    cluster=False,
    eviction="noeviction",
    memory_used=2**20,
    memory_max=100 * 2**20,
    persistence=(),
    saving_fails=False,
    clock=TOGETHER,
)
WORKER = WorkerProcess(
    ProcessId(SystemIds(SystemClock()).new()),
    "here",
    7,
    ("model",),
    4,
    "1.0",
    False,
    started_at=0,
    seen_at=0,
    silent_us=0,
)
SILENT = replace(WORKER, silent_us=60 * US)
QUEUE = QueueState("model", 0, 0, 0, 0, 0, 0, processes=1, slots=4)


def complaints(lines: Iterable[Line]) -> dict[str, State]:
    """What is not ok, by name. Every line says what was found, and a remedy wherever one is needed."""
    found = list(lines)
    assert len({line.name for line in found}) == len(found), "a name is a key"
    assert all(line.found for line in found)
    assert all((line.advice is None) == (line.state is State.OK) for line in found)
    return {line.name: line.state for line in found if line.state is not State.OK}


@pytest.mark.parametrize(
    "facts", [DATABASE, replace(DATABASE, standbys=1, settings={**DATABASE.settings, "synchronous_standby_names": "*"})]
)
def test_a_sound_database_is_left_alone(facts: DatabaseFacts) -> None:
    assert complaints(judge_database(facts)) == {}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"version_number": 130010}, {"database.version": State.FAIL}),
        ({"standby": True}, {"database.primary": State.FAIL}),
        ({"standbys": 2}, {"database.replication": State.WARN}),
        ({"pooled": True}, {"database.pooling": State.FAIL}),
        ({"oldest_held_s": 4000.0}, {"database.snapshot": State.WARN}),
        ({"oldest_age_xids": 10_000_000}, {"database.snapshot": State.WARN}),
        ({"clock": APART}, {"database.clock": State.WARN}),
        ({"clock": ClockOffset(5 * US, 4 * US)}, {}),
    ],
)
def test_what_is_wrong_with_a_database_is_named(changes: dict[str, object], expected: dict[str, State]) -> None:
    assert complaints(judge_database(replace(DATABASE, **changes))) == expected


@pytest.mark.parametrize(
    ("setting", "state"),
    [
        ("fsync", State.FAIL),
        ("full_page_writes", State.FAIL),
        ("synchronous_commit", State.WARN),
        ("autovacuum", State.WARN),
    ],
)
def test_T16_a_database_that_may_lose_commits_is_named(setting: str, state: State) -> None:
    facts = replace(DATABASE, settings={**DATABASE.settings, setting: "off"})
    assert complaints(judge_database(facts)) == {f"database.{setting}": state}


def test_a_server_that_does_not_answer_gets_one_line() -> None:
    away = Unreachable("connection refused")
    assert complaints(judge_database(away)) == {"database.reachable": State.FAIL}
    assert complaints(judge_redis("redis", away)) == {"redis.reachable": State.FAIL}
    assert complaints(judge_broker(away)) == {"broker.publish": State.FAIL}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"version": "5.0.1"}, {"redis.version": State.WARN}),
        ({"product": "Valkey", "version": "5.0.1"}, {}),
        ({"cluster": True}, {"redis.cluster": State.FAIL}),
        ({"role": "slave"}, {"redis.role": State.FAIL}),
        ({"eviction": "allkeys-lru"}, {"redis.eviction": State.FAIL}),
        ({"eviction": "volatile-lru"}, {"redis.eviction": State.WARN}),
        ({"memory_used": 95 * 2**20}, {"redis.eviction": State.WARN}),
        ({"memory_used": 95 * 2**20, "memory_max": 0}, {}),
        ({"saving_fails": True, "persistence": ("snapshots",)}, {"redis.persistence": State.FAIL}),
        ({"clock": APART}, {"redis.clock": State.WARN}),
    ],
)
def test_what_is_wrong_with_a_redis_is_named(changes: dict[str, object], expected: dict[str, State]) -> None:
    assert complaints(judge_redis("redis", replace(REDIS, **changes))) == expected


def test_lanes_without_a_redis_are_named() -> None:
    assert judge_no_redis({}).state is State.OK
    line = judge_no_redis({"api.example.com": 40, "*": 9})
    assert line.state is State.WARN
    assert "api.example.com, *" in line.found and line.advice is not None and "AGENTLOOM_REDIS" in line.advice


def test_an_old_rabbitmq_is_named() -> None:
    assert complaints(judge_broker(BrokerFacts("RabbitMQ", "3.10.8", {"model": 3, "tools": None}))) == {}
    assert complaints(judge_broker(BrokerFacts("RabbitMQ", "3.7.1", {}))) == {"broker.version": State.WARN}
    assert complaints(judge_broker(BrokerFacts("Redis", "", {"model": 0}))) == {}


@pytest.mark.parametrize(
    ("workers", "each", "state"),
    [([WORKER] * 5, 20, State.OK), ([WORKER] * 6, 20, State.WARN), ([WORKER] * 5 + [SILENT], 20, State.OK)],
)
def test_connections_are_counted_for_every_process_that_is_there(
    workers: list[WorkerProcess], each: int, state: State
) -> None:
    assert judge_connections(DATABASE, workers, each).state is state
    assert judge_connections(replace(DATABASE, connections=95), [], each).state is State.WARN


@pytest.mark.parametrize(
    ("workers", "queue", "expected"),
    [
        ([WORKER], QUEUE, {}),
        ([], QUEUE, {"fleet.workers": State.WARN}),
        ([WORKER, SILENT], QUEUE, {"fleet.silent": State.WARN}),
        ([WORKER, replace(WORKER, version="0.9")], QUEUE, {"fleet.versions": State.WARN}),
        ([replace(WORKER, version="0.9")], QUEUE, {"fleet.versions": State.WARN}),
        ([WORKER], replace(QUEUE, due=2, oldest_due_ms=29_000), {}),
        ([WORKER], replace(QUEUE, due=2, oldest_due_ms=31_000), {"queue.model": State.WARN}),
        ([WORKER], replace(QUEUE, due=2, oldest_due_ms=31_000, slots=0), {"queue.model": State.FAIL}),
        ([WORKER], replace(QUEUE, parked=1), {"fleet.parked": State.WARN}),
        ([WORKER], replace(QUEUE, slots=0), {"fleet.queues": State.WARN}),
        ([WORKER], replace(QUEUE, queue="compaction", slots=0), {"fleet.queues": State.WARN}),
        ([WORKER], replace(QUEUE, queue="solitary", slots=0), {}),
        ([], replace(QUEUE, slots=0), {"fleet.workers": State.WARN}),
        ([replace(WORKER, draining=True)], QUEUE, {"fleet.workers": State.WARN}),
        ([WORKER, replace(WORKER, draining=True)], QUEUE, {}),
    ],
)
def test_what_waits_for_nobody_is_named(
    workers: list[WorkerProcess], queue: QueueState, expected: dict[str, State]
) -> None:
    assert complaints(judge_fleet(workers, [queue], "1.0")) == expected


def test_processes_that_drain_are_no_capacity() -> None:
    (line,) = [
        line for line in judge_fleet([WORKER, replace(WORKER, draining=True)], [], "1.0") if "slots" in line.found
    ]
    assert line.found == "1 process(es), 4 slots; 1 more drain"


@pytest.mark.parametrize(
    ("url", "state"),
    [
        ("redis://cache/0", State.OK),
        ("amqps://cache//", State.OK),
        ("rediss://cache/0", State.WARN),
        ("rediss://cache/0?ssl_cert_reqs=none", State.WARN),
        ("rediss://cache/0?ssl_ca_certs=/ca.pem&ssl_cert_reqs=required", State.OK),
        ("rediss://cache/0?ssl_cert_reqs=CERT_REQUIRED", State.OK),
    ],
)
def test_a_broker_whose_certificate_nobody_verifies_is_named(url: str, state: State) -> None:
    line = judge_broker_address(url, "shown")
    assert (line.state, line.advice is None) == (state, state is State.OK)


def test_the_remedy_for_an_unserved_queue_starts_a_worker_of_it() -> None:
    stuck = replace(QUEUE, queue="solitary", due=1, oldest_due_ms=60_000, slots=0, processes=0)
    (line,) = [line for line in judge_fleet([WORKER], [stuck], "1.0") if line.name == "queue.solitary"]
    assert "-Q solitary -P prefork -c 1" in (line.advice or "")


def test_a_clock_is_compared_with_the_middle_of_the_question() -> None:
    offset = ClockOffset.between(1_000, 5_000, 3_000)
    assert (offset.ahead_us, offset.error_us, offset.certain_us) == (3_000, 1_000, 2_000)
    assert ClockOffset(-500, 1_000).certain_us == 0
