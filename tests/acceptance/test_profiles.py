"""Whole runs against providers of other dialects, and the one number that counts a request (CASES K10)."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from agentloom_worker.audit import Finding, run_audit
from agentloom_worker.devmodel import DevModel
from agentloom_worker.devmodel.chat import parse_chat_request
from agentloom_worker.devmodel.responses import parse_responses_request
from agentloom_worker.domain.authority import ReadAuthority
from agentloom_worker.domain.operation import Operation
from agentloom_worker.domain.recipe import Recipe
from agentloom_worker.domain.release import load_release
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.errors import Code
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.publish import resolve_release
from agentloom_worker.runtime.reading import materialize
from tests.acceptance.harness import (
    answer,
    ask,
    attempts,
    dev_model,
    execute,
    frozen_bodies,
    http_release,
    model_operations,
    run_of,
    simulated,
)
from tests.factories import python_tool, release_document

TOOLS = {"echo": python_tool()}
TURNS = (
    {"when": {"last_text_matches": "break$"}, "answer": {"http_error": {"status": 400}}},
    {
        "when": {"last_role": "user", "user_text_contains": "use the tool"},
        "answer": {"reasoning": "it must be echoed", "tool_calls": [{"name": "echo", "arguments": {"text": "hm"}}]},
    },
    {"answer": {"text": "done", "reasoning": "that was it"}},
)
STRICT = {
    "mid_system": False,
    "strict_alternation": True,
    "first_must_be_user": True,
    "reasoning_field": "reasoning",
    "wants_reasoning": "in_tool_turns",
}


PROTOCOLS = ("openai-chat", "openai-responses")


def _of(model: DevModel, profile: str, *, agent: Any = None, **more: Any) -> dict[str, Any]:
    changed = {"agent": agent} if agent else {}
    return http_release(model, tools=TOOLS, models={"main": {"profile": profile, **more}}, **changed)


def messages_of(body: bytes) -> tuple[dict[str, Any], ...]:
    """The messages of a request of either protocol, as chat completions writes them."""
    read = parse_responses_request if "input" in json.loads(body) else parse_chat_request
    return read(body).messages


def user_texts(body: bytes) -> list[str]:
    """What stands in a request as the user's words, in order."""
    return [message["content"] for message in messages_of(body) if message["role"] == "user"]


def _session(worker: Any, document: dict[str, Any], *questions: str) -> list[RunId]:
    made: list[RunId] = []
    for question in questions:
        made.append(ask(worker.ports, document, question, session_of=made[0] if made else None))
        worker.drive()
    return made


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_S07_a_strict_provider_takes_a_session_with_tools_failures_and_reasoning(
    database_url: str, protocol: str
) -> None:
    with dev_model(*TURNS, dialect=STRICT) as model, simulated(database_url) as worker:
        document = _of(model, "vllm", protocol=protocol)
        made = _session(worker, document, "use the tool", "break", "and now?", "use the tool again")
        ports = worker.ports
        states = [run_of(ports, run_id).status for run_id in made]
        assert states == [RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.SUCCEEDED, RunStatus.SUCCEEDED]
        sent = [request.body for request in model.requests]
        assert sent == [body for run_id in made for body in frozen_bodies(ports, run_id)]
        # Of all refusals only the scripted one: the others would be those of the dialect.
        assert [attempt.http_status for run_id in made for attempt in attempts(ports, run_id)].count(400) == 1
        # The audit builds them once more, with their estimates.
        assert list(run_audit(ports)) == []
        calls = [one for one in messages_of(sent[-1]) if one.get("tool_calls")]
        assert len(calls) == 1
        if protocol == "openai-chat":
            assert [one["reasoning"] for one in calls] == ["it must be echoed"]
        else:
            thought = [item["summary"] for item in json.loads(sent[-1])["input"] if item["type"] == "reasoning"]
            assert thought == [[{"type": "summary_text", "text": "it must be echoed"}]]


