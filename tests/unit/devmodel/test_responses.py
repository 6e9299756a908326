"""The Responses side of the dev-model: the same scripts, read from items and told in events."""

import json
from typing import Any

import httpx
import pytest

from agentloom_worker.devmodel import DevModel, parse_script
from agentloom_worker.devmodel.chat import ChatRequest, ChatRequestError, protocol_problem, results_of
from agentloom_worker.devmodel.responses import parse_responses_request

USER = {"type": "message", "role": "user", "content": "why?"}
CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "7"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}


def request(*items: dict[str, Any], **more: Any) -> ChatRequest:
    return parse_responses_request(json.dumps({"model": "m", "input": [USER, *items], **more}).encode())


def served(answer: dict[str, Any], **more: Any) -> httpx.Response:
    script = parse_script({"schema_version": 1, "turns": [{"answer": answer}]})
    with DevModel(script) as model:
        body = {"model": "m", "input": "why?", "stream": True, **more}
        return httpx.post(f"{model.base_url}/responses", json=body, timeout=20)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events in order; each is named as its data says, and numbered without a gap."""
    parts = response.text.split("\n\n")
    assert parts.pop() == ""
    found: list[dict[str, Any]] = []
    for number, part in enumerate(parts):
        name, data = part.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert (name, event["sequence_number"]) == (f"event: {event['type']}", number)
        found.append(event)
    return found


def test_a_turn_is_what_the_model_said_and_called_together() -> None:
    chat = request(
        THOUGHT,
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        CALL,
        {**CALL, "call_id": "b", "name": "g"},
        OUTPUT,
        {**OUTPUT, "call_id": "b", "output": "8"},
        CALL,
        OUTPUT,
        instructions="be brief",
        tools=[{"type": "function", "name": "f", "parameters": {}}],
        include=["reasoning.encrypted_content"],
    )
    assert [message["role"] for message in chat.messages] == [
        *("system", "user", "assistant", "tool", "tool", "assistant", "tool")
    ]
    assert (chat.assistant_turns, chat.turns_since_user, chat.tool_results) == (2, 2, 3)
    assert (results_of(chat, "f"), results_of(chat, "g")) == (["7", "7"], ["8"])
    assert (chat.tool_names, chat.include_usage, chat.encrypted_reasoning) == ({"f"}, True, True)
    assert protocol_problem(chat) is None
    assert chat.stream is False


def test_what_a_strict_provider_refuses_is_a_problem_here_too() -> None:
    assert protocol_problem(request(CALL)) == "results are missing for: ['a']"
    assert protocol_problem(request(OUTPUT)) is not None
    assert protocol_problem(request({"role": "assistant", "content": " "})) is not None


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"model": "m"}',
        b'{"model": "m", "input": []}',
        b'{"model": "m", "input": [1]}',
        b'{"model": "m", "input": [{"type": "reasoning"}]}',
        b'{"model": "m", "input": [{"type": "item_reference", "id": "x"}]}',
        b'{"model": "m", "input": [{"role": "tool", "content": "x"}]}',
        b'{"input": "why?"}',
        b'{"model": "m", "input": "why?", "previous_response_id": "resp_1"}',
    ],
)
def test_what_is_no_request_for_a_response_is_refused(body: bytes) -> None:
    with pytest.raises(ChatRequestError):
        parse_responses_request(body)


def test_a_stream_tells_every_item_from_its_opening_to_its_end() -> None:
    answer = {
        "reasoning": "hm, so",
        "text": "Hello",
        "tool_calls": [{"name": "f", "id": "a", "arguments": {"x": 1}}],
        "chunk_chars": 4,
    }
    told = events(served(answer))
    assert [event["type"].removeprefix("response.") for event in told] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    final = told[-1]["response"]
    assert final["output"] == [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call"]
    assert (final["status"], final["store"]) == ("completed", False)
    assert final["usage"]["total_tokens"] == final["usage"]["input_tokens"] + final["usage"]["output_tokens"]


def test_the_document_is_what_the_stream_ends_with() -> None:
    answer = {"text": "Hello", "tool_calls": [{"name": "f"}], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    document = served(answer, stream=False).json()
    streamed = events(served(answer))[-1]["response"]
    # The ids follow from the bytes of the request, which differ.
    assert [(item["type"], item.get("content"), item.get("arguments")) for item in document["output"]] == [
        (item["type"], item.get("content"), item.get("arguments")) for item in streamed["output"]
    ]
    assert document["usage"] == streamed["usage"]


@pytest.mark.parametrize(("reason", "detail"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_an_answer_that_was_cut_short_ends_incomplete(reason: str, detail: str) -> None:
    final = events(served({"text": "half", "finish_reason": reason}))[-1]
    assert final["type"] == "response.incomplete"
    assert final["response"]["incomplete_details"] == {"reason": detail}


def test_reasoning_is_sealed_for_those_who_ask() -> None:
    answer = {"reasoning": "hm", "text": "x"}
    (plain, _) = events(served(answer))[-1]["response"]["output"]
    (sealed, _) = events(served(answer, include=["reasoning.encrypted_content"]))[-1]["response"]["output"]
    assert "encrypted_content" not in plain
    assert sealed["encrypted_content"].startswith("sealed-")


def test_a_seal_opens_for_the_model_that_made_it_as_it_was_given_and_for_nobody_else() -> None:
    thought, said = events(served({"reasoning": "hm", "text": "x"}, include=["reasoning.encrypted_content"]))[-1][
        "response"
    ]["output"]
    other = {"summary": [{"type": "summary_text", "text": "another"}]}
    with DevModel(parse_script({"schema_version": 1, "turns": [{"answer": {"text": "y"}}]})) as server:

        def answered(model: str, *items: dict[str, Any]) -> httpx.Response:
            body = {"model": model, "input": [USER, *items, USER]}
            return httpx.post(f"{server.base_url}/responses", json=body, timeout=20)

        assert answered("m", thought, said).status_code == 200
        for model, item in (("n", thought), ("m", {**thought, **other}), ("m", {**thought, "id": "rs_other"})):
            refused = answered(model, item, said)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_encrypted_content")


@pytest.mark.parametrize("behind", [(), (USER,), (OUTPUT,)])
def test_reasoning_that_leads_to_nothing_is_refused(behind: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(ChatRequestError, match="'rs_1' of type 'reasoning' was provided without its required"):
        request(THOUGHT, *behind)


@pytest.mark.parametrize("omitted", ["role", "finish", "usage"])
def test_what_a_script_omits_is_not_told(omitted: str) -> None:
    told = events(served({"text": "x", "omit": [omitted]}))
    assert ("response.created" in [event["type"] for event in told]) is (omitted != "role")
    ended = told[-1]["type"] == "response.completed"
    assert ended is (omitted != "finish")
    assert not ended or (told[-1]["response"]["usage"] is None) is (omitted == "usage")


def test_a_cut_counts_pieces_of_content_and_an_error_ends_the_stream() -> None:
    told = events(served({"text": "abcdef", "chunk_chars": 2, "cut": {"then": "error", "after_chunks": 2}}))
    assert [event["delta"] for event in told if event["type"] == "response.output_text.delta"] == ["ab", "cd"]
    assert (told[-1]["type"], told[-1]["code"]) == ("error", "server_error")
    own = {"type": "response.failed", "response": {"status": "failed", "error": {"code": "c"}}}
    told = events(served({"text": "x", "cut": {"then": "error", "event": own}}))
    assert told[-1]["response"] == own["response"]


def test_a_template_that_fills_with_nothing_is_a_message_without_words() -> None:
    told = events(served({"text": "{{last_user_text}}"}, input=[{"role": "user", "content": ""}]))
    assert told[-1]["response"]["output"][0]["content"][0]["text"] == ""
