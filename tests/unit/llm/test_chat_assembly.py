from typing import Any

import pytest

from agentloom_worker import limits
from agentloom_worker.domain.model import FirstOutputKind, ModelResponse, RequestParameters, Usage
from agentloom_worker.llm.assembly import ModelProtocolError, ProviderReportedError
from agentloom_worker.llm.chat_assembly import ChatAssembly
from agentloom_worker.llm.profiles import PROFILES, Ending, ErrorClass, Profile

GENERIC = Profile("generic", 1)
REOPENING = Profile("reopening", 1, new_id_opens_call=True)


def frame(finish_reason: str | None = None, **delta: object) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def calls(*fragments: dict[str, Any]) -> dict[str, Any]:
    return frame(tool_calls=list(fragments))


def fragment(
    index: int | None, call_id: str | None = None, name: str | None = None, arguments: object = None
) -> dict[str, Any]:
    return {"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}


def assemble(*frames: dict[str, Any], profile: Profile = GENERIC) -> ModelResponse:
    assembly = ChatAssembly(profile)
    for item in frames:
        assembly.apply_frame(item)
    return assembly.response(request_id=None, transport_sha256="", transport_bytes=0)


def given(response: ModelResponse) -> list[tuple[str | None, str, str]]:
    return [(call.provider_call_id, call.name, call.arguments_text) for call in response.calls]


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        (frame(role="assistant"), None),
        (frame(content=""), None),
        (frame(content=None), None),
        (frame("stop"), None),
        ({"choices": [], "usage": {"prompt_tokens": 1}}, None),
        ({}, None),
        (calls(fragment(0, "a", "", "")), None),
        (frame(content=" "), FirstOutputKind.TEXT),
        (frame(refusal="no"), FirstOutputKind.TEXT),
        (frame(reasoning_content="so"), FirstOutputKind.REASONING),
        (frame(reasoning="so"), FirstOutputKind.REASONING),
        (calls(fragment(0, "a", "add", "")), FirstOutputKind.TOOL_NAME),
        (calls(fragment(0, "a", None, "{")), FirstOutputKind.TOOL_ARGUMENTS),
    ],
)
def test_only_effective_output_counts_as_first_output(item: dict[str, Any], kind: FirstOutputKind | None) -> None:
    assert ChatAssembly(GENERIC).apply_frame(item) == kind


def test_S04_interleaved_indexes_stay_apart_and_keep_their_order() -> None:
    response = assemble(
        calls(fragment(1, "b", "sub")),
        calls(fragment(0, "a", "add")),
        calls(fragment(1, None, None, '{"y":'), fragment(0, None, None, "{}")),
        calls(fragment(1, None, None, "2}")),
        frame("tool_calls"),
    )
    assert given(response) == [("b", "sub", '{"y":2}'), ("a", "add", "{}")]
    assert [call.ordinal for call in response.calls] == [0, 1]


def test_S04_a_second_id_on_a_used_index_is_an_error() -> None:
    with pytest.raises(ModelProtocolError):
        assemble(calls(fragment(0, "a", "add", "{}")), calls(fragment(0, "b", "sub", "{}")))


def test_S04_a_profile_may_open_a_new_call_for_a_new_id() -> None:
    frames = (
        calls(fragment(0, "a", "add", "{}")),
        calls(fragment(0, "b", "sub", "{")),
        calls(fragment(0, None, None, "}")),
    )
    assert given(assemble(*frames, profile=REOPENING)) == [("a", "add", "{}"), ("b", "sub", "{}")]


def test_S04_a_fragment_for_a_closed_call_is_an_error_in_that_profile_too() -> None:
    with pytest.raises(ModelProtocolError, match="closed"):
        assemble(
            calls(fragment(0, "a", "add", "{")),
            calls(fragment(0, "b", "sub", "{}")),
            calls(fragment(0, "a", None, "}")),
            profile=REOPENING,
        )


