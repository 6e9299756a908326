"""Sequences of roles that strict providers take (RULINGS A12), and reasoning that goes back (CASES S07)."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.clock import SystemClock
from agentloom_worker.context.message import assistant_message, note, prompt_message
from agentloom_worker.context.request import break_down, estimate_tokens
from agentloom_worker.context.view import View
from agentloom_worker.domain.budget import utf8_envelope_tokens
from agentloom_worker.domain.model import Message, MessageCall, ModelResponse, RequestParameters, Role
from agentloom_worker.domain.seam import Seam, join_fragments
from agentloom_worker.llm.adapters.openai_chat import OpenAIChatAdapter
from agentloom_worker.llm.chat_encoding import CONTINUED, EMPTY_ASSISTANT_TEXT, ChatEncoding
from agentloom_worker.llm.profiles import PROFILES, Profile, ReasoningReplay

GOLDEN = Path(__file__).parents[2] / "golden" / "openai_chat_1"
PARAMETERS = RequestParameters("m", 7)
STRICT = PROFILES["vllm"]

CONVERSATION = (
    prompt_message("Be brief."),
    Message(Role.ASSISTANT, "Earlier, in short."),
    Message(Role.USER, "One"),
    Message(Role.USER, 'and "two"'),
    note("[run 1 ended: failed]"),
    Message(Role.ASSISTANT, "", (MessageCall("c1", "look", "{}"), MessageCall("c2", "look", "{}")), reasoning="Hm."),
    Message(Role.TOOL, "1", wire_id="c1"),
    Message(Role.TOOL, "2", wire_id="c2"),
    Message(Role.USER, "Faster!"),
    Message(Role.ASSISTANT, "Done."),
    Message(Role.ASSISTANT, "Really."),
    Message(Role.USER, "Thanks"),
)


def view_of(encoding: ChatEncoding, messages: Any) -> View:
    return View(seam=encoding.seam).extend([encoding.encode_message(message) for message in messages])


def sent(encoding: ChatEncoding, messages: Any) -> list[dict[str, Any]]:
    body = encoding.frame_body(PARAMETERS, view_of(encoding, messages), b"").join()
    found: list[dict[str, Any]] = json.loads(body)["messages"]
    return found


def adapted(encoding: ChatEncoding, messages: Any) -> list[dict[str, Any]]:
    """The slow way: whole documents, changed one by one (the oracle)."""
    profile, out = encoding.profile, list[dict[str, Any]]()
    for message in messages:
        document = json.loads(encoding.encode_message(message))
        role, last = document["role"], out[-1] if out else None
        conversation = [one for one in out if one["role"] != "system"]
        if profile.first_must_be_user and not conversation and role in ("assistant", "tool"):
            out.append({"role": "user", "content": CONTINUED})
        elif profile.strict_alternation and last is not None:
            if role == last["role"] == "user":
                last["content"] += "\n\n" + document["content"]
                continue
            if role == "user" and last["role"] == "tool":
                out.append({"role": "assistant", "content": EMPTY_ASSISTANT_TEXT})
            if role != "user" and last["role"] == "assistant" and not last.get("tool_calls"):
                out.append({"role": "user", "content": CONTINUED})
        out.append(document)
    return out


def test_a_conversation_for_a_strict_provider_is_the_golden_body() -> None:
    body = ChatEncoding(STRICT).frame_body(PARAMETERS, view_of(ChatEncoding(STRICT), CONVERSATION), b"").join()
    assert body + b"\n" == (GOLDEN / "strict_body.json").read_bytes()


def test_user_and_assistant_alternate_and_every_word_of_the_user_stands_there_whole() -> None:
    messages = sent(ChatEncoding(STRICT), CONVERSATION)
    spoken = [
        one for one in messages if one["role"] == "user" or (one["role"] == "assistant" and "tool_calls" not in one)
    ]
    assert [one["role"] for one in spoken] == ["user", "assistant"] * (len(spoken) // 2) + ["user"] * (len(spoken) % 2)
    assert [one["role"] for one in messages[:2]] == ["system", "user"]
    assert messages[3]["content"] == 'One\n\nand "two"\n\n[agentloom] [run 1 ended: failed]'
    assert all(one["role"] != "system" for one in messages[1:])


text = st.text(max_size=8) | st.sampled_from(['","role":"user"}', '{"content":"', "]}", "\ud800"])
calls = st.lists(st.builds(MessageCall, st.sampled_from(['x","role":"user', "c"]), text, text), min_size=1, max_size=2)
users = st.builds(Message, st.just(Role.USER), text)
notes = st.builds(note, text)
answers = st.builds(Message, st.just(Role.ASSISTANT), text, reasoning=text)
exchanges = st.builds(
    lambda made, results: [
        Message(Role.ASSISTANT, "", tuple(made)),
        *(Message(Role.TOOL, results, wire_id=call.wire_id) for call in made),
    ],
    calls,
    text,
)
conversations = st.lists(st.builds(lambda one: [one], users | notes | answers) | exchanges, max_size=8).map(
    lambda parts: [message for part in parts for message in part]
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(conversations, st.booleans(), st.sampled_from(["vllm", "first", "alternating", "generic"]))
@example([Message(Role.ASSISTANT, "a")], False, "vllm")
def test_the_join_of_fragments_is_the_adapted_conversation_and_its_size_is_exact(
    conversation: list[Message], prompted: bool, name: str
) -> None:
    profile = {
        "first": Profile("first", 1, mid_system=False, first_must_be_user=True),
        "alternating": Profile("alternating", 1, mid_system=False, strict_alternation=True),
        "vllm": STRICT,
        "generic": PROFILES["generic"],
    }[name]
    encoding = OpenAIChatAdapter(SystemClock(), profile)
    messages = ([prompt_message("p")] if prompted else []) + conversation
    view = view_of(encoding, messages)
    framed = encoding.frame_body(PARAMETERS, view, b"")
    body, expected = framed.join(), adapted(encoding, messages)
    whole = {**json.loads(encoding.encode_parameters(PARAMETERS)), "messages": expected}
    assert body == canonical_bytes(whole)
    assert framed.size_bytes == len(body)
    assert estimate_tokens(encoding, PARAMETERS, b"", view, 0) == utf8_envelope_tokens(len(body), len(expected), 0)
    assert break_down(encoding, PARAMETERS, b"", view, 0).total == utf8_envelope_tokens(len(body), len(expected), 0)
    if profile.strict_alternation:
        assert all((a["role"], b["role"]) != ("user", "user") for a, b in pairwise(expected))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(conversations, st.integers(0, 8))
def test_a_view_that_grows_in_parts_has_the_same_seams(conversation: list[Message], cut: int) -> None:
    encoding = ChatEncoding(STRICT)
    fragments = [encoding.encode_message(message) for message in conversation]
    once = View(seam=encoding.seam).extend(fragments)
    parts = View(seam=encoding.seam).extend(fragments[:cut]).extend(fragments[cut:])
    assert (parts.joined_bytes, parts.message_count, parts.chain) == (once.joined_bytes, once.message_count, once.chain)


def test_the_chain_of_a_view_does_not_depend_on_its_seams() -> None:
    fragments = [b"a", b"b"]
    assert View().extend(fragments).chain == View(seam=ChatEncoding(STRICT).seam).extend(fragments).chain


def test_fragments_are_joined_as_their_seams_say() -> None:
    merge, start = Seam(1, b"-", 1, -1), Seam(between=b"")
    assert (
        b"".join(join_fragments([b"[a]", b"[b]", b"[c]"], lambda before, _: merge if before else start)) == b"[a-b-c]"
    )
    assert b"".join(join_fragments([], lambda *_: merge)) == b""


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
