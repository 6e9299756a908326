"""Where the broker stands and how it is spoken to: publishers and workers take their queues and options from here."""

from dataclasses import dataclass
from typing import Any

from kombu import Connection, Exchange, Queue

# The default exchange: its routing key is the queue's name. A named one costs twice the CPU, and drops what is
# sent to a queue that nobody has declared yet.
DEFAULT_EXCHANGE = Exchange("", type="direct")
# One try, no pause: kombu would otherwise ask a refusing port again after 2 s.
_ONE_TRY = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker's URL with the names that a fleet uses on it. The URL may hold a password: never log this."""

    url: str
    key_prefix: str
    queue_prefix: str = ""
    sentinel_master: str = "mymaster"

    def __repr__(self) -> str:
        return f"BrokerAddress({self.url.split('://', 1)[0]}://…, key_prefix={self.key_prefix!r})"

    @property
    def is_redis(self) -> bool:
        """Whether queues are Redis lists."""
        return self.url.startswith(("redis://", "rediss://", "sentinel://"))

    def name(self, queue: str) -> str:
        """A queue's name on the broker."""
        return self.queue_prefix + queue

    def queue(self, queue: str) -> Queue:
        """A queue as everybody declares it: RabbitMQ refuses a second declaration with other arguments."""
        name = self.name(queue)
        arguments = None if self.is_redis else {"x-queue-type": "quorum"}
        return Queue(name, exchange=DEFAULT_EXCHANGE, routing_key=name, durable=True, queue_arguments=arguments)

    def publish_connection(self, timeout_s: float) -> Connection:
        """A connection that gives up after `timeout_s`; it connects when it is first used."""
        options: dict[str, Any] = dict(_ONE_TRY)
        if self.is_redis:
            options |= self._redis_options(timeout_s, timeout_s) | {"max_connections": 2}
        else:
            options |= {"confirm_publish": True, "read_timeout": timeout_s, "write_timeout": timeout_s}
        return Connection(self.url, transport_options=options, connect_timeout=timeout_s, heartbeat=0)

    def consume_options(self, slots: int) -> dict[str, Any]:
        """Celery's `broker_transport_options`: without socket timeouts a dead peer would hold it for ever."""
        if not self.is_redis:
            return {"confirm_publish": True}
        return self._redis_options(10, 3) | {
            # Nothing is acknowledged late, so nothing is ever restored; the default hour is only a default.
            "visibility_timeout": 3600,
            "health_check_interval": 10,
            "max_connections": max(50, slots + 10),
        }

    def _redis_options(self, timeout_s: float, connect_timeout_s: float) -> dict[str, Any]:
        options: dict[str, Any] = {
            "global_keyprefix": self.key_prefix,
            "socket_timeout": timeout_s,
            "socket_connect_timeout": connect_timeout_s,
            "socket_keepalive": True,
            "client_name": "agentloom-worker",
        }
        if self.url.startswith("sentinel://"):
            options["master_name"] = self.sentinel_master
        return options
