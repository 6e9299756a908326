"""What the bytes of one answer show of its form, protocol by protocol: names of fields and frames, never contents.

It is for people who want to know an endpoint. What an answer means, and whether it is one, its adapter alone says.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agentloom_worker.domain.transport import Transport
from agentloom_worker.llm.sse import SseParser, SseProtocolError

_STREAM, _DOCUMENT = "text/event-stream", "application/json"
_DONE = "[DONE]"
_WORD = re.compile(r"[a-z_]{1,32}")

_FINAL_EVENTS = frozenset({"response.completed", "response.failed", "response.incomplete"})
_REASONING_EVENTS = {
    "response.reasoning_text.delta": "reasoning_text",
    "response.reasoning_summary_text.delta": "summary_text",
}


@dataclass(slots=True)
class Sights:
    """`finish` says in words what ended the answer; `done`: `[DONE]` came. `reasoning`: the fields that held some.

    `unnumbered`: a call began without a number of its place. `readable`: what came says that it is a stream or JSON.
    """

    readable: bool = False
    streamed: bool = False
    events: int = 0
    finish: str | None = None
    done: bool = False
    unnumbered: bool = False
    reasoning: set[str] = field(default_factory=set)


def look_at(answer: Transport | None, protocol: str) -> Sights:
    """What was seen of an answer; nothing of one that never began. `protocol` is one of NOTES."""
    sights, note = Sights(), NOTES[protocol]
    if answer is None:
        return sights
    sights.readable = answer.media_type in (_STREAM, _DOCUMENT)
    documents = list(_parsed(answer.body))
    if documents or answer.media_type == _DOCUMENT:
        sights.readable = True  # Whatever its type says: no stream is one JSON document.
        for document in documents:
            note(document, sights)
        return sights
    sights.streamed = answer.media_type == _STREAM
    # Of an endless answer the middle is not kept: the frame that the gap is in stands for none.
    gap = b"\n\n" if answer.omitted_bytes else b""
    try:
        for payload in SseParser().feed(answer.body[: answer.cut_at] + gap + answer.body[answer.cut_at :]):
            sights.streamed = True
            if payload.strip() == _DONE:
                sights.done = True
                continue
            sights.events += 1
            for frame in _parsed(payload):
                note(frame, sights)
    except SseProtocolError:
        pass  # The adapter has read the same bytes, and says what is wrong with them.
    return sights


def _parsed(payload: bytes | str) -> Iterator[dict[str, Any]]:
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        yield value


def _objects(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _word(value: object) -> str:
    """A word of the protocol; a server's own texts are not repeated."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else "of another form"


def _note_chat(frame: dict[str, Any], sights: Sights) -> None:
    for choice in _objects(frame.get("choices")):
        if choice.get("finish_reason"):
            sights.finish = f"finish reason {_word(choice['finish_reason'])}"
        for part in _objects([choice.get("delta"), choice.get("message")]):
            sights.reasoning |= {name for name in ("reasoning", "reasoning_content") if part.get(name)}
            for call in _objects(part.get("tool_calls")):
                sights.unnumbered |= bool(call.get("id")) and call.get("index") is None


def _note_responses(frame: dict[str, Any], sights: Sights) -> None:
    kind = frame.get("type")
    if kind in _FINAL_EVENTS:
        sights.finish = f"final event {kind}"
    elif frame.get("object") == "response" and frame.get("status"):
        sights.finish = f"status {_word(frame['status'])}"
    elif kind in _REASONING_EVENTS and frame.get("delta"):
        sights.reasoning.add(_REASONING_EVENTS[kind])
    elif kind == "response.output_item.added":
        called = any(item.get("type") == "function_call" for item in _objects([frame.get("item")]))
        sights.unnumbered |= called and frame.get("output_index") is None
    for item in _objects([frame.get("item")]) + _objects(frame.get("output")):
        if item.get("type") != "reasoning":
            continue
        if item.get("encrypted_content"):
            sights.reasoning.add("encrypted_content")
        parts = _objects(item.get("summary")) + _objects(item.get("content"))
        sights.reasoning |= {_word(part.get("type")) for part in parts if part.get("text")}


NOTES: dict[str, Callable[[dict[str, Any], Sights], None]] = {
    "openai-chat": _note_chat,
    "openai-responses": _note_responses,
}
