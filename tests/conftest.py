"""What every test may ask for: a database of its own, a Redis with a key prefix of its own."""

from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from importlib.util import find_spec
from itertools import count

import pytest

from tests.servers import OWN, PostgresServer, RedisServer, open_postgres, open_redis

SERVERS_USED = pytest.StashKey[list[str]]()
SCHEMA_MODULE = "agentloom_worker.storage.schema"

_redis_spaces = count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SERVERS_USED] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for server in config.stash[SERVERS_USED]:
        terminalreporter.write_line(f"server: {server}")


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    """The PostgreSQL of this test run (see tests/servers.py)."""
    with closing(open_postgres()) as server:
        pytestconfig.stash[SERVERS_USED].append(str(server))
        yield server


@pytest.fixture(scope="session")
def own_postgres_server(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    """A PostgreSQL that was started for this test run, so that a test may restart it."""
    with closing(open_postgres(OWN)) as server:
        pytestconfig.stash[SERVERS_USED].append(str(server))
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """The URL of a migrated, sealed database: copying it is many times faster than migrating anew."""
    url = postgres_server.create_database("template")
    if find_spec(SCHEMA_MODULE):
        import_module(SCHEMA_MODULE).migrate(url)
    postgres_server.seal_template(url)
    return url


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """The URL of a fresh, migrated database that is dropped after the test."""
    url = postgres_server.create_database(template=postgres_template)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def redis_server(pytestconfig: pytest.Config) -> Iterator[RedisServer]:
    """The Redis of this test run (see tests/servers.py)."""
    with closing(open_redis()) as server:
        pytestconfig.stash[SERVERS_USED].append(str(server))
        yield server


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer) -> str:
    """The URL of the Redis; whoever writes to it uses `redis_prefix`."""
    return redis_server.url


@pytest.fixture
def redis_prefix(redis_server: RedisServer) -> str:
    """A key prefix of this test's own; its keys are deleted when the run ends."""
    return f"{redis_server.key_prefix}{next(_redis_spaces)}:"
