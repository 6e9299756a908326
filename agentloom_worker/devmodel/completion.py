"""A scripted completion in the provider's words: as a stream of data events, or as one document."""

import json
from json.encoder import encode_basestring
from typing import Any

from agentloom_worker.devmodel.framing import (
    EVENT_STREAM,
    JSON_TYPE,
    LAST_CHUNK,
    encode,
    head,
    whole_response,
)
from agentloom_worker.devmodel.matching import Arrival
from agentloom_worker.devmodel.plan import Ending, Layout, Plan
from agentloom_worker.devmodel.script import Answer, Cut, Script, ScriptedCall, Usage
from agentloom_worker.devmodel.template import fill_tree

CREATED = 1_700_000_000  # the same bytes get the same answer, so no clock is read
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
ROLE_DELTA = '{"role":"assistant","content":null}'
SCRIPTED_ERROR = {"error": {"message": "scripted error", "type": "server_error", "code": None}}


def plan_stream(layout: Layout, script: Script, turn: str, answer: Answer, arrival: Arrival) -> Plan:
    """The completion as server-sent events, one chunk each."""
    delay = answer.delay or script.delay
    events = _Events(arrival)
    layout.add(head(200, EVENT_STREAM))
    if answer.keep_alive is not None:
        for _ in range(answer.keep_alive.count):
            layout.wait(answer.keep_alive.interval_ms / 1000)
            layout.add_chunk(KEEP_ALIVE)
    if "role" not in answer.omit:
        layout.add_chunk(events.delta(ROLE_DELTA))
    reasoning_field = script.dialect.reasoning_field
    deltas = _deltas(answer, arrival, answer.chunk_chars or script.chunk_chars, reasoning_field)
    if answer.cut is not None and answer.cut.after_chunks is not None:
        del deltas[answer.cut.after_chunks :]
    gates = gates_of(answer, len(deltas))
    for position, delta in enumerate(deltas):
        pause_ms = delay.between_chunks_ms if position else delay.first_chunk_ms
        layout.wait(pause_ms / 1000, gates.get(position))
        layout.add_chunk(events.delta(delta))
    layout.wait(delay.end_ms / 1000, gates.get(len(deltas)))
    if answer.cut is not None:
        return _break_off(layout, turn, answer, answer.cut)
    if "finish" not in answer.omit:
        layout.add_chunk(events.finish(finish_reason(answer)))
    if arrival.request.include_usage and tells_usage(answer):
        layout.add_chunk(events.usage(_usage(answer, arrival)))
    if "done" not in answer.omit:
        layout.add_chunk(DONE)
    layout.add(LAST_CHUNK)
    return Plan(turn, answer.kind, 200, layout.pieces())


def gates_of(answer: Answer, chunks: int) -> dict[int, str]:
    """The position before which a gate stands, at the latest before the final frames."""
    if answer.hold is None or answer.hold.after_chunks is None:
        return {}
    return {min(answer.hold.after_chunks, chunks): answer.hold.gate}


def _break_off(layout: Layout, turn: str, answer: Answer, cut: Cut) -> Plan:
    match cut.then:
        case "end":
            layout.add(LAST_CHUNK)
            return Plan(turn, answer.kind, 200, layout.pieces())
        case "error":
            layout.add_chunk(b"data: " + encode(cut.event or SCRIPTED_ERROR) + b"\n\n")
            layout.add_chunk(DONE)
            layout.add(LAST_CHUNK)
            return Plan(turn, answer.kind, 200, layout.pieces())
        case ending:
            return Plan(turn, answer.kind, 200, layout.pieces(), Ending(ending))


