"""What a Celery worker of the crash suite has before Celery begins: scripted models, ledgers, perhaps a strike.

Whoever finishes is armed by a `sitecustomize`, a victim by the nursery that forks it; the command is that of any other
worker. A victim dies with one run only, every other one it carries on like anybody.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agentloom_worker import bootstrap, faults
from agentloom_worker.bootstrap import make_ports
from agentloom_worker.domain.dispatch import Claim
from agentloom_worker.ids import RunId
from agentloom_worker.llm.adapters.scripted import ScriptedRequest, ScriptedTurn
from agentloom_worker.runtime.accept import Sending, accept_input, stop_run
from agentloom_worker.runtime.lease import Keeper
from agentloom_worker.runtime.live import Live
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.storage.store import Store
from tests.crash.process import QUESTION, hash_of
from tests.crash.scenarios import SCENARIOS, View
from tests.crash.tools import Ledger, open_ledger

FOLDER_VARIABLE: Final = "TEST_CRASH_FOLDER"

# The row that the running thread holds, or has just claimed; tools run in a copy of their slot's context.
_claim: ContextVar[Claim | None] = ContextVar("claim", default=None)


@dataclass(frozen=True)
class Order:
    """Where a victim dies: the `nth` time that it comes to a point with this run."""

    run_id: str
    point: str
    detail: str
    nth: int


def hook(folder: Path) -> Path:
    """A folder for the head of PYTHONPATH: whatever starts with it is armed."""
    made = folder / "hook"
    made.mkdir()
    (made / "sitecustomize.py").write_text("from tests.crash.armed import arm\narm()\n")
    return made


def asked(label: str) -> str:
    """The question of a run; its label names the scenario and the ledger."""
    return f"{QUESTION} [{label}]"


def tools_ledger(folder: Path) -> Ledger:
    """The effects of all runs, by operation."""
    return Ledger(folder / "effects")


def model_ledger(folder: Path, label: str) -> Ledger:
    """The requests of one run."""
    return Ledger(folder / f"{label}.requests")


def arm(order: Order | None = None) -> None:
    """Make this process one of the suite's; with an order it dies. Without the variable it is left as it is."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        return
    open_ledger(tools_ledger(Path(folder)))
    _give_scripts(_Script(Path(folder)))
    _note_claims()
    if order is not None:
        faults.install(_trigger(order))


def _give_scripts(script: Callable[[ScriptedRequest], ScriptedTurn]) -> None:
    make_adapters = bootstrap.make_adapters
    bootstrap.make_adapters = lambda clock, scripts: make_adapters(clock, {**scripts, "main": script})


def _note_claims() -> None:
    """Whoever claims a row or goes on with one says so to its thread."""
    claim, hold = Store.claim, Keeper.hold

    def claim_noted(*arguments: Any, **options: Any) -> Claim | None:
        found = claim(*arguments, **options)
        _claim.set(found)
        return found

    def hold_noted(self: Keeper, claim: Claim, claimed_s: float) -> Live:
        _claim.set(claim)
        return hold(self, claim, claimed_s)

    Store.claim = claim_noted  # type: ignore[method-assign]
    Keeper.hold = hold_noted  # type: ignore[method-assign]


def _trigger(order: Order) -> Callable[[str, str], None]:
    met = 0

    def trigger(point: str, detail: str) -> None:
        nonlocal met
        claim = _claim.get()
        if (point, detail) != (order.point, order.detail) or claim is None or str(claim.run_id) != order.run_id:
            return
        met += 1
        if met == order.nth:
            os.kill(os.getpid(), signal.SIGKILL)

    return trigger


class _Script:
    """The scripted model of every scenario; the question says which one is meant."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, request: ScriptedRequest) -> ScriptedTurn:
        messages = request.body["messages"]
        # The session's first question: a later run shows it in its history.
        question = next(message["content"] for message in messages if message["role"] == "user")
        label = question.removeprefix(f"{QUESTION} [").removesuffix("]")
        ledger, digest = model_ledger(self._folder, label), hash_of(request.call.body.join())
        scenario = SCENARIOS[label.partition(".")[0]]
        view = View(messages, 1 + ledger.count("bytes", digest), *(_place() if scenario.on_busy else (1, None)))
        ledger.note("bytes", digest)
        ledger.note("arrival", view.run_no, view.loop_no)
        return scenario.answer(view, _Client())


def _place() -> tuple[int, int]:
    """The run and the loop of the request that is being answered."""
    with _client() as (ports, run_id):
        rows = ports.store.load_slice(run_id)
        assert rows is not None
        return rows.run.run_no, rows.node.continuation.loop_no


@contextmanager
def _client() -> Iterator[tuple[Ports, RunId]]:
    """A client's ports, and the run whose request is being answered."""
    claim = _claim.get()
    assert claim is not None and claim.run_id is not None
    ports = make_ports(os.environ["AGENTLOOM_DATABASE"], pool_size=1)
    try:
        yield ports, RunId(claim.run_id)
    finally:
        ports.store.close()


class _Client:
    """Stops the run whose request is being answered, or says something in its session, as somebody from outside."""

    def stop(self) -> None:
        """Over a store of its own; the keeper hears of it at its next poll."""
        with _client() as (ports, run_id):
            stop_run(ports, run_id)

    def say(self, sending: Sending, text: str) -> None:
        """Under the words' own key."""
        with _client() as (ports, run_id):
            run = ports.store.load_run(run_id)
            assert run is not None
            session = ports.store.load_session(run.session_id)
            assert session is not None
            # The agent's newest release is that of whichever scenario was published last.
            release_id = run.release_id if sending is Sending.QUESTION else None
            accept_input(ports, session, sending, text, release_id, text)
