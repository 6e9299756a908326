"""The Celery application: which options a table that is the queue needs, and why (RUNTIME 5)."""

from celery import Celery

from agentloom_worker.bootstrap import broker_address
from agentloom_worker.domain.dispatch import Queue
from agentloom_worker.settings import FleetSettings
from config import logs
from config.consumer import CONSUMER

SLOTS_DEFAULT = 16


def make_app(settings: FleetSettings) -> Celery:
    """An application on the broker of these settings. Opens no connection."""
    address = broker_address(settings)
    logs.connect(settings.log_format, settings.log_level)
    app = Celery("agentloom", broker=address.url, set_as_current=True)
    app.conf.update(
        # Early acknowledgement, nothing fetched ahead: the table repeats what is lost. A late one loses work all
        # the same on Redis (it pops before it notes), repeats it, and after an outage loses slots until a restart.
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=address.is_redis,
        task_reject_on_worker_lost=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        # Nothing is stored and nothing sent by Celery: results are rows, wake-ups are published by broker/.
        result_backend=None,
        task_ignore_result=True,
        task_publish_retry=False,
        # A queue that nobody configured is a mistake in -Q, not a queue.
        task_queues=[address.queue(queue.value) for queue in Queue],
        task_create_missing_queues=False,
        task_default_queue=address.name(Queue.CONTROL.value),
        task_default_exchange="",
        task_default_exchange_type="direct",
        task_default_routing_key=address.name(Queue.CONTROL.value),
        task_serializer="json",
        accept_content=["json"],
        # A broker that went away is waited for; it carries hints, so nothing depends on when it comes back.
        broker_connection_timeout=4,
        broker_heartbeat=10,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options=address.consume_options(SLOTS_DEFAULT),
        # No remote control: stop, drain and status go through the table and signals.
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_consumer=CONSUMER,
        worker_concurrency=SLOTS_DEFAULT,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        enable_utc=True,
        timezone="UTC",
    )
    return app
