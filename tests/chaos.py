"""Everything that may go away goes away under load, and then it is counted what was lost: it must be nothing.

The killer takes the two workers in turn and spares the process that serves alone what has cost two others their life.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from agentloom_worker.audit import run_audit
from agentloom_worker.devmodel import DevModel
from agentloom_worker.domain.operation import OperationKind, OperationStatus
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.errors import PersistenceUnavailableError
from agentloom_worker.ids import RunId
from agentloom_worker.leases import redis
from agentloom_worker.runtime.ports import Ports
from tests import effects
from tests.acceptance.harness import dev_model, http_release, operations, run_of, wait_for
from tests.acceptance.processes import ask_at_last, over_at_last
from tests.factories import python_tool
from tests.fleet import Fleet, FleetProcessHandle
from tests.servers import PostgresServer, RedisServer

LOOPS = 3
AGAIN: dict[str, Any] = {
    "initial_ms": 50, "jitter": "none", "max_attempts": 50, "on_unknown": {"action": "retry", "max": 50}
}  # fmt: skip
TOOLS = {
    "once": python_tool(handler="tests.effects:leave_line", effect="write_external"),
    "again": python_tool(handler="tests.effects:leave_line", effect="write_external", retry=AGAIN),
}


@contextmanager
def busy_model(first_chunk_ms: int = 100) -> Iterator[DevModel]:
    """A provider with which a run takes `LOOPS` loops of two calls each, then answers."""
    calls = [{"name": name, "arguments": {"text": "{{assistant_turns}}"}} for name in TOOLS]
    with dev_model(
        {"when": {"assistant_turns": {"max": LOOPS - 1}}, "answer": {"tool_calls": calls}},
        {"answer": {"text": "done"}},
        delay={"first_chunk_ms": first_chunk_ms},
    ) as model:
        yield model


def busy_release(model: DevModel) -> dict[str, Any]:
    """The release of those runs: the model and one tool may be asked again, the other tool never."""
    return http_release(model, TOOLS, models={"main": {"retry": AGAIN}})


@dataclass
class Chaos:
    """A fleet on servers of its own, and what is done to it."""

    fleet: Fleet
    postgres: PostgresServer
    redis: RedisServer
    model: DevModel
    lines: Path
    runs: list[RunId] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    workers: list[FleetProcessHandle] = field(default_factory=list)

    def start(self) -> None:
        """Two workers that may die and one that may not."""
        self.lines.touch()
        self.fleet.environment[effects.VARIABLE] = str(self.lines)
        self.workers = [self.fleet.worker(ready="") for _ in range(2)]
        self.solitary = self.fleet.worker("solitary", pool="prefork", slots=1, ready="")
        for process in (*self.workers, self.solitary):
            process.wait_for_line("process_started")
        self._turn = cycle(range(2))

    def ask(self, count: int) -> None:
        """So many questions more."""
        document = busy_release(self.model)
        self.runs += [ask_at_last(self.fleet.ports, document) for _ in range(count)]

    def suffer(self, acts: list[str], *, pause_s: float, count: int) -> None:
        """Do one act after the other under load, with so many questions spread over them."""
        deeds: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "drain": self._drain,
            "flush": self._flush,
            "stop redis": self._stop_redis,
            "restart postgres": self.postgres.restart_immediate,
        }
        for number, act in enumerate(acts):
            self.ask(count * (number + 1) // len(acts) - count * number // len(acts))
            # The pace of the acts, nothing more: what was asked is under way by then.
            threading.Event().wait(pause_s)
            deeds[act]()
            self.done[act] += 1

    def assert_right(self, timeout_s: float) -> None:
        """Every run ends succeeded, nothing is left, effects are as their policies say, the audit finds nothing."""
        ports = self.fleet.ports
        wait_for(lambda: self._all_over(ports), f"{len(self.runs)} runs are over", timeout_s)
        for run_id in self.runs:
            run = run_of(ports, run_id)
            assert run.status is RunStatus.SUCCEEDED, (run_id, run.end_code, run.end_detail)
        wait_for(lambda: ports.store.list_dispatches() == [], "no row is left", timeout_s)
        self._assert_effects(ports)
        for process in (*self.workers, self.solitary):
            process.wait_for_line("process_started")
            assert process.end() == 0, process.tail()
        assert run_audit(ports) == ()

    def _all_over(self, ports: Ports) -> bool:
        try:
            parked = ports.store.list_dispatches(parked_only=True)
        except PersistenceUnavailableError:
            return False
        assert not parked, parked
        return over_at_last(ports, self.runs)

    def _assert_effects(self, ports: Ports) -> None:
        left = effects.read_lines(self.lines)
        for run_id in self.runs:
            calls = operations(ports, run_id, OperationKind.TOOL)
            assert len(calls) == LOOPS * len(TOOLS)
            for call in calls:
                lines = left.pop(str(call.operation_id), 0)
                match call.capability, call.status:
                    case "once", OperationStatus.COMPLETED:
                        assert lines == 1, call
                    case "once", OperationStatus.UNKNOWN:
                        assert lines <= 1, call
                        self.done["effects unknown"] += 1
                    case "again", OperationStatus.COMPLETED:
                        assert 1 <= lines <= call.attempts_made, call
                        self.done["effects repeated"] += lines - 1
                    case _:
                        raise AssertionError(call)
        assert not left, f"lines of calls that nobody knows: {left}"

    def _next(self) -> int:
        return next(self._turn)

    def _kill(self) -> None:
        place = self._next()
        self.workers[place].kill_session()
        self.workers[place] = self.fleet.worker(ready="")

    def _drain(self) -> None:
        place = self._next()
        # One that was started just now may not listen to signals yet.
        self.workers[place].wait_for_line("process_started")
        assert self.workers[place].end() == 0, self.workers[place].tail()
        assert not self.workers[place].lines("drain_overdue")
        self.workers[place] = self.fleet.worker(ready="")

    def _flush(self) -> None:
        with closing(redis.connect(self.redis.url, retries=0)) as client:
            client.flushall()

    def _stop_redis(self) -> None:
        self.redis.stop()
        threading.Event().wait(1.0)
        self.redis.start()