@pytest.mark.parametrize(
    "late",
    [frame(content="x"), frame(reasoning="x"), frame(refusal="x"), calls(fragment(0, None, None, "}"))],
)
def test_S04_output_after_the_finish_reason_is_an_error(late: dict[str, Any]) -> None:
    with pytest.raises(ModelProtocolError, match="after"):
        assemble(calls(fragment(0, "a", "add", "{")), frame("tool_calls"), late)


def test_S04_names_are_not_joined() -> None:
    assert given(assemble(calls(fragment(0, "a", "add")), calls(fragment(0, "a", "add", "{}")))) == [("a", "add", "{}")]
    with pytest.raises(ModelProtocolError, match="names"):
        assemble(calls(fragment(0, "a", "add")), calls(fragment(0, None, "sub")))


@pytest.mark.parametrize(
    "fragments",
    [
        [fragment(0, None, "add", '{"x":1}'), fragment(0, None, "add", '{"x":2}')],
        [fragment(0, None, "add", '{"x":1}'), fragment(0, None, "add", '{"x":'), fragment(0, None, "add", "2}")],
        [fragment(0, None, "add", '{"x":'), fragment(0, None, None, "1}"), fragment(0, None, "add", "{}")],
        [fragment(0, None, "add", '{"x":1}\n'), fragment(0, None, "add", ' {"x":2'), fragment(0, None, None, "}")],
        [fragment(0, None, "add", {"x": 1}), fragment(0, None, "add", {"x": 2})],
        [fragment(0, None, "add", {}), fragment(0, None, "add", {})],
        # One id for two calls tells as little.
        [fragment(0, "a", "add", "{}"), fragment(0, "a", "add", "{}")],
        # A second call without arguments, or the name once more? Nobody can tell.
        [fragment(0, None, "add", "{}"), fragment(0, None, "add", "")],
        [fragment(0, None, "add", ""), fragment(0, None, "add")],
    ],
)
@pytest.mark.parametrize("profile", [GENERIC, REOPENING], ids=["generic", "reopening"])
@pytest.mark.parametrize("finish_reason", ["tool_calls", "length"])
def test_S04_two_calls_of_one_name_without_ids_are_never_joined(
    fragments: list[dict[str, Any]], profile: Profile, finish_reason: str
) -> None:
    with pytest.raises(ModelProtocolError, match="tool call 0 is named again behind its whole arguments"):
        assemble(*(calls(one) for one in fragments), frame(finish_reason), profile=profile)


@pytest.mark.parametrize(
    ("fragments", "arguments"),
    [
        (['{"x"', ':"{', "}", '"}'], '{"x":"{}"}'),
        (["", "{", "}"], "{}"),
        (["{", "", "}"], "{}"),
        (['{"x":', "1", "2}"], '{"x":12}'),
        # Broken by the model, not by a second call: the model is told (CASES W05).
        (['{"x":', "1}}"], '{"x":1}}'),
        (['{"x":', "1"], '{"x":1'),
    ],
)
@pytest.mark.parametrize("call_id", [None, "a"])
def test_S04_a_name_that_comes_with_each_fragment_of_a_call_is_one_call(
    fragments: list[str], arguments: str, call_id: str | None
) -> None:
    frames = [calls(fragment(0, call_id, "add", part)) for part in fragments]
    assert given(assemble(*frames, frame("tool_calls"))) == [(call_id, "add", arguments)]


def test_S04_a_call_that_is_named_by_its_id_once_more_is_the_same_call() -> None:
    frames = calls(fragment(0, "a", "add", "{}")), calls(fragment(0, "a", "add", "")), frame("tool_calls")
    assert given(assemble(*frames)) == [("a", "add", "{}")]
    frames = calls(fragment(0, "a", "now", "")), calls(fragment(0, "a", "now")), frame("tool_calls")
    assert given(assemble(*frames)) == [("a", "now", "")]


def test_W03_equal_provider_ids_on_two_indexes_are_two_calls() -> None:
    response = assemble(calls(fragment(0, "f", "f", "{}"), fragment(1, "f", "f", '{"x":1}')))
    assert given(response) == [("f", "f", "{}"), ("f", "f", '{"x":1}')]


