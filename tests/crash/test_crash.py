"""Killing a process at any fault point changes nothing but what the oracle says (RULINGS N1, N2).

Each test records a scenario undisturbed, then kills a process at hits of that tape, one case a hit, and
compares what the next process left with the promise. `make test` takes one hit of each pair of point and
step; the full cross product is marked `full`.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import get_args

import pytest

from agentloom_worker import faults
from agentloom_worker.limits import RUN_DEADLINE_S
from agentloom_worker.runtime.table import STEPS, EffectStep
from tests.crash.case import Action, Case, Hit, ModelProtocol, Outcome, Setup, Strike
from tests.crash.conftest import Stage
from tests.crash.oracle import (
    LOST,
    POINTS,
    claim_lost,
    differences,
    inconsistencies,
    policy_of,
    promise,
    with_histories,
    words_said,
)
from tests.crash.scenarios import SCENARIOS

Choice = Callable[[Setup, Sequence[Hit]], list[Hit]]

HTTP_PROTOCOLS: tuple[ModelProtocol, ...] = ("openai-chat", "openai-responses")

ENDS = {
    "plain": ("succeeded", None, "Forty-two."),
    "three_loops": ("succeeded", None, "All looked at, all sent."),
    "tail_raises": ("succeeded", None, "Done all the same."),
    "tool_failure": ("succeeded", None, "The pump is broken."),
    "invalid_call": ("succeeded", None, "I called it wrong."),
    "stopped": ("cancelled", "RUN_STOPPED", None),
    "deadline": ("timed_out", "RUN_DEADLINE_EXCEEDED", None),
    "quota": ("budget_exhausted", "LOOP_BUDGET_EXHAUSTED", None),
    "busy": ("succeeded", None, "It was busy."),
    "parked": ("succeeded", None, "Done all the same."),
    "asked": ("succeeded", None, "Forty-two."),
    "corrected": ("succeeded", None, '{"answer": "Forty-two."}'),
    "large": ("succeeded", None, "Read to the end."),
    "carried": ("succeeded", None, "Forty-two."),
    "enqueued": ("succeeded", None, "Answer 1."),
    "interrupted": ("cancelled", "RUN_STOPPED", None),
    "three_runs": ("succeeded", None, "Forty-two."),
}
FOLLOWING = {
    "carried": ["All of it."],
    "enqueued": ["Answer 2.", "Answer 3."],
    "interrupted": ["Something else."],
    "three_runs": [None, "That is all of it."],
}
SUPPLEMENTS = {"carried": (((1, "carried"), (2, "delivered")),), "three_runs": (((2, "carried"), (3, "delivered")),)}
EACH_STEP = {"claim.after", "step.loaded", "commit.before", "commit.after", "publish.after"}
EACH_PURE_STEP = EACH_STEP | {"tail.raise"}
EACH_EFFECT_STEP = EACH_STEP | {"attempt.before", "attempt.sent", "effect.done"}

FUSIONS = [Setup(name, fusion=fusion) for name in SCENARIOS for fusion in (True, False)]
EVERY = [
    Setup(name, fusion, inline, action)
    for name in SCENARIOS
    for fusion in (True, False)
    for inline in (True, False)
    for action in get_args(Action)
]
# The sample of `make test`, in an order: each kills where none before it with the same fusion could.
SAMPLE = [
    *(Setup(name, fusion) for fusion in (True, False) for name in ("three_loops", "deadline", "stopped")),
    *(setup for setup in FUSIONS if setup.scenario not in ("three_loops", "deadline", "stopped")),
    *(
        Setup(name, fusion, inline=False)
        for name in ("three_loops", "tail_raises", "stopped")
        for fusion in (True, False)
    ),
    Setup("corrected", fusion=False, inline=False),
    *(Setup(name, model_unknown="fail") for name in ("three_loops", "stopped", "deadline", "busy")),
]
RAISING = [
    Setup(name, fusion=fusion)
    for name in ("three_loops", "invalid_call", "quota", "corrected")
    for fusion in (True, False)
]
OVER_HTTP = [
    Setup(name, fusion=fusion, protocol=protocol)
    for protocol in HTTP_PROTOCOLS
    for name, fusion in (("three_loops", True), ("busy", False), ("corrected", True))
]
# What is said in the middle is a text of the user there, and seams stand between the messages.
STRICT = [
    Setup(name, fusion=fusion, protocol=protocol, profile="vllm")
    for protocol in HTTP_PROTOCOLS
    for name, fusion in (("corrected", True), ("three_runs", False))
]
TWICE = [
    Setup(name, fusion=fusion)
    for name in ("three_loops", "stopped", "deadline", "busy", "carried", "interrupted", "three_runs")
    for fusion in (True, False)
]

# The run ends where the model is lost: what its user said in the meantime stands, and nothing of what was to follow.
LOST_FOR_GOOD = [
    Setup(name, fusion=fusion, model_unknown="fail")
    for name in ("parked", "carried", "enqueued", "interrupted", "three_runs")
    for fusion in (True, False)
]

# Where the request is on its way, or its answer.
STREAMING = {"attempt.before", "attempt.sent", "first_output.saved", "effect.done"}


def one_of_each(setup: Setup, tape: Sequence[Hit]) -> list[Hit]:
    """One hit of each pair of point and step; which one differs from scenario to scenario."""
    pairs: dict[tuple[str, str], list[Hit]] = {}
    for hit in tape:
        pairs.setdefault((hit.point, hit.detail), []).append(hit)
    return [
        hits[zlib.crc32(f"{setup} {point} {detail}".encode()) % len(hits)] for (point, detail), hits in pairs.items()
    ]


def every_hit(_setup: Setup, tape: Sequence[Hit]) -> list[Hit]:
    """All of them."""
    return list(tape)


def some(count: int) -> Choice:
    """A few hits, spread over the tape; which ones differs from scenario to scenario."""

    def choose(setup: Setup, tape: Sequence[Hit]) -> list[Hit]:
        if not tape:
            return []  # nothing was left to be done
        first = zlib.crc32(str(setup).encode())
        return list(dict.fromkeys(tape[(first + number * len(tape) // count) % len(tape)] for number in range(count)))

    return choose


def verify(expected: Outcome, found: Outcome, what: object) -> list[str]:
    """The broken promises of a case, each with what was done."""
    problems = [*differences(expected, found), *inconsistencies(found)]
    logged = [f"  logged: {line}" for line in found.errors] if problems else []
    return [f"{what}:", *(f"  {problem}" for problem in problems), *logged] if problems else []


def kill_each(stage: Stage, setup: Setup, database: str | None, choose: Choice) -> None:
    """Record, kill at each chosen hit, compare."""
    base = stage.record(setup, database)
    broken: list[str] = []
    for hit in choose(setup, base.tape):
        found = stage.run(Case(setup, (hit.strike,), database))
        broken += verify(promise(base, hit, setup), found, f"{setup}, {hit}")
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("setup", EVERY, ids=str)
def test_an_undisturbed_run_ends_as_written(stage: Stage, setup: Setup) -> None:
    base = stage.record(setup)
    assert (base.status, base.code, base.answer) == ENDS[setup.scenario]
    assert [run.answer for run in base.following] == FOLLOWING.get(setup.scenario, [])
    assert base.supplements == SUPPLEMENTS.get(setup.scenario, ())
    assert inconsistencies(base) == []
    assert differences(with_histories(base, setup), base) == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_fusion_inline_steps_and_the_store_change_nothing(stage: Stage, postgres_stage: str, name: str) -> None:
    base = stage.record(Setup(name))
    others = [
        stage.record(Setup(name, fusion=False)),
        stage.record(Setup(name, inline=False)),
        stage.record(Setup(name, fusion=False, inline=False)),
        stage.record(Setup(name), postgres_stage),
        stage.record(Setup(name, fusion=False), postgres_stage),
    ]
    for other in others:
        assert differences(base, other) == []
        assert other.events == base.events


def sampled(stage: Stage, setup: Setup) -> list[Hit]:
    """One hit of each pair of point and step that no earlier setup of the sample comes to, and a few more."""
    tape = stage.record(setup).tape
    earlier = [other for other in SAMPLE[: SAMPLE.index(setup)] if other.fusion is setup.fusion]
    killed = _pairs(stage.record(other).tape for other in earlier)
    new = [hit for hit in one_of_each(setup, tape) if (hit.point, hit.detail) not in killed]
    return list(dict.fromkeys([*new, *some(8)(setup, tape)]))


@pytest.mark.parametrize("setup", SAMPLE, ids=str)
def test_a_kill_keeps_the_promise(stage: Stage, setup: Setup) -> None:
    kill_each(stage, setup, None, lambda setup, _tape: sampled(stage, setup))


@pytest.mark.parametrize("fusion", [True, False], ids=["fused", "single"])
def test_the_sample_kills_at_every_pair_of_point_and_step(stage: Stage, fusion: bool) -> None:
    chosen = [sampled(stage, setup) for setup in SAMPLE if setup.fusion is fusion]
    every = [stage.record(setup).tape for setup in EVERY if setup.fusion is fusion]
    assert _pairs(chosen) == _pairs(every)


@pytest.mark.parametrize("setup", FUSIONS, ids=str)
def test_a_kill_on_postgresql_keeps_the_promise(stage: Stage, postgres_stage: str, setup: Setup) -> None:
    kill_each(stage, setup, postgres_stage, some(20 if setup.scenario == "three_loops" else 4))


@pytest.mark.parametrize("setup", OVER_HTTP, ids=str)
def test_the_script_behind_http_is_the_same_script(stage: Stage, setup: Setup) -> None:
    base, over_http = stage.record(replace(setup, protocol="scripted")), stage.record(setup)
    assert differences(base, over_http) == []
    assert inconsistencies(over_http) == []
    assert any(hit.point == "first_output.saved" for hit in over_http.tape)


@pytest.mark.parametrize("setup", OVER_HTTP, ids=str)
def test_a_kill_in_the_middle_of_a_stream_keeps_the_promise(stage: Stage, setup: Setup) -> None:
    """At every hit of a model attempt: behind its first output the rest of the stream has not been sent yet."""

    def streaming(_setup: Setup, tape: Sequence[Hit]) -> list[Hit]:
        return [hit for hit in tape if hit.point in STREAMING and hit.detail == "attempt_model"]

    kill_each(stage, setup, None, streaming)


@pytest.mark.parametrize("setup", STRICT, ids=str)
def test_a_kill_changes_no_end_and_no_request_where_a_provider_wants_an_order_of_roles(
    stage: Stage, setup: Setup
) -> None:
    """Messages that are merged or put between are no records, so what the oracle knows of them is left out here.

    The audit builds each request again and holds it against the hash under which it was frozen in another process.
    """
    base = stage.record(setup)
    assert _ends(base)[0] == ENDS[setup.scenario]
    assert [run.answer for run in base.following] == FOLLOWING.get(setup.scenario, [])
    assert inconsistencies(base) == []
    for hit in some(10)(setup, base.tape):
        found = stage.run(Case(setup, (hit.strike,)))
        assert (_ends(found), inconsistencies(found)) == (_ends(base), []), f"{setup}, {hit}"


def _ends(outcome: Outcome) -> list[tuple[str, str | None, str | None]]:
    return [(run.status, run.code, run.answer) for run in (outcome, *outcome.following)]


@pytest.mark.parametrize("setup", LOST_FOR_GOOD, ids=str)
def test_a_kill_while_words_are_sent_and_the_model_is_not_asked_again_keeps_the_promise(
    stage: Stage, setup: Setup
) -> None:
    """At each word that the user sends, and once at each point of each step that holds a model attempt."""

    def speaking(setup: Setup, tape: Sequence[Hit]) -> list[Hit]:
        words = [hit for hit in tape if hit.point.startswith("command.")]
        attempts = [hit for hit in tape if hit.held is not None and hit.held.kind == "model"]
        return list(dict.fromkeys([*words, *one_of_each(setup, attempts)]))

    kill_each(stage, setup, None, speaking)


@pytest.mark.full
@pytest.mark.parametrize("setup", OVER_HTTP, ids=str)
def test_a_kill_at_every_hit_over_http_keeps_the_promise(stage: Stage, setup: Setup) -> None:
    kill_each(stage, setup, None, every_hit)


@pytest.mark.full
@pytest.mark.parametrize("setup", EVERY, ids=str)
def test_a_kill_at_every_hit_keeps_the_promise(stage: Stage, setup: Setup) -> None:
    kill_each(stage, setup, None, every_hit)


@pytest.mark.full
@pytest.mark.parametrize("setup", FUSIONS, ids=str)
def test_a_kill_at_every_hit_on_postgresql_keeps_the_promise(stage: Stage, postgres_stage: str, setup: Setup) -> None:
    kill_each(stage, setup, postgres_stage, every_hit)


@pytest.mark.parametrize("setup", RAISING, ids=str)
def test_a_pure_part_that_raises_once_costs_nothing(stage: Stage, setup: Setup) -> None:
    """RULINGS R1: behind an effect the outcome is committed alone; a step of its own is tried again."""
    base = stage.record(setup)
    broken: list[str] = []
    for hit in base.tape:
        if hit.point == "tail.raise":
            found = stage.run(Case(setup, (hit.raising,)))
            broken += verify(base, found, f"{setup}, raise at {hit}")
    assert not broken, "\n".join(broken)


def kill_twice(stage: Stage, setup: Setup, first: Choice, second: Choice) -> None:
    """The outcome of the first recovery is the base of the second."""
    base = stage.record(setup)
    broken: list[str] = []
    for one in first(setup, base.tape):
        recovered = stage.run(Case(setup, (one.strike,)))
        broken += verify(promise(base, one, setup), recovered, f"{setup}, {one}")
        said = words_said(base, one, setup)
        for other in second(setup, recovered.tape):
            found = stage.run(Case(setup, (one.strike, other.strike)))
            broken += verify(promise(recovered, other, setup, said=said), found, f"{setup}, {one}, then {other}")
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("setup", TWICE, ids=str)
def test_a_second_kill_during_recovery_keeps_the_promise(stage: Stage, setup: Setup) -> None:
    kill_twice(stage, setup, some(4), some(4))


@pytest.mark.full
@pytest.mark.parametrize("setup", FUSIONS, ids=str)
def test_a_second_kill_after_each_point_of_each_step_keeps_the_promise(stage: Stage, setup: Setup) -> None:
    kill_twice(stage, setup, one_of_each, some(4))


@pytest.mark.parametrize("step", ["deliver_batch", "attempt_model", "finalize_run"])
def test_a_third_loss_parks_the_row_until_an_operator_retries_it(stage: Stage, step: str) -> None:
    """RULINGS T8: two losses send the row to the solitary queue, a loss there parks it."""
    setup = Setup("plain" if step != "deliver_batch" else "three_loops", fusion=False, inline=False)
    base = stage.record(setup)
    first = next(hit for hit in base.tape if (hit.point, hit.detail) == ("step.loaded", step))
    again = Strike("step.loaded", step, 1)
    strikes = (first.strike, again, again)

    parked = stage.run(Case(setup, strikes))
    assert parked.status == "timed_out", "without an operator nothing but the deadline ends a parked run"

    mended = stage.run(Case(setup, strikes, operator=True))
    assert mended.parked == (f"{step} the process that ran this step died three times",)
    expected = promise(base, first, setup)
    problems = differences(expected, mended)
    assert [problem for problem in problems if not problem.startswith("parked")] == []
    assert inconsistencies(mended) == []


@pytest.mark.parametrize("fusion", [True, False], ids=["fused", "single"])
def test_a_restart_after_the_deadline_begins_no_effect(stage: Stage, fusion: bool) -> None:
    """RULINGS R11: rows that were due before are found together with the deadline's: none of them may act any more."""
    setup = Setup("three_loops", fusion, inline=False)
    tape = stage.record(setup).tape
    sends = [index for index, hit in enumerate(tape) if hit.point == "attempt.sent"]
    broken: list[str] = []
    for index, hit in enumerate(tape[: sends[-1]]):
        if hit.point != "commit.after":
            continue
        found = stage.run(Case(setup, (hit.strike,), pause_s=2 * int(RUN_DEADLINE_S)))
        problems = inconsistencies(found)
        if found.status != "timed_out":
            problems.append(f"it ended {found.status}, {found.code}")
        begun = sum(count for _, count in (*found.arrivals, *found.effects))
        if begun != sum(sent < index for sent in sends):
            problems.append(f"{begun} effects, {sum(sent < index for sent in sends)} of them in time")
        broken += [f"{setup}, {hit.strike}: {problem}" for problem in problems]
    assert not broken, "\n".join(broken)


