"""Everything that may go away goes away under load, and then it is counted what was lost: it must be nothing.

The killer takes the two workers in turn and spares the process that serves alone what has cost two others their life.
Most runs have a session of their own; some sessions have three, whose questions wait for each other while the user
goes on talking.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

from agentloom_worker.audit import run_audit
from agentloom_worker.devmodel import DevModel
from agentloom_worker.domain.operation import OperationKind, OperationStatus
from agentloom_worker.domain.run import Run, RunStatus
from agentloom_worker.domain.session import InputKind, OnBusy, Session
from agentloom_worker.errors import PersistenceUnavailableError, TransientError
from agentloom_worker.ids import RunId, SessionId
from agentloom_worker.leases import redis
from agentloom_worker.runtime.accept import Sending, accept_input
from agentloom_worker.runtime.inputs import InputState, list_inputs
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.publish import publish_release
from tests import effects
from tests.acceptance.harness import dev_model, frozen_requests, http_release, operations, query, wait_for
from tests.acceptance.processes import ask_at_last
from tests.factories import python_tool
from tests.fleet import Fleet, FleetProcessHandle
from tests.servers import PostgresServer, RedisServer

LOOPS = 3
# Of a session whose user goes on talking; they are a fifth of all runs.
TALK_RUNS = 3
TRIES = 20
AGAIN: dict[str, Any] = {
    "initial_ms": 50, "jitter": "none", "max_attempts": 50, "on_unknown": {"action": "retry", "max": 50}
}  # fmt: skip
TOOLS = {
    "once": python_tool(handler="tests.effects:leave_line", effect="write_external"),
    "again": python_tool(handler="tests.effects:leave_line", effect="write_external", retry=AGAIN),
}

_Value = TypeVar("_Value")


@contextmanager
def busy_model(first_chunk_ms: int = 100) -> Iterator[DevModel]:
    """A provider with which a session's first run takes `LOOPS` loops of two calls each, then answers.

    A later run sees those in its history, and answers at once.
    """
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
    asked: int = 0  # runs, those of questions that wait included
    done: Counter[str] = field(default_factory=Counter)
    talks: list[Session] = field(default_factory=list)
    workers: list[FleetProcessHandle] = field(default_factory=list)
    beats: list[FleetProcessHandle] = field(default_factory=list)

    def start(self, *, beat: bool = False) -> None:
        """Two workers that may die and one that may not, perhaps a beat."""
        self.lines.touch()
        self.fleet.environment[effects.VARIABLE] = str(self.lines)
        self.workers = [self.fleet.worker(ready="") for _ in range(2)]
        self.solitary = self.fleet.worker("solitary", pool="prefork", slots=1, ready="")
        for process in (*self.workers, self.solitary):
            process.wait_for_line("process_started")
        self.beats = [self.fleet.beat()] if beat else []
        self._turn = cycle(range(2))

    def ask(self, count: int) -> None:
        """So many runs more."""
        document = busy_release(self.model)
        until = self.asked + count
        while self.asked < until:
            if until - self.asked >= TALK_RUNS and self.asked % (5 * TALK_RUNS) < TALK_RUNS:
                self._begin_talk(document)
                self.asked += TALK_RUNS
            else:
                ask_at_last(self.fleet.ports, document)
                self.asked += 1

    def suffer(self, acts: list[str], *, pause_s: float, count: int) -> None:
        """Begin an act every `pause_s` under load, with so many runs spread over them."""
        deeds: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "drain": self._drain,
            "flush": self._flush,
            "stop redis": self._stop_redis,
            "restart postgres": self.postgres.restart_immediate,
        }
        clock = self.fleet.ports.clock
        for number, act in enumerate(acts):
            due_s = clock.monotonic_s() + pause_s
            self.ask(count * (number + 1) // len(acts) - count * number // len(acts))
            if self.talks:
                self._say(self.talks[number % len(self.talks)], Sending.SUPPLEMENT, f"also {number}")
            # The pace of the acts, nothing more: what was asked is under way by then.
            threading.Event().wait(max(0.0, due_s - clock.monotonic_s()))
            deeds[act]()
            self.done[act] += 1

    def _begin_talk(self, document: dict[str, Any]) -> None:
        """A session with all its questions; each but the first waits for the one before it."""
        session = _at_last(lambda: _open_session(self.fleet.ports, document))
        self.talks.append(session)
        for number in range(TALK_RUNS):
            self._say(session, Sending.QUESTION, f"question {number}")

    def _say(self, session: Session, sending: Sending, text: str) -> None:
        """Under the same key until it is taken, as a client does."""
        _at_last(lambda: accept_input(self.fleet.ports, session, sending, text, None, text))

    def assert_right(self, timeout_s: float) -> None:
        """Every run ends succeeded, nothing is left, effects are as their policies say, the audit finds nothing."""
        ports = self.fleet.ports
        wait_for(lambda: self._all_over(ports), f"{self.asked} runs are over", timeout_s)
        runs = [run for (run_id,) in query(ports, "SELECT run_id FROM run") if (run := ports.store.load_run(run_id))]
        assert len(runs) == self.asked
        for run in runs:
            assert run.status is RunStatus.SUCCEEDED, (run.run_id, run.end_code, run.end_detail)
        wait_for(lambda: ports.store.list_dispatches() == [], "no row is left", timeout_s)
        self._assert_effects(ports, runs)
        for session in self.talks:
            self._assert_talk(ports, session, [run for run in runs if run.session_id == session.session_id])
        for process in (*self.workers, self.solitary, *self.beats):
            process.wait_for_line("beat_started" if process in self.beats else "process_started")
            assert process.end() == 0, process.tail()
        assert run_audit(ports) == ()

    def _all_over(self, ports: Ports) -> bool:
        try:
            parked = ports.store.list_dispatches(parked_only=True)
            ((over,),) = query(ports, "SELECT count(ended_at) FROM run")
        except PersistenceUnavailableError:
            return False
        assert not parked, parked
        return int(over) == self.asked

    def _assert_effects(self, ports: Ports, runs: list[Run]) -> None:
        left = effects.read_lines(self.lines)
        for run in runs:
            calls = operations(ports, run.run_id, OperationKind.TOOL)
            assert len(calls) == (LOOPS * len(TOOLS) if run.run_no == 1 else 0)
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

    def _assert_talk(self, ports: Ports, session: Session, runs: list[Run]) -> None:
        """Questions became runs in their order; each input was shown once from the run on that delivered it."""
        runs.sort(key=lambda run: run.run_no)
        inputs = list_inputs(ports, session, after=0, limit=200)
        asked = [one.input_seq for one in inputs if one.kind is InputKind.QUESTION]
        assert [run.question_seq for run in runs] == asked and len(asked) == TALK_RUNS
        numbers: dict[RunId | None, int] = {run.run_id: run.run_no for run in runs}
        shown = [
            Counter(message["content"] for message in frozen_requests(ports, run.run_id)[-1]["messages"])
            for run in runs
        ]
        for one in inputs:
            if one.state is InputState.PENDING_NEXT_RUN and one.kind is InputKind.SUPPLEMENT:
                continue  # it came too late for the last of them
            assert one.state is InputState.DELIVERED, one
            self.done["inputs carried"] += len(one.run_ids) - 1
            for seen in shown[numbers[one.run_id] - 1 :]:
                assert seen[one.text] == 1, (one, seen)

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


def _open_session(ports: Ports, document: dict[str, Any]) -> Session:
    owner = ports.store.find_owner(publish_release(ports, document).agent_id)
    assert owner is not None
    session_id = SessionId(ports.ids.new())
    ports.store.open_session(session_id, owner, OnBusy.ENQUEUE)
    session = ports.store.load_session(session_id)
    assert session is not None
    return session


def _at_last(act: Callable[[], _Value]) -> _Value:
    """As a client does: a store that is down for the moment is asked again."""
    for _ in range(TRIES):
        try:
            return act()
        except TransientError:
            continue
    raise AssertionError("the store does not come back")
