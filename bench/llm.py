"""What the model protocols cost: reading a stream beside the official client, making a body beside `json.dumps`.

Both sides of a ratio take turns in this process, on the same bytes; the best round of each counts, so that a busy
machine disturbs neither more than the other. Nothing is sent: a stream is recorded once, and a body is made up to the
pieces that a socket would be given.
"""

import gc
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from agentloom_worker.clock import SystemClock
from agentloom_worker.context.request import estimate_tokens, hash_request
from agentloom_worker.context.view import View
from agentloom_worker.devmodel import DevModel, parse_script
from agentloom_worker.domain.model import Message, MessageCall, RequestParameters, Role, ToolSchema
from agentloom_worker.llm.adapter import ModelAdapter
from agentloom_worker.llm.adapters import ADAPTERS, AdapterPorts
from agentloom_worker.llm.assembly import Assembly
from agentloom_worker.llm.chat_assembly import ChatAssembly
from agentloom_worker.llm.profiles import PROFILES
from agentloom_worker.llm.responses_assembly import ResponsesAssembly
from agentloom_worker.llm.sse import SseParser
from bench import official
from bench.official import OfficialReader

CHUNK_BYTES = 4_096  # what a socket brings of a stream that is read as fast as it comes
CHUNK_CHARS = 12  # of text in one event: a few tokens
ROUND_S = 0.01
MESSAGES = 200
CONTEXT_TOKENS = 100_000
CHARS_PER_TOKEN = 4
_PARAMETERS = RequestParameters("dev-model", 4_096)
_TOOL = ToolSchema("write", "Writes.", {"type": "object", "properties": {"text": {"type": "string"}}})
_TIMEOUT_S = 60.0
_PROFILE = PROFILES["generic"]
_TEXT = 'The quick "brown" fox — né — jumps over 13 lazy dogs;\n\tthen it rests. '


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a protocol is asked and read. `assembly` makes the state of one answer."""

    path: str
    assembly: Callable[[], Assembly]


PROTOCOLS = {
    "openai-chat": Protocol("chat/completions", lambda: ChatAssembly(_PROFILE)),
    "openai-responses": Protocol("responses", lambda: ResponsesAssembly(_PROFILE)),
}


@dataclass(frozen=True, slots=True)
class LlmSize:
    """How much: characters of the streamed answer, rounds of each side."""

    stream_chars: int
    rounds: int


def measure(size: LlmSize, say: Callable[[str], None]) -> dict[str, Any]:
    """Both comparisons for each protocol."""
    found: dict[str, Any] = {"chunk_bytes": CHUNK_BYTES, "chunk_chars": CHUNK_CHARS, "parse": [], "body": []}
    found["official"] = official.version()
    for name in PROTOCOLS:
        say(f"llm, {name}, reading")
        found["parse"].append(_measure_reading(name, size))
        say(f"llm, {name}, bodies")
        found["body"].append(_measure_body(name, size))
    return found


def _measure_reading(name: str, size: LlmSize) -> dict[str, Any]:
    stream = record_stream(name, size.stream_chars)
    chunks = [stream[start : start + CHUNK_BYTES] for start in range(0, len(stream), CHUNK_BYTES)]
    sides: dict[str, Callable[[], object]] = {"ours": lambda: read_stream(name, chunks)}
    if official.version() is not None:
        reader = OfficialReader(name, chunks)
        assert reader.text() == read_stream(name, chunks).text, "both read the same"
        sides["official"] = reader.read
    best_s = _best_of(sides, size.rounds)
    events = stream.count(b"data:")
    rates = {f"{side}_mb_per_s": len(stream) / 1e6 / taken_s for side, taken_s in best_s.items()}
    return {
        "protocol": name,
        "stream_bytes": len(stream),
        "events": events,
        **rates,
        "ours_us_per_event": 1e6 * best_s["ours"] / events,
        "ratio": best_s["official"] / best_s["ours"] if "official" in best_s else None,
    }


def record_stream(name: str, chars: int) -> bytes:
    """The bytes of one streamed answer: a text, and a call with long arguments."""
    call = {"name": "write", "arguments": {"text": _long_text(chars // 4)}}
    answer = {"text": _long_text(chars), "tool_calls": [call], "chunk_chars": CHUNK_CHARS}
    script = parse_script({"schema_version": 1, "turns": [{"answer": answer}]})
    adapter = _adapter(name)
    with DevModel(script) as model:
        body = _body(adapter, [Message(Role.USER, "go")])
        answered = httpx.post(f"{model.base_url}/{PROTOCOLS[name].path}", content=body, timeout=_TIMEOUT_S)
    assert answered.status_code == httpx.codes.OK, answered.text
    return answered.content


def read_stream(name: str, chunks: Sequence[bytes]) -> Any:
    """What an attempt does with the bytes, without its socket."""
    parser, assembly = SseParser(), PROTOCOLS[name].assembly()
    for chunk in chunks:
        for payload in parser.feed(chunk):
            assembly.apply_payload(payload)
            if assembly.complete:
                return assembly.response(request_id=None, transport_sha256="", transport_bytes=parser.total_bytes)
    raise AssertionError("the stream has a final frame")


def _measure_body(name: str, size: LlmSize) -> dict[str, Any]:
    adapter, messages = _adapter(name), list(conversation())
    tools = adapter.encode_tools((_TOOL,))
    before = View().extend([adapter.encode_message(message) for message in messages[:-2]])
    view = before.extend([adapter.encode_message(message) for message in messages[-2:]])
    whole = adapter.frame_body(_PARAMETERS, view, tools).join()
    document = json.loads(whole)

    def cold() -> int:
        made = View().extend([adapter.encode_message(message) for message in messages])
        return _finish(adapter, made, tools)

    def loop() -> int:
        made = before.extend([adapter.encode_message(message) for message in messages[-2:]])
        return _finish(adapter, made, tools)

    def one_dumps() -> int:
        return len(json.dumps(document, ensure_ascii=False).encode())

    assert cold() == loop() == len(whole), "all make the same body"
    sides = {"cold": cold, "warm": lambda: _finish(adapter, view, tools), "loop": loop, "dumps": one_dumps}
    best_s = _best_of(sides, size.rounds)
    return {
        "protocol": name,
        "messages": len(messages),
        "body_bytes": len(whole),
        "tokens": len(whole) // CHARS_PER_TOKEN,
        **{f"{side}_us": 1e6 * taken_s for side, taken_s in best_s.items()},
        "warm_ratio": best_s["dumps"] / best_s["warm"],
        "loop_ratio": best_s["dumps"] / best_s["loop"],
    }


def _finish(adapter: ModelAdapter, view: View, tools: bytes) -> int:
    """What a freeze and a send do: estimate, hash, frame, and every piece for the socket."""
    estimate_tokens(adapter, _PARAMETERS, tools, view, 1)
    hash_request(adapter, _PARAMETERS, tools, view)
    return sum(len(piece) for piece in adapter.frame_body(_PARAMETERS, view, tools))


def _best_of(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The CPU time of each side in its best round; they take turns, and a round is long enough for the clock."""
    repeats = {name: max(1, int(ROUND_S / max(_cpu_s(run, 1), 1e-6))) for name, run in sides.items()}
    best_s = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for name, run in sides.items():
            gc.collect()
            best_s[name] = min(best_s[name], _cpu_s(run, repeats[name]) / repeats[name])
    return best_s