def test_W03_equal_provider_ids_without_indexes_are_two_calls() -> None:
    response = assemble(calls(fragment(None, "f", "f", "{}")), calls(fragment(None, "f", "f", '{"x":1}')))
    assert given(response) == [("f", "f", "{}"), ("f", "f", '{"x":1}')]


def test_a_call_without_index_goes_on_by_its_id() -> None:
    response = assemble(calls(fragment(None, "a", "add", "{")), calls(fragment(None, "a", None, "}")))
    assert given(response) == [("a", "add", "{}")]


@pytest.mark.parametrize(
    "item",
    [
        calls(fragment(None, None, "add", "{}")),
        calls(fragment(0, "a", None, "{}")),
        calls({"index": "0", "id": "a", "function": {"name": "add"}}),
        calls({"index": 0, "id": 7, "function": {"name": "add"}}),
        calls({"index": 0, "id": "a", "function": "add"}),
        calls(fragment(0, "a", "add", [])),
        calls(fragment(0, "a", "add", 0)),
        calls(fragment(0, "a", "add", False)),
        frame(tool_calls="add"),
        frame(content=["parts"]),
        frame(function_call={"name": "add"}),
        {"choices": "none"},
        {"choices": [None]},
        {"choices": [{"delta": "text"}]},
        {"choices": [{"delta": {}, "finish_reason": 3}]},
        calls(*(fragment(n, None, "add", "{}") for n in range(limits.CALLS_PER_MESSAGE_MAX + 1))),
    ],
)
def test_frames_that_cannot_be_read_are_protocol_errors(item: dict[str, Any]) -> None:
    with pytest.raises(ModelProtocolError):
        assemble(item)


def test_a_parsed_object_as_arguments_becomes_its_text() -> None:
    assert given(assemble(calls(fragment(0, "a", "add", {"x": 1})))) == [("a", "add", '{"x":1}')]


@pytest.mark.parametrize("reason", ["insufficient_system_resource", "network_error", "sensitive", "error", "STOP"])
def test_S02_a_finish_reason_that_proves_no_end_is_no_answer(reason: str) -> None:
    """A provider says so of an interruption: text is none, and a call may be half of one."""
    for said in (frame(content="The total is 1"), calls(fragment(0, "a", "echo", "{}"))):
        with pytest.raises(ModelProtocolError, match=f"the finish reason is {reason}:"):
            assemble(said, frame(reason))


def test_an_empty_finish_reason_says_nothing_wherever_it_stands() -> None:
    empty = frame("", content="")
    assert assemble(empty, frame("", content="x"), frame("length"), empty).finish_reason == "length"
    with pytest.raises(ModelProtocolError, match="two different finish reasons"):
        assemble(frame("stop"), empty, frame("length"))


def test_S06_a_filter_that_speaks_up_behind_the_end_blocks_what_was_said() -> None:
    """Azure's asynchronous filter: what it found comes in a frame of its own, without a delta."""
    blocked = {"choices": [{"index": 0, "finish_reason": "content_filter", "content_filter_results": {}}]}
    for ending in ("stop", "tool_calls", "length", "content_filter"):
        assert assemble(frame(content="x"), frame(ending), blocked).finish_reason == "content_filter"
    with pytest.raises(ModelProtocolError, match="two different finish reasons"):
        assemble(frame(content="x"), blocked, frame("stop"))


def test_S02_a_finish_reason_is_quoted_as_a_word_only() -> None:
    with pytest.raises(ModelProtocolError, match="of another form"):
        assemble(frame(content="x"), frame("the key is sk-1 2"))


def test_S03_an_error_is_reported_wherever_it_stands() -> None:
    for item in (
        {"error": {"code": None}},
        {"choices": [], "error": "x"},
        {"object": "error", "message": "x"},
        {"choices": [{"index": 0, "delta": {}, "error": {"code": 502}, "finish_reason": "error"}]},
    ):
        with pytest.raises(ProviderReportedError):
            assemble(item)


WORDS = Profile(
    "words",
    1,
    finish_reasons={"max_len": Ending.LENGTH, "blocked": Ending.CONTENT_FILTER, "lost": ErrorClass.TRANSPORT},
)


