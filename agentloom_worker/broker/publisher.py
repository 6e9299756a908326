"""Publishing: Celery's protocol 2 by hand (a third of the CPU of `task.delay`), short timeouts, no retries.

A message is a hint. One that could not be published is handed back to the caller, who makes its row due again;
nothing here ever repeats by itself.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kombu import Connection, Producer
from kombu.exceptions import KombuError

from agentloom_worker import limits, telemetry
from agentloom_worker.broker.address import BrokerAddress
from agentloom_worker.clock import Clock
from agentloom_worker.domain.dispatch import WakeUp
from agentloom_worker.ids import Ids

_NO_EMBED: dict[str, None] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


@dataclass(frozen=True, slots=True)
class Message:
    """One Celery message. `traceparent` is a W3C trace context, passed on as a header."""

    task: str
    queue: str
    kwargs: dict[str, Any]
    traceparent: str | None = None


class Breaker:
    """After a failure nothing is tried for a while, so that a dead broker costs one timeout and not one a commit."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until_s = 0.0
        self._pause_s = limits.PUBLISH_PAUSE_S

    @property
    def closed(self) -> bool:
        """Whether publishing may be tried."""
        return self._clock.monotonic_s() >= self._until_s

    def failed(self) -> None:
        """Pause; longer each time, up to a bound."""
        with self._lock:
            if self.closed:
                self._until_s = self._clock.monotonic_s() + self._pause_s
                self._pause_s = min(2 * self._pause_s, limits.PUBLISH_PAUSE_MAX_S)

    def succeeded(self) -> None:
        """The broker answers: the next pause is short again."""
        self._pause_s = limits.PUBLISH_PAUSE_S


class Publisher:
    """Publishes for one process. Safe for use by many threads; make it after a fork, not before."""

    def __init__(
        self, address: BrokerAddress, clock: Clock, ids: Ids, *, timeout_s: float = limits.PUBLISH_TIMEOUT_S
    ) -> None:
        self.address = address
        self._ids = ids
        self._timeout_s = timeout_s
        self._breaker = Breaker(clock)
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        transport = Connection(address.url).transport
        # What the transport's own library raises where kombu does not translate it.
        self._errors = (KombuError, OSError, *transport.connection_errors, *transport.channel_errors)

    @property
    def available(self) -> bool:
        """Whether publishing is tried now; after a failure it is not for a while."""
        return self._breaker.closed

    def wake(self, due: list[WakeUp]) -> list[WakeUp]:
        """Publish wake-ups; returns those that could not be, in order."""
        failed = self.send([wake_up_message(row) for row in due])
        return due[len(due) - len(failed) :]

    def send(self, messages: list[Message]) -> list[Message]:
        """Publish in order; after a failure the rest is not tried. Returns what was not published."""
        waiting = deque(messages)

        def publish(connection: Connection) -> None:
            producer = connection.Producer(auto_declare=False)
            while waiting:
                self._publish(producer, waiting[0])
                waiting.popleft()

        if messages:
            self._attempt("publish", publish)
        telemetry.count("published", len(messages) - len(waiting))
        telemetry.count("publishes_failed", len(waiting))
        return list(waiting)

    def reply(self, queue: str, document: dict[str, Any]) -> bool:
        """Put a plain JSON document into a queue that its reader has declared; whether the broker took it."""
        return self._attempt(
            "reply", lambda connection: self._put(connection.Producer(auto_declare=False), document, queue)
        )

    def backlog(self, queue: str) -> int | None:
        """How many messages wait in a queue; None if the broker does not say."""
        found: list[int] = []

        def look(connection: Connection) -> None:
            bound = self.address.queue(queue)(connection.default_channel)
            found.append(int(bound.queue_declare(passive=not self.address.is_redis).message_count))

        self._attempt("backlog", look)
        return found[0] if found else None

    def close(self) -> None:
        """Close every connection that is not in use."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.release()

    def _publish(self, producer: Producer, message: Message) -> None:
        identity = str(self._ids.new())
        headers = {"lang": "py", "task": message.task, "id": identity, "root_id": identity, "parent_id": None}
        if message.traceparent is not None:
            headers["traceparent"] = message.traceparent
        self._put(
            producer,
            ((), message.kwargs, _NO_EMBED),
            self.address.name(message.queue),
            correlation_id=identity,
            headers=headers,
            # RabbitMQ drops what is sent to a queue that does not exist; kombu declares once a connection.
            declare=[] if self.address.is_redis else [self.address.queue(message.queue)],
        )

    def _put(self, producer: Producer, body: object, routing_key: str, **properties: Any) -> None:
        producer.publish(
            body,
            exchange="",
            routing_key=routing_key,
            serializer="json",
            retry=False,
            timeout=self._timeout_s,
            confirm_timeout=self._timeout_s,
            **properties,
        )

    def _attempt(self, what: str, work: Callable[[Connection], None]) -> bool:
        """Do it on a connection of this thread's own. One that had been idle may be dead: then once on a new one."""
        if not self._breaker.closed:
            return False
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        last = ""
        for pooled in (idle, None) if idle is not None else (None,):
            connection = pooled or self.address.publish_connection(self._timeout_s)
            try:
                work(connection)
            except self._errors as error:
                last = type(error).__name__
                self._discard(connection)
                continue
            self._keep(connection)
            self._breaker.succeeded()
            return True
        self._breaker.failed()
        telemetry.log(logging.WARNING, "broker_failed", what=what, error=last)
        return False

    def _keep(self, connection: Connection) -> None:
        with self._lock:
            if len(self._idle) < limits.PUBLISH_CONNECTIONS_IDLE:
                self._idle.append(connection)
                return
        connection.release()

    def _discard(self, connection: Connection) -> None:
        """Close without a word to the other side, which may not answer."""
        if self.address.is_redis:
            connection.release()
        else:
            connection.collect()


def wake_up_message(row: WakeUp) -> Message:
    """The message that names a row; under 1 KB."""
    kwargs: dict[str, Any] = {"dispatch_id": str(row.dispatch_id), "v": row.version}
    if row.force:
        kwargs["force"] = True
    return Message(f"agentloom.{row.step}", row.queue, kwargs)
