"""The contract suites run over every database that the product runs on."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentloom_worker.storage.schema import migrate


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file; a copy is many times faster than migrating anew."""
    path = tmp_path_factory.mktemp("sqlite") / "template.sqlite"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh, migrated database of each kind."""
    if request.param == "postgresql":
        yield request.getfixturevalue("postgres_url")
        return
    path = tmp_path / "store.sqlite"
    shutil.copy(request.getfixturevalue("sqlite_template"), path)
    yield f"sqlite:///{path}"
