"""An empty database for every acceptance test, on both stores, and what the shared tools did."""

from collections.abc import Iterator

import pytest

from tests import tools as shared_tools
from tests.databases import clean_postgres, clean_sqlite, database_url, shared_postgres, sqlite_template

__all__ = ["clean_postgres", "clean_sqlite", "database_url", "shared_postgres", "sqlite_template"]


@pytest.fixture(autouse=True)
def tool_calls() -> Iterator[list[tuple[str, object]]]:
    """What the shared tools did in this process during this test."""
    shared_tools.CALLS.clear()
    yield shared_tools.CALLS
    shared_tools.CALLS.clear()
