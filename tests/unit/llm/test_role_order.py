"""Sequences of roles that strict providers take (RULINGS A12), in each protocol."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentloom_worker.canonical import canonical_bytes, effective_text
from agentloom_worker.clock import SystemClock
from agentloom_worker.context.message import assistant_message, note, prompt_message
from agentloom_worker.context.request import break_down, estimate_tokens
from agentloom_worker.context.view import View
from agentloom_worker.domain.budget import utf8_envelope_tokens
from agentloom_worker.domain.model import Message, MessageCall, ReasoningItem, RequestParameters, Role
from agentloom_worker.domain.seam import Seam, join_fragments
from agentloom_worker.errors import Code, RunError
from agentloom_worker.llm.adapter import ModelAdapter
from agentloom_worker.llm.adapters import ADAPTERS, AdapterPorts
from agentloom_worker.llm.profiles import PROFILES, Profile, ReasoningReplay
from agentloom_worker.llm.responses_assembly import ResponsesAssembly
from agentloom_worker.llm.role_order import CONTINUED, EMPTY_ASSISTANT_TEXT, NOTE_LABEL
from tests.unit.llm.response_streams import closed, ended

GOLDEN = Path(__file__).parents[2] / "golden"
PARAMETERS = RequestParameters("m", 7)
# The list of messages in a body, and where the golden bodies are.
PROTOCOLS = {"openai-chat": ("messages", "openai_chat_1"), "openai-responses": ("input", "openai_responses_1")}
STRICT = PROFILES["vllm"]
ORDERS = {
    "first": Profile("first", 1, mid_system=False, first_must_be_user=True),
    "alternating": Profile("alternating", 1, mid_system=False, strict_alternation=True),
    "vllm": STRICT,
    "llama-cpp": PROFILES["llama-cpp"],
    "generic": PROFILES["generic"],
}
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)

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


def adapter_of(protocol: str, profile: Profile) -> ModelAdapter:
    return ADAPTERS[protocol](AdapterPorts(SystemClock()), profile)


def view_of(adapter: ModelAdapter, messages: Sequence[Message]) -> View:
    return View(seam=adapter.seam).extend([adapter.encode_message(message) for message in messages])


def body_of(adapter: ModelAdapter, messages: Sequence[Message]) -> bytes:
    return adapter.frame_body(PARAMETERS, view_of(adapter, messages), b"").join()


def adapted(profile: Profile, messages: Sequence[Message]) -> list[Message]:
    """The slow way, before anything is encoded: the messages themselves, changed one by one (the oracle)."""
    out: list[Message] = []
    for given_one in messages:
        is_labelled = given_one.note and not profile.mid_system
        message = Message(Role.USER, NOTE_LABEL + given_one.text) if is_labelled else given_one
        last, begun = out[-1] if out else None, any(one.role is not Role.SYSTEM for one in out)
        if profile.first_must_be_user and not begun and message.role in (Role.ASSISTANT, Role.TOOL):
            out.append(Message(Role.USER, CONTINUED))
        elif profile.strict_alternation and last is not None:
            if message.role is last.role is Role.USER:
                out[-1] = Message(Role.USER, f"{last.text}\n\n{message.text}")
                continue
            if message.role is Role.USER and last.role is Role.TOOL:
                out.append(Message(Role.ASSISTANT, EMPTY_ASSISTANT_TEXT))
            if message.role is not Role.USER and last.role is Role.ASSISTANT and not last.calls:
                out.append(Message(Role.USER, CONTINUED))
        out.append(message)
    return out


# -- what servers make of the items of a Responses request, before a chat template sees it --------------------


def joined_by_llama(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """llama.cpp's server: what the assistant said, called and thought in a row is one message."""
    chat: list[dict[str, Any]] = []

    def assistant() -> dict[str, Any]:
        if not chat or chat[-1]["role"] != "assistant":
            chat.append({"role": "assistant", "texts": [], "calls": []})
        return chat[-1]

    for item in items:
        match item["type"]:
            case "message" if item["role"] == "assistant":
                assistant()["texts"] += [part["text"] for part in item["content"]]
            case "message":
                chat.append({"role": item["role"], "texts": [item["content"]], "calls": []})
            case "function_call":
                assistant()["calls"].append(item["call_id"])
            case "function_call_output":
                chat.append({"role": "tool", "texts": [item["output"]], "calls": []})
            case "reasoning":
                assistant()
    return chat