@pytest.mark.parametrize(("reason", "ending"), [("max_len", "length"), ("blocked", "content_filter"), ("stop", "stop")])
def test_S08_a_providers_own_word_for_an_ending_is_that_ending(reason: str, ending: str) -> None:
    assert assemble(frame(content="x"), frame(reason), profile=WORDS).finish_reason == ending
    whole = ChatAssembly(WORDS)
    whole.apply_document({"choices": [{"message": {"content": "x"}, "finish_reason": reason}]})
    assert whole.response(request_id=None, transport_sha256="", transport_bytes=0).finish_reason == ending
    with pytest.raises(ModelProtocolError, match="the finish reason is of_nobody"):
        assemble(frame(content="x"), frame("of_nobody"), profile=WORDS)


def test_S03_a_providers_own_word_for_an_interruption_is_an_error_and_what_had_come_is_partial() -> None:
    said = calls(fragment(0, "a", "add", "{}"))
    assembly = ChatAssembly(WORDS)
    assembly.apply_frame(said)
    with pytest.raises(ProviderReportedError) as caught:
        assembly.apply_frame(frame("lost", content="half"))
    assert (caught.value.error, caught.value.known) == (
        {"message": "the finish reason is lost"},
        ErrorClass.TRANSPORT,
    )
    partial = assembly.partial()
    assert (partial.text, [call.name for call in partial.calls]) == ("half", ["add"])
    message = {"content": "half", "tool_calls": said["choices"][0]["delta"]["tool_calls"]}
    with pytest.raises(ProviderReportedError):
        ChatAssembly(WORDS).apply_document({"choices": [{"message": message, "finish_reason": "lost"}]})


def test_S03_an_error_of_a_choice_is_reported_with_its_codes_and_before_its_finish_reason() -> None:
    error = {"code": 429, "message": "slow down"}
    assembly = ChatAssembly(PROFILES["openrouter"])
    with pytest.raises(ProviderReportedError) as caught:
        assembly.apply_frame(
            {"choices": [{"index": 0, "delta": {"content": "so"}, "error": error, "finish_reason": "error"}]}
        )
    assert (caught.value.error, caught.value.known, assembly.partial().text) == (error, None, "so")
    other = {"choices": [{"index": 1, "delta": {}, "error": error}]}
    assert ChatAssembly(PROFILES["openrouter"]).apply_frame(other) is None


def test_S07_reasoning_stays_apart_and_is_not_doubled() -> None:
    response = assemble(frame(reasoning_content="a", reasoning="a"), frame(reasoning="b"), frame(content="c"))
    assert (response.reasoning, response.text) == ("ab", "c")


def test_a_surrogate_pair_cut_between_two_deltas_becomes_one_character() -> None:
    assert assemble(frame(content="x\ud83d"), frame(content="\ude00y")).text == "x😀y"
    assert assemble(frame(content="x\ud83dy")).text == "x\ud83dy"


def test_S08_calls_that_are_announced_and_missing_are_no_answer() -> None:
    with pytest.raises(ModelProtocolError, match="the finish reason is tool_calls, and there is no call"):
        given(assemble(frame(content="Let me look."), frame("tool_calls")))


def whole(finish_reason: str | None = "tool_calls", **message: object) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}]}


def test_S10_a_whole_completion_as_an_event_is_the_answer_unless_it_was_streamed() -> None:
    made = [{"id": name, "function": {"name": "add", "arguments": "{}"}} for name in ("a", "b")]
    response = assemble(frame(role="assistant"), whole(content="x", tool_calls=made))
    assert (response.text, given(response)) == ("x", [("a", "add", "{}"), ("b", "add", "{}")])
    assert assemble(whole("stop", content="x")).text == "x"
    assert assemble(frame(content="x"), whole("stop", content="x")).text == "x", "MiniMax says it all again"
    assert assemble(whole(None, content=""), frame(content="x"), frame("stop")).text == "x"
    # Whether such pieces are parts of the answer or the answer so far, nobody says.
    for piece in ({"content": "x"}, {"tool_calls": made}, {"reasoning": "x"}, {"refusal": "x"}):
        with pytest.raises(ModelProtocolError, match="a message in place of a delta"):
            assemble(whole(None, **piece), whole("stop", **piece))