def plan_whole(layout: Layout, script: Script, turn: str, answer: Answer, arrival: Arrival) -> Plan:
    """The completion without streaming; a cut leaves half of the body, a scripted error takes its place."""
    cut = answer.cut
    if cut is not None and cut.then == "error":
        layout.add(whole_response(200, JSON_TYPE, encode(cut.event or SCRIPTED_ERROR)))
        return Plan(turn, answer.kind, 200, layout.pieces())
    payload = encode(_document(answer, arrival, script.dialect.reasoning_field))
    if cut is None:
        layout.add(whole_response(200, JSON_TYPE, payload))
        return Plan(turn, answer.kind, 200, layout.pieces())
    layout.add(head(200, JSON_TYPE))
    layout.add_chunk(payload[: len(payload) // 2])
    return _break_off(layout, turn, answer, cut)


def _document(answer: Answer, arrival: Arrival, reasoning_field: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for field, template in _texts(answer, reasoning_field):
        if template is not None:
            message[field] = arrival.fill(template)
    if answer.tool_calls:
        message["tool_calls"] = [
            {
                "id": call_id(call, place, arrival),
                "type": "function",
                "function": {"name": call.name, "arguments": call_arguments(call, arrival)},
            }
            for place, call in enumerate(answer.tool_calls)
        ]
    document = {
        **_shared(arrival, "chat.completion"),
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason(answer)}],
    }
    if tells_usage(answer):
        document["usage"] = _usage(answer, arrival)
    return document


def _shared(arrival: Arrival, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{arrival.sha256[:24]}",
        "object": kind,
        "created": CREATED,
        "model": arrival.request.model,
    }


def _texts(answer: Answer, reasoning_field: str = "reasoning_content") -> tuple[tuple[str, str | None], ...]:
    return (
        (reasoning_field, answer.reasoning),
        ("refusal", answer.refusal),
        ("content", answer.text),
    )


class _Events:
    """Writes the stream's data events; what all of them share is encoded once."""

    def __init__(self, arrival: Arrival) -> None:
        self._prefix = b"data: " + encode(_shared(arrival, "chat.completion.chunk"))[:-1]

    def delta(self, delta: str) -> bytes:
        text = f',"choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}\n\n'
        return self._prefix + text.encode("utf-8", "backslashreplace")

    def finish(self, reason: str) -> bytes:
        choice = {"index": 0, "delta": {}, "finish_reason": reason}
        return self._prefix + b',"choices":[' + encode(choice) + b"]}\n\n"

    def usage(self, usage: dict[str, Any]) -> bytes:
        return self._prefix + b',"choices":[],"usage":' + encode(usage) + b"}\n\n"


def _deltas(answer: Answer, arrival: Arrival, size: int, reasoning_field: str) -> list[str]:
    """The content as JSON texts, one a chunk: reasoning, refusal, text, then the calls in order.

    They are put together by hand: a benchmark's server spends most of its time here.
    """
    deltas: list[str] = []
    for field, template in _texts(answer, reasoning_field):
        if template:
            parts = split(arrival.fill(template), size)
            deltas += [f'{{"{field}":{encode_basestring(part)}}}' for part in parts]
    for place, call in enumerate(answer.tool_calls):
        index = call.index if call.index is not None else place
        deltas.append(
            f'{{"tool_calls":[{{"index":{index},"id":{encode_basestring(call_id(call, place, arrival))},'
            f'"type":"function","function":{{"name":{encode_basestring(call.name)},"arguments":""}}}}]}}'
        )
        deltas += [
            f'{{"tool_calls":[{{"index":{index},"function":{{"arguments":{encode_basestring(part)}}}}}]}}'
            for part in split(call_arguments(call, arrival), size)
        ]
    return deltas


def split(text: str, size: int) -> list[str]:
    """The text in pieces of so many characters."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def call_arguments(call: ScriptedCall, arrival: Arrival) -> str:
    """The text of a call's arguments, with the request's words in it."""
    if call.arguments_text is not None:
        return arrival.fill(call.arguments_text)
    arguments = fill_tree(call.arguments or {}, arrival.request, arrival.count)
    return json.dumps(arguments, ensure_ascii=False)


def call_id(call: ScriptedCall, place: int, arrival: Arrival) -> str:
    """The scripted id, else one that these request bytes give."""
    return call.id if call.id is not None else f"call_{arrival.sha256[:16]}_{place}"


def finish_reason(answer: Answer) -> str:
    """The scripted reason, else what a provider would say."""
    return answer.finish_reason or ("tool_calls" if answer.tool_calls else "stop")


def tells_usage(answer: Answer) -> bool:
    """Whether the answer says what it cost."""
    return answer.usage != "none" and "usage" not in answer.omit


def _usage(answer: Answer, arrival: Arrival) -> dict[str, Any]:
    usage = estimated_usage(answer, arrival)
    document: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if usage.reasoning_tokens:
        document["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return document


def estimated_usage(answer: Answer, arrival: Arrival) -> Usage:
    """As scripted; else a quarter of the bytes asked and the characters said: plausible, the same each time."""
    if isinstance(answer.usage, Usage):
        return answer.usage
    said = sum(len(template or "") for _, template in _texts(answer))
    said += sum(len(call.name) + len(call_arguments(call, arrival)) for call in answer.tool_calls)
    return Usage(prompt_tokens=arrival.request.size_bytes // 4, completion_tokens=said // 4 + 1)
