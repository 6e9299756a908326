"""The Responses events of a real llama.cpp server, recorded: no output index, no content index, items by their ids."""

from pathlib import Path

import pytest

from agentloom_worker.domain.model import RequestParameters, ResponseCall, Usage
from agentloom_worker.llm.assembly import ModelProtocolError
from agentloom_worker.llm.profiles import PROFILES, Profile
from agentloom_worker.llm.responses_assembly import ResponsesAssembly
from agentloom_worker.llm.sse import SseParser
from tests.unit.llm.response_streams import event

RECORDED = Path(__file__).parents[2] / "fuzz" / "corpus" / "responses_llama_cpp.sse"


def assembled(body: bytes) -> ResponsesAssembly:
    assembly = ResponsesAssembly(Profile("any", 1))
    for payload in SseParser().feed(body):
        assembly.apply_payload(payload)
    return assembly


def call_events(*item_ids: str) -> bytes:
    """Calls that are known by `call_id` alone, their fragments in turns."""
    opened = [
        event(
            "response.output_item.added", item={"type": "function_call", "call_id": one, "name": "f", "arguments": ""}
        )
        for one in item_ids
    ]
    parts = [
        event("response.function_call_arguments.delta", item_id=one, delta=part)
        for part in ('{"x":', "1}")
        for one in item_ids
    ]
    return "".join(opened + parts).encode()


def test_S09_a_recorded_stream_of_a_real_server_is_read() -> None:
    assembly = assembled(RECORDED.read_bytes())
    assert assembly.complete
    response = assembly.response(request_id=None, transport_sha256="", transport_bytes=0)
    assert (response.text, response.finish_reason) == ("say hello.<|", "stop")
    assert response.usage == Usage(26, 4, 0)


def test_S04_calls_without_an_index_are_told_apart_by_their_ids() -> None:
    partial = assembled(call_events("fc_a", "fc_b")).partial()
    assert partial.calls == (ResponseCall(0, "fc_a", "f", '{"x":1}'), ResponseCall(1, "fc_b", "f", '{"x":1}'))


def test_S04_an_index_of_null_is_none() -> None:
    stream = event("response.output_item.added", output_index=None, item={"type": "message", "id": "m"})
    stream += event("response.output_text.delta", output_index=None, content_index=None, item_id="m", delta="x")
    assert assembled(stream.encode()).partial().text == "x"


@pytest.mark.parametrize("fields", [{"item_id": "another"}, {"item_id": ""}, {}])
def test_S04_a_fragment_of_no_known_item_is_a_protocol_error(fields: dict[str, str]) -> None:
    with pytest.raises(ModelProtocolError):
        assembled(call_events("fc_a") + event("response.output_text.delta", delta="x", **fields).encode())


@pytest.mark.parametrize(
    ("profile", "limit", "reason"),
    [
        ("llama-cpp", 4, "length"),
        ("llama-cpp", 3, "length"),
        ("llama-cpp", 5, "stop"),
        ("generic", 4, "stop"),
    ],
)
def test_S09_an_answer_that_took_all_that_it_may_was_cut_though_the_server_says_completed(
    profile: str, limit: int, reason: str
) -> None:
    assembly = ResponsesAssembly(PROFILES[profile], RequestParameters("gemma", limit))
    for payload in SseParser().feed(RECORDED.read_bytes()):
        assembly.apply_payload(payload)
    response = assembly.response(request_id=None, transport_sha256="", transport_bytes=0)
    assert (response.text, response.finish_reason) == ("say hello.<|", reason)
    assert response.served_model is None


def test_W06_calls_of_an_answer_that_took_all_that_it_may_are_those_of_a_cut_one() -> None:
    item = {"type": "function_call", "call_id": "fc_a", "name": "f", "arguments": "{}", "status": "completed"}
    for usage, reason in (({"input_tokens": 1, "output_tokens": 10}, "length"), ({}, "tool_calls")):
        document = {"status": "completed", "output": [item], "usage": usage}
        assembly = ResponsesAssembly(PROFILES["llama-cpp"], RequestParameters("m", 10))
        assembly.apply_document(document)
        response = assembly.response(request_id=None, transport_sha256="", transport_bytes=0)
        assert (response.finish_reason, len(response.calls)) == (reason, 1)
