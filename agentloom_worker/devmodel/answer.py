"""From a request and its script to the bytes of one response, with their pauses: pure, no sockets."""

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from agentloom_worker.devmodel.chat import text_of
from agentloom_worker.devmodel.framing import (
    EVENT_STREAM,
    JSON_TYPE,
    LAST_CHUNK,
    chunk,
    encode,
    head,
    whole_response,
)
from agentloom_worker.devmodel.matching import Arrival
from agentloom_worker.devmodel.script import (
    Answer,
    Cut,
    Delay,
    HttpError,
    RawBody,
    RawHttp,
    Script,
    ScriptedCall,
    Turn,
    Usage,
)
from agentloom_worker.devmodel.template import fill_tree

CREATED = 1_700_000_000  # the same bytes get the same answer, so no clock is read
DONE = b"data: [DONE]\n\n"
SCRIPTED_ERROR = {"error": {"message": "scripted error", "type": "server_error", "code": None}}


class Ending(StrEnum):
    """What becomes of the connection when the last byte is out."""

    KEEP = "keep"
    HANG_UP = "hang_up"
    RESET = "reset"
    STALL = "stall"


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes to send after a pause and, if one is named, after its gate has opened."""

    payload: bytes
    delay_s: float = 0.0
    gate: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One whole response."""

    turn: str
    kind: str
    status: int | None
    pieces: tuple[Piece, ...]
    ending: Ending = Ending.KEEP


def plan_answer(script: Script, number: int, turn: Turn, arrival: Arrival) -> Plan:
    """The response that a turn scripts for this arrival."""
    answer = turn.answer
    delay = answer.delay or script.delay
    name = turn.name or f"turns[{number}]"
    if answer.http_error is not None:
        plan = plan_error(answer.http_error, name)
    elif answer.raw is not None:
        plan = _plan_raw(answer.raw, name, delay)
    elif answer.raw_http is not None:
        plan = _plan_raw_http(answer.raw_http, name, delay)
    elif answer.no_answer is not None:
        plan = Plan(name, answer.kind, None, (Piece(b""),), Ending(answer.no_answer))
    elif arrival.request.stream:
        plan = _plan_stream(script, name, answer, arrival, delay)
    else:
        plan = _plan_whole(name, answer, arrival)
    gate = answer.hold.gate if answer.hold is not None and answer.hold.after_chunks is None else None
    first = replace(plan.pieces[0], delay_s=delay.headers_ms / 1000, gate=gate)
    return replace(plan, pieces=(first, *plan.pieces[1:]))


def plan_error(error: HttpError, turn: str, kind: str = "http_error") -> Plan:
    """An error status with its body."""
    body = error.body
    if body is None:
        body = {
            "error": {"message": f"scripted status {error.status}", "type": "scripted_error", "code": None}
        }
    headers = tuple((name.lower(), value) for name, value in error.headers.items())
    if not any(name == "content-type" for name, _ in headers):
        headers += JSON_TYPE if isinstance(body, dict) else (("content-type", "text/plain; charset=utf-8"),)
    payload = encode(body) if isinstance(body, dict) else body.encode("utf-8", "replace")
    return Plan(turn, kind, error.status, (Piece(whole_response(error.status, headers, payload)),))


def _plan_raw(raw: RawBody, turn: str, delay: Delay) -> Plan:
    headers = tuple((name.lower(), value) for name, value in raw.headers.items())
    pieces = [Piece(head(raw.status, headers))]
    for position, payload in enumerate(raw.pieces()):
        pieces.append(Piece(chunk(payload), _pause_s(delay, position)))
    if raw.then == "end":
        pieces.append(Piece(LAST_CHUNK, delay.end_ms / 1000))
        return Plan(turn, "raw", raw.status, tuple(pieces))
    return Plan(turn, "raw", raw.status, tuple(pieces), Ending(raw.then))


