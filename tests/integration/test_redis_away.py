"""A Redis that is flushed, stopped and started costs speed only: our own server, since others may use a found one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from agentloom_worker import limits, telemetry
from agentloom_worker.clock import ManualClock, SystemClock
from agentloom_worker.ids import ClaimToken, DispatchId, RunId, SystemIds
from agentloom_worker.leases import open_fast_path, redis
from agentloom_worker.leases.fast_path import FastPath
from agentloom_worker.runtime.lane import Lane
from tests.servers import OWN, RedisServer, open_redis

IDS = SystemIds(SystemClock())
WAIT_S = 20.0
LONG_MS = 60_000


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with closing(open_redis(OWN)) as opened:
        yield opened


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(server: RedisServer, clock: ManualClock) -> Iterator[FastPath]:
    opened = open_fast_path(server.url, clock)
    yield opened
    opened.close()


def flush(server: RedisServer) -> None:
    with closing(redis.connect(server.url, retries=0)) as client:
        client.flushall()


def test_D21_flushed_redis_knows_nothing_and_serves_on(server: RedisServer, store: FastPath) -> None:
    dispatch_id, token, run_id = DispatchId(IDS.new()), ClaimToken(IDS.token()), RunId(IDS.new())
    store.note_claim(dispatch_id, token, LONG_MS)
    store.push_cancel(run_id)
    assert store.take_slot("model", 1, "a", LONG_MS)
    flush(server)
    assert not store.is_held(dispatch_id)
    assert store.pushed([run_id]) == frozenset()
    assert store.take_slot("model", 1, "b", LONG_MS)
    store.drop_claim(dispatch_id, token)
    store.note_claim(dispatch_id, token, LONG_MS)
    assert store.is_held(dispatch_id)


def test_D21_places_that_a_flush_lost_are_taken_again_by_those_who_hold_them(
    server: RedisServer, store: FastPath
) -> None:
    """Attempts go on meanwhile; from their next renewal on they count again, and nobody gets a second place."""
    lanes = [Lane(store, "api.example.com", 2, owner, 60_000) for owner in ("one", "two", "three")]
    assert [lane.take() for lane in lanes] == [True, True, False]
    flush(server)
    for lane in lanes:
        lane.renew()
    assert not lanes[2].take(), "both places are held again"
    lanes[0].give()
    flush(server)
    lanes[0].renew()
    assert lanes[2].take() and not Lane(store, "api.example.com", 1, "four", 60_000).take()


def test_scripts_are_loaded_again_where_the_server_lost_them(server: RedisServer, store: FastPath) -> None:
    assert store.take_slot("model", 2, "a", LONG_MS)
    with closing(redis.connect(server.url, retries=0)) as client:
        client.script_flush()
    assert store.take_slot("model", 2, "b", LONG_MS)
    assert not store.take_slot("model", 2, "c", LONG_MS)


def test_D04_stopped_redis_is_no_error_and_is_used_again_when_it_is_back(
    server: RedisServer, store: FastPath, clock: ManualClock
) -> None:
    dispatch_id, token = DispatchId(IDS.new()), ClaimToken(IDS.token())
    store.note_claim(dispatch_id, token, LONG_MS)
    errors = telemetry.counters().get("fast_path_errors", 0)
    server.stop()
    assert not store.is_held(dispatch_id)
    assert store.take_slot("model", 1, "a", LONG_MS)
    assert store.take_slot("model", 1, "b", LONG_MS)
    store.push_cancel(RunId(IDS.new()))
    assert telemetry.counters()["fast_path_errors"] == errors + 1, "only the first question was put"
    server.start()
    clock.advance(s=limits.FAST_PATH_PAUSE_S)
    assert not store.is_held(dispatch_id), "it started empty"
    store.note_claim(dispatch_id, token, LONG_MS)
    assert store.is_held(dispatch_id)


def test_D04_subscription_survives_a_restart_and_finds_what_was_pushed_before_it_was_back(server: RedisServer) -> None:
    store = open_fast_path(server.url, SystemClock())
    run_id, ready, later = RunId(IDS.new()), RunId(IDS.new()), RunId(IDS.new())
    heard = {run_id: threading.Event(), ready: threading.Event(), later: threading.Event()}
    store.push_cancel(ready)
    subscription = store.subscribe(lambda found: heard[found].set(), lambda: [ready, run_id])
    assert heard[ready].wait(WAIT_S)
    server.stop()
    server.start()
    with closing(open_fast_path(server.url, SystemClock())) as another:
        another.push_cancel(run_id)
        assert heard[run_id].wait(WAIT_S), "by its message or, if nobody listened yet, by its key"
        another.push_cancel(later)
        assert heard[later].wait(WAIT_S)
    subscription.close()
    store.close()


def test_server_that_never_answers_is_given_up_within_its_bounds(clock: ManualClock) -> None:
    store = open_fast_path("redis://127.0.0.1:1/0", clock)
    assert not store.is_held(DispatchId(IDS.new()))
    listening = threading.Event()
    subscription = store.subscribe(lambda _run_id: listening.set(), list)
    subscription.close()
    assert not listening.is_set()
    store.close()


def test_D04_killed_redis_is_treated_as_one_that_was_stopped(server: RedisServer, store: FastPath) -> None:
    dispatch_id, token = DispatchId(IDS.new()), ClaimToken(IDS.token())
    store.note_claim(dispatch_id, token, LONG_MS)
    server.stop(signal.SIGKILL)
    assert not store.is_held(dispatch_id)
    store.drop_claim(dispatch_id, token)


def test_client_asks_in_resp2_with_short_waits() -> None:
    client = redis.connect("redis://127.0.0.1:1/0", retries=limits.REDIS_RETRIES)
    settings = client.connection_pool.connection_kwargs
    assert settings["protocol"] == 2
    assert settings["socket_timeout"] == 2.0
    assert settings["socket_connect_timeout"] == 1.0
    assert settings["retry"].get_retries() == 1
    client.close()
