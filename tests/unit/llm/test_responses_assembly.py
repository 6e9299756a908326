"""Frames of the Responses protocol, one by one: what they make, and what they must not."""

import json
from collections.abc import Iterable

import pytest

from agentloom_worker import limits
from agentloom_worker.domain.model import (
    FirstOutputKind,
    ModelResponse,
    ReasoningItem,
    RequestParameters,
    ResponseCall,
    Usage,
)
from agentloom_worker.llm.assembly import ModelProtocolError, ProviderReportedError
from agentloom_worker.llm.profiles import PROFILES, Profile, ReasoningReplay
from agentloom_worker.llm.responses_assembly import ResponsesAssembly
from tests.unit.llm import response_streams as streams
from tests.unit.llm.response_streams import arguments, call, closed, ended, event, message, opened, text

MESSAGE = opened(0, type="message")
CALL = opened(0, **call("a", "add", ""))
ARGUMENTS = "response.function_call_arguments"


def apply(assembly: ResponsesAssembly, *events: str) -> list[FirstOutputKind | None]:
    payloads = (line[6:] for one in events for line in one.split("\n") if line.startswith("data: "))
    return [assembly.apply_payload(payload) for payload in payloads]


def made(events: Iterable[str], profile: Profile = PROFILES["generic"]) -> ModelResponse:
    assembly = ResponsesAssembly(profile)
    apply(assembly, *events)
    assert assembly.complete
    return assembly.response(request_id=None, transport_sha256="", transport_bytes=0)


def refused(*events: str) -> str:
    with pytest.raises(ModelProtocolError) as caught:
        made(events)
    return str(caught.value)


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ((streams.CREATED,), None),
        ((event("response.in_progress", response={}),), None),
        ((event("response.queued", response={}),), None),
        ((event("keepalive"),), None),
        ((MESSAGE,), None),
        ((MESSAGE, text("")), None),
        ((MESSAGE, text("x")), FirstOutputKind.TEXT),
        ((opened(0, type="reasoning"),), None),
        ((CALL,), FirstOutputKind.TOOL_NAME),
        ((CALL, arguments("")), None),
        ((CALL, arguments("{")), FirstOutputKind.TOOL_ARGUMENTS),
        ((closed(0, **message("x")),), FirstOutputKind.TEXT),
        ((closed(0, type="reasoning", summary=[]),), None),
        ((ended("completed", message("x")),), FirstOutputKind.TEXT),
        ((ended("completed"),), None),
    ],
)
def test_C07_what_counts_as_output_of_responses(events: tuple[str, ...], kind: FirstOutputKind | None) -> None:
    assert apply(ResponsesAssembly(PROFILES["generic"]), *events)[-1] is kind


def test_S04_interleaved_items_stay_apart_and_keep_their_order() -> None:
    response = made(
        (
            opened(1, **call("b", "sub", "")),
            CALL,
            arguments('{"y":', 1),
            arguments('{"x":', 0),
            arguments("1}", 0),
            arguments("2}", 1),
            closed(1, **call("b", "sub", '{"y":2}')),
            closed(0, **call("a", "add", '{"x":1}')),
            ended("completed"),
        )
    )
    assert response.calls == (ResponseCall(0, "a", "add", '{"x":1}'), ResponseCall(1, "b", "sub", '{"y":2}'))


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ((CALL, CALL), "used by two items"),
        ((arguments("{"),), "was not opened"),
        ((text("x"),), "was not opened"),
        ((CALL, text("x")), "which is none"),
        ((CALL, closed(0, **call("a", "add", "{}")), arguments("{")), "is closed"),
        ((MESSAGE, text("x"), closed(0, **message("x")), text("y")), "is closed"),
        ((CALL, closed(0, **call("a", "add", "{}")), closed(0, **call("a", "add", "{}"))), "closed twice"),
        (
            (CALL, event("response.function_call_arguments.done", output_index=0, arguments="{}"), arguments("x")),
            "closed",
        ),
        ((CALL, arguments('{"x":1}'), closed(0, **call("a", "add", '{"x":2}'))), "other arguments"),
        ((CALL, closed(0, **call("a", "sub", "{}"))), "two names"),
        ((CALL, closed(0, **call("b", "add", "{}"))), "two ids"),
        ((CALL, closed(0, **message("x"))), "another kind"),
        ((MESSAGE, text("x"), closed(0, **message("y"))), "another text"),
        (
            (MESSAGE, text("x"), event("response.output_text.done", output_index=0, content_index=0, text="y")),
            "another text",
        ),
        ((opened(0, type="custom_tool_call", name="shell"),), "was not offered"),
        ((event("response.output_item.added", item={}),), "an event names no output item"),
        ((event("response.output_text.delta", item_id="msg_1", delta="x"),), "was not opened"),
        ((event("response.output_item.added", output_index="0", item={}),), "output_index is not a number"),
        ((event("response.output_item.added", output_index=0),), "item is not a JSON object"),
        ((event("response.output_text.delta", output_index=True, delta="x"),), "not a number"),
        (
            (MESSAGE, event("response.output_text.delta", output_index=0, content_index=0, delta=7)),
            "delta is not a text",
        ),
        ((event("response.completed"),), "response is not a JSON object"),
    ],
)
def test_S04_fragments_that_fit_nowhere_are_an_error(events: tuple[str, ...], problem: str) -> None:
    assert problem in refused(*events)


