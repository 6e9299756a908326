"""What the long cases found stands at the end of the output; a server that is restarted is their own."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.databases import clean_postgres, shared_postgres
from tests.servers import OWN, RedisServer, open_redis

__all__ = ["clean_postgres", "shared_postgres"]

RESULTS = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(RESULTS, []):
        terminalreporter.write_line(f"soak: {line}")


@pytest.fixture
def result(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> Callable[..., None]:
    """Say what a case counted; it is shown when all is over."""

    def say(**counts: object) -> None:
        shown = ", ".join(f"{name} {value}" for name, value in counts.items())
        pytestconfig.stash.setdefault(RESULTS, []).append(f"{request.node.name}: {shown}")

    return say


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with closing(open_redis(OWN)) as server:
        yield server
