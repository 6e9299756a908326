"""Celery's consumer without the boot steps that this fleet has no use for.

Native delayed delivery would declare some thirty exchanges and queues on RabbitMQ for messages with an ETA, and
timers are rows here; gossip and mingle talk between workers, which know each other through the table.
"""

from celery.worker.consumer import Consumer

CONSUMER = "config.consumer:FleetConsumer"
_UNUSED = ("delayed_delivery:DelayedDelivery", "gossip:Gossip")


class FleetConsumer(Consumer):  # type: ignore[misc]
    """The consumer of every worker."""

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc]
        """Its boot steps."""

        default_steps = tuple(step for step in Consumer.Blueprint.default_steps if not step.endswith(_UNUSED))