def test_S04_a_message_holds_a_bounded_number_of_calls_and_items() -> None:
    calls = [opened(number, **call(str(number), "add", "")) for number in range(limits.CALLS_PER_MESSAGE_MAX + 1)]
    assert "tool calls in one message" in refused(*calls)
    items = [opened(number, type="web_search_call") for number in range(limits.OUTPUT_ITEMS_MAX + 1)]
    assert "output items" in refused(*items)


def test_S08_an_unfinished_call_in_a_completed_answer_is_an_error() -> None:
    assert "before the end of an output item" in refused(CALL, arguments('{"x":1}'), ended("completed"))
    nameless = (opened(0, **call("a", "", "")), closed(0, **call("a", "", "{}")), ended("completed"))
    assert "has no name" in refused(*nameless)


def test_S09_the_final_frame_must_show_what_was_streamed() -> None:
    whole = (MESSAGE, text("x"), closed(0, **message("x")))
    assert made((*whole, ended("completed", message("x")))).text == "x"
    assert made((*whole, ended("completed"))).text == "x", "some servers leave the list empty"
    assert "another text" in refused(*whole, ended("completed", message("y")))
    assert "another text" in refused(*whole, ended("completed", call("a", "add", "{}")))
    one = (CALL, closed(0, **call("a", "add", "{}")))
    assert "other tool calls" in refused(*one, ended("completed", call("a", "add", '{"x":1}')))
    assert "other tool calls" in refused(*one, ended("completed", call("a", "add", "{}"), call("b", "add", "{}")))
    assert "other tool calls" in refused(*one, ended("completed", message("x")))
    for event_status, shown in (("completed", "in_progress"), ("completed", "failed"), ("incomplete", "completed")):
        end = event(f"response.{event_status}", response={"status": shown, "output": []})
        assert "another status" in refused(end)
    for same in (None, "completed"):
        assert made((*whole, event("response.completed", response={"status": same}))).finish_reason == "stop"


@pytest.mark.parametrize(("details", "reason"), [({"reason": "content_filter"}, "content_filter"), (None, "length")])
def test_S09_an_incomplete_response_is_truncated_whatever_its_event_is_called(details: object, reason: str) -> None:
    """LiteLLM's proxy ended all streams of the providers that it translates with `response.completed`."""
    shown = {"status": "incomplete", "incomplete_details": details, "output": [call("a", "add", "{}")]}
    response = made((CALL, arguments("{}"), event("response.completed", response=shown)))
    assert (response.finish_reason, response.calls) == (reason, (ResponseCall(0, "a", "add", "{}"),))


def test_S09_the_ids_of_calls_are_those_of_the_stream() -> None:
    """vLLM makes the list of its final frame anew, with other ids (https://github.com/vllm-project/vllm/pull/47916)."""
    two = [call("a", "add", '{"x":1}'), call("b", "add", '{"x":2}')]
    stream = [event for n, one in enumerate(two) for event in (opened(n, **{**one, "arguments": ""}), closed(n, **one))]
    shown = [{**one, "call_id": f"call_{n}", "id": f"fc_{n}"} for n, one in enumerate(two)]
    for final in (two, shown):
        assert [found.provider_call_id for found in made((*stream, ended("completed", *final))).calls] == ["a", "b"]
    assert "other tool calls" in refused(*stream, ended("completed", *reversed(shown)))
    assert "other tool calls" in refused(*stream, ended("completed", shown[0], {**shown[1], "name": "sub"}))
    assert "other tool calls" in refused(*stream, ended("completed", shown[0]))


