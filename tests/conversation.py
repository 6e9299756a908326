"""One session of many runs on the simulator, driven row by row: what is asked, added, broken off and carried on.

Every row is the runtime's own; a test decides only between which of them something is said.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.clock import ManualClock
from agentloom_worker.domain.model import Category, Executed, Failure, Partial
from agentloom_worker.domain.run import Run
from agentloom_worker.domain.session import OnBusy, Session
from agentloom_worker.errors import Code
from agentloom_worker.ids import ClaimToken, InputId, ProcessId, RunId, SessionId
from agentloom_worker.llm.adapters.scripted import (
    CallsTurn,
    FailureTurn,
    ScriptedCall,
    ScriptedRequest,
    ScriptedTurn,
    TextTurn,
)
from agentloom_worker.runtime.accept import Sending, accept_input, accept_question, stop_run
from agentloom_worker.runtime.ports import ALL_QUEUES, Ports, Settings
from agentloom_worker.runtime.publish import publish_release
from tests.factories import python_tool, release_document
from tests.ground import remembered
from tests.simulator import Worker, make_worker

STEPWISE = Settings(fusion=False, inline_hops=0)
FUSED = Settings()
ROWS_MAX = 500
REJECTED = Failure(Code.MODEL_REQUEST_REJECTED, Category.PROTOCOL, "the script refuses", Executed.EXECUTED)


def calls(*texts: str) -> CallsTurn:
    """A message that calls `echo` with each text; the provider names its calls alike in every message."""
    return CallsTurn(
        tuple(
            ScriptedCall("echo", canonical_bytes({"text": text}).decode(), f"call_{number}")
            for number, text in enumerate(texts)
        )
    )


def breaks_off(text: str = "") -> FailureTurn:
    """An answer that is rejected after so much of it."""
    return FailureTurn(REJECTED, Partial(text=text))


@dataclass
class Conversation:
    """A session and the turns that its model will take; without one left it answers `answer`."""

    worker: Worker
    session_id: SessionId
    turns: list[ScriptedTurn] = field(default_factory=list)
    runs: list[RunId] = field(default_factory=list)
    requests: list[list[dict[str, Any]]] = field(default_factory=list)
    keys: int = 0

    @property
    def ports(self) -> Ports:
        return self.worker.ports

    @property
    def live(self) -> Run | None:
        """The newest run where it has not ended."""
        run = self.ports.store.load_run(self.runs[-1]) if self.runs else None
        return run if run is not None and not run.status.terminal else None

    def answer(self, request: ScriptedRequest) -> ScriptedTurn:
        self.requests.append(request.body["messages"])
        return self.turns.pop(0) if self.turns else TextTurn(f"answer {len(self.runs)}")

    def ask(self, text: str, *turns: ScriptedTurn) -> RunId:
        """A question, which takes over whatever waits for a run; nothing has run yet."""
        self.turns.extend(turns)
        self.keys += 1
        run_id = accept_question(self.ports, self._session(), text, None, f"ask {self.keys}").run_id
        assert run_id is not None
        self.runs.append(run_id)
        return run_id

    def queue(self, text: str) -> None:
        """A question behind the live run, or in its place, as the session's `on_busy` says."""
        self.keys += 1
        assert accept_question(self.ports, self._session(), text, None, f"ask {self.keys}").run_id is None

    def add(self, text: str) -> InputId:
        """A supplement for the live run, or for the next one."""
        self.keys += 1
        return accept_input(self.ports, self._session(), Sending.SUPPLEMENT, text, None, f"add {self.keys}").input_id

    def steps(self, count: int) -> None:
        """Run so many rows, or all that are due; the clock stands still."""
        for _ in range(count):
            due = self.ports.store.list_due(ALL_QUEUES, 1)
            if not due:
                return
            self.worker.runner.run(due[0])

    def finish(self) -> Run:
        """Run the live run to its end."""
        self.worker.drive(rounds=ROWS_MAX)
        return self.ended()

    def stop(self) -> Run:
        """Stop the live run where it stands."""
        stop_run(self.ports, self.runs[-1])
        return self.finish()

    def expire(self) -> Run:
        """Let the live run's time run out."""
        clock = self.worker.clock
        assert isinstance(clock, ManualClock)
        clock.advance(3600.0 + 60)
        return self.finish()

    def hold(self, step: str) -> None:
        """Claim the next row of a step as a process does that is never heard of again."""
        for row in self.ports.store.list_dispatches(run_id=self.runs[-1]):
            if row.step == step and row.claimed_by is None:
                settings = self.ports.settings
                held = self.ports.store.claim(
                    row.dispatch_id,
                    ClaimToken(self.ports.ids.token()),
                    ProcessId(self.ports.ids.new()),
                    ttl_us=settings.claim_ttl_us,
                    grace_us=settings.grace_us,
                    solitary=True,
                )
                assert held is not None
                return
        raise AssertionError(f"no row of {step} is free")

    def ended(self) -> Run:
        """The newest run, which has ended."""
        run = self.ports.store.load_run(self.runs[-1])
        assert run is not None and run.status.terminal
        return run

    def _session(self) -> Session:
        session = self.ports.store.load_session(self.session_id)
        assert session is not None
        return session


