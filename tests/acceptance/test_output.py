"""Answers of a declared form (seed 004, 6.3): validated, corrected in a loop of the one quota, never lost."""

import json
from typing import Any

import pytest

from agentloom_worker.canonical import parse, sha256
from agentloom_worker.cli.progress import describe
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.errors import Code, ReleaseInvalidError
from agentloom_worker.ids import RunId
from agentloom_worker.limits import INLINE_BODY_BYTES
from agentloom_worker.llm.adapters.scripted import (
    CallsTurn,
    Script,
    ScriptedCall,
    ScriptedRequest,
    ScriptedTurn,
    TextTurn,
)
from agentloom_worker.runtime.inspect import list_steps, read_result
from agentloom_worker.runtime.ports import Ports, Settings
from agentloom_worker.runtime.publish import resolve_release
from tests.acceptance.harness import (
    FUSED,
    ONE_BY_ONE,
    answer,
    ask,
    crash_at,
    events,
    frozen_bodies,
    frozen_requests,
    kinds,
    model_operations,
    query,
    rows,
    run_of,
    simulated,
)
from tests.crash.verdict import audit_findings
from tests.factories import python_tool, release_document
from tests.simulator import Worker

SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
PROMPT = "You are the keeper of SECRET-PROMPT."
VALID = '{"answer": "Forty-two."}'
SETTINGS = pytest.mark.parametrize("settings", [FUSED, ONE_BY_ONE], ids=["fused", "one_by_one"])


def release(schema: dict[str, Any] = SCHEMA, *, max_loops: int = 10, **overrides: Any) -> dict[str, Any]:
    """A role that must answer in this form."""
    agent = {"prompt": PROMPT, "output_schema": schema, "limits": {"max_loops": max_loops}}
    return release_document(agent=agent, **overrides)


def turns(*answers: ScriptedTurn) -> dict[str, Script]:
    """One turn a loop, whoever asks: the loop is read from the request."""

    def script(request: ScriptedRequest) -> ScriptedTurn:
        return answers[sum(message["role"] == "assistant" for message in request.body["messages"])]

    return {"main": script}


def feedback(ports: Ports, run_id: RunId) -> list[str]:
    """The corrections in the last request, in order."""
    messages = frozen_requests(ports, run_id)[-1]["messages"]
    return [message["content"] for message in messages[1:] if message["role"] == "system"]


def told(text: str) -> list[tuple[str, str]]:
    """(pointer, keyword) of the issues in a correction."""
    document = json.loads(text.partition("\n")[2])
    return [(issue["json_pointer"], issue["keyword"]) for issue in document["issues"]]


def tickets(ports: Ports, run_id: RunId) -> list[tuple[int, str]]:
    found = query(ports, "SELECT loop_no, state FROM loop_ticket WHERE run_id = :run ORDER BY loop_no", run=run_id)
    return [(row[0], row[1]) for row in found]


def finished(worker: Worker, document: dict[str, Any]) -> RunId:
    """A run that nothing disturbed, in a database in which the audit finds nothing."""
    run_id = ask(worker.ports, document)
    worker.drive()
    assert rows(worker.ports, run_id) == []
    assert audit_findings(worker.ports) == ()
    return run_id


