"""A dev-model that stands for a provider of another dialect."""

from typing import Any

import httpx
import pytest

from agentloom_worker.devmodel import DevModel, parse_script

SYSTEM, USER, ANSWER = ({"role": role, "content": "x"} for role in ("system", "user", "assistant"))
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
EXCHANGE = ({"role": "assistant", "content": None, "tool_calls": [CALL]}, {**USER, "role": "tool", "tool_call_id": "c"})


def post(dialect: dict[str, Any], *messages: dict[str, Any], headers: Any = None, **fields: Any) -> httpx.Response:
    answer = {"text": "fine", "reasoning": "because"}
    script = parse_script({"schema_version": 1, "dialect": dialect, "turns": [{"answer": answer}]})
    body = {"model": "dev-model", "messages": list(messages) or [USER], **fields}
    with DevModel(script) as model:
        return httpx.post(f"{model.base_url}/chat/completions", json=body, headers=headers, timeout=20)


@pytest.mark.parametrize(
    ("dialect", "messages", "words"),
    [
        ({"mid_system": False}, (SYSTEM, USER, SYSTEM), "System message must be at the beginning."),
        ({"first_must_be_user": True}, (SYSTEM, ANSWER, USER), "The first message must be the user's."),
        ({"strict_alternation": True}, (SYSTEM, USER, USER), "Conversation roles must alternate"),
        ({"strict_alternation": True}, (USER, *EXCHANGE, USER), "Conversation roles must alternate"),
        ({"wants_reasoning": "in_tool_turns"}, (USER, *EXCHANGE), "reasoning_content is missing in assistant"),
    ],
)
def test_a_sequence_that_the_provider_does_not_take_is_refused(
    dialect: dict[str, Any], messages: tuple[dict[str, Any], ...], words: str
) -> None:
    refused = post(dialect, *messages)
    assert refused.status_code == 400
    assert words in refused.json()["error"]["message"]
    assert post({}, *messages).status_code == 200


def test_a_sequence_in_order_is_taken() -> None:
    dialect = {"mid_system": False, "strict_alternation": True, "first_must_be_user": True}
    assert post(dialect, SYSTEM, USER, *EXCHANGE, ANSWER, USER).status_code == 200


def test_only_the_parameters_that_exist_are_taken() -> None:
    dialect = {"output_limit_field": "max_completion_tokens", "parameters": ["temperature"]}
    assert post(dialect, max_completion_tokens=5, temperature=0, stream=False).status_code == 200
    assert "Use 'max_completion_tokens'" in post(dialect, max_tokens=5).text
    assert "Unknown parameter: 'seed'" in post(dialect, seed=5).text


def test_the_key_stands_in_its_header() -> None:
    dialect = {"auth": {"header": "api-key", "value": "k"}}
    assert post(dialect).status_code == 401
    assert post(dialect, headers={"Authorization": "Bearer k"}).status_code == 401
    assert post(dialect, headers={"api-key": "k"}).status_code == 200


def test_reasoning_comes_in_its_field() -> None:
    message = post({"reasoning_field": "reasoning"}).json()["choices"][0]["message"]
    assert (message["reasoning"], "reasoning_content" in message) == ("because", False)
    streamed = post({"reasoning_field": "reasoning"}, stream=True).text
    assert '{"reasoning":"because"}' in streamed and "reasoning_content" not in streamed


def test_models_are_listed_with_what_the_script_says_of_them_and_props_are_served() -> None:
    models = ["plain", {"id": "big", "max_model_len": 7}]
    script = {"schema_version": 1, "models": models, "props": {"n": 1}, "turns": [{"answer": {"text": "x"}}]}
    with DevModel(parse_script(script)) as model:
        listed = httpx.get(f"{model.base_url}/models", timeout=20).json()["data"]
        props = httpx.get(f"{model.base_url.removesuffix('/v1')}/props", timeout=20)
    assert [(one["id"], one.get("max_model_len"), one["object"]) for one in listed] == [
        ("plain", None, "model"),
        ("big", 7, "model"),
    ]
    assert props.json() == {"n": 1}


def test_a_dialect_holds_for_requests_of_responses_too() -> None:
    dialect = {"parameters": ["temperature"], "mid_system": False}
    script = parse_script({"schema_version": 1, "dialect": dialect, "turns": [{"answer": {"text": "fine"}}]})
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "x"}
    body = {"model": "m", "max_output_tokens": 5, "store": False, "temperature": 0, "input": [USER, call, result]}
    with DevModel(script) as model:
        url = f"{model.base_url}/responses"
        assert httpx.post(url, json=body, timeout=20).status_code == 200
        assert "Unknown parameter: 'seed'" in httpx.post(url, json={**body, "seed": 1}, timeout=20).text
        late = {**body, "input": [USER, SYSTEM]}
        assert "System message must be at the beginning." in httpx.post(url, json=late, timeout=20).text


@pytest.mark.parametrize("sealed", [True, False])
def test_a_dialect_that_wants_reasoning_back_says_whether_responses_must_bring_it_sealed(sealed: bool) -> None:
    turns = [
        {"when": {"assistant_turns": 0}, "answer": {"reasoning": "hm", "tool_calls": [{"name": "f"}]}},
        {"answer": {"text": "fine"}},
    ]
    dialect = {"wants_reasoning": "in_tool_turns", "sealed_reasoning": sealed}
    script = parse_script({"schema_version": 1, "dialect": dialect, "turns": turns})
    asked = {"model": "m", "store": False, "include": ["reasoning.encrypted_content"]}
    with DevModel(script) as model:

        def answered(*items: dict[str, Any]) -> httpx.Response:
            return httpx.post(f"{model.base_url}/responses", json={**asked, "input": [USER, *items]}, timeout=20)

        thought, call = answered().json()["output"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "x"}
        assert answered(thought, call, result).status_code == 200
        named = {name: thought[name] for name in ("type", "id", "summary")}
        assert "reasoning is missing in front of the calls" in answered(call, result).text
        assert ("encrypted reasoning is missing" in answered(named, call, result).text) == sealed
