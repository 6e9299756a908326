"""The same promises through Celery: `celery -A tasks worker` dies at a fault point, another worker finishes.

One victim a kill, with one slot, so that one claim dies with it; then a worker that nobody disturbs. What that
leaves is held against the oracle of the crash suite, and the database against the audit. The claim that died is
read from its row: which of several calls comes first is the broker's affair here.
"""

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from agentloom_worker.domain.session import OnBusy
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.table import STEPS, EffectStep
from tests.acceptance.harness import ask, over, run_of, wait_for
from tests.brokers import Broker
from tests.conftest import COUNTED
from tests.crash import armed
from tests.crash.case import Hit, Message, Outcome, Setup, Work
from tests.crash.conftest import Stage
from tests.crash.oracle import POINTS, promise
from tests.crash.process import QUESTION
from tests.crash.scenarios import SCENARIOS
from tests.crash.sight import see_outcome
from tests.crash.test_crash import one_of_each, verify
from tests.crash.tools import Ledger
from tests.crash.verdict import audit_findings
from tests.fleet import ROOT, Fleet, open_fleet
from tests.nursery import Nursery

# Those that need neither a clock that is moved nor errors that are raised on purpose.
FIT = (
    "plain", "three_loops", "tool_failure", "invalid_call", "stopped", "quota", "large",
    "carried", "enqueued", "three_runs",
)  # fmt: skip
# Those that are reached without holding a run: a client's command, and what comes too late.
ELSEWHERE = {"tail.raise", "late.before", "late.after", "command.before", "command.between", "command.after"}


@dataclass(frozen=True)
class Kill:
    """Where the worker of one run of a scenario dies."""

    scenario: str
    point: str
    detail: str
    nth: int = 1
    fusion: bool = True


SAMPLE = (
    Kill("three_loops", "claim.after", "attempt_call"),
    Kill("plain", "step.loaded", "attempt_model"),
    Kill("plain", "attempt.before", "attempt_model"),
    Kill("three_loops", "attempt.before", "attempt_call", 2),
    Kill("three_loops", "attempt.sent", "attempt_model", 2),
    Kill("quota", "attempt.sent", "attempt_call"),
    Kill("three_loops", "first_output.saved", "attempt_model"),
    Kill("invalid_call", "effect.done", "attempt_model"),
    Kill("tool_failure", "effect.done", "attempt_call"),
    # What came back is in the write set, and nowhere else.
    Kill("three_loops", "commit.before", "attempt_model", fusion=False),
    Kill("large", "commit.before", "attempt_call"),
    Kill("stopped", "commit.before", "finalize_run"),
    # It is saved, and nothing was made of it yet.
    Kill("three_loops", "commit.after", "attempt_model", 2, fusion=False),
    Kill("quota", "commit.after", "attempt_call"),
    Kill("three_loops", "publish.after", "attempt_model"),
    Kill("large", "publish.after", "attempt_call", fusion=False),
    # Sessions that go on: what was said during the run is carried on, or waits for its end.
    Kill("carried", "first_output.saved", "attempt_model"),
    Kill("carried", "commit.before", "finalize_run", fusion=False),
    Kill("enqueued", "attempt.sent", "attempt_model", 2),
    Kill("three_runs", "effect.done", "attempt_model"),
)


@dataclass(frozen=True)
class Death:
    """A run whose worker died, and the claim that died with it."""

    kill: Kill
    label: str
    run_id: RunId
    claim: Work | None

    @property
    def hit(self) -> Hit:
        """As a tape would have it."""
        held = POINTS[self.kill.point].claim == "held"
        return Hit(
            self.kill.point,
            self.kill.detail,
            self.kill.nth,
            held=self.claim if held else None,
            successor=None if held else self.claim,
        )


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as opened:
        yield opened


class _Share(Ledger):
    """What one session left in the ledgers that all of them share."""

    def __init__(self, folder: Path, label: str, ports: Ports, run_ids: list[RunId]) -> None:
        self._folder = folder
        self._label = label
        self._own = {
            str(operation.operation_id) for run_id in run_ids for operation in ports.store.list_operations(run_id)
        }

    def lines(self) -> Counter[str]:
        effects = armed.tools_ledger(self._folder).lines()
        own = {line: count for line, count in effects.items() if line.partition(" ")[2] in self._own}
        return armed.model_ledger(self._folder, self._label).lines() + Counter(own)


@contextmanager
def _fleet(broker: Broker, database: str, folder: Path) -> Iterator[Fleet]:
    """A fleet whose processes are armed."""
    with open_fleet(
        database, broker.url, folder, key_prefix=broker.key_prefix, queue_prefix=broker.queue_prefix
    ) as fleet:
        fleet.environment["PYTHONPATH"] = f"{armed.hook(folder)}:{ROOT}"
        fleet.environment[armed.FOLDER_VARIABLE] = str(folder)
        yield fleet


def _ask(fleet: Fleet, scenario: str, label: str) -> RunId:
    chosen = SCENARIOS[scenario]
    on_busy = chosen.on_busy or OnBusy.REJECT
    return ask(fleet.ports, chosen.document("retry"), armed.asked(label), on_busy=on_busy)


