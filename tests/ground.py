"""A database with one run on it, at a chosen place, for tests of commits and races.

`stand` accepts a question and drives the run, unfused and with no inline steps, to the phase that is asked
for; `step_commit` makes the smallest commit of a claimed step; `dump` tells whether anything was written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.clock import ManualClock
from agentloom_worker.domain.commit import Part, RunFence, RuntimeCommit
from agentloom_worker.domain.dispatch import Claim
from agentloom_worker.domain.run import Phase
from agentloom_worker.domain.session import OnBusy
from agentloom_worker.ids import ClaimToken, DispatchId, ProcessId, RunId, SessionId
from agentloom_worker.llm.adapters.scripted import CallsTurn, Script, ScriptedCall, ScriptedRequest, TextTurn
from agentloom_worker.runtime.accept import accept_question
from agentloom_worker.runtime.inputs import InputReceipt
from agentloom_worker.runtime.ports import Ports, Settings
from agentloom_worker.runtime.publish import publish_release
from agentloom_worker.runtime.result import hash_command
from agentloom_worker.runtime.slice import Slice, load_slice
from agentloom_worker.storage.store import Store
from agentloom_worker.storage.tables import metadata
from tests.factories import python_tool, release_document, run_of_receipt
from tests.simulator import Worker, make_worker

STEPWISE = Settings(fusion=False, inline_hops=0)
_open: list[Worker] = []
TTL_S = STEPWISE.claim_ttl_s
GRACE_S = STEPWISE.suspect_grace_s


def two_calls_then_answer(request: ScriptedRequest) -> CallsTurn | TextTurn:
    """The script of most tests here: two calls in one message, then the answer."""
    if request.message_count == 2:
        calls = (ScriptedCall("echo", '{"text":"a"}', "c1"), ScriptedCall("echo", '{"text":"b"}', "c2"))
        return CallsTurn(calls)
    return TextTurn("done")


@dataclass
class Ground:
    """One session, one accepted run, one simulated process."""

    worker: Worker
    session_id: SessionId
    receipt: InputReceipt

    @property
    def ports(self) -> Ports:
        return self.worker.ports

    @property
    def store(self) -> Store:
        return self.worker.ports.store

    @property
    def clock(self) -> ManualClock:
        return self.worker.clock

    @property
    def run_id(self) -> RunId:
        return run_of_receipt(self.receipt)

    @property
    def process_id(self) -> ProcessId:
        return self.worker.runner.process_id

    def new(self) -> UUID:
        return self.ports.ids.new()

    def slice(self) -> Slice:
        return load_slice(self.ports, self.run_id)

    def row_of(self, step: str) -> DispatchId:
        """The one row of a step."""
        (found,) = [row.dispatch_id for row in self.store.list_dispatches(run_id=self.run_id) if row.step == step]
        return found

    def claim(self, step: str | DispatchId, process_id: ProcessId | None = None, *, solitary: bool = False) -> Claim:
        """Claim a row, by its step or id, for this process or another."""
        dispatch_id = self.row_of(step) if isinstance(step, str) else step
        claim = self.try_claim(dispatch_id, process_id, solitary=solitary)
        assert claim is not None, f"row {dispatch_id} was not to be had"
        return claim

    def try_claim(
        self, dispatch_id: DispatchId, process_id: ProcessId | None = None, *, solitary: bool = False
    ) -> Claim | None:
        return self.store.claim(
            dispatch_id,
            ClaimToken(self.ports.ids.token()),
            process_id or self.process_id,
            ttl_us=STEPWISE.claim_ttl_us,
            grace_us=STEPWISE.grace_us,
            solitary=solitary,
        )

    def other_worker(self, **options: Any) -> Worker:
        """Another process on the same database and the same clock."""
        options = {"settings": STEPWISE, "scripts": {"main": two_calls_then_answer}, "clock": self.clock, **options}
        return remembered(make_worker(self.store.url, **options))

    def set_run(self, **values: object) -> None:
        """Put the run into a state that no test should have to walk to."""
        with self.store.driver.engine.connect() as conn:
            table = metadata.tables["run"]
            conn.execute(sa.update(table).where(table.c.run_id == self.run_id).values(**values))

    def set_row(self, dispatch_id: UUID, **values: object) -> None:
        """Damage or prepare a dispatch row."""
        with self.store.driver.engine.connect() as conn:
            table = metadata.tables["pending_dispatch"]
            conn.execute(sa.update(table).where(table.c.dispatch_id == dispatch_id).values(**values))

    def expire(self, *workers: Worker) -> None:
        """Let every claim run out, be suspected, and pass the time of grace."""
        sweepers = workers or (self.worker,)
        self.clock.advance(TTL_S + 1)
        for worker in sweepers:
            worker.sweeper.sweep()
        self.clock.advance(GRACE_S + 1)


def stand(
    url: str,
    *,
    script: Script = two_calls_then_answer,
    settings: Settings = STEPWISE,
    until: Phase | Callable[["Ground"], bool] | None = None,
    clock: ManualClock | None = None,
    text: str = "hello?",
    on_busy: OnBusy = OnBusy.REJECT,
    **overrides: Any,
) -> Ground:
    """A run on a migrated database, driven until its node reaches a phase (None: only accepted)."""
    worker = remembered(make_worker(url, scripts={"main": script}, settings=settings, clock=clock))
    tools = {"echo": python_tool(), "fail": python_tool(handler="tests.tools:fail"), **overrides.pop("tools", {})}
    document = release_document(tools=tools, **overrides)
    publish_release(worker.ports, document)
    session_id = open_session(worker, document["agent"]["id"], on_busy)
    receipt = ask(worker, session_id, text)
    ground = Ground(worker, session_id, receipt)
    if isinstance(until, Phase):
        worker.drive(until=lambda: ground.slice().node.phase is until)
    elif until is not None:
        worker.drive(until=lambda: until(ground))
    return ground


def remembered(worker: Worker) -> Worker:
    """The worker, to be closed with all others of the test."""
    _open.append(worker)
    return worker


def close_all() -> None:
    """Close every store that a test opened; its fixture calls this."""
    while _open:
        _open.pop().close()


def open_session(worker: Worker, agent_id: str = "assistant", on_busy: OnBusy = OnBusy.REJECT) -> SessionId:
    """A new session of the agent."""
    owner_id = worker.ports.store.find_owner(agent_id)
    assert owner_id is not None
    session_id = SessionId(worker.ports.ids.new())
    worker.ports.store.open_session(session_id, owner_id, on_busy)
    return session_id


def ask(worker: Worker, session_id: SessionId, text: str = "hello?", key: str = "question") -> InputReceipt:
    """Accept a question."""
    session = worker.ports.store.load_session(session_id)
    assert session is not None
    return accept_question(worker.ports, session, text, None, key)


def step_commit(ground: Ground, claim: Claim | None, **values: Any) -> RuntimeCommit:
    """The smallest commit of a step: it consumes its claim under the run's fence and does nothing else."""
    key = values.pop("name", f"part:{claim.token if claim else ground.new()}")
    defaults: dict[str, Any] = {
        "scope_id": ground.run_id,
        "key": claim.token.bytes if claim else key.encode(),
        "parts": (Part(key, hash_command(key)),),
        "claim": claim,
        "fence": RunFence(ground.run_id),
    }
    return RuntimeCommit(**(defaults | values))


def dump(store: Store) -> dict[str, list[str]]:
    """Every row of every table, comparable."""
    found: dict[str, list[str]] = {}
    with store.driver.engine.connect() as conn:
        for table in metadata.sorted_tables:
            rows = conn.execute(sa.select(table))
            found[table.name] = sorted(repr(tuple(_plain(value) for value in row)) for row in rows)
    return found


def _plain(value: object) -> object:
    return bytes(value) if isinstance(value, memoryview) else value