def _cpu_s(run: Callable[[], object], repeats: int) -> float:
    began_s = time.process_time()
    for _ in range(repeats):
        run()
    return time.process_time() - began_s


def conversation() -> Iterator[Message]:
    """So many messages of so many tokens: a prompt, a question, then calls and their results."""
    each = _long_text(CONTEXT_TOKENS * CHARS_PER_TOKEN // MESSAGES)
    yield Message(Role.SYSTEM, each)
    yield Message(Role.USER, each)
    for number in range(MESSAGES // 2 - 1):
        arguments = json.dumps({"text": each[: len(each) * 9 // 10]}, ensure_ascii=False)
        yield Message(Role.ASSISTANT, "", (MessageCall(f"call_{number}", "write", arguments),))
        yield Message(Role.TOOL, each, wire_id=f"call_{number}")


def _long_text(chars: int) -> str:
    return (_TEXT * (chars // len(_TEXT) + 1))[:chars]


def _body(adapter: ModelAdapter, messages: Sequence[Message]) -> bytes:
    view = View().extend([adapter.encode_message(message) for message in messages])
    return adapter.frame_body(_PARAMETERS, view, b"").join()


def _adapter(name: str) -> ModelAdapter:
    return ADAPTERS[name](AdapterPorts(SystemClock()), _PROFILE)
