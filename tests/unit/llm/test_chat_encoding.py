"""The frozen bytes of version 1 of the chat encoding: a change needs a new version, not a new golden."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.context.message import assistant_message, note, prompt_message
from agentloom_worker.context.view import View
from agentloom_worker.domain.model import Message, MessageCall, ModelResponse, RequestParameters, Role, ToolSchema
from agentloom_worker.errors import Code, RunError
from agentloom_worker.llm.chat_encoding import ChatEncoding, wire_arguments
from agentloom_worker.llm.profiles import PROFILES, Profile, ReasoningReplay
from agentloom_worker.llm.role_order import EMPTY_ASSISTANT_TEXT

GOLDEN = Path(__file__).parents[2] / "golden" / "openai_chat_1"

CONVERSATION = (
    Message(Role.SYSTEM, "You count. Übrigens: \u2028 stays."),
    Message(Role.USER, 'How many "lines"?\n\x00\ud800'),
    Message(
        Role.ASSISTANT,
        "",
        calls=(
            MessageCall("call_1", "count", '{"path": "a.log"}'),
            MessageCall("call_2", "count", '{"path": "b'),
            MessageCall("call_3", "now", ""),
        ),
    ),
    Message(Role.TOOL, "12", wire_id="call_1"),
    Message(Role.TOOL, "arguments are not valid JSON", wire_id="call_2"),
    Message(Role.TOOL, "", wire_id="call_3"),
    Message(Role.ASSISTANT, " \n"),
    Message(Role.USER, "😀"),
)
TOOLS = (
    ToolSchema("count", "Count lines.", {"type": "object", "properties": {"path": {"type": "string"}}}),
    ToolSchema("now", "", {"type": "object", "additionalProperties": False}),
)
PARAMETERS = RequestParameters("model-1", 4096, (("temperature", 0), ("top_p", 0.5), ("user", "u")))


@pytest.fixture
def encoding() -> ChatEncoding:
    return ChatEncoding(PROFILES["generic"])


def message(encoding: ChatEncoding, subject: Message) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(encoding.encode_message(subject))
    return document


def test_the_fragments_are_the_golden_bytes(encoding: ChatEncoding) -> None:
    fragments = [encoding.encode_message(item) for item in CONVERSATION]
    assert b"\n".join(fragments) + b"\n" == (GOLDEN / "messages.jsonl").read_bytes()


def test_the_whole_body_is_the_golden_bytes(encoding: ChatEncoding) -> None:
    fragments = [encoding.encode_message(item) for item in CONVERSATION]
    tools = encoding.encode_tools(TOOLS)
    assert (
        encoding.frame_body(PARAMETERS, View().extend(fragments), tools).join() == (GOLDEN / "body.json").read_bytes()
    )
    assert encoding.encode_parameters(PARAMETERS) == (GOLDEN / "parameters.json").read_bytes()
    smallest = encoding.frame_body(RequestParameters("m", 1), View(), b"")
    assert smallest.join() == (GOLDEN / "smallest.json").read_bytes()


text = st.text(max_size=20) | st.text(st.characters(categories=["Cs", "Cc", "Ll"]), max_size=5)
messages = st.builds(
    Message,
    st.sampled_from(Role),
    text,
    st.lists(st.builds(MessageCall, text, text, text), max_size=2).map(tuple),
    text,
)
tool_lists = st.lists(
    st.builds(ToolSchema, st.text("ab", min_size=1), st.text(max_size=5), st.just({"type": "object"})),
    max_size=2,
).map(tuple)
extras = st.dictionaries(
    st.sampled_from(["a", "frequency_penalty", "messagez", "seed", "temperature", "tool_choice", "toolz", "zz"]),
    st.integers() | st.text(max_size=5),
).map(lambda values: tuple(sorted(values.items())))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(messages, max_size=4), tool_lists, extras)
def test_the_join_of_fragments_is_one_encoding_of_the_whole_and_its_length_adds_up(
    items: list[Message], tools: tuple[ToolSchema, ...], extra: tuple[tuple[str, object], ...]
) -> None:
    encoding = ChatEncoding(PROFILES["generic"])
    parameters = RequestParameters("m", 7, extra)
    fragments = [encoding.encode_message(item) for item in items]
    tool_bytes = encoding.encode_tools(tools)
    framed = encoding.frame_body(parameters, View().extend(fragments), tool_bytes)
    body = framed.join()
    whole: dict[str, Any] = json.loads(encoding.encode_parameters(parameters))
    whole["messages"] = [json.loads(fragment) for fragment in fragments]
    if tools:
        whole["tools"] = json.loads(tool_bytes)
    assert body == canonical_bytes(whole)
    commas = max(0, len(fragments) - 1)
    assert len(body) == framed.size_bytes
    assert len(body) == encoding.envelope_bytes(parameters, tool_bytes) + sum(map(len, fragments)) + commas
    body.decode("utf-8", "strict")


@pytest.mark.parametrize("blank", ["", " ", "\n\t", "\u2003"])
def test_W04_a_blank_answer_without_calls_shows_visible_text(encoding: ChatEncoding, blank: str) -> None:
    assert message(encoding, Message(Role.ASSISTANT, blank)) == {
        "role": "assistant",
        "content": EMPTY_ASSISTANT_TEXT,
    }


@pytest.mark.parametrize("blank", ["", "\n"])
def test_W04_a_blank_answer_with_calls_has_no_content(encoding: ChatEncoding, blank: str) -> None:
    document = message(encoding, Message(Role.ASSISTANT, blank, (MessageCall("a", "f", "{}"),)))
    assert document["content"] is None
    beside = message(encoding, Message(Role.ASSISTANT, " so ", (MessageCall("a", "f", "{}"),)))
    assert beside["content"] == " so "


@pytest.mark.parametrize(
    "raw",
    ['{"a":', "[1]", "7", '"x"', "{'a': 1}", '{"a": NaN}', "{}{}", "[" * 100_000, '{"a":' * 50_000, "\x00"],
)
def test_W05_broken_arguments_go_on_the_wire_as_a_json_object_that_keeps_the_raw_text(raw: str) -> None:
    assert json.loads(wire_arguments(raw)) == {"unparsed_arguments": raw}


@pytest.mark.parametrize("raw", ['{"a": 1}', " {}\n", '{"a":1,"a":2}', '{"a":"\\u00e9"}', '{"n":1e400}'])
def test_W05_sound_arguments_stay_as_the_model_wrote_them(raw: str) -> None:
    assert wire_arguments(raw) == raw


@pytest.mark.parametrize("raw", ["", " \n", "null", " null "])
def test_W07_no_arguments_are_an_empty_object(raw: str) -> None:
    assert wire_arguments(raw) == "{}"


@pytest.mark.parametrize("raw", ['{"a\\ud800": ["\\ud800"]}', '{"a\ud800": ["\ud800"]}'])
def test_W05_lone_surrogates_in_arguments_are_replaced_escaped_or_not(raw: str) -> None:
    assert json.loads(wire_arguments(raw)) == {"a\ufffd": ["\ufffd"]}


def test_a_tool_message_pairs_by_the_wire_id(encoding: ChatEncoding) -> None:
    assert message(encoding, Message(Role.TOOL, "", wire_id="call_9")) == {
        "role": "tool",
        "tool_call_id": "call_9",
        "content": "",
    }


@pytest.mark.parametrize("name", ["messages", "model", "tools", "stream", "n", "max_tokens", "max_completion_tokens"])
def test_a_parameter_that_the_adapter_sets_is_refused(encoding: ChatEncoding, name: str) -> None:
    with pytest.raises(RunError) as caught:
        encoding.encode_parameters(RequestParameters("m", 1, ((name, 1),)))
    assert caught.value.code is Code.MODEL_FEATURE_UNSUPPORTED


def test_a_field_of_reasoning_that_is_not_implemented_is_refused_and_not_ignored() -> None:
    with pytest.raises(RunError) as caught:
        ChatEncoding(Profile("p", 1, reasoning_replay=ReasoningReplay.ALWAYS, reasoning_field="thoughts"))
    assert caught.value.code is Code.MODEL_FEATURE_UNSUPPORTED


def test_a_profile_names_the_output_limit_and_may_drop_stream_options() -> None:
    encoding = ChatEncoding(Profile("p", 1, stream_options=False, output_limit_field="max_completion_tokens"))
    assert json.loads(encoding.encode_parameters(RequestParameters("m", 9))) == {
        "model": "m",
        "max_completion_tokens": 9,
        "stream": True,
    }


def test_a_note_is_a_system_message_or_where_the_profile_takes_none_a_labelled_text_of_the_user() -> None:
    said = note("[run 1 ended: failed]")
    assert json.loads(ChatEncoding(Profile("p", 1)).encode_message(said)) == {
        "role": "system",
        "content": "[run 1 ended: failed]",
    }
    strict = ChatEncoding(Profile("p", 1, mid_system=False))
    assert json.loads(strict.encode_message(said)) == {
        "role": "user",
        "content": "[agentloom] [run 1 ended: failed]",
    }
    assert json.loads(strict.encode_message(prompt_message("Be brief.")))["role"] == "system"


@pytest.mark.parametrize(
    ("replay", "if_empty", "shown"),
    [
        (ReasoningReplay.NEVER, False, [None, None, None]),
        (ReasoningReplay.IN_TOOL_TURNS, False, ["why", None, None]),
        (ReasoningReplay.IN_TOOL_TURNS, True, ["why", "", None]),
        (ReasoningReplay.ALWAYS, False, ["why", None, "so"]),
        (ReasoningReplay.ALWAYS, True, ["why", "", "so"]),
    ],
)
def test_S07_reasoning_goes_back_as_the_profile_says(
    replay: ReasoningReplay, if_empty: bool, shown: list[str | None]
) -> None:
    encoding = ChatEncoding(
        Profile("p", 1, reasoning_replay=replay, reasoning_if_empty=if_empty, reasoning_field="reasoning")
    )
    call = (MessageCall("c", "f", "{}"),)
    said = (
        Message(Role.ASSISTANT, "", call, reasoning="why"),
        Message(Role.ASSISTANT, "", call),
        Message(Role.ASSISTANT, "answer", reasoning="so"),
    )
    assert [json.loads(encoding.encode_message(one)).get("reasoning") for one in said] == shown
    assert "reasoning" not in json.loads(encoding.encode_message(Message(Role.USER, "u", reasoning="x")))


def test_S07_an_accepted_answer_keeps_its_reasoning_apart_from_its_text() -> None:
    response = ModelResponse("text", (), "stop", reasoning="because \ud800")
    message, _ = assistant_message(response, ())
    assert (message.text, message.reasoning) == ("text", "because \ufffd")
