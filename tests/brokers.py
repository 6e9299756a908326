"""The broker of a fleet under test: Redis always, RabbitMQ where one answers (RULINGS N8).

A conftest imports `broker`; a test that asks for it runs on both.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from agentloom_worker.broker.address import BrokerAddress
from agentloom_worker.domain.dispatch import Queue
from tests.server_process import NoServerError
from tests.servers import AMQP_VARIABLE, RedisServer, find_amqp


@dataclass(frozen=True, slots=True)
class Broker:
    """Where it stands, and what sets one test apart on it."""

    url: str
    key_prefix: str
    queue_prefix: str = ""

    @property
    def address(self) -> BrokerAddress:
        """As publishers and workers see it."""
        return BrokerAddress(self.url, self.key_prefix, self.queue_prefix)

    def empty(self, queue: str) -> int:
        """Lose every message of a queue; how many there were."""
        with self.address.publish_connection(5) as connection:
            return int(self.address.queue(queue)(connection.default_channel).purge())


@pytest.fixture(scope="session")
def amqp_url(pytestconfig: pytest.Config) -> str:
    """A RabbitMQ that answers; without one the test is skipped by name."""
    try:
        return find_amqp()
    except NoServerError as error:
        pytest.skip(f"no RabbitMQ: {error}; set {AMQP_VARIABLE}")


@pytest.fixture
def rabbitmq(request: pytest.FixtureRequest, redis_prefix: str) -> Iterator[Broker]:
    """RabbitMQ with queues of this test's own, which are deleted afterwards."""
    url = request.getfixturevalue("amqp_url")
    # The prefix of the keys is as good for queues, but for its colons.
    made = Broker(url, redis_prefix, redis_prefix.replace(":", "."))
    yield made
    with made.address.publish_connection(5) as connection:
        for queue in Queue:
            made.address.queue(queue.value)(connection.default_channel).delete()


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest, redis_server: RedisServer, redis_prefix: str) -> Broker:
    """Each broker in turn."""
    if request.param == "redis":
        return Broker(redis_server.url, redis_prefix)
    found: Broker = request.getfixturevalue("rabbitmq")
    return found