def test_S09_blanks_around_words_make_no_other_text() -> None:
    """vLLM strips the text of its final frame beside calls (https://github.com/vllm-project/vllm/issues/49412)."""
    one = call("a", "add", "{}")
    stream = (MESSAGE, text("\n\nI look. "), closed(0, **message("\n\nI look. ")), opened(1, **one), closed(1, **one))
    response = made((*stream, ended("completed", message("I look."), one)))
    assert (response.text, len(response.calls)) == ("\n\nI look. ", 1)
    assert made((*stream[:2], ended("completed", message("I look.")))).text == "I look.", "the stream did not end it"
    more = (opened(2, type="message"), text("Wait.", 2), closed(2, **message("Wait.")))
    response = made((*stream, *more, ended("completed", message("I look."), one, message("Wait."))))
    assert response.text == "\n\nI look. Wait."
    assert "another text" in refused(*stream, ended("completed", message("I look again."), one))
    assert "another text" in refused(*stream, ended("completed", one))


def test_S09_what_only_the_final_frame_shows_is_taken_from_it() -> None:
    streamed = (MESSAGE, text("I look."), closed(0, **message("I look.")))
    response = made((*streamed, ended("completed", message("I look."), call("a", "add", "{}"))))
    assert (response.text, response.calls) == ("I look.", (ResponseCall(0, "a", "add", "{}"),))
    grown = made((MESSAGE, text("I lo"), ended("completed", message("I look."))))
    assert grown.text == "I look."
    assert "another text" in refused(MESSAGE, text("I lo"), ended("completed", message("You look.")))


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"reason": "max_output_tokens"}, "length"),
        ({"reason": "content_filter"}, "content_filter"),
        ({"reason": "of a later day"}, "length"),
        (None, "length"),
    ],
)
def test_S09_whatever_cuts_an_answer_off_it_is_truncated(details: object, reason: str) -> None:
    half = '{"x": [1,'
    response = made((CALL, arguments(half), ended("incomplete", incomplete_details=details)))
    # The runtime executes no call of an answer that ends so (CASES W06).
    assert (response.finish_reason, response.calls) == (reason, (ResponseCall(0, "a", "add", half),))


@pytest.mark.parametrize("shown", ["item", "final", "both"])
@pytest.mark.parametrize("status", ["incomplete", "in_progress"])
def test_W06_a_call_that_was_not_completed_makes_its_message_a_cut_one(status: str, shown: str) -> None:
    half = call("a", "add", "{}")
    done = closed(0, **half, **({"status": status} if shown != "final" else {}))
    final = {**half, "status": status} if shown != "item" else half
    response = made((CALL, arguments("{}"), done, ended("completed", final)))
    assert (response.finish_reason, response.calls) == ("length", (ResponseCall(0, "a", "add", "{}"),))


@pytest.mark.parametrize("status", ["incomplete", "in_progress"])
def test_W06_one_call_that_was_not_completed_is_enough(status: str) -> None:
    events = closed(0, **call("a", "add", "{}"), status="completed"), closed(1, **call("b", "add", "{}"), status=status)
    assert made((*events, ended("completed"))).finish_reason == "length"


def test_S09_a_message_that_was_not_completed_is_truncated() -> None:
    half = {**message("Half a"), "status": "incomplete"}
    assert made((MESSAGE, text("Half a"), closed(0, **half), ended("completed"))).finish_reason == "length"
    assert made((ended("completed", half),)).finish_reason == "length"
    assert made((ended("completed", {**message("Whole"), "status": "completed"}),)).finish_reason == "stop"
    assert made((ended("completed", {**message("Whole"), "status": None}),)).finish_reason == "stop"


def test_S09_an_item_that_was_not_completed_changes_no_other_reason() -> None:
    half = {**message("Half a"), "status": "incomplete"}
    filtered = ended("incomplete", half, incomplete_details={"reason": "content_filter"})
    assert made((MESSAGE, text("Half a"), closed(0, **half), filtered)).finish_reason == "content_filter"


