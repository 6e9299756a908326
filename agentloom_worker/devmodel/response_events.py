"""A scripted completion in the words of the Responses protocol: as a stream of events, or as one document."""

from typing import Any

from agentloom_worker.devmodel.completion import (
    CREATED,
    KEEP_ALIVE,
    call_arguments,
    call_id,
    estimated_usage,
    gates_of,
    split,
    tells_usage,
)
from agentloom_worker.devmodel.framing import EVENT_STREAM, JSON_TYPE, LAST_CHUNK, encode, head, whole_response
from agentloom_worker.devmodel.matching import Arrival
from agentloom_worker.devmodel.plan import Ending, Layout, Plan
from agentloom_worker.devmodel.responses import seal
from agentloom_worker.devmodel.script import Answer, Cut, Script

SCRIPTED_ERROR = {"type": "error", "code": "server_error", "message": "scripted error", "param": None}


# One piece of content: the events that it comes with, without their sequence numbers.
_Piece = list[dict[str, Any]]


def plan_response_stream(layout: Layout, script: Script, turn: str, answer: Answer, arrival: Arrival) -> Plan:
    """The completion as server-sent events; the events of a piece of content are one chunk."""
    delay = answer.delay or script.delay
    stream = _Stream()
    layout.add(head(200, EVENT_STREAM))
    if answer.keep_alive is not None:
        for _ in range(answer.keep_alive.count):
            layout.wait(answer.keep_alive.interval_ms / 1000)
            layout.add_chunk(KEEP_ALIVE)
    if "role" not in answer.omit:
        begun = _response(answer, arrival, "in_progress", [])
        opening = ({"type": kind, "response": begun} for kind in ("response.created", "response.in_progress"))
        layout.add_chunk(b"".join(stream.event(event) for event in opening))
    pieces, output = _contents(answer, arrival, answer.chunk_chars or script.chunk_chars)
    if answer.cut is not None and answer.cut.after_chunks is not None:
        del pieces[answer.cut.after_chunks :]
    gates = gates_of(answer, len(pieces))
    for position, piece in enumerate(pieces):
        pause_ms = delay.between_chunks_ms if position else delay.first_chunk_ms
        layout.wait(pause_ms / 1000, gates.get(position))
        layout.add_chunk(b"".join(stream.event(event) for event in piece))
    layout.wait(delay.end_ms / 1000, gates.get(len(pieces)))
    if answer.cut is not None:
        return _break_off(layout, stream, turn, answer, answer.cut)
    if "finish" not in answer.omit:
        status = _status(answer)
        final = {"type": f"response.{status}", "response": _response(answer, arrival, status, output)}
        layout.add_chunk(stream.event(final))
    layout.add(LAST_CHUNK)
    return Plan(turn, answer.kind, 200, layout.pieces())