def _plan_raw_http(raw: RawHttp, turn: str, delay: Delay) -> Plan:
    pieces = [
        Piece(payload, _pause_s(delay, position) if position else 0.0)
        for position, payload in enumerate(raw.pieces() or [b""])
    ]
    return Plan(turn, "raw_http", None, tuple(pieces), Ending(raw.then))


def _pause_s(delay: Delay, position: int) -> float:
    return (delay.between_chunks_ms if position else delay.first_chunk_ms) / 1000


def _plan_stream(script: Script, turn: str, answer: Answer, arrival: Arrival, delay: Delay) -> Plan:
    events = _Events(arrival)
    pieces = [Piece(head(200, EVENT_STREAM))]
    if answer.keep_alive is not None:
        comment = Piece(chunk(b": keep-alive\n\n"), answer.keep_alive.interval_ms / 1000)
        pieces += [comment] * answer.keep_alive.count
    if "role" not in answer.omit:
        pieces.append(Piece(chunk(events.delta({"role": "assistant", "content": None}))))
    deltas = _deltas(answer, arrival, answer.chunk_chars or script.chunk_chars)
    cut_at = _cut_at(answer.cut, len(deltas))
    held_at = answer.hold.after_chunks if answer.hold is not None else None
    for position, delta in enumerate(deltas[:cut_at]):
        gate = answer.hold.gate if answer.hold is not None and position == held_at else None
        pieces.append(Piece(chunk(events.delta(delta)), _pause_s(delay, position), gate))
    late_gate = None
    if answer.hold is not None and held_at is not None and held_at >= len(deltas[:cut_at]):
        late_gate = answer.hold.gate
    if answer.cut is not None:
        return _cut_stream(turn, answer, answer.cut, pieces, late_gate)
    closing = b"".join(
        [
            b"" if "finish" in answer.omit else events.finish(finish_reason(answer)),
            events.usage(answer) if arrival.request.include_usage and "usage" not in answer.omit else b"",
            b"" if "done" in answer.omit else DONE,
        ]
    )
    pieces.append(Piece((chunk(closing) if closing else b"") + LAST_CHUNK, delay.end_ms / 1000, late_gate))
    return Plan(turn, answer.kind, 200, tuple(pieces))


def _cut_at(cut: Cut | None, count: int) -> int:
    return count if cut is None or cut.after_chunks is None else min(cut.after_chunks, count)


def _cut_stream(turn: str, answer: Answer, cut: Cut, pieces: list[Piece], gate: str | None) -> Plan:
    match cut.then:
        case "end":
            pieces.append(Piece(LAST_CHUNK, 0.0, gate))
            return Plan(turn, answer.kind, 200, tuple(pieces))
        case "error":
            event = b"data: " + encode(cut.event or SCRIPTED_ERROR) + b"\n\n"
            pieces.append(Piece(chunk(event + DONE) + LAST_CHUNK, 0.0, gate))
            return Plan(turn, answer.kind, 200, tuple(pieces))
        case ending:
            pieces.append(Piece(b"", 0.0, gate))
            return Plan(turn, answer.kind, 200, tuple(pieces), Ending(ending))


