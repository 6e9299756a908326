"""Fixtures of one database that many tests use in turn: emptying it costs a tenth of copying a new one.

A conftest imports what its tests need.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shutil import copy

import psycopg2
import pytest
from sqlalchemy.engine import make_url

from agentloom_worker.storage.schema import migrate
from agentloom_worker.storage.tables import metadata
from tests import ground
from tests.servers import PostgresServer

_EMPTY = ";".join(f"DELETE FROM {table.name}" for table in reversed(metadata.sorted_tables))
_DISCONNECT = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


def connect(url: str) -> psycopg2.extensions.connection:
    """A plain connection, for a test that needs one of its own."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg2.connect(plain, connect_timeout=5)


@pytest.fixture(scope="session")
def shared_postgres(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """The URL of a migrated database that a folder's tests share."""
    url = postgres_server.create_database(template=postgres_template)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def clean_postgres(shared_postgres: str) -> Iterator[str]:
    """The shared database, empty; whoever is still connected afterwards is thrown out."""
    yield shared_postgres
    ground.close_all()
    with closing(connect(shared_postgres)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(_DISCONNECT)
            cursor.execute(_EMPTY)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file."""
    path = tmp_path_factory.mktemp("sqlite") / "template.sqlite"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def clean_sqlite(sqlite_template: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of a copy of the migrated file."""
    path = tmp_path / "store.sqlite"
    copy(sqlite_template, path)
    yield f"sqlite:///{path}"
    ground.close_all()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty, migrated database of each kind."""
    found: str = request.getfixturevalue("clean_sqlite" if request.param == "sqlite" else "clean_postgres")
    return found
