"""From a turn and the request that it answers to a plan: pure, no sockets."""

from agentloom_worker.devmodel.chat import Wire
from agentloom_worker.devmodel.completion import plan_stream, plan_whole
from agentloom_worker.devmodel.framing import JSON_TYPE, LAST_CHUNK, encode, head, whole_response
from agentloom_worker.devmodel.matching import Arrival
from agentloom_worker.devmodel.plan import Ending, Layout, Plan
from agentloom_worker.devmodel.response_events import plan_response, plan_response_stream
from agentloom_worker.devmodel.script import Answer, Delay, HttpError, RawBody, RawHttp, Script, Turn

TEXT_TYPE = (("content-type", "text/plain; charset=utf-8"),)


def plan_answer(script: Script, number: int, turn: Turn, arrival: Arrival) -> Plan:
    """The response that a turn (the `number`th of its script, from 0) gives to this arrival."""
    answer = turn.answer
    delay = answer.delay or script.delay
    name = turn.name or f"turns[{number}]"
    layout = _layout(answer, delay)
    if answer.http_error is not None:
        return plan_error(layout, answer.http_error, name)
    if answer.raw is not None:
        return _plan_raw(layout, answer.raw, name, delay)
    if answer.raw_http is not None:
        return _plan_raw_http(layout, answer.raw_http, name, delay)
    if answer.no_answer is not None:
        return Plan(name, answer.kind, None, layout.pieces(), Ending(answer.no_answer))
    responses = arrival.request.wire is Wire.RESPONSES
    if arrival.request.stream:
        if responses:
            return plan_response_stream(layout, script, name, answer, arrival)
        return plan_stream(layout, script, name, answer, arrival)
    if responses:
        return plan_response(layout, name, answer, arrival)
    return plan_whole(layout, script, name, answer, arrival)


def _layout(answer: Answer, delay: Delay) -> Layout:
    gate = answer.hold.gate if answer.hold is not None and answer.hold.after_chunks is None else None
    return Layout(delay.headers_ms / 1000, gate)


def plan_error(layout: Layout, error: HttpError, turn: str, kind: str = "http_error") -> Plan:
    """An error status with its body."""
    body = error.body
    if body is None:
        message = f"scripted status {error.status}"
        body = {"error": {"message": message, "type": "scripted_error", "code": None}}
    headers = tuple((name.lower(), value) for name, value in error.headers.items())
    if not any(name == "content-type" for name, _ in headers):
        headers += JSON_TYPE if isinstance(body, dict) else TEXT_TYPE
    payload = encode(body) if isinstance(body, dict) else body.encode("utf-8", "replace")
    layout.add(whole_response(error.status, headers, payload))
    return Plan(turn, kind, error.status, layout.pieces())


def _plan_raw(layout: Layout, raw: RawBody, turn: str, delay: Delay) -> Plan:
    layout.add(head(raw.status, tuple((name.lower(), value) for name, value in raw.headers.items())))
    for position, payload in enumerate(raw.pieces()):
        layout.wait((delay.between_chunks_ms if position else delay.first_chunk_ms) / 1000)
        layout.add_chunk(payload)
    layout.wait(delay.end_ms / 1000)
    if raw.then == "end":
        layout.add(LAST_CHUNK)
        return Plan(turn, "raw", raw.status, layout.pieces())
    return Plan(turn, "raw", raw.status, layout.pieces(), Ending(raw.then))


def _plan_raw_http(layout: Layout, raw: RawHttp, turn: str, delay: Delay) -> Plan:
    for position, payload in enumerate(raw.pieces()):
        if position:
            layout.wait(delay.between_chunks_ms / 1000)
        layout.add(payload)
    layout.wait(delay.end_ms / 1000)
    return Plan(turn, "raw_http", None, layout.pieces(), Ending(raw.then))
