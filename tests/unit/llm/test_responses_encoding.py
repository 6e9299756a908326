"""The frozen bytes of version 1 of the Responses encoding: a change needs a new version, not a new golden."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.context.message import assistant_message, note
from agentloom_worker.context.view import View
from agentloom_worker.domain.model import (
    Message,
    MessageCall,
    ModelResponse,
    ReasoningItem,
    RequestParameters,
    ResponseCall,
    Role,
)
from agentloom_worker.domain.response import decode_response, encode_response
from agentloom_worker.errors import Code, RunError
from agentloom_worker.llm.profiles import PROFILES, Profile, ReasoningReplay
from agentloom_worker.llm.responses_encoding import RESERVED_PARAMETERS, ResponsesEncoding
from tests.unit.llm.test_chat_encoding import CONVERSATION, PARAMETERS, TOOLS, extras, messages, tool_lists

GOLDEN = Path(__file__).parents[2] / "golden" / "openai_responses_1"
GENERIC = ResponsesEncoding(PROFILES["generic"])
SEALED = ResponsesEncoding(
    Profile("sealed", 1, reasoning_replay=ReasoningReplay.IN_TOOL_TURNS, encrypted_reasoning=True)
)
OPEN = ResponsesEncoding(Profile("open", 1, reasoning_replay=ReasoningReplay.ALWAYS))
REASONING = (
    ReasoningItem("rs_1", ("first",), ("thought",), "sealed-1", None),
    ReasoningItem("rs_2", (), ("again",), "sealed-2", 1),
    ReasoningItem("rs_3", ("lost",), (), "", 1),
)
THOUGHT = Message(
    Role.ASSISTANT,
    "I look.",
    (MessageCall("a", "look", "{}"), MessageCall("b", "look", "{}")),
    reasoning_items=REASONING,
)


def items(encoding: ResponsesEncoding, message: Message) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(b"[" + encoding.encode_message(message) + b"]")
    return found


def test_the_fragments_are_the_golden_bytes() -> None:
    fragments = [GENERIC.encode_message(item) for item in CONVERSATION]
    assert b"\n".join(fragments) + b"\n" == (GOLDEN / "input.jsonl").read_bytes()


def test_the_whole_body_is_the_golden_bytes() -> None:
    fragments = [GENERIC.encode_message(item) for item in CONVERSATION]
    body = GENERIC.frame_body(PARAMETERS, View().extend(fragments), GENERIC.encode_tools(TOOLS))
    assert body.join() == (GOLDEN / "body.json").read_bytes()
    assert GENERIC.encode_parameters(PARAMETERS) == (GOLDEN / "parameters.json").read_bytes()
    assert GENERIC.frame_body(RequestParameters("m", 1), View(), b"").join() == (GOLDEN / "smallest.json").read_bytes()


def test_reasoning_that_is_sent_back_sealed_is_the_golden_bytes() -> None:
    body = SEALED.frame_body(RequestParameters("m", 1), View().extend([SEALED.encode_message(THOUGHT)]), b"")
    assert body.join() == (GOLDEN / "reasoning.json").read_bytes()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(messages, max_size=4), tool_lists, extras)
def test_the_body_is_one_canonical_encoding_of_the_whole(
    conversation: list[Message], tools: Any, extra: tuple[tuple[str, object], ...]
) -> None:
    parameters = RequestParameters("m", 7, extra)
    view = View().extend([GENERIC.encode_message(message) for message in conversation])
    encoded = GENERIC.encode_tools(tools)
    body = GENERIC.frame_body(parameters, view, encoded)
    joined = body.join()
    assert canonical_bytes(json.loads(joined)) == joined
    commas = max(0, len(conversation) - 1)
    assert len(joined) == body.size_bytes == GENERIC.envelope_bytes(parameters, encoded) + view.size_bytes + commas


def test_nothing_is_left_with_the_server() -> None:
    document = json.loads(GENERIC.encode_parameters(PARAMETERS))
    assert (document["store"], document["stream"]) == (False, True)
    assert RESERVED_PARAMETERS.isdisjoint({"temperature", "reasoning", "text", "tool_choice", "parallel_tool_calls"})
    for name in ("previous_response_id", "conversation", "prompt", "truncation", "store"):
        with pytest.raises(RunError) as caught:
            GENERIC.encode_parameters(RequestParameters("m", 1, ((name, "x"),)))
        assert caught.value.code == Code.MODEL_FEATURE_UNSUPPORTED
        assert name in caught.value.message


def test_tools_are_not_strict_unless_they_are_made_for_it() -> None:
    assert [tool["strict"] for tool in json.loads(GENERIC.encode_tools(TOOLS))] == [False, False]


def test_a_note_is_never_the_models_and_is_labelled_where_no_system_message_may_stand() -> None:
    assert items(GENERIC, note("Stopped."))[0]["role"] == "system"
    (item,) = items(ResponsesEncoding(Profile("p", 1, mid_system=False)), note("Stopped."))
    assert (item["role"], item["content"]) == ("user", "[agentloom] Stopped.")


def test_W03_two_calls_with_one_id_keep_it_on_the_wire() -> None:
    calls = (MessageCall("same", "look", "{}"), MessageCall("same", "look", "{}"))
    assert [item["call_id"] for item in items(GENERIC, Message(Role.ASSISTANT, "", calls))] == ["same", "same"]


def test_S07_reasoning_goes_back_as_the_profile_says() -> None:
    assert [item["type"] for item in items(GENERIC, THOUGHT)] == ["message", "function_call", "function_call"]
    assert json.loads(GENERIC.encode_parameters(PARAMETERS)).get("include") is None

    sealed = items(SEALED, THOUGHT)
    assert [item["type"] for item in sealed] == ["reasoning", "message", "function_call", "reasoning", "function_call"]
    assert [item["encrypted_content"] for item in sealed if item["type"] == "reasoning"] == ["sealed-1", "sealed-2"]
    assert not any("content" in item for item in sealed if item["type"] == "reasoning")
    assert json.loads(SEALED.encode_parameters(PARAMETERS))["include"] == ["reasoning.encrypted_content"]
    plain = Message(Role.ASSISTANT, "Done.", reasoning_items=REASONING[:1])
    assert [item["type"] for item in items(SEALED, plain)] == ["message"], "no tool turn"

    shown = items(OPEN, THOUGHT)
    assert [item["type"] for item in shown] == [
        *("reasoning", "message", "function_call", "reasoning", "reasoning", "function_call")
    ]
    assert shown[0]["content"] == [{"type": "reasoning_text", "text": "thought"}]
    assert not any("encrypted_content" in item for item in shown)
    assert [item["type"] for item in items(OPEN, plain)] == ["reasoning", "message"]


def test_S07_reasoning_survives_the_store_and_reaches_the_message() -> None:
    response = ModelResponse("I look.", (ResponseCall(0, "a", "look", "{}"),), "tool_calls", reasoning_items=REASONING)
    stored = decode_response(encode_response(response))
    assert stored == response
    message, _ = assistant_message(stored, (UUID(int=1),))
    assert message.reasoning_items == REASONING
