"""The stage of the crash suite: one warm runner, its recordings, and the count that the summary shows."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentloom_worker.clock import SystemClock
from tests.brokers import amqp_url, broker, rabbitmq
from tests.conftest import COUNTED
from tests.crash.case import Broken, Case, Outcome, Setup
from tests.crash.runner import CrashRunner
from tests.servers import PostgresServer

__all__ = ["amqp_url", "broker", "rabbitmq"]

MEMORY = Path("/dev/shm")


class Stage:
    """Runs cases and counts them. A recording is the outcome of a run that nobody disturbs."""

    def __init__(self, runner: CrashRunner) -> None:
        self._runner = runner
        self._recordings: dict[Case, Outcome] = {}
        self.counts: Counter[str] = Counter()

    def record(self, setup: Setup, database: str | None = None) -> Outcome:
        """The undisturbed outcome with its tape, recorded once."""
        case = Case(setup, database=database)
        if case not in self._recordings:
            self._recordings[case] = self.run(case)
        return self._recordings[case]

    def run(self, case: Case) -> Outcome:
        """Carry a case out."""
        clock = SystemClock()
        began_s = clock.monotonic_s()
        found = self._runner.run(case)
        store = "SQLite" if case.database is None else "PostgreSQL"
        self.counts[f"{store}, ms"] += round(1000 * (clock.monotonic_s() - began_s))
        for strike in case.strikes:
            self.counts[f"{store}, {'errors raised' if strike.raises else 'processes killed'}"] += 1
        if isinstance(found, Broken):
            raise AssertionError(f"{case.setup}, {', '.join(map(str, case.strikes))}: {found.reason}")
        return found


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The runner of this test run. What a killed process leaves needs no disk to last."""
    directory = tmp_path_factory.mktemp("crash")
    if MEMORY.is_dir():
        directory = MEMORY / f"agentloom-{directory.parent.name}-{id(directory):x}"
        directory.mkdir()
    with CrashRunner(directory) as runner:
        yield Stage(runner)
    runner.clear()


@pytest.fixture(autouse=True)
def counted(stage: Stage, record_property: Callable[[str, object], None]) -> Iterator[None]:
    """Note in each test's report what was done to processes; the summary adds it up."""
    before = stage.counts.copy()
    yield
    record_property(COUNTED, {f"crash suite, {name}": count for name, count in (stage.counts - before).items()})


@pytest.fixture(scope="session")
def postgres_stage(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """One database for all cases of this process; each empties it first."""
    url = postgres_server.create_database("crash", template=postgres_template)
    yield url
    postgres_server.drop_database(url)