@SETTINGS
def test_an_empty_complete_frame_is_corrected_in_the_next_loop(database_url: str, settings: Settings) -> None:
    """The worked sample of seed 004, 14.1: delivered by the frame, corrected, and never handed on to another run."""
    with simulated(database_url, scripts=turns(TextTurn(""), TextTurn(VALID)), settings=settings) as worker:
        run_id = finished(worker, release())
        ports = worker.ports
        result = read_result(ports, run_id)
        assert (result.status, result.answer) == (RunStatus.SUCCEEDED, VALID)
        assert not (result.empty or result.refused or result.truncated)
        assert kinds(ports, run_id) == ["prompt", "user_ref", "assistant", "feedback", "assistant"]
        first, second = model_operations(ports, run_id)
        assert run_of(ports, run_id).answer_operation_id == second.operation_id
        assert parse(first.raw.inline or b"")["text"] == "", "the candidate stays as it came"  # type: ignore[union-attr]
        (delivery,) = query(
            ports,
            "SELECT state, first_output_receipt FROM user_input_delivery WHERE target_run_id = :run",
            run=run_id,
        )
        assert tuple(delivery) == ("delivered", f"{first.operation_id}/1")
        (kind,) = query(ports, "SELECT first_output_kind FROM attempt WHERE operation_id = :id", id=first.operation_id)
        assert kind[0] == "complete_frame"
        (text,) = feedback(ports, run_id)
        assert told(text) == [("", "empty")]
        assert json.loads(text.partition("\n")[2])["output_schema"] == SCHEMA
        record = query(
            ports,
            "SELECT role, raw_ref, operation_id, logical_result_key, body FROM context_record"
            " WHERE run_id = :run AND message_kind = 'feedback'",
            run=run_id,
        )
        assert [(row[0], row[1], row[3], parse(bytes(row[4]))) for row in record] == [
            ("system", "record", "feedback", text)
        ]
        assert str(record[0][2]).replace("-", "") == first.operation_id.hex


@SETTINGS
def test_C18_a_valid_answer_on_the_last_ticket_succeeds(database_url: str, settings: Settings) -> None:
    with simulated(database_url, scripts=turns(TextTurn("no"), TextTurn(VALID)), settings=settings) as worker:
        run_id = finished(worker, release(max_loops=2))
        run = run_of(worker.ports, run_id)
        assert (run.status, run.loops_used, run.loops_reserved) == (RunStatus.SUCCEEDED, 2, 0)
        assert tickets(worker.ports, run_id) == [(1, "consumed"), (2, "consumed")]


@SETTINGS
def test_C18_a_correction_that_needs_another_ticket_exhausts_the_one_quota(
    database_url: str, settings: Settings
) -> None:
    scripts = turns(TextTurn("no"), TextTurn("still no"))
    with simulated(database_url, scripts=scripts, settings=settings) as worker:
        run_id = finished(worker, release(max_loops=2))
        run = run_of(worker.ports, run_id)
        assert (run.status, run.end_code) == (RunStatus.BUDGET_EXHAUSTED, Code.LOOP_BUDGET_EXHAUSTED)
        assert (run.loops_used, run.loops_reserved, run.answer_operation_id) == (2, 0, None)
        assert tickets(worker.ports, run_id) == [(1, "consumed"), (2, "consumed")]
        assert len(model_operations(worker.ports, run_id)) == 2
        assert kinds(worker.ports, run_id)[-2:] == ["assistant", "feedback"], "both candidates stay, both are judged"


def test_C18_tool_loops_and_corrections_share_the_quota(database_url: str) -> None:
    call = CallsTurn((ScriptedCall("echo", '{"text": "a"}', "c1"),))
    with simulated(database_url, scripts=turns(call, TextTurn("no"), call, TextTurn(VALID))) as worker:
        run_id = finished(worker, release(max_loops=4, tools={"echo": python_tool()}))
        assert answer(worker.ports, run_id) == VALID
        assert kinds(worker.ports, run_id) == [
            "prompt", "user_ref", "assistant", "tool_result", "assistant", "feedback",
            "assistant", "tool_result", "assistant",
        ]  # fmt: skip
        assert run_of(worker.ports, run_id).loops_used == 4


