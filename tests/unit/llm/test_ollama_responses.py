"""The Responses events of Ollama: a call behind words takes their place, and all ends are called completed.

As https://github.com/ollama/ollama/blob/main/openai/responses.go writes them (processTextContent, processToolCalls,
processCompletion): what the first call of an answer is numbered counts the thoughts before it, and not its words.
"""

from typing import Any

import pytest

from agentloom_worker.domain.model import FirstOutputKind, ModelResponse, RequestParameters, ResponseCall
from agentloom_worker.llm.assembly import ModelProtocolError
from agentloom_worker.llm.profiles import PROFILES
from agentloom_worker.llm.responses_assembly import ResponsesAssembly
from agentloom_worker.llm.sse import SseParser
from tests.unit.llm.response_streams import CREATED, USAGE, call, closed, ended, event, message, opened

WORDS = {**message("I look."), "id": "msg_1", "status": "completed"}
CALLS = [{**call(f"call_{n}", "add", f'{{"x":{n}}}'), "id": f"fc_{n}", "status": "completed"} for n in range(2)]
THOUGHTS = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "so"}]}


def words(number: int) -> str:
    begun = opened(number, **{**WORDS, "status": "in_progress", "content": []})
    return begun + "".join(
        event("response.output_text.delta", item_id="msg_1", output_index=number, content_index=0, delta=delta)
        for delta in ("I ", "look.")
    )


def call_at(number: int, item: dict[str, Any]) -> str:
    place = {"item_id": item["id"], "output_index": number}
    return (
        opened(number, **{**item, "status": "in_progress", "arguments": ""})
        + event("response.function_call_arguments.delta", **place, delta=item["arguments"])
        + event("response.function_call_arguments.done", **place, arguments=item["arguments"])
        + closed(number, **item)
    )


def assembled(stream: str) -> ResponsesAssembly:
    assembly = ResponsesAssembly(PROFILES["ollama"], RequestParameters("m", 5))
    for payload in SseParser().feed(stream.encode()):
        assembly.apply_payload(payload)
    return assembly


def made(stream: str) -> ModelResponse:
    assembly = assembled(stream)
    assert assembly.complete
    return assembly.response(request_id=None, transport_sha256="", transport_bytes=0)


def refused(stream: str) -> str:
    with pytest.raises(ModelProtocolError) as caught:
        made(stream)
    return str(caught.value)


@pytest.mark.parametrize("listed", [[*CALLS, WORDS], [WORDS, *CALLS]])
def test_S04_a_call_that_takes_the_place_of_the_words_before_it_is_one_beside_them(listed: list[Any]) -> None:
    stream = CREATED + words(0) + call_at(0, CALLS[0]) + call_at(1, CALLS[1])
    response = made(stream + ended("completed", *listed))
    assert (response.text, response.finish_reason) == ("I look.", "tool_calls")
    assert response.calls == (ResponseCall(0, "call_0", "add", '{"x":0}'), ResponseCall(1, "call_1", "add", '{"x":1}'))
    partial = assembled(stream).partial()
    assert (partial.text, partial.calls) == (response.text, response.calls)


def test_S04_thoughts_before_the_words_keep_their_own_place() -> None:
    begun = opened(0, type="reasoning", id="rs_1", summary=[])
    thoughts = begun + event("response.reasoning_summary_text.delta", output_index=0, summary_index=0, delta="so")
    stream = thoughts + closed(0, **THOUGHTS) + words(1) + call_at(1, CALLS[0])
    response = made(stream + ended("completed", THOUGHTS, CALLS[0], WORDS))
    assert (response.reasoning, response.text, len(response.calls)) == ("so", "I look.", 1)


def test_S04_nothing_else_takes_a_place() -> None:
    assert "used by two items" in refused(call_at(0, CALLS[0]) + call_at(0, CALLS[1]))
    assert "used by two items" in refused(call_at(0, CALLS[0]) + words(0))
    assert "used by two items" in refused(words(0) + words(0))
    assert "used by two items" in refused(words(0) + opened(0, **{**CALLS[0], "id": "msg_1"}))
    assert "used by two items" in refused(words(0) + opened(0, **call("a", "add", "")))
    assert "used by two items" in refused(words(0) + call_at(0, CALLS[0]) + call_at(0, CALLS[1]))
    assert "used by two items" in refused(words(0) + closed(0, **WORDS) + call_at(0, CALLS[0]))
    late = event("response.output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta="x")
    assert "a fragment of a message" in refused(words(0) + call_at(0, CALLS[0]) + late)
    whole = words(0) + call_at(0, CALLS[0])
    assert "another text" in refused(whole + ended("completed", CALLS[0], message("I see.")))
    assert "before the end of an output item" in refused(whole + ended("completed"))


def test_S09_an_answer_of_ollama_that_took_all_that_it_may_was_cut() -> None:
    stream = words(0) + closed(0, **WORDS)
    assert made(stream + ended("completed", WORDS, usage=USAGE)).finish_reason == "length"
    assert made(stream + ended("completed", WORDS, usage={**USAGE, "output_tokens": 4})).finish_reason == "stop"


def test_C07_the_first_output_of_a_call_that_takes_a_place_is_its_own() -> None:
    assembly = ResponsesAssembly(PROFILES["ollama"])
    events = SseParser().feed((opened(0, type="message", id="msg_1") + opened(0, **CALLS[0])).encode())
    assert [assembly.apply_payload(payload) for payload in events] == [None, FirstOutputKind.TOOL_NAME]
