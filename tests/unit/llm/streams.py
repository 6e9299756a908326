"""Golden chat-completions streams, by case."""

import json

DONE = "data: [DONE]\n\n"


def frame(**fields: object) -> str:
    return f"data: {json.dumps(fields, ensure_ascii=False)}\n\n"


def delta(finish_reason: str | None = None, **fields: object) -> str:
    return frame(
        id="chatcmpl-1",
        object="chat.completion.chunk",
        choices=[{"index": 0, "delta": fields, "finish_reason": finish_reason}],
    )


def call(index: int, **fields: object) -> dict[str, object]:
    return {"index": index, **fields}


ROLE = delta(role="assistant", content=None)
USAGE = frame(
    choices=[],
    usage={"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
)

S01 = (ROLE + delta(content="Hi") + delta("stop") + USAGE + DONE).encode()
S01_UNICODE = (ROLE + delta(content="né\u2028\u0085\x0b😀") + delta("stop") + USAGE + DONE).encode()
S02 = (ROLE + delta(content="Hi")).encode()
S03 = (ROLE + frame(error={"message": "upstream broke", "type": "server_error", "code": None}) + DONE).encode()
S03_BESIDE_CHOICES = (
    ROLE + frame(choices=[], error={"message": "quota", "type": "strange", "code": None}) + DONE
).encode()
S04 = (
    ROLE
    + delta(tool_calls=[call(0, id="a", type="function", function={"name": "add", "arguments": ""})])
    + delta(tool_calls=[call(0, function={"arguments": '{"x":'})])
    + delta(tool_calls=[call(0, function={"arguments": ' "né"}'})])
    + delta("tool_calls")
    + DONE
).encode()
S04_INDEX_TWICE = (
    ROLE
    + delta(tool_calls=[call(0, id="a", function={"name": "add", "arguments": '{"x":1}'})])
    + delta(tool_calls=[call(0, id="b", function={"name": "sub", "arguments": '{"y":2}'})])
    + delta("tool_calls")
    + DONE
).encode()
S05 = (
    ": keep-alive\n\n: keep-alive\n\n"
    + "id: 1\n: keep-alive\n"
    + ROLE
    + "data:\n\n"
    + delta(content="Hi")
    + "event: ping\n\n: x\n"
    + delta("stop")
    + "retry: 5\n\n"
    + DONE
).encode()
S06_REFUSAL = (ROLE + delta(refusal="I can") + delta(refusal="not.") + delta("stop") + DONE).encode()
S06_FILTERED = (ROLE + delta(content="") + delta("content_filter") + DONE).encode()
S07 = (
    ROLE
    + delta(reasoning_content="think ", reasoning="think ")
    + delta(reasoning="more")
    + delta(content="Hi")
    + delta("stop")
    + DONE
).encode()
S08 = (
    ROLE + delta(tool_calls=[call(0, id="a", function={"name": "add", "arguments": '{"x":1}'})]) + delta("stop") + DONE
).encode()
S10_JSON = json.dumps(
    {
        "id": "chatcmpl-2",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "né",
                    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    },
    ensure_ascii=False,
).encode()
# As https://github.com/ollama/ollama/blob/main/openai/openai.go writes them (ToChunk, ToToolCalls): a role in each
# delta, calls whole, the finish reason beside empty words.
OLLAMA = (
    delta(role="assistant", content="", reasoning="so")
    + delta(role="assistant", content="I look.")
    + delta(
        role="assistant",
        content="",
        tool_calls=[call(0, id="call_1", function={"name": "add", "arguments": '{"x":1}'})],
    )
    + delta("tool_calls", role="assistant", content="")
    + USAGE
    + DONE
).encode()
# As https://learn.microsoft.com/azure/foundry/openai/concepts/content-streaming shows them, filtered asynchronously:
# what the prompt was found to be first, and what the words were found to be between them and behind their end.
AZURE = (
    frame(choices=[], prompt_filter_results=[{"prompt_index": 0, "content_filter_results": {}}])
    + ROLE
    + delta(content="Hi")
    + frame(choices=[{"index": 0, "finish_reason": None, "content_filter_results": {}, "content_filter_offsets": {}}])
    + delta("stop")
    + frame(choices=[{"index": 0, "finish_reason": None, "content_filter_results": {}, "content_filter_offsets": {}}])
    + DONE
).encode()
EMPTY = (ROLE + delta("stop") + DONE).encode()
