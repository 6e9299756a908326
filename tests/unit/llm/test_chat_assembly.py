from typing import Any

import pytest

from agentloom_worker import limits
from agentloom_worker.domain.model import FirstOutputKind, ModelResponse, Usage
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


def test_other_choices_are_not_merged() -> None:
    assert assemble(frame(content="a"), {"choices": [{"index": 1, "delta": {"content": "b"}}]}).text == "a"


def test_the_last_usage_stands() -> None:
    response = assemble(
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None}},
        {"choices": [], "usage": None},
    )
    assert response.usage == Usage(5, 2, 0)
