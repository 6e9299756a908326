"""What a broker says about itself, asked as wake-ups are published to it."""

from kombu import Connection
from kombu.exceptions import KombuError

from agentloom_worker.broker.address import BrokerAddress
from agentloom_worker.domain.dispatch import Queue
from agentloom_worker.domain.health import BrokerFacts, Unreachable


def probe_broker(address: BrokerAddress, timeout_s: float) -> BrokerFacts | Unreachable:
    """Connect and count what waits in each queue. Declares nothing and reads no message."""
    try:
        with address.publish_connection(timeout_s) as connection:
            errors = (KombuError, OSError, *connection.connection_errors, *connection.channel_errors)
            try:
                connection.connect()
                product, version = _server(connection)
                waiting = {queue.value: _waiting(connection, address, queue.value) for queue in Queue}
            except errors as error:
                return Unreachable(type(error).__name__)
    except (KombuError, ValueError, ImportError, KeyError) as error:
        return Unreachable(f"the URL cannot be used: {type(error).__name__}")
    return BrokerFacts(product, version, waiting)


def _server(connection: Connection) -> tuple[str, str]:
    """AMQP servers introduce themselves; a Redis is asked by leases/probe.py."""
    said = getattr(connection.connection, "server_properties", None) or {}
    return str(said.get("product", "Redis")), str(said.get("version", ""))


def _waiting(connection: Connection, address: BrokerAddress, queue: str) -> int | None:
    # A queue that is not there closes the channel, so each is asked on one of its own.
    channel = connection.channel()
    try:
        bound = address.queue(queue)(channel)
        return int(bound.queue_declare(passive=not address.is_redis).message_count)
    except connection.channel_errors:
        return None
    finally:
        channel.close()
