"""A fleet of real processes for tests: `celery -A tasks worker` and `celery -A beat beat` on real servers.

Each process is a session of its own and is ended by its id. Its output stands in a file whose tail an assertion
shows. Claims pass on within seconds, so that a takeover can be waited for.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentloom_worker.bootstrap import FleetPorts, make_fleet_ports
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.settings import FleetSettings
from tests.acceptance.harness import wait_for
from tests.nursery import Nursery, WarmProcess

ROOT = Path(__file__).resolve().parents[1]
START_S = 60.0
STEPS = "control,model,tools,compaction,maintenance"
QUICK = {
    "CLAIM_TTL_S": "3",
    "CLAIM_RENEW_S": "0.5",
    "SUSPECT_GRACE_S": "1",
    "SWEEP_TICK_S": "0.5",
    "CONTROL_POLL_S": "0.1",
    "DRAIN_S": "20",
    "LOG_LEVEL": "DEBUG",
    "METRICS_HOST": "127.0.0.1",
}


class FleetProcessHandle:
    """One started process and its output."""

    def __init__(self, popen: subprocess.Popen[bytes] | WarmProcess, log: Path) -> None:
        self.log = log
        self._popen = popen

    @property
    def pid(self) -> int:
        return self._popen.pid

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The JSON lines of one event so far."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and entry.get("event") == event:
                    found.append(entry)
        return found

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def wait_for_line(self, event: str) -> None:
        """Wait until it has logged an event; not past its end."""

        def there() -> bool:
            assert self._popen.poll() is None, f"ended with {self._popen.returncode}:\n{self.tail()}"
            return bool(self.lines(event))

        wait_for(there, f"the process says {event}", START_S)

    def exit_code(self) -> int:
        """Wait until it ends by itself."""
        return self._popen.wait(timeout=START_S)

    def send(self, what: signal.Signals) -> None:
        """Send a signal to the process, and not to its children."""
        self._popen.send_signal(what)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Signal it and wait for its exit code; one that does not end within the bound is killed and fails."""
        if self._popen.poll() is None:
            self._popen.send_signal(how)
        try:
            return self._popen.wait(timeout=START_S)
        except subprocess.TimeoutExpired:
            self.kill_session()
            raise AssertionError(f"did not end by {how.name}:\n{self.tail()}") from None

    def kill_session(self) -> None:
        """End it and its children, which are in its session and nobody else's."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait(timeout=10)


@dataclass
class Fleet:
    """One database, one broker, and the processes on them."""

    environment: dict[str, str]
    folder: Path
    made: FleetPorts
    queue_prefix: str = ""
    processes: list[FleetProcessHandle] = field(default_factory=list)
    # Forks the processes, so that they begin at once; without it each is a program of its own.
    nursery: Nursery | None = None
    # A folder with a copy of the deployment: the processes are then started there by the script `celery`, which, other
    # than `python -m celery`, does not leave the working directory among the places to import from.
    deployment: Path | None = None

    @property
    def ports(self) -> Ports:
        """The ports of the test's own process: it publishes as a client does."""
        return self.made.ports

    def worker(
        self,
        queues: str = STEPS,
        *,
        pool: str = "threads",
        slots: int = 8,
        ready: str = "process_started",
        include: str = "",
        **extra: str,
    ) -> FleetProcessHandle:
        """Start a worker and wait until its slots are there. `include` names a module that it imports before."""
        arguments = self.worker_arguments(queues, pool=pool, slots=slots)
        process = self._start([*arguments, *(["-I", include] if include else [])], extra)
        if ready:
            process.wait_for_line(ready)
        return process

    def worker_arguments(self, queues: str = STEPS, *, pool: str = "threads", slots: int = 8) -> list[str]:
        """What stands behind `celery` for such a worker; without `queues` it is started without -Q."""
        names = ",".join(self.queue_prefix + queue for queue in queues.split(","))
        node = f"w{len(self.processes)}@%h"
        return ["-A", "tasks", "worker", *(["-Q", names] if queues else []), "-P", pool, "-c", str(slots), "-n", node]

    def workers(self, count: int, **options: Any) -> list[FleetProcessHandle]:
        """Start so many alike at once and wait until the slots of all are there."""
        started = [self.worker(ready="", **options) for _ in range(count)]
        for process in started:
            process.wait_for_line("process_started")
        return started

    def beat(self, *, ready: str = "beat_started", **extra: str) -> FleetProcessHandle:
        """Start a beat and wait until it begins."""
        process = self._start(["-A", "beat", "beat"], extra)
        if ready:
            process.wait_for_line(ready)
        return process

    def close(self) -> None:
        """End what still runs."""
        for process in self.processes:
            process.kill_session()
        for port in (self.made.publisher, self.made.ports.fast, self.made.ports.store):
            port.close()

    def _start(self, arguments: list[str], extra: dict[str, str]) -> FleetProcessHandle:
        environment = {**self.environment, **{f"AGENTLOOM_{name}": value for name, value in extra.items()}}
        log = self.folder / f"process-{len(self.processes)}.log"
        process = FleetProcessHandle(self._popen(arguments, environment, log), log)
        self.processes.append(process)
        return process

    def _popen(
        self, arguments: list[str], environment: dict[str, str], log: Path
    ) -> subprocess.Popen[bytes] | WarmProcess:
        if self.nursery is not None:
            return self.nursery.start(arguments, environment, log)
        script = Path(sys.executable).with_name("celery")
        program = [sys.executable, "-m", "celery"] if self.deployment is None else [str(script)]
        with log.open("wb") as output:
            return subprocess.Popen(
                [*program, *arguments],
                cwd=self.deployment or ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@contextmanager
def open_fleet(
    database: str,
    broker: str,
    folder: Path,
    *,
    key_prefix: str,
    queue_prefix: str = "",
    settings_of: Mapping[str, str] = QUICK,
) -> Iterator[Fleet]:
    """A fleet without processes yet; they are ended with the block. `settings_of` says what is not default."""
    variables = {
        **settings_of,
        "DATABASE": database,
        "BROKER": broker,
        "KEY_PREFIX": key_prefix,
        "QUEUE_PREFIX": queue_prefix,
    }
    settings = FleetSettings(**{name.lower(): value for name, value in variables.items()})
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTLOOM_")}
    environment = {**kept, **{f"AGENTLOOM_{name}": value for name, value in variables.items()}, "C_FORCE_ROOT": "1"}
    fleet = Fleet(environment, folder, make_fleet_ports(settings, (), 2), queue_prefix)
    try:
        yield fleet
    finally:
        fleet.close()