def open_worker(url: str, found: list[Conversation], **options: Any) -> Worker:
    """A worker whose model answers as the conversation in `found` says; it is closed with the test's database."""

    def answer(request: ScriptedRequest) -> ScriptedTurn:
        return found[0].answer(request)

    return remembered(make_worker(url, scripts={"main": answer}, **options))


def converse(
    url: str, *, settings: Settings = FUSED, on_busy: OnBusy = OnBusy.REJECT, **overrides: Any
) -> Conversation:
    """A new session of an agent with the tool `echo` and a window of a million tokens."""
    found: list[Conversation] = []
    worker = open_worker(url, found, settings=settings)
    tools = {"echo": python_tool()}
    overrides = {"models": {"main": {"context_window_tokens": 1_000_000}}, **overrides}
    agent_id = publish_release(worker.ports, release_document(tools=tools, **overrides)).agent_id
    owner_id = worker.ports.store.find_owner(agent_id)
    assert owner_id is not None
    session_id = SessionId(worker.ports.ids.new())
    worker.ports.store.open_session(session_id, owner_id, on_busy)
    found.append(Conversation(worker, session_id))
    return found[0]


def converse_elsewhere(conversation: Conversation) -> Conversation:
    """The same session as another process sees it, with nothing in its caches."""
    found: list[Conversation] = []
    ports, clock = conversation.ports, conversation.worker.clock
    worker = open_worker(ports.store.url, found, settings=ports.settings, clock=clock)
    found.append(Conversation(worker, conversation.session_id, conversation.turns, list(conversation.runs)))
    found[0].keys = 10_000
    return found[0]


def texts(messages: Iterable[dict[str, Any]]) -> list[str]:
    """Messages as `role: content`, calls as `role -> name name`."""
    return [
        f"{message['role']} -> {' '.join(call['function']['name'] for call in message['tool_calls'])}"
        if message.get("tool_calls")
        else f"{message['role']}: {message['content']}"
        for message in messages
    ]


def count_statements(conversation: Conversation, act: Callable[[], object]) -> list[tuple[str, Any]]:
    """Every statement that SQLAlchemy sends while `act` runs, with its parameters."""
    seen: list[tuple[str, Any]] = []

    def note(_conn: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        seen.append((statement, parameters))

    engine = conversation.ports.store.driver.engine
    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        act()
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)
    return seen


def names(parameters: Any, ids: Iterable[UUID]) -> bool:
    """Whether a statement's parameters hold one of these ids, in any form that a driver takes."""
    shown = repr(parameters).replace("-", "")
    return any(one.hex in shown for one in ids)