def _plan_whole(turn: str, answer: Answer, arrival: Arrival) -> Plan:
    """The same completion without streaming; a cut leaves half of the body, an error takes its place."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": arrival.fill(answer.text) if answer.text else None,
    }
    if answer.reasoning is not None:
        message["reasoning_content"] = arrival.fill(answer.reasoning)
    if answer.refusal is not None:
        message["refusal"] = arrival.fill(answer.refusal)
    if answer.tool_calls:
        message["tool_calls"] = [
            {"id": _call_id(call, place, arrival), "type": "function", "function": _function(call, arrival)}
            for place, call in enumerate(answer.tool_calls)
        ]
    document: dict[str, Any] = {
        "id": _completion_id(arrival),
        "object": "chat.completion",
        "created": CREATED,
        "model": arrival.request.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason(answer)}],
    }
    if answer.usage != "none" and "usage" not in answer.omit:
        document["usage"] = _usage(answer, arrival)
    if answer.cut is not None and answer.cut.then == "error":
        document = answer.cut.event or SCRIPTED_ERROR
    payload = encode(document)
    if answer.cut is None or answer.cut.then == "error":
        return Plan(turn, answer.kind, 200, (Piece(whole_response(200, JSON_TYPE, payload)),))
    half = head(200, JSON_TYPE) + chunk(payload[: len(payload) // 2])
    if answer.cut.then == "end":
        return Plan(turn, answer.kind, 200, (Piece(half + LAST_CHUNK),))
    return Plan(turn, answer.kind, 200, (Piece(half),), Ending(answer.cut.then))


class _Events:
    """Writes the stream's data events; what all of them share is encoded once."""

    def __init__(self, arrival: Arrival) -> None:
        self._arrival = arrival
        shared = {
            "id": _completion_id(arrival),
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": arrival.request.model,
        }
        self._prefix = b"data: " + encode(shared)[:-1]

    def delta(self, delta: dict[str, Any]) -> bytes:
        return b"".join(
            (
                self._prefix,
                b',"choices":[{"index":0,"delta":',
                encode(delta),
                b',"finish_reason":null}]}\n\n',
            )
        )

    def finish(self, reason: str) -> bytes:
        choice = {"index": 0, "delta": {}, "finish_reason": reason}
        return self._prefix + b',"choices":[' + encode(choice) + b"]}\n\n"

    def usage(self, answer: Answer) -> bytes:
        if answer.usage == "none":
            return b""
        return self._prefix + b',"choices":[],"usage":' + encode(_usage(answer, self._arrival)) + b"}\n\n"


def _deltas(answer: Answer, arrival: Arrival, size: int) -> list[dict[str, Any]]:
    """The content of the stream, one delta a chunk: reasoning, refusal, text, then the calls in order."""
    deltas: list[dict[str, Any]] = []
    for field, template in (
        ("reasoning_content", answer.reasoning),
        ("refusal", answer.refusal),
        ("content", answer.text),
    ):
        deltas += [{field: part} for part in _split(arrival.fill(template), size)]
    for place, call in enumerate(answer.tool_calls):
        index = call.index if call.index is not None else place
        function = _function(call, arrival)
        opening = {
            "index": index,
            "id": _call_id(call, place, arrival),
            "type": "function",
            "function": {"name": function["name"], "arguments": ""},
        }
        deltas.append({"tool_calls": [opening]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
            for part in _split(function["arguments"], size)
        ]
    return deltas


def _split(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _function(call: ScriptedCall, arrival: Arrival) -> dict[str, str]:
    if call.arguments_text is not None:
        return {"name": call.name, "arguments": arrival.fill(call.arguments_text)}
    arguments = fill_tree(call.arguments or {}, arrival.request, arrival.count)
    return {"name": call.name, "arguments": json.dumps(arguments, ensure_ascii=False)}


def _call_id(call: ScriptedCall, place: int, arrival: Arrival) -> str:
    return call.id if call.id is not None else f"call_{arrival.sha256[:16]}_{place}"


def _completion_id(arrival: Arrival) -> str:
    return f"chatcmpl-{arrival.sha256[:24]}"


def finish_reason(answer: Answer) -> str:
    """The scripted reason, else what a provider would say."""
    return answer.finish_reason or ("tool_calls" if answer.tool_calls else "stop")


def _usage(answer: Answer, arrival: Arrival) -> dict[str, Any]:
    usage = answer.usage if isinstance(answer.usage, Usage) else _guessed_usage(answer, arrival)
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _guessed_usage(answer: Answer, arrival: Arrival) -> Usage:
    """A quarter of the characters: plausible, deterministic, nothing more."""
    asked = sum(len(text_of(message)) for message in arrival.request.messages)
    said = sum(len(text or "") for text in (answer.text, answer.reasoning, answer.refusal))
    said += sum(len(call.name) + len(_function(call, arrival)["arguments"]) for call in answer.tool_calls)
    return Usage(prompt_tokens=asked // 4 + 1, completion_tokens=said // 4 + 1)
