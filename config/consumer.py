"""Celery's consumer without the boot steps that this fleet has no use for, and deaf to what is no message of it.

Gossip and mingle talk between workers, which know each other through the table. Native delayed delivery would
declare some thirty exchanges and queues on RabbitMQ for messages with an ETA, and timers are rows here.
"""

import logging
from collections.abc import Callable
from typing import Any

from celery import signals
from celery.concurrency.thread import TaskPool
from celery.worker.consumer import Consumer

from agentloom_worker import telemetry

CONSUMER = "config.consumer:FleetConsumer"
_NAME_SHOWN_MAX = 100
_ENDED = (0, None, 0.0)  # how Celery's tracer says: no failure, no result, no time
_log = logging.getLogger(__name__)


class FleetConsumer(Consumer):  # type: ignore[misc]
    """The consumer of every worker.

    Celery logs the body of a message that it cannot read, which may hold a user's words, and one whose headers it
    does not expect ends the worker, which puts it back for the next one. Here each is dropped, and no body is shown.
    """

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc]
        """Its boot steps."""

        default_steps = tuple(step for step in Consumer.Blueprint.default_steps if not step.endswith("DelayedDelivery"))

    def __init__(self, *args: Any, worker_options: dict[str, Any] | None = None, **kwargs: Any) -> None:
        quiet = {"without_mingle": True, "without_gossip": True}
        super().__init__(*args, worker_options={**(worker_options or {}), **quiet}, **kwargs)
        if self.hub is not None and isinstance(self.pool, TaskPool):
            self.pool.apply_async = telling(self.pool.apply_async, self.hub.call_soon)

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], None]:
        """What takes each message in; only a connection that broke leaves it."""
        receive = super().create_task_handler(*args, **kwargs)
        # kombu counts KeyError among those of Redis; here it is a header that is not there.
        broken = tuple(kind for kind in self.connection_errors if kind is not KeyError)

        def on_task_received(message: Any) -> None:
            try:
                receive(message)
            except broken:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a stranger has sent must not end the worker
                self._drop(message, error)

        return on_task_received

    def on_unknown_message(self, _body: object, message: Any) -> None:
        """One that names no task."""
        self._drop(message, None)

    def on_invalid_task(self, _body: object, message: Any, exc: Exception) -> None:
        """One whose arguments are none."""
        self._drop(message, exc)

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """One that is not what its content type says."""
        self._drop(message, exc)

    def on_unknown_task(self, _body: object, message: Any, exc: Exception) -> None:
        """One of a task that this version does not know."""
        message.reject_log_error(_log, self.connection_errors)
        name = str(message.headers.get("task", "?"))[:_NAME_SHOWN_MAX]
        signals.task_unknown.send(sender=self, message=message, exc=exc, name=name, id=None)

    def _drop(self, message: Any, error: Exception | None) -> None:
        if not message.acknowledged:
            message.reject_log_error(_log, self.connection_errors)
        telemetry.log(logging.WARNING, "message_rejected", error=type(error).__name__ if error else "no task")
        signals.task_rejected.send(sender=self, message=message, exc=error)


def telling(apply_async: Callable[..., Any], call_soon: Callable[..., Any]) -> Callable[..., Any]:
    """Tell the event loop when a thread has done a task.

    While all slots are busy nothing is fetched (`worker_disable_prefetch`), and the loop sleeps until something
    happens on a socket or a timer is due, up to a second. That a slot is free again is neither: without this the slot
    stays empty so long.
    """

    def apply(target: Callable[..., Any], *args: Any, callback: Callable[..., Any], **options: Any) -> Any:
        def done(*results: Any, **fields: Any) -> None:
            try:
                callback(*results, **fields)
            finally:
                call_soon(_nothing)

        return apply_async(ending(target), *args, callback=done, **options)

    return apply


def ending(target: Callable[..., Any]) -> Callable[..., Any]:
    """Let what a task leaves end it: the threads pool forgets one that raised, and its slot is taken for ever.

    Tasks of this fleet leave nothing; a stranger's message may ask Celery for more than it can do (a chord, say).
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return target(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - as above
            telemetry.log(logging.ERROR, "task_crashed", traceback=telemetry.frames_of(error))
            return _ENDED

    return run


def _nothing() -> None:
    """What the loop is woken for happens in each of its turns."""
