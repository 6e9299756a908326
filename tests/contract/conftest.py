"""The contract suites run over every database that the product runs on."""

from tests.databases import clean_postgres, clean_sqlite, database_url, shared_postgres, sqlite_template

__all__ = ["clean_postgres", "clean_sqlite", "database_url", "shared_postgres", "sqlite_template"]