def joined_by_vllm(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """vLLM's server: one text and one thought a message; calls join the assistant's message before them."""
    chat: list[dict[str, Any]] = []
    for item in items:
        last = chat[-1] if chat and chat[-1]["role"] == "assistant" else None
        match item["type"]:
            case "message" if item["role"] == "assistant":
                text = item["content"][0]["text"]
                if last is None or last["texts"]:
                    chat.append({"role": "assistant", "texts": [text], "calls": []})
                else:
                    last["texts"] = [text]
            case "message":
                chat.append({"role": item["role"], "texts": [item["content"]], "calls": []})
            case "function_call" if last is not None:
                last["calls"].append(item["call_id"])
            case "function_call":
                chat.append({"role": "assistant", "texts": [], "calls": [item["call_id"]]})
            case "function_call_output":
                chat.append({"role": "tool", "texts": [item["output"]], "calls": []})
            case "reasoning" if last is None or last.get("thought"):
                chat.append({"role": "assistant", "texts": [], "calls": [], "thought": True})
            case "reasoning":
                assert last is not None
                last["thought"] = True
    return chat


def as_they_stand(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Chat completions: nothing is made of them."""
    return [
        {
            "role": one["role"],
            "texts": [one["content"]] if one["content"] is not None else [],
            "calls": [call["id"] for call in one.get("tool_calls", ())],
        }
        for one in messages
    ]


# Server → its protocol, what it makes of the list of messages, the profile of such a server.
SERVERS: dict[str, tuple[str, Callable[[list[dict[str, Any]]], list[dict[str, Any]]], Profile]] = {
    "chat": ("openai-chat", as_they_stand, STRICT),
    "llama.cpp": ("openai-responses", joined_by_llama, PROFILES["llama-cpp"]),
    "vLLM": ("openai-responses", joined_by_vllm, STRICT),
}


@each_protocol
def test_a_conversation_for_a_strict_provider_is_the_golden_body(protocol: str) -> None:
    body = body_of(adapter_of(protocol, STRICT), CONVERSATION)
    assert body + b"\n" == (GOLDEN / PROTOCOLS[protocol][1] / "strict_body.json").read_bytes()


@pytest.mark.parametrize("server", SERVERS)
def test_a_strict_server_sees_user_and_assistant_alternate_and_every_word_of_the_user_whole(server: str) -> None:
    protocol, joined, profile = SERVERS[server]
    seen = joined(json.loads(body_of(adapter_of(protocol, profile), CONVERSATION))[PROTOCOLS[protocol][0]])
    assert [(one["role"], *one["texts"]) for one in seen] == [
        ("system", "Be brief."),
        ("user", CONTINUED),
        ("assistant", "Earlier, in short."),
        ("user", 'One\n\nand "two"\n\n[agentloom] [run 1 ended: failed]'),
        ("assistant",),
        ("tool", "1"),
        ("tool", "2"),
        ("assistant", EMPTY_ASSISTANT_TEXT),
        ("user", "Faster!"),
        ("assistant", "Done."),
        ("user", CONTINUED),
        ("assistant", "Really."),
        ("user", "Thanks"),
    ]


ends = ['","role":"user"}', '"role":"assistant","type":"message"}', '{"content":"', "]}", "\n\n", CONTINUED, "\ud800"]
text = st.text(max_size=8) | st.sampled_from(ends)
ids = st.sampled_from(['x","role":"user', 'x","type":"function_call', "c"])
calls = st.lists(st.builds(MessageCall, ids, text, text), min_size=1, max_size=2)
# One thought leads to what a server of an open model says: it gives one item of it.
thoughts = st.lists(
    st.builds(ReasoningItem, st.just("rs"), content=st.tuples(text), before_call=st.sampled_from([None, 0])), max_size=1
).map(tuple)
users = st.builds(Message, st.just(Role.USER), text)
notes = st.builds(note, text)
answers = st.builds(Message, st.just(Role.ASSISTANT), text, reasoning=text, reasoning_items=thoughts)
exchanges = st.builds(
    lambda said, made, thought, results: [
        Message(Role.ASSISTANT, said, tuple(made), reasoning_items=thought),
        *(Message(Role.TOOL, results, wire_id=call.wire_id) for call in made),
    ],
    st.just("") | text,
    calls,
    thoughts,
    text,
)
conversations = st.lists(st.builds(lambda one: [one], users | notes | answers) | exchanges, max_size=8).map(
    lambda parts: [message for part in parts for message in part]
)


@each_protocol
@settings(max_examples=300, deadline=None, derandomize=True)
@given(conversations, st.booleans(), st.sampled_from(sorted(ORDERS)))
@example([Message(Role.ASSISTANT, "a")], False, "vllm")
def test_the_join_of_fragments_is_the_adapted_conversation_and_its_size_is_exact(
    protocol: str, conversation: list[Message], prompted: bool, name: str
) -> None:
    profile = ORDERS[name]
    adapter = adapter_of(protocol, profile)
    messages = ([prompt_message("p")] if prompted else []) + conversation
    view = view_of(adapter, messages)
    framed = adapter.frame_body(PARAMETERS, view, b"")
    body, expected = framed.join(), adapted(profile, messages)
    listed = json.loads(b"[" + b",".join(adapter.encode_message(message) for message in expected) + b"]")
    whole = {**json.loads(adapter.encode_parameters(PARAMETERS)), PROTOCOLS[protocol][0]: listed}
    assert body == canonical_bytes(whole)
    assert framed.size_bytes == len(body)
    assert estimate_tokens(adapter, PARAMETERS, b"", view, 0) == utf8_envelope_tokens(len(body), len(expected), 0)
    assert break_down(adapter, PARAMETERS, b"", view, 0).total == utf8_envelope_tokens(len(body), len(expected), 0)
    if profile.strict_alternation:
        assert all((a.role, b.role) != (Role.USER, Role.USER) for a, b in pairwise(expected))


def is_told(texts: list[str], said: list[str]) -> bool:
    """Whether these texts are what was said, in its order, each one or several of it, and the order's own words."""
    if not texts:
        return not said
    if texts[0] == CONTINUED and is_told(texts[1:], said):
        return True
    return any(
        texts[0] == "\n\n".join(said[:count]) and is_told(texts[1:], said[count:]) for count in range(1, len(said) + 1)
    )


@pytest.mark.parametrize("server", SERVERS)
@settings(max_examples=300, deadline=None, derandomize=True)
@given(conversations)
def test_any_history_comes_to_a_strict_server_in_its_order_and_with_every_word(
    server: str, conversation: list[Message]
) -> None:
    protocol, joined, profile = SERVERS[server]
    body = body_of(adapter_of(protocol, profile), [prompt_message("p"), *conversation])
    seen = joined(json.loads(body)[PROTOCOLS[protocol][0]])
    assert [one["role"] for one in seen].count("system") == 1 and seen[0]["role"] == "system"
    spoken = [
        one["role"] for one in seen[1:] if one["role"] == "user" or (one["role"] == "assistant" and not one["calls"])
    ]
    assert all(a != b for a, b in pairwise(spoken))
    assert len(seen) == 1 or seen[1]["role"] == "user"
    # Whatever the user and the runtime said, whole and in its order; nothing else but what the order put there.
    said = [
        effective_text((NOTE_LABEL if one.note else "") + one.text)[0]
        for one in conversation
        if one.note or one.role is Role.USER
    ]
    assert is_told([one["texts"][0] for one in seen if one["role"] == "user"], said)
    # What was said in one breath with calls is together, and nothing else is with them.
    assert [(one["texts"], one["calls"]) for one in seen if one["calls"]] == [
        (
            [effective_text(one.text)[0]] if one.text.strip() else [],
            [effective_text(call.wire_id)[0] for call in one.calls],
        )
        for one in conversation
        if one.calls
    ]


def _thought(number: int, *texts: str, summary: str = "") -> str:
    content = [{"type": "reasoning_text", "text": text} for text in texts]
    summaries = [{"type": "summary_text", "text": summary}] if summary else []
    return closed(number, type="reasoning", id=f"rs_{number}", summary=summaries, content=content)


SAID = closed(2, type="message", content=[{"type": "output_text", "text": "I look."}])
CALLED = closed(4, type="function_call", call_id="a", name="look", arguments="{}")


@pytest.mark.parametrize(
    ("events", "thought"),
    [
        ((_thought(0, "one"), _thought(1, "two"), SAID, CALLED), "one\n\ntwo"),
        ((_thought(0, "one"), SAID, _thought(3, "two"), CALLED), "one\n\ntwo"),
        ((_thought(0, "one", "two"), SAID, CALLED), "one\n\ntwo"),
        ((_thought(0, "one"), _thought(1, summary="in short"), SAID, CALLED), "one\n\nin short"),
        ((_thought(0, "one"), _thought(1), SAID, CALLED), "one"),
        ((_thought(0, "one"), SAID, CALLED), "one"),
    ],
)
def test_S07_all_that_vllm_thought_for_one_message_comes_back_to_it_as_one_thought(
    events: tuple[str, ...], thought: str
) -> None:
    assembly = ResponsesAssembly(PROFILES["vllm"])
    for one in (*events, ended("completed")):
        assembly.apply_payload(one.partition("data: ")[2])
    response = assembly.response(request_id=None, transport_sha256="", transport_bytes=0)
    message, _ = assistant_message(response, [UUID(int=1)])
    adapter = adapter_of("openai-responses", PROFILES["vllm"])
    result = Message(Role.TOOL, "1", wire_id="a")
    sent = json.loads(body_of(adapter, [prompt_message("p"), Message(Role.USER, "Look"), message, result]))["input"]
    # It reads the first text of an item, and a second item would begin another message of the assistant.
    assert [(one["role"], one["texts"], one["calls"]) for one in joined_by_vllm(sent)] == [
        ("system", ["p"], []),
        ("user", ["Look"], []),
        ("assistant", ["I look."], ["a"]),
        ("tool", ["1"], []),
    ]
    assert [item["content"][0]["text"] for item in sent if item["type"] == "reasoning"] == [thought]


def test_S07_what_is_sealed_is_never_joined() -> None:
    profile = Profile(
        "sealing", 1, mid_system=False, strict_alternation=True, encrypted_reasoning=True,
        reasoning_replay=ReasoningReplay.ALWAYS,
    )  # fmt: skip
    assembly = ResponsesAssembly(profile)
    sealed = (closed(number, type="reasoning", id=f"rs_{number}", encrypted_content=f"s{number}") for number in (0, 1))
    for one in (*sealed, SAID, ended("completed")):
        assembly.apply_payload(one.partition("data: ")[2])
    items = assembly.response(request_id=None, transport_sha256="", transport_bytes=0).reasoning_items
    assert [(item.item_id, item.encrypted) for item in items] == [("rs_0", "s0"), ("rs_1", "s1")]


@each_protocol
@settings(max_examples=50, deadline=None, derandomize=True)
@given(conversations, st.integers(0, 8))
def test_a_view_that_grows_in_parts_has_the_same_seams(protocol: str, conversation: list[Message], cut: int) -> None:
    adapter = adapter_of(protocol, STRICT)
    fragments = [adapter.encode_message(message) for message in conversation]
    once = View(seam=adapter.seam).extend(fragments)
    parts = View(seam=adapter.seam).extend(fragments[:cut]).extend(fragments[cut:])
    assert (parts.joined_bytes, parts.message_count, parts.chain) == (once.joined_bytes, once.message_count, once.chain)


@each_protocol
def test_neither_fragments_nor_their_chain_depend_on_seams(protocol: str) -> None:
    free = Profile("free", 1, mid_system=False, reasoning_field=STRICT.reasoning_field)
    strict = Profile("strict", 1, mid_system=False, strict_alternation=True, first_must_be_user=True)
    views = [view_of(adapter_of(protocol, profile), CONVERSATION) for profile in (free, strict)]
    assert views[0].fragments() == views[1].fragments() and views[0].chain == views[1].chain
    assert views[0].joined_bytes != views[1].joined_bytes


@each_protocol
def test_a_seam_is_asked_for_once_a_new_message_however_long_the_history_is(protocol: str) -> None:
    adapter = adapter_of(protocol, STRICT)
    assert adapter.seam is not None
    asked: list[tuple[bytes, bytes]] = []

    def counting(before: bytes, after: bytes) -> Seam:
        asked.append((before, after))
        assert adapter.seam is not None
        return adapter.seam(before, after)

    fragments = [adapter.encode_message(message) for message in CONVERSATION] * 50
    view = View(seam=counting).extend(fragments)
    asked.clear()
    grown = view.extend(fragments[1:3])
    assert asked == [(fragments[-1], fragments[1]), (fragments[1], fragments[2])]
    asked.clear()
    assert grown.joined_bytes and grown.message_count and asked == []


@each_protocol
@pytest.mark.parametrize("flag", ["strict_alternation", "first_must_be_user"])
def test_an_order_with_system_messages_in_the_middle_is_refused(protocol: str, flag: str) -> None:
    with pytest.raises(RunError) as caught:
        adapter_of(protocol, Profile("p", 1, **{flag: True}))
    assert caught.value.code is Code.MODEL_FEATURE_UNSUPPORTED


def test_fragments_are_joined_as_their_seams_say() -> None:
    merge, start = Seam(1, b"-", 1, -1), Seam(between=b"")
    assert (
        b"".join(join_fragments([b"[a]", b"[b]", b"[c]"], lambda before, _: merge if before else start)) == b"[a-b-c]"
    )
    assert b"".join(join_fragments([], lambda *_: merge)) == b""
