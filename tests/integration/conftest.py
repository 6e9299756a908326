"""Races are run on PostgreSQL, where two transactions are really two."""

from tests.databases import clean_postgres, clean_sqlite, database_url, shared_postgres, sqlite_template

__all__ = ["clean_postgres", "clean_sqlite", "database_url", "shared_postgres", "sqlite_template"]
