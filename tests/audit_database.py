"""A database in which runs of every kind have ended, and others stand still in the middle: all of it sound."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentloom_worker import faults
from agentloom_worker.clock import ManualClock
from agentloom_worker.domain.model import Category, Executed, Failure
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.domain.session import OnBusy
from agentloom_worker.errors import Code, InvariantError
from agentloom_worker.ids import DispatchId, RunId, SessionId
from agentloom_worker.llm.adapters.scripted import (
    CallsTurn,
    FailureTurn,
    ScriptedCall,
    ScriptedRequest,
    ScriptedTurn,
    StallTurn,
    TextTurn,
)
from agentloom_worker.runtime.accept import Sending, accept_input, accept_question, stop_run
from agentloom_worker.runtime.inputs import withdraw_input
from agentloom_worker.runtime.parking import fail_parked
from agentloom_worker.runtime.ports import Settings
from agentloom_worker.runtime.publish import publish_release
from tests.factories import python_tool, release_document, run_of_receipt
from tests.simulator import Worker, make_worker

TOOLS = {
    "echo": python_tool(),
    "add": python_tool(handler="tests.tools:add"),
    "fail": python_tool(handler="tests.tools:fail"),
    "repeatable": python_tool(retry={"jitter": "none", "on_unknown": {"action": "retry", "max": 1}}),
}
WIDE = {"main": {"context_window_tokens": 400_000}}
OVERLOADED = Failure(
    Code.MODEL_PROVIDER_ERROR, Category.TRANSPORT, "overloaded", Executed.NOT_EXECUTED, RetryClass.TRANSPORT
)
REJECTED = Failure(Code.MODEL_REQUEST_REJECTED, Category.VALIDATION, "rejected", Executed.EXECUTED)


class CrashError(BaseException):
    """Ends a step as a killed process does: nothing after it runs but the locks of this process."""


def echo(text: str, call_id: str | None = "c1") -> ScriptedCall:
    """A call of `echo`."""
    return ScriptedCall("echo", f'{{"text":"{text}"}}', call_id)


def parallel(request: ScriptedRequest) -> ScriptedTurn:
    """Three loops: five calls, two of them invalid and one failing; one call; the answer."""
    if request.message_count == 2:
        return CallsTurn(
            (
                echo("a"),
                ScriptedCall("add", '{"left":1,"right":2}', "c2"),
                ScriptedCall("nope", "{}"),
                ScriptedCall("add", '{"left":"x"}', "c4"),
                ScriptedCall("fail", '{"reason":"no"}', "c5"),
            ),
            text="I shall look.",
        )
    return CallsTurn((echo("b"),)) if request.message_count == 8 else TextTurn("done")


def big(request: ScriptedRequest) -> ScriptedTurn:
    """A result above the preview's size, a slice of it, a long answer: blobs of every use."""
    if request.message_count == 2:
        return CallsTurn((echo("x" * 70_000),))
    if request.message_count == 4:
        reference = request.last_message["content"].partition("of result:")[2][:36]
        return CallsTurn((ScriptedCall("result_read", f'{{"result_ref":"result:{reference}","offset":9}}', "c2"),))
    return TextTurn("long " * 2000)


def endless(_request: ScriptedRequest) -> ScriptedTurn:
    """Never an answer."""
    return CallsTurn((echo("again"),))


def repeated(request: ScriptedRequest) -> ScriptedTurn:
    """One call of a tool that may be repeated when nobody knows what it did."""
    if request.message_count == 2:
        return CallsTurn((ScriptedCall("repeatable", '{"text":"a"}', "c1"),))
    return TextTurn("done")


OUTPUT = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
# A schema so long that the correction which shows it is a blob.
LONG_OUTPUT = {**OUTPUT, "description": "words " * 1000}


def corrected(request: ScriptedRequest) -> ScriptedTurn:
    """One call, an answer that is not of the declared form, and one that is."""
    if request.message_count == 2:
        return CallsTurn((echo("a"),))
    return TextTurn("in words" if request.message_count == 4 else '{"answer": "done"}')