def test_S09_a_failed_response_and_an_error_event_are_reported_with_their_codes() -> None:
    for one, expected in (
        (ended("failed", error={"code": "server_error", "message": "m"}), {"code": "server_error", "message": "m"}),
        (ended("failed", error=None), {}),
        (event("error", code="c", message="m", sequence_number=3), {"code": "c", "message": "m"}),
        (event("error", error={"code": "c"}), {"code": "c"}),
        ('data: {"error": {"code": "c"}}', {"code": "c"}),
        (event("invalid_request_error", error={"code": "c"}), {"code": "c"}),
        (event("response.error", error={"code": "c"}), {"code": "c"}),
        (
            event("BadRequestError", object="error", code=400, message="m"),
            {"type": "BadRequestError", "object": "error", "code": 400, "message": "m"},
        ),
        (ended("completed", message("x"), error={"code": "c"}), {"code": "c"}),
        (ended("incomplete", error={"code": "c"}), {"code": "c"}),
    ):
        with pytest.raises(ProviderReportedError) as caught:
            apply(ResponsesAssembly(PROFILES["generic"]), one)
        assert caught.value.error == expected


def test_items_that_the_provider_settles_itself_are_left_to_it() -> None:
    search = (opened(0, type="web_search_call"), closed(0, type="web_search_call", status="completed"))
    response = made((*search, opened(1, type="message"), text("x", 1), closed(1, **message("x")), ended("completed")))
    assert (response.text, response.calls) == ("x", ())


def test_arguments_that_a_server_sends_parsed_become_their_text() -> None:
    parsed = {"type": "function_call", "call_id": "a", "name": "add", "arguments": {"x": 1}}
    assert made((closed(0, **parsed), ended("completed"))).calls[0].arguments_text == '{"x":1}'


def test_a_surrogate_pair_that_is_cut_between_deltas_is_whole_again() -> None:
    halves = ["\ud83d", "\ude00"]
    events = [json.dumps({"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": half})
              for half in halves]  # fmt: skip
    assembly = ResponsesAssembly(PROFILES["generic"])
    apply(assembly, MESSAGE, *(f"data: {one}" for one in events), closed(0, **message("😀")), ended("completed"))
    assert assembly.partial().text == "😀"


def _unnumbered(kind: str, **fields: object) -> str:
    return event(f"response.{kind}", **fields)


# As llama.cpp's server writes it: no indexes, and calls without an id of their own.
UNNUMBERED = (
    _unnumbered("created", response={"id": "resp_1", "status": "in_progress"}),
    _unnumbered("output_item.added", item={"type": "reasoning", "id": "rs_1", "summary": []}),
    _unnumbered("reasoning_text.delta", item_id="rs_1", delta="so"),
    _unnumbered("output_item.added", item={"type": "message", "id": "msg_1", "role": "assistant", "content": []}),
    _unnumbered("content_part.added", item_id="msg_1", part={"type": "output_text", "text": ""}),
    _unnumbered("output_text.delta", item_id="msg_1", delta="I lo"),
    _unnumbered("output_text.delta", item_id="msg_1", delta="ok."),
    _unnumbered("output_item.added", item=call("fc_a", "add", "")),
    _unnumbered("function_call_arguments.delta", item_id="fc_a", delta='{"x":'),
    _unnumbered("output_item.added", item=call("fc_b", "sub", "")),
    _unnumbered("function_call_arguments.delta", item_id="fc_b", delta="{}"),
    _unnumbered("function_call_arguments.delta", item_id="fc_a", delta="1}"),
    _unnumbered("output_item.done", item={"type": "reasoning", "id": "rs_1", "content": [], "encrypted_content": ""}),
    _unnumbered("output_text.done", item_id="msg_1", text="I look."),
    _unnumbered("output_item.done", item={**message("I look."), "id": "msg_1"}),
    _unnumbered("output_item.done", item=call("fc_a", "add", '{"x":1}')),
    _unnumbered("output_item.done", item=call("fc_b", "sub", "{}")),
    ended(
        "completed",
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {**message("I look."), "id": "msg_1"},
        call("fc_a", "add", '{"x":1}'),
        call("fc_b", "sub", "{}"),
    ),
)


def test_S04_items_without_an_index_are_told_apart_by_their_ids() -> None:
    response = made(UNNUMBERED)
    assert (response.text, response.reasoning) == ("I look.", "so")
    assert response.calls == (ResponseCall(0, "fc_a", "add", '{"x":1}'), ResponseCall(1, "fc_b", "sub", "{}"))
    assert "used by two items" in refused(UNNUMBERED[7], UNNUMBERED[7])
    both = {**call("call_1", "add", ""), "id": "fc_1"}
    events = (
        _unnumbered("output_item.added", item=both),
        _unnumbered("function_call_arguments.delta", item_id="fc_1", delta="{}"),
        _unnumbered("output_item.done", item=call("call_1", "add", "{}")),
        ended("completed"),
    )
    assert made(events).calls == (ResponseCall(0, "call_1", "add", "{}"),)


