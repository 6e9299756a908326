"""Every golden stream that ends well, with every line end, broken off after every byte: only the whole is complete."""

import pytest

from agentloom_worker.clock import SystemClock
from agentloom_worker.domain.model import Completed, Failed
from agentloom_worker.errors import Code
from agentloom_worker.llm.adapter import ModelAdapter
from agentloom_worker.llm.adapters import ADAPTERS, AdapterPorts
from agentloom_worker.llm.profiles import PROFILES
from tests.unit.http.raw_server import STREAM_HEAD, bytes_of, serving
from tests.unit.llm import response_streams, streams
from tests.unit.llm.calls import once
from tests.unit.llm.test_llama_responses import RECORDED
from tests.unit.llm.test_ollama_responses import CALLS, call_at, words
from tests.unit.llm.test_ollama_responses import WORDS as OLLAMA_WORDS

WHOLE = {
    "S05": streams.S05,
    "S06 refused": streams.S06_REFUSAL,
    "S06 filtered": streams.S06_FILTERED,
    "S07": streams.S07,
    "S08": streams.S08,
    "empty": streams.EMPTY,
    "CRLF": streams.S01.replace(b"\n", b"\r\n"),
    "CR": streams.S01.replace(b"\n", b"\r"),
}
SERVERS = {"ollama": streams.OLLAMA, "azure-openai": streams.AZURE}
RESPONSES = {
    "S06": ("generic", response_streams.S06),
    "S07": ("generic", response_streams.S07),
    "empty": ("generic", response_streams.EMPTY),
    "CRLF": ("generic", response_streams.S01.replace(b"\n", b"\r\n")),
    "CR": ("generic", response_streams.S01.replace(b"\n", b"\r")),
    "llama.cpp": ("llama-cpp", RECORDED.read_bytes()),
    "Ollama": (
        "ollama",
        (
            response_streams.CREATED
            + words(0)
            + call_at(0, CALLS[0])
            + response_streams.ended("completed", CALLS[0], OLLAMA_WORDS)
        ).encode(),
    ),
}


def assert_only_the_whole_is_complete(adapter: ModelAdapter, body: bytes) -> None:
    # A CR ends its line, whether a LF follows or not: the last LF of a CRLF is missed by nobody.
    ends = len(body) - 1 if body.endswith(b"\r\n") else len(body)
    with serving(*(bytes_of(STREAM_HEAD + body[:cut]) for cut in [*range(ends), len(body)])) as server:
        outcomes = [once(adapter, server.base_url) for _ in range(ends)]
        whole = once(adapter, server.base_url)
    assert isinstance(whole, Completed), whole
    for outcome in outcomes:
        assert isinstance(outcome, Failed)
        assert outcome.failure.code == Code.MODEL_TRANSPORT_FAILED


@pytest.mark.parametrize("body", WHOLE.values(), ids=WHOLE)
def test_S06_S07_S08_a_stream_that_is_broken_off_anywhere_is_not_complete(body: bytes) -> None:
    assert_only_the_whole_is_complete(new_adapter("openai-chat", "generic"), body)


@pytest.mark.parametrize(("profile", "body"), SERVERS.items(), ids=SERVERS)
def test_S02_a_stream_of_a_server_that_is_broken_off_anywhere_is_not_complete(profile: str, body: bytes) -> None:
    assert_only_the_whole_is_complete(new_adapter("openai-chat", profile), body)


@pytest.mark.parametrize(("profile", "body"), RESPONSES.values(), ids=RESPONSES)
def test_S06_S07_S09_a_stream_of_responses_that_is_broken_off_anywhere_is_not_complete(
    profile: str, body: bytes
) -> None:
    assert_only_the_whole_is_complete(new_adapter("openai-responses", profile), body)


def new_adapter(protocol: str, profile: str) -> ModelAdapter:
    return ADAPTERS[protocol](AdapterPorts(SystemClock()), PROFILES[profile])