def test_other_choices_are_not_merged() -> None:
    assert assemble(frame(content="a"), {"choices": [{"index": 1, "delta": {"content": "b"}}]}).text == "a"


def test_the_last_usage_stands() -> None:
    response = assemble(
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None}},
        {"choices": [], "usage": None},
    )
    assert response.usage == Usage(5, 2, 0)


COUNTS = {"prompt_tokens": 9, "completion_tokens": 5}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (COUNTS, Usage(9, 5)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, Usage(0, 0)),
        ({**COUNTS, "prompt_tokens_details": {"cached_tokens": "4"}}, Usage(9, 5)),
        ({}, None),
        ({"prompt_tokens": 9}, None),
        ({"completion_tokens": 5}, None),
        ({"total_tokens": 14}, None),
        ({**COUNTS, "completion_tokens": None}, None),
        ({**COUNTS, "prompt_tokens": "9"}, None),
        (None, None),
    ],
)
def test_counts_that_a_provider_does_not_tell_are_no_zeros(usage: object, expected: Usage | None) -> None:
    assert assemble(frame("stop"), {"choices": [], "usage": usage}).usage == expected


def test_counts_may_stand_in_the_choice_and_without_details() -> None:
    """As Moonshot sends them, with its last delta."""
    last = frame("stop")
    last["choices"][0]["usage"] = {**COUNTS, "total_tokens": 14, "cached_tokens": 8}
    assert assemble(frame(content="x"), last).usage == Usage(9, 5, 8)
    assert assemble(last, {"choices": [], "usage": {**COUNTS, "completion_tokens": 6}}).usage == Usage(9, 6)
    detailed = {**COUNTS, "cached_tokens": 8, "prompt_tokens_details": {"cached_tokens": 3}}
    assert assemble(frame("stop"), {"choices": [], "usage": detailed}).usage == Usage(9, 5, 3)


def test_counts_that_were_told_stand_beside_a_later_usage_without_any() -> None:
    assert assemble({**frame("stop"), "usage": COUNTS}, {"choices": [], "usage": {}}).usage == Usage(9, 5)


@pytest.mark.parametrize(
    ("said", "expected"),
    [(["m-2026-01-01"], "m-2026-01-01"), (["m"], None), (["", None, 7], None), (["m-2", ""], "m-2"), ([], None)],
)
def test_a_model_of_another_name_than_was_asked_for_is_kept(said: list[object], expected: str | None) -> None:
    assembly = ChatAssembly(GENERIC, RequestParameters("m", 10))
    for name in said:
        assembly.apply_frame({**frame(content="x"), "model": name})
    assembly.apply_frame(frame("stop"))
    found = assembly.response(request_id=None, transport_sha256="", transport_bytes=0)
    assert found.served_model == expected


@pytest.mark.parametrize(("name", "value"), [("images", [{"type": "image_url"}]), ("audio", {"data": "UklGRg=="})])
def test_an_answer_of_another_kind_than_text_is_not_taken_for_an_empty_one(name: str, value: object) -> None:
    """Images as gateways give them: https://openrouter.ai/docs/features/multimodal/image-generation."""
    with pytest.raises(ModelProtocolError, match=f"the answer is made of {name}, which nobody here reads"):
        assemble(frame(content=""), frame(**{name: value}), frame("stop"))
    with pytest.raises(ModelProtocolError, match=f"the answer is made of {name}"):
        document = ChatAssembly(PROFILES["generic"])
        document.apply_document({"choices": [{"message": {"content": None, name: value}, "finish_reason": "stop"}]})
        document.response(request_id=None, transport_sha256="", transport_bytes=0)
    assert assemble(frame(content="Here:"), frame(**{name: value}), frame("stop")).text == "Here:"
    assert assemble(frame(**{name: None}), frame("stop")).text == ""
