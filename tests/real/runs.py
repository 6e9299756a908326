"""What the tests of a real model ask, and where they look."""

from typing import Any

import httpx

from agentloom_worker.ids import RunId
from agentloom_worker.llm.adapters import ADAPTERS
from agentloom_worker.runtime.ports import Ports
from tests.acceptance.harness import attempts, over, wait_for
from tests.factories import python_tool, release_document
from tests.real.server import CONTEXT_TOKENS, MODEL

WAIT_S = 240.0
OUTPUT_TOKENS = 24
ENDLESS_TOKENS = 3_000
PROTOCOLS = sorted(name for name in ADAPTERS if name.startswith("openai-"))


def release(
    base_url: str,
    protocol: str,
    *,
    profile: str = "generic",
    output_tokens: int = OUTPUT_TOKENS,
    tools: bool = False,
    **model: Any,
) -> dict[str, Any]:
    """An agent on the real model, whose window stands as the server has it unless `model` says otherwise."""
    main = {
        "protocol": protocol,
        "profile": profile,
        "model": MODEL,
        "context_window_tokens": CONTEXT_TOKENS,
        "max_output_tokens": output_tokens,
        "first_output_timeout_ms": int(WAIT_S * 1000),
        **model,
    }
    offered = {"echo": python_tool()} if tools else None
    reserve = {"context": {"output_reserve_tokens": output_tokens}}
    return release_document(base_url=base_url, tools=offered, models={"main": main}, **reserve)


def wait_for_output(ports: Ports, run_id: RunId) -> None:
    """Until the run's stream has brought something, or the run is over."""
    wait_for(
        lambda: over(ports, run_id)() or any(attempt.first_output for attempt in attempts(ports, run_id)),
        "the stream has brought its first output",
        WAIT_S,
    )


def ask_server(base_url: str, path: str) -> httpx.Response:
    """What the server says beside its API."""
    return httpx.get(f"{base_url.removesuffix('/v1')}{path}", timeout=WAIT_S).raise_for_status()


def slot(base_url: str) -> dict[str, Any]:
    """The server's only place for an answer, and how much of one it has written."""
    (found,) = ask_server(base_url, "/slots").json()
    return dict(found)


def counted(base_url: str) -> dict[str, int]:
    """The server's own account of the tokens that it has read, taken from its cache, and written, since its start."""
    lines = (line.split() for line in ask_server(base_url, "/metrics").text.splitlines() if line[:1] not in ("#", ""))
    counters = {name.removeprefix("llamacpp:"): float(value) for name, value in lines}
    names = {"read": "prompt_tokens_total", "cached": "prompt_tokens_cached_total", "written": "tokens_predicted_total"}
    return {ours: int(counters[theirs]) for ours, theirs in names.items()}
