"""Races are run on PostgreSQL, where two transactions are really two."""

from tests.brokers import amqp_url, broker, rabbitmq
from tests.databases import clean_postgres, clean_sqlite, database_url, shared_postgres, sqlite_template

__all__ = [
    "amqp_url",
    "broker",
    "clean_postgres",
    "clean_sqlite",
    "database_url",
    "rabbitmq",
    "shared_postgres",
    "sqlite_template",
]
