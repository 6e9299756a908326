"""The model protocols beside each other: how each is made, and what a dev-model's answer looks like to it."""

import base64
import json
from collections.abc import Iterable
from typing import Any

import httpx

from agentloom_worker.clock import Clock, ManualClock, SystemClock
from agentloom_worker.devmodel import DevModel, parse_script
from agentloom_worker.domain.model import FirstOutputKind, ModelOutcome, ModelResponse, Partial
from agentloom_worker.llm.adapter import ModelAdapter
from agentloom_worker.llm.adapters import ADAPTERS, AdapterPorts
from agentloom_worker.llm.assembly import Assembly
from agentloom_worker.llm.chat_assembly import ChatAssembly
from agentloom_worker.llm.profiles import Profile
from agentloom_worker.llm.responses_assembly import ResponsesAssembly
from agentloom_worker.llm.sse import SseParser
from tests.unit.llm.calls import GENERIC, Attempt, once, request_to

PATHS = {"openai-chat": "chat/completions", "openai-responses": "responses"}
PROTOCOLS = tuple(PATHS)

# An error inside of a stream, as each protocol writes it.
ERRORS = {
    "openai-chat": lambda code: {"error": {"message": "it broke", "type": "some_error", "code": code}},
    "openai-responses": lambda code: {"type": "error", "message": "it broke", "code": code, "param": None},
}


LEAP_S = 100.0


class LeapingClock(ManualClock):
    """Once it leaps, each look at the clock comes a hundred seconds after the one before."""

    leaping = False

    def monotonic_s(self) -> float:
        if self.leaping:
            self.advance(LEAP_S)
        return super().monotonic_s()


def new_adapter(protocol: str, clock: Clock | None = None, profile: Profile = GENERIC) -> ModelAdapter:
    return ADAPTERS[protocol](AdapterPorts(clock or SystemClock()), profile)


def model_of(*answers: dict[str, Any], dialect: dict[str, Any] | None = None) -> DevModel:
    """A dev-model that gives these answers, one after another, to the same request; the last one for good."""
    turns = [{"first": number, "answer": answer} for number, answer in enumerate(answers[:-1], 1)]
    script = {"schema_version": 1, "dialect": dialect or {}, "turns": [*turns, {"answer": answers[-1]}]}
    return DevModel(parse_script(script))


def told(protocol: str, answer: dict[str, Any], attempt: Attempt | None = None) -> ModelOutcome:
    """The outcome of one attempt at a dev-model that answers so."""
    with model_of(answer) as model:
        return once(new_adapter(protocol), model.base_url, attempt)


def raw(body: bytes, **more: Any) -> dict[str, Any]:
    """The answer of a dev-model that sends these bytes as they stand."""
    return {"raw": {"base64": base64.b64encode(body).decode(), **more}}


def asked(protocol: str) -> dict[str, Any]:
    """The document of the request that these tests make."""
    document: dict[str, Any] = json.loads(request_to(new_adapter(protocol), "").body.join())
    return document


def post(
    protocol: str, answer: dict[str, Any], document: dict[str, Any], dialect: dict[str, Any] | None = None
) -> httpx.Response:
    """What a dev-model that answers so sends for a document, as it stands on the wire."""
    with model_of(answer, dialect=dialect) as model:
        return httpx.post(f"{model.base_url}/{PATHS[protocol]}", json=document, timeout=10)


def stream_of(protocol: str, answer: dict[str, Any]) -> bytes:
    """The bytes of the stream that a dev-model sends for an answer."""
    return post(protocol, answer, asked(protocol)).content


def read(protocol: str, chunks: Iterable[bytes]) -> tuple[ModelResponse | None, Partial, list[FirstOutputKind]]:
    """What parser and assembly make of these chunks: a response only where the final frame was reached."""
    assembly: Assembly = ChatAssembly(GENERIC) if protocol == "openai-chat" else ResponsesAssembly(GENERIC)
    parser = SseParser()
    kinds: list[FirstOutputKind] = []
    for chunk in chunks:
        for payload in parser.feed(chunk):
            kind = assembly.apply_payload(payload)
            kinds += [] if kind is None else [kind]
            if assembly.complete:
                response = assembly.response(request_id=None, transport_sha256="", transport_bytes=0)
                return response, assembly.partial(), kinds
    return None, assembly.partial(), kinds