@pytest.mark.parametrize(
    ("candidate", "keyword"),
    [
        (TextTurn("", refusal="I will not."), "refusal"),
        (TextTurn('{"answer": "half', finish_reason="length"), "truncated"),
        (TextTurn(VALID, finish_reason="length"), "truncated"),
        (TextTurn(VALID, finish_reason="content_filter"), "filtered"),
        (TextTurn(" \n"), "empty"),
        (TextTurn("```json\n" + VALID + "\n```"), "json"),
        (TextTurn('{"answer": 42}'), "type"),
        (TextTurn("[" * 5000 + "]" * 5000), "depth"),
        (TextTurn('{"answer": "\ud800"}', finish_reason="length"), "truncated"),
    ],
    ids=["refused", "cut", "cut but valid", "filtered but valid", "blank", "fenced", "wrong type", "deep", "surrogate"],
)
def test_every_kind_of_candidate_that_is_no_answer_is_corrected(
    clean_sqlite: str, candidate: TextTurn, keyword: str
) -> None:
    with simulated(clean_sqlite, scripts=turns(candidate, TextTurn(VALID))) as worker:
        run_id = finished(worker, release())
        assert answer(worker.ports, run_id) == VALID
        (text,) = feedback(worker.ports, run_id)
        assert [issue[1] for issue in told(text)] == [keyword]
        assert "SECRET-PROMPT" not in text


def test_a_whole_answer_that_the_provider_withheld_is_a_failure_as_without_a_schema(clean_sqlite: str) -> None:
    with simulated(clean_sqlite, scripts=turns(TextTurn("", finish_reason="content_filter"))) as worker:
        run_id = finished(worker, release())
        assert run_of(worker.ports, run_id).end_code == Code.MODEL_CONTENT_FILTERED


def test_without_a_schema_any_text_is_an_answer(clean_sqlite: str) -> None:
    with simulated(clean_sqlite, scripts=turns(TextTurn("in words"))) as worker:
        run_id = finished(worker, release_document())
        assert answer(worker.ports, run_id) == "in words"
        assert kinds(worker.ports, run_id) == ["prompt", "user_ref", "assistant"]


def test_surrogates_names_and_long_schemas_survive_storing_and_rebuilding(database_url: str) -> None:
    schema = {**SCHEMA, "additionalProperties": False, "description": "雪 " * INLINE_BODY_BYTES}
    odd = TextTurn('{"\\ud800": 1, "雪\u2028": "\\u0000"}')
    with simulated(database_url, scripts=turns(odd, TextTurn(VALID))) as worker:
        run_id = finished(worker, release(schema))
        bodies = frozen_bodies(worker.ports, run_id)
        (text,) = feedback(worker.ports, run_id)
        assert told(text) == [("", "additionalProperties"), ("", "required")]
        assert json.loads(text.partition("\n")[2])["output_schema"] == schema
        (stored,) = query(
            worker.ports,
            "SELECT r.body, e.effective_hash FROM context_record r JOIN effective_entry e"
            " ON e.context_id = r.context_id AND e.context_seq = r.context_seq"
            " WHERE r.run_id = :run AND r.message_kind = 'feedback'",
            run=run_id,
        )
        assert stored[0] is None, "longer than an inline body: a blob of the owner"
        assert bytes(stored[1]) == sha256(json.dumps(text, ensure_ascii=False).encode())
        with simulated(database_url, clock=worker.clock) as later:
            assert frozen_bodies(later.ports, run_id) == bodies


def test_a_request_with_a_correction_that_does_not_fit_is_not_sent(clean_sqlite: str) -> None:
    schema = {**SCHEMA, "description": "x" * 20_000}
    small = {"main": {"context_window_tokens": 8000}}
    with simulated(clean_sqlite, scripts=turns(TextTurn("no"), TextTurn(VALID))) as worker:
        run_id = finished(worker, release(schema, models=small))
        run = run_of(worker.ports, run_id)
        assert (run.status, run.end_code) == (RunStatus.FAILED, Code.CONTEXT_WINDOW_EXCEEDED)
        assert tickets(worker.ports, run_id) == [(1, "consumed")]
        assert kinds(worker.ports, run_id)[-1] == "feedback"


