"""The incident's script drives its tools to an answer that quotes what they really computed."""

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

import httpx
import pytest
import yaml

from agentloom_worker.devmodel import DevModel, Script, load_script
from agentloom_worker.examples.incident import QUESTION, RELEASE, SCRIPT

LOOPS_MAX = 10
TIMEOUT_S = 20.0


def quick_script() -> Script:
    """The shipped script without its pauses, which are for people to watch."""
    script = load_script(SCRIPT)
    return script.model_copy(
        update={"delay": script.delay.model_copy(update=dict.fromkeys(script.delay.model_fields_set, 0))}
    )


def tools_of_the_release() -> dict[str, Callable[..., object]]:
    tools = yaml.safe_load(RELEASE.read_text())["tools"]
    handlers = {name: tool["handler"].split(":") for name, tool in tools.items()}
    return {name: getattr(import_module(module), function) for name, (module, function) in handlers.items()}


@pytest.fixture(scope="module")
def transcript() -> list[dict[str, Any]]:
    """What is said when the tools are called as the script asks, on real HTTP."""
    tools = tools_of_the_release()
    offered = [{"type": "function", "function": {"name": name}} for name in tools]
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    with (
        DevModel(quick_script()) as model,
        httpx.Client(base_url=model.base_url, timeout=TIMEOUT_S) as client,
    ):
        for _ in range(LOOPS_MAX):
            body = {"model": "dev-model", "messages": messages, "tools": offered}
            response = client.post("/chat/completions", json=body)
            message = response.raise_for_status().json()["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                return messages
            for call in message["tool_calls"]:
                function = call["function"]
                result = tools[function["name"]](**json.loads(function["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})
    raise AssertionError(f"no answer after {LOOPS_MAX} loops")


def test_the_script_makes_five_calls_of_which_two_pairs_run_side_by_side(
    transcript: list[dict[str, Any]],
) -> None:
    turns = [message["tool_calls"] for message in transcript if message.get("tool_calls")]
    assert [[call["function"]["name"] for call in turn] for turn in turns] == [
        ["search_log", "summarize_csv"],
        ["correlate"],
        ["search_log", "search_log"],
    ]
    assert json.loads(turns[1][0]["function"]["arguments"]) == {
        "start": "2026-03-17T14:08:09Z",
        "end": "2026-03-17T14:32:17Z",
    }


@pytest.mark.parametrize(
    "fact",
    [
        "CHG-4471 (service=payments config northpay.pool.size=50->5 by=mkoller)",
        "deployed at 2026-03-17T14:05:12Z",
        "rose from 1.0 % in the ten minutes before it to 32.6 %",
        "77 pool timeouts, the first at 2026-03-17T14:08:09Z, the last at 2026-03-17T14:32:17Z",
        "r = 0.996",
        "northpay, with 79 of 402 orders failed and a p95 of 5033 ms; bluewire stayed at 336 ms",
        "incident=INC-902 resolved",
        "reverts=CHG-4471",
    ],
)
def test_the_answer_quotes_what_the_tools_computed(transcript: list[dict[str, Any]], fact: str) -> None:
    assert fact in transcript[-1]["content"]


def test_nothing_that_the_answer_quotes_is_missing_or_written_into_the_script(
    transcript: list[dict[str, Any]],
) -> None:
    script = SCRIPT.read_text()
    assert "(none)" not in transcript[-1]["content"]
    assert "{{" not in transcript[-1]["content"]
    assert not [figure for figure in ("CHG-", "5033", "northpay", "14:05") if figure in script]
