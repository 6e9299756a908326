"""Celery's consumer without the boot steps that this fleet has no use for.

Gossip and mingle talk between workers, which know each other through the table. Native delayed delivery would
declare some thirty exchanges and queues on RabbitMQ for messages with an ETA, and timers are rows here.
"""

from collections.abc import Callable
from typing import Any

from celery.concurrency.thread import TaskPool
from celery.worker.consumer import Consumer

CONSUMER = "config.consumer:FleetConsumer"


class FleetConsumer(Consumer):  # type: ignore[misc]
    """The consumer of every worker."""

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc]
        """Its boot steps."""

        default_steps = tuple(step for step in Consumer.Blueprint.default_steps if not step.endswith("DelayedDelivery"))

    def __init__(self, *args: Any, worker_options: dict[str, Any] | None = None, **kwargs: Any) -> None:
        quiet = {"without_mingle": True, "without_gossip": True}
        super().__init__(*args, worker_options={**(worker_options or {}), **quiet}, **kwargs)
        if self.hub is not None and isinstance(self.pool, TaskPool):
            self.pool.apply_async = telling(self.pool.apply_async, self.hub.call_soon)


def telling(apply_async: Callable[..., Any], call_soon: Callable[..., Any]) -> Callable[..., Any]:
    """Tell the event loop when a thread has done a task.

    While all slots are busy nothing is fetched (`worker_disable_prefetch`), and the loop sleeps until something
    happens on a socket or a timer is due, up to a second. That a slot is free again is neither: without this the slot
    stays empty so long.
    """

    def apply(*args: Any, callback: Callable[..., Any], **options: Any) -> Any:
        def done(*results: Any, **fields: Any) -> None:
            try:
                callback(*results, **fields)
            finally:
                call_soon(_nothing)

        return apply_async(*args, callback=done, **options)

    return apply


def _nothing() -> None:
    """What the loop is woken for happens in each of its turns."""
