"""Every request of random sessions shows what the slow oracle expects, whoever builds it (C01, L01, L07)."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentloom_worker.audit import run_audit
from agentloom_worker.domain.operation import OperationKind
from agentloom_worker.domain.recipe import Recipe
from agentloom_worker.llm.adapters.scripted import ScriptedTurn, TextTurn
from agentloom_worker.runtime.ports import Settings
from agentloom_worker.runtime.request import rebuild_request
from tests.acceptance.harness import assert_paired, events, frozen_bodies
from tests.conversation import STEPWISE, Conversation, breaks_off, calls, converse
from tests.oracle_history import Facts, expect_messages, read_facts

WORDS = st.text(
    alphabet=st.one_of(st.sampled_from('abc \n"\\[]雪🙂\u2028\ud800'), st.characters(codec="utf-8")), max_size=12
)
TURNS = st.one_of(
    st.lists(WORDS, min_size=1, max_size=3).map(lambda texts: calls(*[text.strip("\ud800") for text in texts])),
    st.sampled_from(["", "  ", "done"]).map(TextTurn),
    st.sampled_from(["", "half of an"]).map(breaks_off),
    st.just(TextTurn("", refusal="no")),
    st.just(TextTurn("cut", finish_reason="length")),
)
ENDS = st.sampled_from(["runs out", "stop", "expire", "hold the call", "hold the model"])
SAID = WORDS.filter(lambda text: bool(text.strip()))
# A run: its question, its turns, supplements after so many rows each, when it ends and how, what is said after it.
RUNS = st.tuples(
    SAID,
    st.lists(TURNS, max_size=4),
    st.lists(st.tuples(st.integers(0, 5), SAID), max_size=3),
    st.integers(0, 9),
    ENDS,
    st.lists(SAID, max_size=2),
)
Planned = tuple[str, list[ScriptedTurn], list[tuple[int, str]], int, str, list[str]]


def _live_through(conversation: Conversation, plan: Planned) -> None:
    question, turns, supplements, rows, end, afterwards = plan
    conversation.turns.clear()
    conversation.ask(question, *turns)
    for steps, text in supplements:
        conversation.steps(steps)
        if conversation.live is not None:
            conversation.add(text)
    conversation.steps(rows)
    if end == "runs out":
        conversation.finish()
    elif end == "expire":
        conversation.expire()
    elif conversation.live is not None:
        step = {"hold the call": "attempt_call", "hold the model": "attempt_model"}.get(end)
        free = [row.step for row in conversation.ports.store.list_dispatches(run_id=conversation.runs[-1])]
        if step in free:
            conversation.hold(step)
        conversation.stop()
    for text in afterwards:
        conversation.add(text)


def _check(conversation: Conversation, facts: Facts, recent_runs: int) -> int:
    seen = 0
    for run_id in conversation.runs:
        for operation in conversation.ports.store.list_operations(run_id):
            if operation.kind is OperationKind.MODEL and operation.request is not None:
                shown = json.loads(rebuild_request(conversation.ports, operation))
                recipe = Recipe.from_bytes(operation.request)
                expected = expect_messages(facts, run_id, recipe.record_head, recent_runs, "Answer briefly.")
                assert shown["messages"] == expected
                assert_paired(shown)
                seen += 1
    return seen


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(plans=st.lists(RUNS, min_size=1, max_size=5), recent_runs=st.sampled_from([0, 1, 2, 3]), stepwise=st.booleans())
def test_C01_L01_L07_requests_of_any_session_show_what_the_oracle_expects(
    sqlite_template: Path, tmp_path: Path, plans: list[Planned], recent_runs: int, stepwise: bool
) -> None:
    path = tmp_path / "session.sqlite"
    for old in tmp_path.iterdir():
        old.unlink()
    shutil.copy(sqlite_template, path)
    how = STEPWISE if stepwise else Settings()
    conversation = converse(
        f"sqlite:///{path}", settings=how, context={"recent_runs": recent_runs}, agent={"limits": {"max_loops": 3}}
    )
    try:
        for plan in plans:
            _live_through(conversation, plan)
            assert "step.parked" not in events(conversation.ports, conversation.runs[-1])
        seen = _check(conversation, read_facts(conversation.ports.store), recent_runs)
        bodies = [body for run_id in conversation.runs for body in frozen_bodies(conversation.ports, run_id)]
        frozen = [json.loads(body)["messages"] for body in bodies]
        assert seen == len(frozen)
        assert all(messages in frozen for messages in conversation.requests)
        assert run_audit(conversation.ports) == ()
    finally:
        conversation.worker.close()


@pytest.mark.parametrize("recent_runs", [0, 2])
def test_C01_a_session_with_every_end_in_it(clean_sqlite: str, recent_runs: int) -> None:
    conversation = converse(
        clean_sqlite, settings=STEPWISE, context={"recent_runs": recent_runs}, agent={"limits": {"max_loops": 3}}
    )
    plans: list[Planned] = [
        ("one", [calls("a"), TextTurn("found")], [(3, "more")], 9, "runs out", []),
        ("two", [breaks_off("half")], [], 9, "runs out", ["in between"]),
        ("three", [calls("a", "b")], [(4, "late")], 1, "stop", []),
        ("four", [calls("a")], [], 0, "expire", []),
        ("five", [calls("a"), calls("b"), calls("c")], [], 99, "runs out", []),
        ("six", [], [], 99, "runs out", []),
    ]
    try:
        for plan in plans:
            _live_through(conversation, plan)
        facts = read_facts(conversation.ports.store)
        ends = [run["status"] for run in sorted(facts["run"], key=lambda run: run["run_no"])]
        assert ends == ["succeeded", "failed", "cancelled", "timed_out", "budget_exhausted", "succeeded"]
        assert _check(conversation, facts, recent_runs) >= 6
    finally:
        conversation.worker.close()
