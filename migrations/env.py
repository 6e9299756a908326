"""Alembic's entry: runs the migrations on the URL that `agentloom migrate` gives it."""

from typing import Any

import sqlalchemy as sa
from alembic import context
from sqlalchemy import event

from agentloom_worker.storage.schema import metadata

# Any constant will do; it keeps two migrators of one database apart.
_ADVISORY_LOCK = 0x61676C6D


_SQLITE_WAIT_S = 30


def _open(url: str) -> sa.Engine:
    """An engine whose transactions hold DDL too and begin with the writer's lock.

    By itself Python's sqlite3 begins no transaction before DDL: a kill in the middle would leave half of the
    tables, and two migrators would meet in the middle.
    """
    if not url.startswith("sqlite"):
        return sa.create_engine(url)
    engine = sa.create_engine(url, connect_args={"timeout": _SQLITE_WAIT_S})

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begun(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def run() -> None:
    """Migrate in one transaction, which on both databases keeps two migrators apart."""
    url = context.config.get_main_option("sqlalchemy.url")
    assert url is not None
    engine = _open(url)
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=metadata, compare_type=True, transactional_ddl=True)
        with context.begin_transaction():
            if connection.dialect.name == "postgresql":
                connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
            context.run_migrations()
    engine.dispose()


run()