def plan_response(layout: Layout, turn: str, answer: Answer, arrival: Arrival) -> Plan:
    """The completion without streaming; a cut leaves half of the body, a scripted error takes its place."""
    cut = answer.cut
    if cut is not None and cut.then == "error":
        error = cut.event or {"error": {key: value for key, value in SCRIPTED_ERROR.items() if key != "type"}}
        layout.add(whole_response(200, JSON_TYPE, encode(error)))
        return Plan(turn, answer.kind, 200, layout.pieces())
    _, output = _contents(answer, arrival, 1)
    payload = encode(_response(answer, arrival, _status(answer), output))
    if cut is None:
        layout.add(whole_response(200, JSON_TYPE, payload))
        return Plan(turn, answer.kind, 200, layout.pieces())
    layout.add(head(200, JSON_TYPE))
    layout.add_chunk(payload[: len(payload) // 2])
    return _break_off(layout, _Stream(), turn, answer, cut)


class _Stream:
    """Writes the events of one stream and numbers them."""

    def __init__(self) -> None:
        self._number = 0

    def event(self, event: dict[str, Any]) -> bytes:
        payload = encode({**event, "sequence_number": self._number})
        self._number += 1
        return b"event: " + str(event.get("type", "message")).encode() + b"\ndata: " + payload + b"\n\n"


def _break_off(layout: Layout, stream: _Stream, turn: str, answer: Answer, cut: Cut) -> Plan:
    match cut.then:
        case "end":
            layout.add(LAST_CHUNK)
            return Plan(turn, answer.kind, 200, layout.pieces())
        case "error":
            layout.add_chunk(stream.event(cut.event or SCRIPTED_ERROR))
            layout.add(LAST_CHUNK)
            return Plan(turn, answer.kind, 200, layout.pieces())
        case ending:
            return Plan(turn, answer.kind, 200, layout.pieces(), Ending(ending))


def _status(answer: Answer) -> str:
    return "incomplete" if answer.finish_reason in ("length", "content_filter") else "completed"


def _response(answer: Answer, arrival: Arrival, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    reason = {"length": "max_output_tokens"}.get(answer.finish_reason or "", answer.finish_reason)
    document: dict[str, Any] = {
        "id": f"resp_{arrival.sha256[:24]}",
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": reason} if status == "incomplete" else None,
        "model": arrival.request.model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }
    if status != "in_progress" and tells_usage(answer):
        usage = estimated_usage(answer, arrival)
        document["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
    return document


def _contents(answer: Answer, arrival: Arrival, size: int) -> tuple[list[_Piece], list[dict[str, Any]]]:
    """The pieces of the stream and the items that they make: reasoning, a message, then the calls in order."""
    pieces: list[_Piece] = []
    output: list[dict[str, Any]] = []
    digest = arrival.sha256[:16]
    if answer.reasoning:
        item = {"id": f"rs_{digest}", "type": "reasoning", "summary": []}
        part = {"type": "summary_text", "text": arrival.fill(answer.reasoning)}
        whole: dict[str, Any] = {**item, "summary": [part]}
        if arrival.request.encrypted_reasoning:
            whole["encrypted_content"] = seal(arrival.request.model, whole)
        pieces += _text_pieces(len(output), "reasoning_summary", "summary_index", (item, whole), [part], size)
        output.append(whole)
    parts: list[dict[str, Any]] = []
    if answer.refusal:
        parts.append({"type": "refusal", "refusal": arrival.fill(answer.refusal)})
    if answer.text:
        parts.append({"type": "output_text", "text": arrival.fill(answer.text), "annotations": []})
    if parts:
        item = {"id": f"msg_{digest}", "type": "message", "role": "assistant", "content": []}
        status = "incomplete" if _status(answer) == "incomplete" else "completed"
        whole = {**item, "content": parts, "status": status}
        opened = {**item, "status": "in_progress"}
        pieces += _text_pieces(len(output), "content", "content_index", (opened, whole), parts, size)
        output.append(whole)
    base = len(output)
    for place in range(len(answer.tool_calls)):
        made, whole = _call_pieces(base, place, answer, arrival, size)
        pieces += made
        output.append(whole)
    return pieces, output


def _text_pieces(
    number: int,
    part_name: str,
    index_name: str,
    item: tuple[dict[str, Any], dict[str, Any]],
    parts: list[dict[str, Any]],
    size: int,
) -> list[_Piece]:
    """An item of texts; what opens it comes with its first piece, what closes it with its last."""
    opened, whole = item
    steps: list[_Piece] = []
    for place, part in enumerate(parts):
        kind = "reasoning_summary_text" if part_name == "reasoning_summary" else part["type"]
        key = "refusal" if kind == "refusal" else "text"
        at = {"item_id": whole["id"], "output_index": number, index_name: place}
        blank = {**part, key: ""}
        deltas = [[{"type": f"response.{kind}.delta", **at, "delta": text}] for text in split(part[key], size) or [""]]
        deltas[0].insert(0, {"type": f"response.{part_name}_part.added", **at, "part": blank})
        deltas[-1].append({"type": f"response.{kind}.done", **at, key: part[key]})
        deltas[-1].append({"type": f"response.{part_name}_part.done", **at, "part": part})
        steps += deltas
    steps[0].insert(0, {"type": "response.output_item.added", "output_index": number, "item": opened})
    steps[-1].append({"type": "response.output_item.done", "output_index": number, "item": whole})
    return steps


def _call_pieces(
    base: int, place: int, answer: Answer, arrival: Arrival, size: int
) -> tuple[list[_Piece], dict[str, Any]]:
    call = answer.tool_calls[place]
    number = base + (place if call.index is None else call.index)
    arguments = call_arguments(call, arrival)
    whole = {
        "id": f"fc_{arrival.sha256[:16]}_{place}",
        "type": "function_call",
        "status": "completed",
        "call_id": call_id(call, place, arrival),
        "name": call.name,
        "arguments": arguments,
    }
    opened = {**whole, "status": "in_progress", "arguments": ""}
    at = {"item_id": whole["id"], "output_index": number}
    steps: list[list[dict[str, Any]]] = [
        [{"type": "response.output_item.added", "output_index": number, "item": opened}]
    ]
    deltas = (
        {"type": "response.function_call_arguments.delta", **at, "delta": text} for text in split(arguments, size)
    )
    steps += [[event] for event in deltas]
    steps[-1].append({"type": "response.function_call_arguments.done", **at, "name": call.name, "arguments": arguments})
    steps[-1].append({"type": "response.output_item.done", "output_index": number, "item": whole})
    return steps, whole
