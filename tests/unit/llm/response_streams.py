"""Golden streams of the Responses protocol, by case, in the events of its reference."""

import json
from typing import Any


def event(kind: str, **fields: Any) -> str:
    payload = json.dumps({"type": kind, **fields}, ensure_ascii=False)
    return f"event: {kind}\ndata: {payload}\n\n"


def opened(number: int, **item: Any) -> str:
    return event("response.output_item.added", output_index=number, item=item)


def closed(number: int, **item: Any) -> str:
    return event("response.output_item.done", output_index=number, item=item)


def text(delta: str, number: int = 0) -> str:
    return event("response.output_text.delta", output_index=number, content_index=0, delta=delta)


def arguments(delta: str, number: int = 0) -> str:
    return event("response.function_call_arguments.delta", output_index=number, delta=delta)


def message(words: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": words}]}


def refusal(words: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": words}]}


def call(call_id: str, name: str, arguments_text: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments_text}


def ended(status: str, *output: dict[str, Any], **fields: Any) -> str:
    response = {"id": "resp_1", "object": "response", "status": status, "output": list(output), **fields}
    return event(f"response.{status}", response=response)


USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 14,
}
CREATED = event("response.created", response={"id": "resp_1", "status": "in_progress", "output": []})
MESSAGE = opened(0, type="message", role="assistant", content=[])
PART = event("response.content_part.added", output_index=0, content_index=0, part={"type": "output_text", "text": ""})
WORDS = "né\u2028\u0085\x0b😀"

S01 = (
    CREATED
    + MESSAGE
    + PART
    + text("né\u2028")
    + text("\u0085\x0b😀")
    + event("response.output_text.done", output_index=0, content_index=0, text=WORDS)
    + closed(0, **message(WORDS))
    + ended("completed", message(WORDS), usage=USAGE)
).encode()
S02 = (CREATED + MESSAGE + PART + text("Hi")).encode()
S04 = (
    CREATED
    + opened(0, **call("a", "add", ""))
    + arguments('{"x":')
    + arguments(' "n')
    + arguments('é"}')
    + event("response.function_call_arguments.done", output_index=0, arguments='{"x": "né"}')
    + closed(0, **call("a", "add", '{"x": "né"}'))
    + ended("completed", call("a", "add", '{"x": "né"}'))
).encode()
S04_INDEX_TWICE = (
    CREATED
    + opened(0, **call("a", "add", ""))
    + arguments('{"x":1}')
    + opened(0, **call("b", "sub", ""))
    + arguments('{"y":2}')
    + ended("completed")
).encode()
S06 = (
    CREATED
    + MESSAGE
    + event("response.refusal.delta", output_index=0, content_index=0, delta="I can")
    + event("response.refusal.delta", output_index=0, content_index=0, delta="not.")
    + event("response.refusal.done", output_index=0, content_index=0, refusal="I cannot.")
    + closed(0, **refusal("I cannot."))
    + ended("completed", refusal("I cannot."))
).encode()
SUMMARY = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "think more"}]}
S07 = (
    CREATED
    + opened(0, type="reasoning", id="rs_1", summary=[])
    + event("response.reasoning_summary_text.delta", output_index=0, summary_index=0, delta="think ")
    + event("response.reasoning_summary_text.delta", output_index=0, summary_index=0, delta="more")
    + event("response.reasoning_summary_text.done", output_index=0, summary_index=0, text="think more")
    + closed(0, **SUMMARY, encrypted_content="sealed")
    + opened(1, type="message", role="assistant", content=[])
    + text("Hi", 1)
    + closed(1, **message("Hi"))
    + ended("completed", {**SUMMARY, "encrypted_content": "sealed"}, message("Hi"))
).encode()
S09_INCOMPLETE = (
    CREATED
    + MESSAGE
    + text("Half a")
    + closed(0, **message("Half a"), status="incomplete")
    + ended("incomplete", message("Half a"), incomplete_details={"reason": "max_output_tokens"}, usage=USAGE)
).encode()
S09_FAILED = (
    CREATED + MESSAGE + text("So far") + ended("failed", error={"code": "server_error", "message": "it broke"})
).encode()
S09_ERROR = (
    CREATED
    + MESSAGE
    + text("So far")
    + event("error", code="rate_limit_exceeded", message="slow down", param=None, sequence_number=7)
).encode()
S10_JSON = json.dumps(
    {
        "id": "resp_2",
        "object": "response",
        "status": "completed",
        "error": None,
        "output": [message("né"), call("a", "add", "{}")],
        "usage": USAGE,
    },
    ensure_ascii=False,
).encode()
EMPTY = (CREATED + ended("completed")).encode()
