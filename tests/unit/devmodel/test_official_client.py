"""The official `openai` client talks to the dev-model and hears what our adapter hears: a fair stand-in."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from agentloom_worker.devmodel import DevModel, Outcome, parse_script
from agentloom_worker.domain.model import Failed
from agentloom_worker.errors import Code
from tests.unit.llm.calls import completed, new_adapter, once

WAIT_S = 20.0
TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALLS = [
    {"name": "add", "arguments": {"x": 1, "text": 'né\u2028😀 "quoted"'}},
    {"name": "add", "id": "call_2", "arguments": {"x": 2}},
]


@contextmanager
def served(*turns: dict[str, Any], **more: Any) -> Iterator[tuple[DevModel, openai.OpenAI]]:
    script = parse_script({"schema_version": 1, "turns": list(turns), **more})
    with (
        DevModel(script) as model,
        openai.OpenAI(api_key="sk-test", base_url=model.base_url, max_retries=0, timeout=WAIT_S) as client,
    ):
        yield model, client


def question(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "dev-model", "messages": [{"role": "user", "content": text}], **more}


def test_the_client_streams_and_puts_together_what_the_adapter_does() -> None:
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "cached_tokens": 4}
    turn = {"answer": {"text": "I add né\u2028😀.", "tool_calls": CALLS, "chunk_chars": 3, "usage": usage}}
    with served(turn) as (model, client):
        ours = completed(once(new_adapter(), model.base_url))
        asked = question(tools=[TOOL], stream_options={"include_usage": True})
        with client.chat.completions.stream(**asked) as stream:
            kinds = {event.type for event in stream}
            theirs = stream.get_final_completion()
    message = theirs.choices[0].message
    assert message.content == ours.text == "I add né\u2028😀."
    assert theirs.choices[0].finish_reason == ours.finish_reason == "tool_calls"
    heard = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    assert heard == [(call.name, call.arguments_text) for call in ours.calls]
    assert [call.id for call in message.tool_calls or []][1] == ours.calls[1].provider_call_id == "call_2"
    assert theirs.usage is not None and ours.usage is not None
    assert (theirs.usage.prompt_tokens, theirs.usage.completion_tokens) == (11, 7)
    assert (ours.usage.input_tokens, ours.usage.output_tokens, ours.usage.cached_tokens) == (11, 7, 4)
    assert {"content.delta", "content.done", "tool_calls.function.arguments.done"} <= kinds


def test_the_client_carries_a_whole_conversation_with_a_tool() -> None:
    turns = (
        {"when": {"turns_since_user": 0, "tools_offered": ["add"]}, "answer": {"tool_calls": CALLS}},
        {"when": {"turns_since_user": 1}, "answer": {"text": "They are {{tool_result:add#2}}."}},
    )
    with served(*turns) as (model, client):
        messages: list[Any] = [{"role": "user", "content": "add"}]
        first = client.chat.completions.create(model="dev-model", messages=messages, tools=[TOOL])
        said = first.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        for number, call in enumerate(said.tool_calls or [], 1):
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(number * 10)})
        chunks = list(client.chat.completions.create(model="dev-model", messages=messages, tools=[TOOL], stream=True))
        # The client may have read its last byte before the server knows that it was taken.
        assert model.wait_until(lambda records: [one.outcome for one in records] == [Outcome.COMPLETE] * 2)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "They are 20."
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (400, openai.BadRequestError, Code.MODEL_REQUEST_REJECTED),
        (401, openai.AuthenticationError, Code.MODEL_REQUEST_REJECTED),
        (404, openai.NotFoundError, Code.MODEL_REQUEST_REJECTED),
        (429, openai.RateLimitError, Code.MODEL_RATE_LIMITED),
        (503, openai.InternalServerError, Code.MODEL_PROVIDER_ERROR),
    ],
)
def test_an_error_status_is_the_clients_error_and_the_adapters_code(
    status: int, error: type[openai.APIStatusError], code: Code
) -> None:
    with served({"answer": {"http_error": {"status": status}}}) as (model, client):
        with pytest.raises(error) as raised:
            client.chat.completions.create(**question(stream=True))
        outcome = once(new_adapter(), model.base_url)
    assert raised.value.status_code == status
    assert isinstance(outcome, Failed) and outcome.failure.code == code


@pytest.mark.parametrize(
    ("then", "error", "code"),
    [
        ("error", openai.APIError, Code.MODEL_PROVIDER_ERROR),
        ("hang_up", openai.APIConnectionError, Code.MODEL_TRANSPORT_FAILED),
    ],
)
def test_a_stream_that_breaks_is_an_error_of_the_client_and_of_the_adapter(
    then: str, error: type[openai.APIError], code: Code
) -> None:
    with served({"answer": {"text": "abc", "chunk_chars": 1, "cut": {"then": then, "after_chunks": 1}}}) as pair:
        model, client = pair
        with pytest.raises(error):
            list(client.chat.completions.create(**question(stream=True)))
        outcome = once(new_adapter(), model.base_url)
    assert isinstance(outcome, Failed) and outcome.failure.code == code
    assert outcome.partial.text == "a"


def test_a_client_that_leaves_in_the_middle_is_noticed() -> None:
    with served({"answer": {"text": "abc", "chunk_chars": 1, "hold": {"gate": "never", "after_chunks": 1}}}) as pair:
        model, client = pair
        with client.chat.completions.create(**question(stream=True)) as stream:
            assert next(iter(stream)).choices[0].delta.role == "assistant"
        assert model.wait_until(lambda records: records[0].client_gone, WAIT_S)


def test_the_client_lists_the_models() -> None:
    with served({"answer": {"text": "hi"}}, models=["one", "two"]) as (_, client):
        assert [model.id for model in client.models.list()] == ["one", "two"]
