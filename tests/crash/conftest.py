"""The stage of the crash suite: one warm runner, its recordings, and the count that the summary shows."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentloom_worker.clock import SystemClock
from tests.crash.case import Broken, Case, Outcome, Setup
from tests.crash.runner import CrashRunner
from tests.servers import PostgresServer

MEMORY = Path("/dev/shm")
STAGE = pytest.StashKey["Stage"]()


class Stage:
    """Runs cases and counts them. A recording is the outcome of a run that nobody disturbs."""

    def __init__(self, runner: CrashRunner) -> None:
        self._runner = runner
        self._recordings: dict[Case, Outcome] = {}
        self.deaths: Counter[str] = Counter()
        self.points: set[tuple[str, str]] = set()
        self.seconds: Counter[str] = Counter()

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
        # Whole milliseconds, since a counter counts.
        self.seconds[store] += round(1000 * (clock.monotonic_s() - began_s))
        for strike in case.strikes:
            self.deaths[f"{store}, {'raised' if strike.raises else 'killed'}"] += 1
            self.points.add((strike.point, strike.detail))
        if isinstance(found, Broken):
            raise AssertionError(f"{case.setup}, {', '.join(map(str, case.strikes))}: {found.reason}")
        return found

    def summary(self) -> str:
        """What ran."""
        deaths = ", ".join(f"{store} {count}" for store, count in sorted(self.deaths.items()))
        times = ", ".join(f"{store} {count / 1000:.1f} s" for store, count in sorted(self.seconds.items()))
        return f"crash suite: {len(self.points)} pairs of point and step; {deaths}; {times}"


@pytest.fixture(scope="session")
def stage(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The runner of this test run. What a killed process leaves needs no disk to last."""
    directory = tmp_path_factory.mktemp("crash")
    if MEMORY.is_dir():
        directory = MEMORY / f"agentloom-{directory.parent.name}-{id(directory):x}"
        directory.mkdir()
    with CrashRunner(directory) as runner:
        pytestconfig.stash[STAGE] = Stage(runner)
        yield pytestconfig.stash[STAGE]
    runner.clear()


@pytest.fixture(scope="session")
def postgres_stage(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """One database for all cases of this process; each empties it first."""
    url = postgres_server.create_database("crash", template=postgres_template)
    yield url
    postgres_server.drop_database(url)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how much the promises were put to the test."""
    if STAGE in config.stash:
        terminalreporter.write_line(config.stash[STAGE].summary())