class Moody:
    """Fails once, then answers."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, _request: ScriptedRequest) -> ScriptedTurn:
        self.asked += 1
        return FailureTurn(OVERLOADED) if self.asked == 1 else TextTurn("at last")


SCRIPTS: dict[str, Callable[[], Callable[[ScriptedRequest], ScriptedTurn]]] = {
    "plain": lambda: lambda _request: TextTurn("hello"),
    "parallel": lambda: parallel,
    "big": lambda: big,
    "corrected": lambda: corrected,
    "endless": lambda: endless,
    "moody": Moody,
    "repeated": lambda: repeated,
    "rejected": lambda: lambda _request: FailureTurn(REJECTED),
    "stalled": lambda: lambda _request: StallTurn("so far"),
    "filtered": lambda: lambda _request: TextTurn("", finish_reason="content_filter"),
}


@dataclass
class Audited:
    """A worker and what it has been asked, by name."""

    worker: Worker
    runs: dict[str, RunId]

    def ask(
        self, name: str, script: str, text: str = "What?", on_busy: OnBusy = OnBusy.REJECT, **overrides: Any
    ) -> RunId:
        """A question in a session of its own, to an agent that answers by a script."""
        ports = self.worker.ports
        document = release_document(
            base_url=f"script:{script}", tools=TOOLS, **_merged(overrides, agent={"id": f"agent-{name}"})
        )
        publish_release(ports, document)
        owner = ports.store.find_owner(f"agent-{name}")
        assert owner is not None
        session_id = SessionId(ports.ids.new())
        ports.store.open_session(session_id, owner, on_busy)
        session = ports.store.load_session(session_id)
        assert session is not None
        self.runs[name] = run_of_receipt(accept_question(ports, session, text, None, f"key-{name}"))
        return self.runs[name]

    def again(self, name: str) -> RunId:
        """A second question in the session of a run that is over."""
        ports = self.worker.ports
        run = ports.store.load_run(self.runs[name])
        assert run is not None
        session = ports.store.load_session(run.session_id)
        assert session is not None
        self.runs[f"{name} again"] = run_of_receipt(accept_question(ports, session, "And \ud800 then?", None, "second"))
        return self.runs[f"{name} again"]

    def steps(self, count: int) -> None:
        """Run so many rows, one at a time, and then no more."""
        ports = self.worker.ports
        for _ in range(count):
            due = ports.store.list_due(("control", "model", "tools", "compaction", "maintenance"), 1)
            if due:
                self.worker.runner.run(due[0])

    def crash(self, point: str, step: str, hit: int = 1) -> None:
        """Drive until a fault point is hit, and end there as a killed process does."""
        left = [hit]

        def trigger(at: str, detail: str) -> None:
            if (at, detail) == (point, step):
                left[0] -= 1
                if not left[0]:
                    raise CrashError

        faults.install(trigger)
        try:
            self.worker.drive()
        except CrashError:
            pass
        else:
            raise AssertionError(f"{point} of {step} was not reached")
        finally:
            faults.install(None)


def _merged(overrides: dict[str, Any], **more: dict[str, Any]) -> dict[str, Any]:
    return {name: {**overrides.get(name, {}), **more.get(name, {})} for name in {**overrides, **more}}


def open_audited(url: str, *, fusion: bool, clock: ManualClock | None = None) -> Audited:
    """A worker on a migrated database, with every script."""
    settings = Settings() if fusion else Settings(fusion=False, inline_hops=0)
    scripts = {name: make() for name, make in SCRIPTS.items()}
    return Audited(make_worker(url, clock=clock, scripts=scripts, settings=settings), {})


def fill(url: str) -> dict[str, RunId]:
    """Runs of every end, and then runs that stand still at every stage; fused and step by step."""
    clock = ManualClock()
    names: dict[str, RunId] = {}
    for fusion in (True, False):
        audited = open_audited(url, fusion=fusion, clock=clock)
        _end_all(audited)
        audited.worker.close()
        names.update({f"{name}{'' if fusion else ' unfused'}": run_id for name, run_id in audited.runs.items()})
    crashed = open_audited(url, fusion=True, clock=clock)
    _crash(crashed, url)
    halted = open_audited(url, fusion=False, clock=clock)
    _halt(halted)
    for audited in (crashed, halted):
        names.update(audited.runs)
        audited.worker.close()
    return names


def fill_few(url: str) -> dict[str, RunId]:
    """A run of each kind that the rest differs from, for tests that break one thing after another."""
    clock = ManualClock()
    audited = open_audited(url, fusion=True, clock=clock)
    audited.ask("plain", "plain", "long question " * 1000)
    audited.worker.drive()
    audited.again("plain")
    audited.ask("parallel", "parallel")
    audited.ask("big", "big", models=WIDE)
    audited.ask("corrected", "corrected", agent={"output_schema": LONG_OUTPUT})
    audited.worker.drive()
    _converse(audited, "talk")
    audited.worker.drive()
    audited.worker.close()
    halted = open_audited(url, fusion=False, clock=clock)
    _halt(halted)
    halted.worker.close()
    return audited.runs | halted.runs


def _converse(audited: Audited, name: str) -> None:
    """A run with a supplement that no output delivers, and one that comes too late for it; behind it two questions,
    of which one is taken back and one becomes the next run."""
    ports = audited.worker.ports
    run = ports.store.load_run(audited.ask(name, "plain", on_busy=OnBusy.ENQUEUE))
    assert run is not None
    session = ports.store.load_session(run.session_id)
    assert session is not None
    for position, sending in enumerate((Sending.SUPPLEMENT, Sending.QUESTION, Sending.QUESTION)):
        receipt = accept_input(ports, session, sending, f"What? {position}", None, f"{name} {position}")
    withdraw_input(ports, session, receipt.input_id)
    stop_run(ports, run.run_id)
    accept_input(ports, session, Sending.SUPPLEMENT, "What? 3", None, f"{name} 3")


def _end_all(audited: Audited) -> None:
    mode = "fused" if audited.worker.ports.settings.fusion else "stepwise"
    audited.ask(f"plain-{mode}", "plain", "long question " * 1000)
    audited.worker.drive()
    audited.again(f"plain-{mode}")
    audited.ask(f"parallel-{mode}", "parallel")
    audited.ask(f"big-{mode}", "big", models=WIDE)
    audited.ask(f"corrected-{mode}", "corrected", agent={"output_schema": LONG_OUTPUT})
    audited.ask(f"uncorrected-{mode}", "plain", agent={"output_schema": OUTPUT, "limits": {"max_loops": 2}})
    audited.ask(f"quota-{mode}", "endless", agent={"limits": {"max_loops": 2}})
    audited.ask(f"moody-{mode}", "moody")
    audited.ask(f"rejected-{mode}", "rejected")
    audited.ask(f"filtered-{mode}", "filtered")
    audited.ask(f"large-{mode}", "plain", "word " * 40_000)
    audited.ask(f"deadline-{mode}", "stalled", agent={"limits": {"deadline_s": 5}})
    _converse(audited, f"talk-{mode}")
    audited.worker.drive()
    stopped = audited.ask(f"stopped-{mode}", "endless")
    audited.steps(4)
    stop_run(audited.worker.ports, stopped)
    audited.worker.drive()


def _crash(audited: Audited, url: str) -> None:
    """Attempts whose process died: another process finds them, and nobody knows what they did."""
    for name, point, step in (
        ("model-died", "attempt.sent", "attempt_model"),
        ("tool-died", "attempt.sent", "attempt_call"),
        ("answer-died", "first_output.saved", "attempt_model"),
    ):
        audited.ask(name, "parallel")
        audited.crash(point, step)
        survive(audited, url)
    audited.ask("repeated", "repeated")
    audited.crash("attempt.sent", "attempt_call")
    survive(audited, url)
    stop_between_attempts(audited, url)
    audited.ask("stopped-after-death", "parallel")
    audited.crash("effect.done", "attempt_call")
    stop_run(audited.worker.ports, audited.runs["stopped-after-death"])
    audited.worker.drive()


def survive(audited: Audited, url: str, *, until: Callable[[], bool] = lambda: False) -> None:
    """Another process goes on."""
    survivor = open_audited(url, fusion=True, clock=audited.worker.clock)
    survivor.worker.drive(until=until)
    survivor.worker.close()


def stop_between_attempts(audited: Audited, url: str) -> RunId:
    """A call whose first attempt may have been executed, stopped while its second one waits."""
    run_id, store = audited.ask("stopped-between", "repeated"), audited.worker.ports.store
    audited.crash("attempt.sent", "attempt_call")
    survive(audited, url, until=lambda: any(row.attempts_made == 2 for row in store.list_operations(run_id)))
    stop_run(audited.worker.ports, run_id)
    audited.worker.drive()
    return run_id


def _halt(audited: Audited) -> None:
    """Runs that nobody goes on with."""
    audited.ask("waiting", "parallel")
    audited.steps(5)
    _stand_at(audited, audited.ask("judged", "plain", agent={"output_schema": OUTPUT}), "validate_output")
    audited.ask("stopping", "endless")
    stop_run(audited.worker.ports, audited.runs["stopping"])
    audited.ask("queued", "plain")
    _converse(audited, "talk-stopping")
    park(audited, "parked")
    fail_parked(audited.worker.ports, park(audited, "given-up"))


def _stand_at(audited: Audited, run_id: RunId, step: str) -> None:
    """Run the rows of this run alone, up to the first of a step."""
    store = audited.worker.ports.store
    while True:
        (row,) = (row for row in store.list_dispatches(run_id=run_id) if row.step != "expire_run")
        if row.step == step:
            return
        assert audited.worker.runner.run(row.dispatch_id)


def park(audited: Audited, name: str) -> DispatchId:
    """A run whose next step is a bug of ours: its row is parked."""
    run_id = audited.ask(name, "plain")

    def trigger(point: str, _step: str) -> None:
        if point == "tail.raise":
            raise InvariantError("broken on purpose")

    store = audited.worker.ports.store
    (row,) = (row for row in store.list_dispatches(run_id=run_id) if row.step == "prepare_context")
    faults.install(trigger)
    try:
        audited.worker.runner.run(row.dispatch_id)
    finally:
        faults.install(None)
    (parked,) = store.list_dispatches(run_id=run_id, parked_only=True)
    return parked.dispatch_id