REPLAYED = Profile("replaying", 1, reasoning_replay=ReasoningReplay.ALWAYS)
SEALED = Profile("sealed", 1, reasoning_replay=ReasoningReplay.ALWAYS, encrypted_reasoning=True)


def _thought(number: int, name: str) -> str:
    return closed(
        number,
        type="reasoning",
        id=name,
        summary=[{"type": "summary_text", "text": f"summary {name}"}],
        content=[{"type": "reasoning_text", "text": f"content {name}"}],
        encrypted_content=f"sealed {name}",
    )


THINKING = (
    _thought(0, "r0"),
    closed(1, **message("I look.")),
    _thought(2, "r1"),
    _thought(3, "r2"),
    closed(4, **call("a", "add", "{}")),
    closed(5, **call("b", "add", "{}")),
    _thought(6, "r3"),
    ended("completed"),
)


def test_S07_each_reasoning_item_is_kept_with_what_it_led_to() -> None:
    assert made(THINKING).reasoning_items == ()
    items = made(THINKING, REPLAYED).reasoning_items
    assert [(item.item_id, item.before_call) for item in items] == [("r0", None), ("r1", 0), ("r2", 0)]
    assert items[0] == ReasoningItem("r0", ("summary r0",), ("content r0",), "", None)
    sealed = made(THINKING, SEALED).reasoning_items
    assert sealed[0] == ReasoningItem("r0", ("summary r0",), (), "sealed r0", None)


TOLD = {"input_tokens": 9, "output_tokens": 5}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (TOLD, Usage(9, 5)),
        ({"input_tokens": 0, "output_tokens": 0}, Usage(0, 0)),
        ({**TOLD, "input_tokens_details": {"cached_tokens": None}, "output_tokens_details": None}, Usage(9, 5)),
        ({**TOLD, "input_tokens_details": {"cached_tokens": 4}}, Usage(9, 5, 4)),
        ({**TOLD, "output_tokens_details": {"reasoning_tokens": 3}}, Usage(9, 5, 0, 3)),
        ({}, None),
        ({"input_tokens": 9}, None),
        ({"output_tokens": 5}, None),
        ({**TOLD, "output_tokens": None}, None),
        ({**TOLD, "input_tokens": "9"}, None),
        ({**TOLD, "input_tokens": -1}, None),
        ({**TOLD, "output_tokens": True}, None),
        ({**TOLD, "output_tokens": 5.0}, None),
        ({**TOLD, "output_tokens": 2**53}, None),
        (None, None),
        ("9", None),
    ],
)
def test_counts_that_a_provider_does_not_tell_are_no_zeros(usage: object, expected: Usage | None) -> None:
    assert made((ended("completed", usage=usage),)).usage == expected


@pytest.mark.parametrize(
    ("said", "expected"), [("m-2026-01-01", "m-2026-01-01"), ("m", None), ("", None), (None, None), (7, None)]
)
def test_a_model_of_another_name_than_was_asked_for_is_kept(said: object, expected: str | None) -> None:
    for events in (
        (event("response.created", response={"id": "r", "model": said}), ended("completed")),
        (ended("completed", model=said),),
    ):
        assembly = ResponsesAssembly(PROFILES["generic"], RequestParameters("m", 10))
        apply(assembly, *events)
        found = assembly.response(request_id=None, transport_sha256="", transport_bytes=0)
        assert found.served_model == expected


@pytest.mark.parametrize(
    "item",
    [
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "iVBORw=="},
        {**message(""), "content": [{"type": "output_image", "image_url": "data:"}]},
    ],
)
def test_an_answer_of_another_kind_than_text_is_not_taken_for_an_empty_one(item: dict[str, object]) -> None:
    found = refused(opened(0, **item), closed(0, **item), ended("completed", item))
    assert found == "the answer is made of what nobody here reads, and of no text"
    beside = (closed(0, **item), closed(1, **message("Here.")), ended("completed", item, message("Here.")))
    assert made(beside).text == "Here."
