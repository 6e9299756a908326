"""What every test may ask for: a database of its own, a Redis with a key prefix of its own."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest
import sqlalchemy as sa

from agentloom_worker.storage import schema
from tests.servers import OWN, PostgresServer, RedisServer, open_postgres, open_redis

# The property of a test's report that holds what it counted, by name; the summary shows the sums.
COUNTED = "counted"
SERVERS_USED = pytest.StashKey[list[str]]()

_redis_spaces = count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SERVERS_USED] = []


# Files that take minutes, the longest first. Workers take files in the order of collection: one of these that came last
# would keep the whole run waiting.
LONGEST = (
    "integration/test_chaos.py",
    "crash/test_crash.py",
    "crash/test_crash_fleet.py",
    "acceptance/test_delivery_oracle.py",
    "integration/test_fleet.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next((place for place, name in enumerate(LONGEST) if path.endswith(f"tests/{name}")), len(LONGEST))

    items.sort(key=rank)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":
                for name, value in report.user_properties:
                    counts.update(value if name == COUNTED else {})
    for name, sum_ in sorted(counts.items()):
        terminalreporter.write_line(f"{name}: {sum_}")
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
    schema.migrate(url)
    postgres_server.seal_template(url)
    return url


@pytest.fixture(scope="session")
def emptied_databases(postgres_server: PostgresServer, postgres_template: str) -> "EmptiedDatabases":
    """Databases that are emptied and used again: creating and dropping one costs a checkpoint each."""
    return EmptiedDatabases(postgres_server, postgres_template)


@pytest.fixture
def postgres_url(emptied_databases: "EmptiedDatabases") -> Iterator[str]:
    """The URL of a migrated database without rows that is this test's alone."""
    url = emptied_databases.take()
    yield url
    emptied_databases.give_back(url)


class EmptiedDatabases:
    """A stack of migrated databases; whoever is still connected is disconnected before one is used again."""

    def __init__(self, server: PostgresServer, template: str) -> None:
        self._server = server
        self._template = template
        self._free: list[str] = []

    def take(self) -> str:
        return self._free.pop() if self._free else self._server.create_database(template=self._template)

    def give_back(self, url: str) -> None:
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with engine.begin() as conn:
            conn.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            conn.exec_driver_sql("SET LOCAL lock_timeout = '10s'")
            for table in reversed(schema.metadata.sorted_tables):
                conn.execute(sa.delete(table))
        engine.dispose()
        self._free.append(url)


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
