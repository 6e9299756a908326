"""Persisted documents of version 1: they are in databases, so no change of the code may change or misread them.

A file here is never edited. A new version of a document gets a new folder; this one stays readable.
"""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from agentloom_worker.capabilities.result import decode_result, encode_result
from agentloom_worker.domain.capability import ResultStatus, ToolResult
from agentloom_worker.domain.model import (
    Category,
    Executed,
    Failure,
    ModelResponse,
    Partial,
    ReasoningItem,
    RequestParameters,
    ResponseCall,
    Usage,
)
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.domain.recipe import Recipe, RequestBinding
from agentloom_worker.domain.response import decode_response, encode_partial, encode_response
from agentloom_worker.domain.run import Continuation, EndCause
from agentloom_worker.ids import BatchId, InputId, OperationId

HERE = Path(__file__).parent / "bodies_v1"
FIRST = UUID("01890000-0000-7000-8000-000000000001")
SECOND = UUID("01890000-0000-7000-8000-0000000000ff")
ODD = "nul \0, a lone surrogate \ud800, a line separator \u2028, 雪"

RESPONSE = ModelResponse(
    text="Hi " + ODD,
    calls=(ResponseCall(0, "call_1", "read_log", '{"lines": 3}'), ResponseCall(1, "", "echo", '{"broken')),
    finish_reason="tool_calls",
    reasoning="because",
    refusal="",
    usage=Usage(120, 30, 100),
    provider_request_id="req-1",
    transport_sha256="ab" * 32,
    transport_bytes=4096,
)
THOUGHT = ModelResponse(
    text="",
    calls=(ResponseCall(0, "call_1", "echo", "{}"),),
    finish_reason="tool_calls",
    usage=Usage(120, 30, 100, 20),
    reasoning_items=(
        ReasoningItem("rs_1", ("a summary", ODD), (), "sealed", 0),
        ReasoningItem("", (), ("a thought",), "", None),
    ),
)
SERVED = ModelResponse("Hi", (), "stop", served_model="m-2026-01-01")
FAILURE = Failure(
    "TOOL_TIMEOUT",
    Category.TIMEOUT,
    "the tool did not return within 60 s",
    Executed.UNKNOWN,
    retry_class=RetryClass.TRANSPORT,
    retry_after_ms=1500,
    http_status=503,
)

BODIES: dict[str, tuple[Any, Any, Any]] = {
    "continuation": (
        Continuation(
            3, 7, OperationId(FIRST), BatchId(SECOND), OperationId(SECOND), EndCause.FAILURE, "TOOL_FAILED", "why"
        ),
        Continuation.to_bytes,
        Continuation.from_bytes,
    ),
    "continuation_empty": (Continuation(), Continuation.to_bytes, Continuation.from_bytes),
    "recipe": (Recipe(12, 9, 2, (InputId(FIRST), InputId(SECOND)), 4711), Recipe.to_bytes, Recipe.from_bytes),
    "recipe_without_inputs": (Recipe(1, 2, 1, (), 40), Recipe.to_bytes, Recipe.from_bytes),
    "recipe_with_history": (Recipe(5, 4, 3, (), 900, 41), Recipe.to_bytes, Recipe.from_bytes),
    "binding": (
        RequestBinding(
            RequestParameters("dev-model", 4096, (("seed", 7), ("temperature", 0.5))),
            "95eb71f4",
            "rounds-v1",
            "openai-chat/generic/1",
            "utf8-envelope-v1",
        ),
        RequestBinding.to_bytes,
        RequestBinding.from_bytes,
    ),
    "response": (RESPONSE, encode_response, decode_response),
    "response_reasoning": (THOUGHT, encode_response, decode_response),
    "response_served": (SERVED, encode_response, decode_response),
    "response_smallest": (ModelResponse("", (), None), encode_response, decode_response),
    "result_text": (ToolResult(ResultStatus.SUCCEEDED, ODD), encode_result, decode_result),
    "result_structured": (
        ToolResult(ResultStatus.SUCCEEDED, structured=({"rows": [1, None, 2.5], "name": ODD},)),
        encode_result,
        decode_result,
    ),
    "result_null": (ToolResult(ResultStatus.SUCCEEDED, structured=(None,)), encode_result, decode_result),
    "result_failed": (ToolResult(ResultStatus.FAILED, failure=FAILURE), encode_result, decode_result),
}


@pytest.mark.parametrize("name", sorted(BODIES))
def test_D13_bodies_of_version_1_are_written_as_recorded_and_read_as_written(name: str) -> None:
    value, encode, decode = BODIES[name]
    recorded = (HERE / f"{name}.json").read_bytes()
    assert encode(value) == recorded
    assert decode(recorded) == value


def test_D13_partial_answers_of_version_1_are_written_as_recorded() -> None:
    partial = Partial(text="so f", reasoning="be", calls=(ResponseCall(0, "call_1", "echo", '{"te'),))
    assert encode_partial(partial) == (HERE / "partial.json").read_bytes()


def test_D13_every_recorded_body_belongs_to_a_test() -> None:
    assert {path.stem for path in HERE.iterdir()} == {*BODIES, "partial"}