def test_S07_the_same_session_fails_where_the_profile_does_not_know_the_dialect(database_url: str) -> None:
    with dev_model(*TURNS, dialect=STRICT) as model, simulated(database_url) as worker:
        (run_id,) = _session(worker, _of(model, "generic"), "use the tool")
        assert run_of(worker.ports, run_id).end_code == Code.MODEL_REQUEST_REJECTED
        assert "reasoning is missing" in (attempts(worker.ports, run_id)[-1].detail or "")


def _sealed(request: dict[str, Any]) -> list[str]:
    return [item["encrypted_content"] for item in request["input"] if item["type"] == "reasoning"]


def _of_responses(server: DevModel, **more: Any) -> dict[str, Any]:
    main = {"protocol": "openai-responses", "profile": "openai", "encrypted_reasoning": True, **more}
    return http_release(server, tools=TOOLS, models={"main": main}, context={"recent_runs": 9})


def test_S07_a_release_that_asks_for_it_sends_encrypted_reasoning_back_where_it_came_from(database_url: str) -> None:
    dialect = {"wants_reasoning": "in_tool_turns", "sealed_reasoning": True}
    with dev_model(*TURNS, dialect=dialect) as model, simulated(database_url) as worker:
        made = _session(worker, _of_responses(model), "use the tool", "use the tool again")
        assert [answer(worker.ports, run_id) for run_id in made] == ["done", "done"]
        sent = [json.loads(request.body or b"") for request in model.requests]
        assert [request.body for request in model.requests] == [
            body for run_id in made for body in frozen_bodies(worker.ports, run_id)
        ]
        assert list(run_audit(worker.ports)) == []
    assert all((one["store"], one["include"]) == (False, ["reasoning.encrypted_content"]) for one in sent)
    # Each in front of what it led to, with its id and its summary; the dev-model opens no seal but its own.
    kinds = [item["type"] for item in sent[-1]["input"]]
    assert [kind for kind in kinds if kind != "message"] == [
        *("reasoning", "function_call", "function_call_output", "reasoning", "reasoning", "function_call"),
        "function_call_output",
    ]
    assert [kinds[place + 1] for place, kind in enumerate(kinds) if kind == "reasoning"] == [
        *("function_call", "message", "function_call"),
    ]
    first = sent[-1]["input"][kinds.index("reasoning")]
    assert first["summary"] == [{"type": "summary_text", "text": "it must be echoed"}] and first["id"].startswith("rs_")
    assert len(set(_sealed(sent[-1]))) == 3


def test_S07_a_release_that_does_not_ask_gets_none_and_a_strict_provider_refuses_it(database_url: str) -> None:
    dialect = {"wants_reasoning": "in_tool_turns", "sealed_reasoning": True}
    with dev_model(*TURNS, dialect=dialect) as model, simulated(database_url) as worker:
        (run_id,) = _session(worker, _of_responses(model, encrypted_reasoning=False), "use the tool")
        assert run_of(worker.ports, run_id).end_code == Code.MODEL_REQUEST_REJECTED
        sent = [json.loads(request.body or b"") for request in model.requests]
    assert not any("include" in one or _sealed(one) for one in sent)


