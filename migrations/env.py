"""Alembic's entry: runs the migrations on the URL that `agentloom migrate` gives it."""

import sqlalchemy as sa
from alembic import context

from agentloom_worker.storage.schema import metadata

# Any constant will do; it keeps two migrators of one database apart.
_ADVISORY_LOCK = 0x61676C6D


def run() -> None:
    """Migrate in one transaction, under a transaction-scoped lock on PostgreSQL."""
    url = context.config.get_main_option("sqlalchemy.url")
    assert url is not None
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=metadata, compare_type=True)
        with context.begin_transaction():
            if connection.dialect.name == "postgresql":
                connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
            context.run_migrations()
    engine.dispose()


run()
