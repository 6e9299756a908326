"""Publishing: what stands on the wire, and what a broker that is away costs."""

import base64
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from uuid import UUID

import pytest
import redis

from agentloom_worker import telemetry
from agentloom_worker.broker.address import BrokerAddress
from agentloom_worker.broker.publisher import Breaker, Message, Publisher, wake_up_message
from agentloom_worker.clock import ManualClock, SystemClock
from agentloom_worker.domain.dispatch import Queue, WakeUp
from agentloom_worker.ids import DispatchId, SystemIds
from agentloom_worker.limits import PUBLISH_PAUSE_MAX_S, PUBLISH_PAUSE_S, WAKE_UP_BYTES_MAX
from agentloom_worker.runtime.table import STEPS
from tests.servers import RedisServer

ROW = DispatchId(UUID("01a22d84-ed2c-7000-8df5-4ad2cad5f031"))


@pytest.fixture
def address(redis_server: RedisServer, redis_prefix: str) -> BrokerAddress:
    return BrokerAddress(redis_server.url, redis_prefix)


@pytest.fixture
def publisher(address: BrokerAddress) -> Iterator[Publisher]:
    clock = SystemClock()
    with closing(Publisher(address, clock, SystemIds(clock))) as made:
        yield made


@pytest.fixture
def refused() -> Iterator[BrokerAddress]:
    """A port that refuses for as long as the test runs: bound, and nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield BrokerAddress(f"redis://127.0.0.1:{closed.getsockname()[1]}/0", "agentloom:")


def take(address: BrokerAddress, queue: str) -> tuple[bytes, dict]:
    """The oldest message of a queue, as it stands in Redis."""
    with closing(redis.Redis.from_url(address.url)) as client:
        raw = client.rpop(address.key_prefix + address.name(queue))
    assert isinstance(raw, bytes), "the queue is empty"
    return raw, json.loads(raw)


def test_a_wake_up_is_a_small_celery_message_of_protocol_2(publisher: Publisher, address: BrokerAddress) -> None:
    assert publisher.wake([WakeUp(ROW, "attempt_model", "model", 3, force=True)]) == []
    raw, message = take(address, "model")
    assert len(raw) < WAKE_UP_BYTES_MAX
    headers = message["headers"]
    assert (headers["lang"], headers["task"], headers["parent_id"]) == ("py", "agentloom.attempt_model", None)
    assert headers["id"] == headers["root_id"] == message["properties"]["correlation_id"]
    assert "traceparent" not in headers
    assert message["content-type"] == "application/json"
    arguments, fields, embedded = json.loads(base64.b64decode(message["body"]))
    assert arguments == []
    assert fields == {"dispatch_id": str(ROW), "v": 3, "force": True}
    assert set(embedded) == {"callbacks", "errbacks", "chain", "chord"}
    delivery = message["properties"]["delivery_info"]
    assert (delivery["exchange"], delivery["routing_key"]) == ("", "model")


def test_D14_every_step_s_wake_up_stays_below_a_kilobyte(publisher: Publisher, address: BrokerAddress) -> None:
    rows = [WakeUp(ROW, step, entry.queue.value, entry.version, force=True) for step, entry in STEPS.items()]
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for row in rows:
        plain = wake_up_message(row)
        assert publisher.send([Message(plain.task, plain.queue, plain.kwargs, trace)]) == []
        raw, message = take(address, row.queue)
        assert message["headers"]["traceparent"] == trace
        assert len(raw) < WAKE_UP_BYTES_MAX


def test_two_wake_ups_are_two_messages_in_order(publisher: Publisher, address: BrokerAddress) -> None:
    publisher.wake([WakeUp(ROW, "prepare_context", "control", 1), WakeUp(ROW, "settle_node", "control", 1)])
    assert publisher.backlog("control") == 2
    first, second = take(address, "control")[1], take(address, "control")[1]
    assert [message["headers"]["task"] for message in (first, second)] == [
        "agentloom.prepare_context",
        "agentloom.settle_node",
    ]
    assert first["headers"]["id"] != second["headers"]["id"]
    assert publisher.backlog("control") == 0


def test_a_refusing_broker_gives_everything_back_and_is_left_alone_for_a_while(refused: BrokerAddress) -> None:
    clock = ManualClock()
    rows = [WakeUp(ROW, "prepare_context", "control", 1), WakeUp(ROW, "settle_node", "control", 1)]
    with closing(Publisher(refused, clock, SystemIds(clock), timeout_s=0.5)) as publisher:
        connections = []
        real = refused.publish_connection

        class Counting(BrokerAddress):
            def publish_connection(self, timeout_s: float):
                connections.append(timeout_s)
                return real(timeout_s)

        publisher.address = Counting(refused.url, refused.key_prefix)
        assert publisher.wake(rows) == rows
        assert not publisher.available
        assert publisher.wake(rows) == rows
        assert publisher.backlog("control") is None
        assert connections == [0.5], "one try for all of them"
        clock.advance(PUBLISH_PAUSE_S + 0.1)
        assert publisher.available
        assert publisher.wake(rows) == rows
        assert connections == [0.5, 0.5]


def test_a_silent_broker_costs_no_more_than_the_timeout_and_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = BrokerAddress(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", "agentloom:")
        clock = SystemClock()
        with closing(Publisher(address, clock, SystemIds(clock), timeout_s=0.2)) as publisher:
            row = WakeUp(ROW, "prepare_context", "control", 1)
            assert publisher.wake([row, row, row]) == [row, row, row]
            assert not publisher.available


def test_an_idle_connection_that_died_is_replaced_without_a_pause(publisher: Publisher, address: BrokerAddress) -> None:
    row = WakeUp(ROW, "prepare_context", "control", 1)
    assert publisher.wake([row]) == []
    (kept,) = publisher._idle
    # What a restart of the server leaves: a socket that answers nothing any more.
    publisher._idle[:] = [BrokerAddress("redis://127.0.0.1:1/0", "agentloom:").publish_connection(0.2)]
    kept.release()
    failed = telemetry.counters().get("publishes_failed", 0)
    assert publisher.wake([row]) == []
    assert publisher.available
    assert telemetry.counters().get("publishes_failed", 0) == failed
    assert publisher.backlog("control") == 2


def test_the_pause_grows_to_its_bound_and_is_short_again_after_a_success() -> None:
    clock = ManualClock()
    breaker = Breaker(clock)
    pauses = []
    for _ in range(6):
        breaker.failed()
        breaker.failed()  # others that failed at the same time make it no longer
        began = clock.monotonic_s()
        while not breaker.closed:
            clock.advance(0.125)
        pauses.append(round(clock.monotonic_s() - began))
    assert pauses == [1, 2, 4, 8, 8, 8]
    assert pauses[-1] == PUBLISH_PAUSE_MAX_S
    breaker.succeeded()
    breaker.failed()
    clock.advance(PUBLISH_PAUSE_S + 0.1)
    assert breaker.closed


def test_a_queue_prefix_stands_before_every_name() -> None:
    address = BrokerAddress("amqp://guest:secret@127.0.0.1//", "agentloom:", "mine.")
    for queue in Queue:
        declared = address.queue(queue.value)
        assert declared.name == declared.routing_key == f"mine.{queue.value}"
        assert declared.queue_arguments == {"x-queue-type": "quorum"}


def test_an_address_shows_no_password() -> None:
    assert "secret" not in repr(BrokerAddress("amqp://guest:secret@127.0.0.1//", "agentloom:"))


def test_a_sentinel_address_names_its_master() -> None:
    address = BrokerAddress("sentinel://a:26379;sentinel://b:26379", "agentloom:", sentinel_master="main")
    assert address.is_redis
    for options in (address.consume_options(16), address.publish_connection(1.0).transport_options):
        assert options["master_name"] == "main"
        assert options["global_keyprefix"] == "agentloom:"
        assert options["socket_timeout"] > 0
