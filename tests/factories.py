"""Builders of valid values; a test names only what it is about."""

from typing import Any

from agentloom_worker.canonical import canonical_bytes, sha256_hex
from agentloom_worker.domain.capability import CapabilityKind, CapabilitySpec, Effect
from agentloom_worker.domain.policy import Jitter, OnUnknown, OnUnknownAction, RetryPolicy
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.inputs import InputReceipt


def release_document(
    *, base_url: str = "script:main", tools: dict[str, Any] | None = None, **overrides: Any
) -> dict[str, Any]:
    """A minimal valid release document: one agent on one model, `main`, scripted unless `base_url` is http.

    `tools` become the agent's. `overrides` are merged into the sections of the document, mappings field by
    field: `release_document(agent={"limits": {"max_loops": 3}})`; a mapping is replaced by overriding its
    parts, anything else as a whole.
    """
    document: dict[str, Any] = {
        "schema_version": 1,
        "agent": {"id": "assistant", "prompt": "Answer briefly.", "model": "main"},
        "models": {
            "main": {
                "protocol": "scripted" if base_url.startswith("script:") else "openai-chat",
                "base_url": base_url,
                "model": "dev-model",
                "context_window_tokens": 128_000,
            }
        },
    }
    if tools:
        document["tools"] = tools
        document["agent"]["tools"] = list(tools)
    return _merged(document, overrides)


def python_tool(**overrides: Any) -> dict[str, Any]:
    """A minimal valid entry of `tools`."""
    return _merged({"kind": "python", "handler": "tests.tools:echo", "effect": "none"}, overrides)


def http_tool(url: str, /, **overrides: Any) -> dict[str, Any]:
    """A minimal valid entry of `tools` of kind http: a GET of this URL, to its own host."""
    host = url.partition("://")[2].partition("/")[0].partition("?")[0]
    base = {
        "kind": "http",
        "method": "GET",
        "url": url,
        "allow": [host],
        "description": "Asks a server.",
        "input_schema": {"type": "object", "additionalProperties": False},
        "effect": "read",
    }
    return {**base, **overrides}


def capability(key: str, **overrides: Any) -> CapabilitySpec:
    """A resolved capability; the fingerprint follows from the schemas."""
    input_schema = overrides.get("input_schema", {"type": "object", "additionalProperties": False})
    output_schema = overrides.get("output_schema")
    values: dict[str, Any] = {
        "key": key,
        "kind": CapabilityKind.PYTHON,
        "model_name": key,
        "description": f"Does {key}.",
        "input_schema": input_schema,
        "output_schema": output_schema,
        "schema_fingerprint": sha256_hex(canonical_bytes({"input": input_schema, "output": output_schema})),
        "handler_ref": "tests.tools:echo",
        "effect": Effect.NONE,
        "timeout_ms": 60_000,
        "retry": RetryPolicy(4, 1000, 2.0, 60_000, Jitter.FULL, OnUnknown(OnUnknownAction.FAIL, 0)),
    }
    return CapabilitySpec(**(values | overrides))


def _merged(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for name, value in overrides.items():
        old = result.get(name)
        result[name] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def run_of_receipt(receipt: InputReceipt) -> RunId:
    """The run that an input has."""
    assert receipt.run_id is not None, f"input {receipt.input_id} is {receipt.state}"
    return receipt.run_id