def test_every_point_is_reached_and_every_step_has_its_points(stage: Stage) -> None:
    reached = _pairs(stage.record(setup).tape for setup in SAMPLE)
    assert {point for point, _ in reached} == set(faults.POINTS), "a fault point is dead"
    assert {detail for _, detail in reached} == set(STEPS) | set(faults.COMMANDS), "a step or command has no scenario"
    for step, entry in STEPS.items():
        needed = EACH_EFFECT_STEP if isinstance(entry, EffectStep) else EACH_PURE_STEP
        assert needed - {point for point, detail in reached if detail == step} == set(), f"{step} lacks fault points"
    for command in faults.COMMANDS:
        points = {"command.before", "command.after"} | ({"command.between"} if command == "publish" else set())
        assert {point for point, detail in reached if detail == command} == points


def test_the_oracle_has_a_row_for_every_point_and_puts_each_to_the_test(stage: Stage) -> None:
    assert set(POINTS) == set(faults.POINTS)
    lost = [(work, setup) for setup in EVERY for hit in stage.record(setup).tape if (work := claim_lost(hit))]
    used = {(work.kind, policy_of(stage.record(setup), work, setup)) for work, setup in lost}
    assert used == set(LOST)


def _pairs(tapes: Iterable[Iterable[Hit]]) -> set[tuple[str, str]]:
    return {(hit.point, hit.detail) for tape in tapes for hit in tape}
