"""Races are run on PostgreSQL, where two transactions are really two."""

from tests.databases import clean_postgres, shared_postgres, sqlite_template

__all__ = ["clean_postgres", "shared_postgres", "sqlite_template"]