def test_S07_encrypted_reasoning_never_reaches_another_model_endpoint_or_account(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ONE", "TWO"):
        monkeypatch.setenv(f"AGENTLOOM_TEST_{name}", f"key-{name}")
    with (
        dev_model(*TURNS) as model,
        dev_model(*TURNS) as elsewhere,
        simulated(database_url) as worker,
    ):
        first = {"credential": "env:AGENTLOOM_TEST_ONE"}
        documents = [
            _of_responses(model, **first),
            _of_responses(model, **first, model="another"),
            _of_responses(elsewhere, **first),
            _of_responses(model, credential="env:AGENTLOOM_TEST_TWO"),
            _of_responses(model, **first),
        ]
        made: list[RunId] = []
        for document in documents:
            made.append(ask(worker.ports, document, "use the tool", session_of=made[0] if made else None))
            worker.drive()
        assert [answer(worker.ports, run_id) for run_id in made] == ["done"] * 5
        sent = [[json.loads(body) for body in frozen_bodies(worker.ports, run_id)] for run_id in made]
        assert list(run_audit(worker.ports)) == []
    # What a run's last request holds beyond its history is what its own model sealed in it.
    assert [len(_sealed(bodies[0])) for bodies in sent] == [0, 0, 0, 0, 2]
    assert [len(_sealed(bodies[-1])) for bodies in sent] == [1, 1, 1, 1, 3]
    assert _sealed(sent[4][0])[0] == _sealed(sent[0][-1])[0]


@pytest.mark.parametrize("profile", ["openai", "deepseek", "moonshot", "zhipu", "minimax", "dashscope", "custom"])
def test_a_provider_gets_the_key_and_the_limit_where_it_looks_for_them(
    database_url: str, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTLOOM_TEST_KEY", "k-1")
    limit = "max_completion_tokens" if profile in ("openai", "moonshot", "minimax") else "max_tokens"
    custom = {"dialect": {"auth_header": "x-key", "auth_prefix": ""}} if profile == "custom" else {}
    auth = {"header": "x-key", "value": "k-1"} if custom else {"header": "Authorization", "value": "Bearer k-1"}
    dialect = {"output_limit_field": limit, "auth": auth, "parameters": ["temperature"]}
    with dev_model(*TURNS, dialect=dialect) as model, simulated(database_url) as worker:
        document = _of(model, profile, credential="env:AGENTLOOM_TEST_KEY", parameters={"temperature": 0}, **custom)
        (run_id,) = _session(worker, document, "use the tool")
        assert answer(worker.ports, run_id) == "done"


def _shown(ports: Ports, run_id: RunId, operation: Operation) -> Any:
    return materialize(ports, ReadAuthority(run_of(ports, run_id).session_id, "assistant"), operation.operation_id)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("profile", ["generic", "vllm"])
def test_K10_gate_and_display_use_one_number_and_it_is_that_of_the_bytes(
    database_url: str, profile: str, protocol: str
) -> None:
    with dev_model(*TURNS) as model, simulated(database_url) as worker:
        document = _of(model, profile, protocol=protocol)
        made = _session(worker, document, "use the tool", "and now?", "use the tool")
        counted = 0
        for run_id in made:
            for operation, body in zip(
                model_operations(worker.ports, run_id), frozen_bodies(worker.ports, run_id), strict=True
            ):
                recipe = Recipe.from_bytes(operation.request or b"")
                tools = len(json.loads(body).get("tools", ()))
                # seed 004, 4.2: the bytes of the whole body, 256, 32 a message and 64 a tool.
                assert recipe.tokens == len(body) + 256 + 32 * len(messages_of(body)) + 64 * tools
                assert _shown(worker.ports, run_id, operation).tokens == recipe.tokens
                counted += 1
        assert counted == 5


def test_K10_a_request_of_exactly_the_budget_leaves_and_one_token_more_does_not(database_url: str) -> None:
    with dev_model({"answer": {"text": "fine"}}) as model, simulated(database_url) as worker:
        ports = worker.ports

        def asked(words: str, window: int) -> RunId:
            context = {"output_reserve_tokens": 1_000, "safety_margin_tokens": 0}
            document = http_release(model, models={"main": {"context_window_tokens": window}}, context=context)
            run_id = ask(ports, document, words)
            worker.drive()
            return run_id

        first = asked("How long?", 128_000)
        (operation,) = model_operations(ports, first)
        cost = Recipe.from_bytes(operation.request or b"").tokens
        fits, too_long = asked("How long?", cost + 1_000), asked("How long?!", cost + 1_000)
        assert run_of(ports, fits).status is RunStatus.SUCCEEDED
        run = run_of(ports, too_long)
        assert run.end_code == Code.CONTEXT_PROTECTED_INPUT_TOO_LARGE
        assert f"the request is estimated at {cost + 1} tokens" in (run.end_detail or "")
        assert f"the budget is {cost} = window {cost + 1_000} - output reserve 1000" in (run.end_detail or "")
        assert len(model.requests) == 2


@pytest.mark.parametrize(
    ("window", "context", "reserve", "asked"),
    [
        (1_000_000, {}, 250_000, 250_000),
        (1_000_000, {"output_reserve_tokens": 384_000}, 384_000, 384_000),
        (1_000_000, {"output_reserve_tokens": 500_000}, 500_000, 384_000),
        (400_000, {"output_reserve_tokens": 384_000}, 384_000, 384_000),
        (128_000, {}, 32_000, 32_000),
        (4_096, {}, 1_024, 1_024),
    ],
)
def test_K10_input_and_output_fit_the_window_with_a_limit_of_384000_too(
    window: int, context: dict[str, Any], reserve: int, asked: int
) -> None:
    main = {"context_window_tokens": window, "max_output_tokens": 384_000}
    release = load_release(resolve_release(release_document(models={"main": main}, context=context)).body)
    budget = release.budget
    assert (budget.output_reserve_tokens, release.max_output_tokens) == (reserve, asked)
    assert budget.input_budget_tokens + budget.output_reserve_tokens + budget.safety_margin_tokens == window
    assert 0 < release.max_output_tokens <= budget.output_reserve_tokens


def test_K10_the_limit_of_the_model_is_what_a_request_asks_for_at_most(database_url: str) -> None:
    context = {"output_reserve_tokens": 500_000}
    main = {"context_window_tokens": 1_000_000, "max_output_tokens": 384_000}
    with dev_model({"answer": {"text": "fine"}}) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, http_release(model, models={"main": main}, context=context))
        worker.drive()
        (body,) = frozen_bodies(worker.ports, run_id)
        assert json.loads(body)["max_tokens"] == 384_000


SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
CORRECTED = (
    {"when": {"assistant_turns": 0}, "answer": {"text": "It is forty-two."}},
    {"answer": {"text": '{"answer": "Forty-two."}'}},
)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_R13_a_correction_that_is_sent_as_a_text_of_the_user_is_no_input_to_the_audit_and_hides_none(
    database_url: str, protocol: str
) -> None:
    with dev_model(*CORRECTED, dialect=STRICT) as model, simulated(database_url) as worker:
        ports, document = worker.ports, _of(model, "vllm", protocol=protocol, agent={"output_schema": SCHEMA})
        (run_id,) = _session(worker, document, "[agentloom] How many?")
        assert answer(ports, run_id) == '{"answer": "Forty-two."}'
        asked, corrected = (user_texts(body) for body in frozen_bodies(ports, run_id))
        assert asked == ["[agentloom] How many?"]
        assert corrected[0] == asked[0] and corrected[1].startswith("[agentloom] ") and len(corrected) == 2
        assert list(run_audit(ports)) == []

        # The words of another run in the place of the user's.
        (other,) = _session(worker, document, "Something else")
        assert list(run_audit(ports)) == []
        inputs = "(SELECT origin_input_id FROM context_record WHERE run_id = :of AND message_kind = 'user_ref')"
        changed = (
            f"UPDATE context_record SET origin_input_id = {inputs} WHERE run_id = :run AND message_kind = 'user_ref'"
        )
        assert execute(ports, changed, run=run_id, of=other) == 1
        assert ("request.inputs", 2) in _counted(run_audit(ports))


@pytest.mark.parametrize(("kind", "other", "found"), [("feedback", "user_ref", 1), ("user_ref", "feedback", 2)])
def test_R13_a_correction_that_passes_for_an_input_is_found_and_an_input_that_passes_for_one_in_each_request(
    database_url: str, kind: str, other: str, found: int
) -> None:
    with dev_model(*CORRECTED, dialect=STRICT) as model, simulated(database_url) as worker:
        (run_id,) = _session(worker, _of(model, "vllm", agent={"output_schema": SCHEMA}), "How many?")
        changed = "UPDATE context_record SET message_kind = :other WHERE run_id = :run AND message_kind = :kind"
        assert execute(worker.ports, changed, run=run_id, kind=kind, other=other) == 1
        assert ("request.inputs", found) in _counted(run_audit(worker.ports))


def _counted(findings: Iterable[Finding]) -> set[tuple[str, int]]:
    """The invariants that are broken, and how often each."""
    return set(Counter(finding.invariant for finding in findings).items())