@SETTINGS
def test_the_correcting_request_is_the_same_after_a_restart(database_url: str, settings: Settings) -> None:
    scripts = turns(TextTurn("no"), TextTurn('{"answer": 1}'), TextTurn(VALID))
    with simulated(database_url, scripts=scripts, settings=settings) as first:
        run_id = ask(first.ports, release())
        crash_at(first, "commit.after", "attempt_model")
        with simulated(database_url, scripts=scripts, settings=settings, clock=first.clock) as second:
            second.drive()
            assert answer(second.ports, run_id) == VALID
            bodies = frozen_bodies(second.ports, run_id)
            assert len(bodies) == 3
            assert audit_findings(second.ports) == ()
    with simulated(database_url) as third:
        assert frozen_bodies(third.ports, run_id) == bodies


@pytest.mark.parametrize("point", ["claim.after", "step.loaded", "commit.before", "commit.after", "publish.after"])
def test_D18_a_crash_while_an_answer_is_judged_corrects_it_once(clean_sqlite: str, point: str) -> None:
    scripts = turns(TextTurn("no"), TextTurn(VALID))
    with simulated(clean_sqlite, scripts=scripts, settings=ONE_BY_ONE) as first:
        run_id = ask(first.ports, release())
        crash_at(first, point, "validate_output")
        with simulated(clean_sqlite, scripts=scripts, settings=ONE_BY_ONE, clock=first.clock) as second:
            second.drive()
            assert answer(second.ports, run_id) == VALID
            assert kinds(second.ports, run_id) == ["prompt", "user_ref", "assistant", "feedback", "assistant"]
            assert events(second.ports, run_id).count("output.rejected") == 1
            assert audit_findings(second.ports) == ()


def test_fusion_changes_neither_events_nor_requests(clean_sqlite: str) -> None:
    scripts = turns(TextTurn(""), TextTurn("[1]"), TextTurn(VALID))
    seen = []
    for settings in (FUSED, ONE_BY_ONE):
        with simulated(clean_sqlite, scripts=scripts, settings=settings) as worker:
            run_id = finished(worker, release())
            found = worker.ports.store.list_events(run_id)
            seen.append(
                ([(event.run_seq, event.kind, event.fields) for event in found], frozen_bodies(worker.ports, run_id))
            )
    assert seen[0] == seen[1]


def test_progress_and_steps_show_a_correction_in_numbers_only(clean_sqlite: str) -> None:
    with simulated(clean_sqlite, scripts=turns(TextTurn('{"no": "WORDS"}'), TextTurn(VALID))) as worker:
        run_id = finished(worker, release({**SCHEMA, "additionalProperties": False}))
        assert events(worker.ports, run_id) == [
            "run.accepted", "run.started", "model.completed", "output.rejected", "model.completed", "run.succeeded",
        ]  # fmt: skip
        rejected = worker.ports.store.list_events(run_id)[3]
        assert rejected.fields == {"loop": 1, "issues": 2}
        assert describe(rejected) == "loop 1: answer does not match the output schema (2 issue(s)), sent back"
        assert [step.issues for step in list_steps(worker.ports, run_id)] == [2, None]


def test_a_schema_that_cannot_be_used_is_refused_with_its_place_beside_all_other_problems() -> None:
    document = release(
        {"properties": {"a": {"$ref": "https://example.com/a"}}},
        tools={"echo": python_tool(input_schema={"type": "string"})},
    )
    with pytest.raises(ReleaseInvalidError) as refused:
        resolve_release(document)
    assert [path for path, _ in refused.value.problems] == [
        "/tools/echo/input_schema/type",
        "/agent/output_schema/properties/a/$ref",
    ]


def test_a_release_without_a_schema_has_the_digest_it_always_had_and_one_with_it_another() -> None:
    plain, formed = resolve_release(release_document()), resolve_release(release())
    assert b"output_schema" not in plain.body
    assert json.loads(formed.body)["agent"]["output_schema"] == SCHEMA
    empty = resolve_release(release({}))
    assert json.loads(empty.body)["agent"]["output_schema"] == {}, "any JSON text, which is not the same as any text"
