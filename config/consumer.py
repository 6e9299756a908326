"""Celery's consumer without the boot steps that this fleet has no use for.

Gossip and mingle talk between workers, which know each other through the table. Native delayed delivery would
declare some thirty exchanges and queues on RabbitMQ for messages with an ETA, and timers are rows here.
"""

from typing import Any

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
