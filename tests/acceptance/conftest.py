"""A database of its own for every acceptance test, on both stores."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentloom_worker.storage.schema import migrate
from tests import tools as shared_tools


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file; copying it is many times faster than migrating anew."""
    path = tmp_path_factory.mktemp("template") / "agentloom.sqlite"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """The URL of a fresh, migrated SQLite file."""
    path = tmp_path / "agentloom.sqlite"
    shutil.copyfile(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A fresh, migrated database, once on each store."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(autouse=True)
def tool_calls() -> Iterator[list[tuple[str, object]]]:
    """What the shared tools did in this process during this test."""
    shared_tools.CALLS.clear()
    yield shared_tools.CALLS
    shared_tools.CALLS.clear()
