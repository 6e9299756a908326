"""Races are run on PostgreSQL, where two transactions are really two."""

import pytest

from tests.databases import clean_postgres, shared_postgres

__all__ = ["clean_postgres", "shared_postgres"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On PostgreSQL one breakage an invariant is sampled; the others show the same query on another row."""
    for item in items:
        parts = getattr(item, "callspec", None)
        found = parts is not None and item.name.startswith("test_a_broken_invariant_is_found")
        if found and parts.params.get("new_database") == "postgresql" and parts.params.get("number"):
            item.add_marker(pytest.mark.full)