def _die(nursery: Nursery, fleet: Fleet, kills: Sequence[Kill]) -> list[Death]:
    """One run and one victim after the other."""
    deaths = []
    for number, kill in enumerate(kills):
        label = f"{kill.scenario}.{number}"
        run_id = _ask(fleet, kill.scenario, label)
        environment = {**fleet.environment, "AGENTLOOM_FUSION": str(kill.fusion).lower()}
        order = armed.Order(str(run_id), kill.point, kill.detail, kill.nth)
        log = fleet.folder / f"victim-{number}.log"
        status = nursery.start(fleet.worker_arguments(slots=1), environment, log, asdict(order)).finish()
        assert status == -signal.SIGKILL, f"{kill} ended with {status}: {log.read_text()[-2000:]}"
        deaths.append(Death(kill, label, run_id, _lost_claim(fleet.ports, run_id)))
    return deaths


def _lost_claim(ports: Ports, run_id: RunId) -> Work | None:
    """The row that a dead worker still holds."""
    held = [row for row in ports.store.list_dispatches(run_id=run_id) if row.claimed_by is not None]
    assert len(held) <= 1, held
    if not held:
        return None
    (row,) = held
    first = row.attempts <= 1
    if not isinstance(STEPS[row.step], EffectStep):
        return Work(row.step, "pure", first=first)
    operation = ports.store.load_operation(row.subject_id)  # type: ignore[arg-type]
    assert operation is not None
    number = int(row.key.partition(":")[2])
    return Work(row.step, operation.kind.value, operation.loop_no, operation.ordinal, number, first)


def _see(fleet: Fleet, label: str, run_id: RunId) -> Outcome:
    """As the suite sees it, under the suite's own question."""
    session_id = run_of(fleet.ports, run_id).session_id
    runs = sorted(fleet.ports.store.list_runs(session_id=session_id), key=lambda run: run.run_no)
    run_ids = [run.run_id for run in runs]
    found = see_outcome(fleet.ports, run_ids, _Share(fleet.folder, label, fleet.ports, run_ids))
    return replace(_renamed(found, label), following=tuple(_renamed(one, label) for one in found.following))


def _renamed(found: Outcome, label: str) -> Outcome:
    return replace(
        found,
        transcript=tuple(_as_asked(message, label) for message in found.transcript),
        history=tuple(_as_asked(message, label) for message in found.history),
    )


def _as_asked(message: Message, label: str) -> Message:
    return tuple((name, text.replace(armed.asked(label), QUESTION)) for name, text in message)


def _finish(fleet: Fleet, runs: list[RunId]) -> None:
    """Another worker, until nothing is left."""
    finisher = fleet.worker()
    wait_for(over(fleet.ports, *runs), f"{len(runs)} runs end")
    wait_for(lambda: fleet.ports.store.list_dispatches() == [], "no row is left")
    assert finisher.end() == 0


def _broken(stage: Stage, fleet: Fleet, deaths: list[Death]) -> list[str]:
    broken = [f"audit: {finding}" for finding in audit_findings(fleet.ports)]
    for death in deaths:
        setup = Setup(death.kill.scenario)
        if POINTS[death.kill.point].claim == "held" and death.claim is None:
            broken.append(f"{death.kill}: no claim died")
            continue
        expected = promise(stage.record(setup), death.hit, setup)
        broken += verify(expected, _see(fleet, death.label, death.run_id), f"{death.kill}, {death.claim}")
    return broken


def test_a_worker_that_dies_at_a_fault_point_leaves_to_another_what_was_promised(
    stage: Stage,
    nursery: Nursery,
    broker: Broker,
    postgres_url: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    with _fleet(broker, postgres_url, tmp_path) as fleet:
        deaths = _die(nursery, fleet, SAMPLE)
        record_property(COUNTED, {"crash suite, Celery workers killed": len(deaths)})
        undisturbed = [(name, f"{name}.undisturbed") for name in FIT]
        runs = [_ask(fleet, name, label) for name, label in undisturbed]
        _finish(fleet, [*(death.run_id for death in deaths), *runs])
        broken = _broken(stage, fleet, deaths)
        for (name, label), run_id in zip(undisturbed, runs, strict=True):
            broken += verify(stage.record(Setup(name)), _see(fleet, label, run_id), f"{name}, undisturbed")
        assert not broken, "\n".join(broken)


def test_the_sample_dies_at_every_point_of_an_effect_and_in_every_scenario() -> None:
    effects = {step for step, entry in STEPS.items() if isinstance(entry, EffectStep)}
    points = {kill.point for kill in SAMPLE if kill.detail in effects}
    assert points == set(POINTS) - ELSEWHERE
    assert {kill.scenario for kill in SAMPLE} == set(FIT)


@pytest.mark.full
@pytest.mark.parametrize("fusion", [True, False], ids=["fused", "single"])
@pytest.mark.parametrize("name", FIT)
def test_a_worker_that_dies_at_each_point_of_each_step_leaves_what_was_promised(
    stage: Stage, nursery: Nursery, broker: Broker, postgres_url: str, tmp_path: Path, name: str, fusion: bool
) -> None:
    setup = Setup(name, fusion=fusion)
    tape = one_of_each(setup, stage.record(setup).tape)
    kills = [Kill(name, hit.point, hit.detail, hit.nth, fusion) for hit in tape]
    with _fleet(broker, postgres_url, tmp_path) as fleet:
        deaths = _die(nursery, fleet, kills)
        _finish(fleet, [death.run_id for death in deaths])
        broken = _broken(stage, fleet, deaths)
        assert not broken, "\n".join(broken)
