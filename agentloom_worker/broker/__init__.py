"""The broker: wake-ups and commands go out through kombu, in Celery's message protocol, without a Celery app."""
