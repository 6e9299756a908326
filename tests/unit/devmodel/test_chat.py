"""Facts of a request, the strict provider's check, and substitution."""

import json
from typing import Any

import pytest

from agentloom_worker.devmodel.chat import (
    ChatRequest,
    ChatRequestError,
    parse_chat_request,
    protocol_problem,
    results_of,
)
from agentloom_worker.devmodel.template import fill, problems_of


def call(call_id: str, name: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def request(*messages: dict[str, Any], **more: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "why?"}, *messages], **more}
    return parse_chat_request(json.dumps(body).encode())


def calls(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [call(*pair) for pair in pairs]}


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def test_counts_and_texts_are_read_from_the_messages() -> None:
    chat = request(
        calls(("a", "f"), ("b", "g")),
        result("a", "1"),
        result("b", "2"),
        {"role": "user", "content": [{"type": "text", "text": "go "}, {"type": "text", "text": "on"}]},
        {"role": "assistant", "content": "yes"},
        stream=True,
        stream_options={"include_usage": True},
        tools=[{"type": "function", "function": {"name": "f"}}],
    )
    assert (chat.assistant_turns, chat.turns_since_user, chat.tool_results) == (2, 1, 2)
    assert (chat.last_role, chat.last_text) == ("assistant", "yes")
    assert (chat.stream, chat.include_usage, chat.tool_names) == (True, True, {"f"})
    assert fill("{{last_user_text}}/{{first_user_text}}", chat, 1) == "go on/why?"


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"model": "m"}', b'{"model": "m", "messages": []}', b'{"model": "m", "messages": [1]}',
     b'{"messages": [{"role": "user"}]}', b'\xff'],
)  # fmt: skip
def test_what_is_no_chat_request_is_refused(body: bytes) -> None:
    with pytest.raises(ChatRequestError):
        parse_chat_request(body)


def test_a_paired_history_passes_the_strict_check() -> None:
    history = [calls(("a", "f"), ("b", "g")), result("b", "2"), result("a", "1")]
    assert protocol_problem(request(*history)) is None
    assert protocol_problem(request(calls(("x", "f"), ("x", "f")), result("x", "1"), result("x", "2"))) is None


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([result("a", "1")], "answers no call"),
        ([calls(("a", "f")), result("b", "1")], "answers no call"),
        ([calls(("a", "f")), result("a", "1"), result("a", "1")], "answers no call"),
        ([calls(("a", "f"), ("b", "g")), result("a", "1")], "results are missing for: ['b']"),
        ([calls(("a", "f")), {"role": "user", "content": "?"}, result("a", "1")], "stands where results"),
        ([{"role": "assistant", "content": " "}], "without text and without calls"),
    ],
)
def test_orphans_and_empty_messages_fail_the_strict_check(messages: list[dict[str, Any]], problem: str) -> None:
    assert problem in (protocol_problem(request(*messages)) or "")


def test_results_belong_to_their_calls_also_when_ids_are_given_twice() -> None:
    chat = request(calls(("x", "f"), ("x", "g")), result("x", "of f"), result("x", "of g"))
    assert (results_of(chat, "f"), results_of(chat, "g")) == (["of f"], ["of g"])
    swapped = request(calls(("a", "f"), ("b", "g")), result("b", "of g"), result("a", "of f"))
    assert (results_of(swapped, "f"), results_of(swapped, None)) == (["of f"], ["of g", "of f"])


def test_places_quote_results_by_number_and_by_path() -> None:
    chat = request(
        calls(("a", "f"), ("b", "f")),
        result("a", '{"groups": [{"p95": 12.5, "name": "north"}], "none": null}'),
        result("b", "plain"),
    )
    for place, expected in {
        "{{tool_result:f}}": "plain",
        "{{ tool_result:f#1.groups.0.name }}": "north",
        "{{tool_result:f#1.groups.0.p95}}": "12.5",
        "{{tool_result:f#1.groups.0}}": '{"p95": 12.5, "name": "north"}',
        "{{tool_result:f#1.none}}": "null",
        "{{last_tool_result}}": "plain",
        "{{assistant_turns}} {{tool_results}} {{arrival}} {{model}}": "1 2 3 m",
    }.items():
        assert problems_of(place) == []
        assert fill(place, chat, 3) == expected


@pytest.mark.parametrize(
    "place",
    ["tool_result:f#9", "tool_result:g", "tool_result:f.a", "tool_result:f#1.groups.7", "last_tool_result.a"],
)
def test_what_the_request_does_not_hold_is_shown_as_none(place: str) -> None:
    chat = request(calls(("a", "f"), ("b", "f")), result("a", '{"groups": []}'), result("b", "plain"))
    assert fill(f"<{{{{{place}}}}}>", chat, 1) == "<(none)>"


def test_a_result_that_looks_like_a_place_is_not_filled_again() -> None:
    chat = request(calls(("a", "f")), result("a", "{{model}}"))
    assert fill("{{tool_result:f}}", chat, 1) == "{{model}}"
