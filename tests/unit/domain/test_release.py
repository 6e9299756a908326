"""Freezing and loading a release, and the check that a question fits beside what every request holds."""

import json
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from agentloom_worker.canonical import canonical_bytes, sha256_hex
from agentloom_worker.domain.budget import Budget
from agentloom_worker.domain.capability import CapabilityKind, CapabilitySpec, Effect
from agentloom_worker.domain.policy import Jitter, OnUnknown, OnUnknownAction, RetryPolicy
from agentloom_worker.domain.release import (
    FrozenDocument,
    FrozenRelease,
    ModelBinding,
    RunLimits,
    fixed_cost,
    freeze_release,
    load_release,
    tool_retry,
    validate_context,
)
from agentloom_worker.errors import InvariantError, ReleaseInvalidError
from agentloom_worker.wire import release as wire
from agentloom_worker.wire.release import parse_release
from tests.factories import capability, python_tool, release_document

RESULT_READ = capability("result.read", kind=CapabilityKind.BUILTIN, model_name="result_read")
MODEL_RETRY = RetryPolicy(4, 1000, 2.0, 60_000, Jitter.FULL, OnUnknown(OnUnknownAction.RETRY, 1))
TOOL_RETRY = RetryPolicy(4, 1000, 2.0, 60_000, Jitter.FULL, OnUnknown(OnUnknownAction.FAIL, 0))


def freeze(document: dict[str, Any], *specs: CapabilitySpec) -> FrozenDocument:
    return freeze_release(parse_release(document), specs)


def frozen_release(**overrides: Any) -> FrozenRelease:
    return load_release(freeze(release_document(**overrides)).body)


def two_tools(*, beta: dict[str, Any] | None = None, **overrides: Any) -> dict[str, Any]:
    tools = {"zeta": python_tool(name="alpha"), "beta": python_tool(**(beta or {}))}
    return release_document(tools=tools, **overrides)


SPECS = (capability("zeta"), capability("beta", output_schema={"type": "string"}), RESULT_READ)


def test_loaded_release_has_every_default_resolved() -> None:
    frozen = freeze(release_document(base_url="http://127.0.0.1:8000/v1"))
    release = load_release(frozen.body)
    assert release == FrozenRelease(
        digest=frozen.digest,
        schema_version=1,
        agent_id="assistant",
        role_key="assistant",
        prompt="Answer briefly.",
        model=ModelBinding(
            key="main",
            protocol="openai-chat",
            profile="generic",
            base_url="http://127.0.0.1:8000/v1",
            model="dev-model",
            context_window_tokens=128_000,
            model_max_output_tokens=None,
            credential_ref=None,
            first_output_timeout_ms=60_000,
            idle_timeout_ms=None,
            parameters=(),
            retry=MODEL_RETRY,
        ),
        catalog=release.catalog,
        limits=RunLimits(50, 3600, 5),
        budget=Budget(128_000, 4096, 1280, 122_624, "0.80", 98_099),
        estimator="utf8-envelope-v1",
        max_output_tokens=4096,
    )
    assert release.catalog.capabilities == ()


def test_frozen_bytes_are_canonical_and_written_out() -> None:
    body = freeze(two_tools(), *SPECS).body
    document = json.loads(body)
    assert canonical_bytes(document) == body
    assert document["agent"]["limits"] == {"max_loops": 50, "deadline_s": 3600, "max_step_attempts": 5}
    assert document["models"]["main"]["retry"]["on_unknown"] == {"action": "retry", "max": 1}
    assert document["tools"]["beta"]["output_schema"] == {"type": "string"}
    assert "output_schema" not in document["tools"]["zeta"]


def test_catalog_is_sorted_by_model_name_and_hashed() -> None:
    release = load_release(freeze(two_tools(), *SPECS).body)
    catalog = release.catalog
    assert [spec.model_name for spec in catalog.capabilities] == ["alpha", "beta", "result_read"]
    assert [spec.key for spec in catalog.capabilities] == ["zeta", "beta", "result.read"]
    assert list(catalog.by_model_name) == ["alpha", "beta", "result_read"]
    assert catalog.by_model_name["result_read"] == RESULT_READ
    written = json.loads(freeze(two_tools(), *SPECS).body)["tools"]
    listed = [{"key": spec.key, **written[spec.key]} for spec in catalog.capabilities]
    assert catalog.catalog_hash == sha256_hex(canonical_bytes(listed))


@pytest.mark.parametrize(
    "change",
    [
        {"description": "other"},
        {"input_schema": {"type": "object", "title": "other"}},
        {"output_schema": {"type": "object"}},
        {"handler_ref": "a:b"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_a_handler_declares_changes_the_hash_of_the_catalog(change: dict[str, Any]) -> None:
    def catalog_hash(**options: Any) -> str:
        document = release_document(tools={"echo": python_tool()})
        return load_release(freeze(document, capability("echo", **options)).body).catalog.catalog_hash

    assert catalog_hash() == catalog_hash()
    assert catalog_hash() != catalog_hash(**change)


@pytest.mark.parametrize(
    "change",
    [{"name": "peek"}, {"effect": "write_external"}, {"timeout_ms": 1}, {"retry": {"max_attempts": 1}}],
    ids=lambda change: next(iter(change)),
)
def test_what_a_document_decides_changes_the_hash_of_the_catalog(change: dict[str, Any]) -> None:
    def catalog_hash(**options: Any) -> str:
        document = release_document(tools={"echo": python_tool(**options)})
        return load_release(freeze(document, capability("echo")).body).catalog.catalog_hash

    assert catalog_hash() != catalog_hash(**change)


def test_document_decides_on_name_effect_timeout_retry_and_handler_on_the_rest() -> None:
    tool = python_tool(
        name="shown",
        effect="write_external",
        timeout_ms=7,
        description="Written.",
        retry={"max_attempts": 2, "on_unknown": {"action": "retry"}},
    )
    document = release_document(tools={"echo": tool}, retry={"tools": {"jitter": "none"}})
    spec = capability("echo", input_schema={"type": "object", "title": "T"}, schema_derived=True)
    found = load_release(freeze(document, spec).body).catalog.capabilities[0]
    expected_retry = RetryPolicy(2, 1000, 2.0, 60_000, Jitter.NONE, OnUnknown(OnUnknownAction.RETRY, 1))
    assert found == CapabilitySpec(
        key="echo",
        kind=CapabilityKind.PYTHON,
        model_name="shown",
        description="Written.",
        input_schema={"type": "object", "title": "T"},
        output_schema=None,
        schema_fingerprint=spec.schema_fingerprint,
        handler_ref="tests.tools:echo",
        effect=Effect.WRITE_EXTERNAL,
        timeout_ms=7,
        retry=expected_retry,
        schema_derived=True,
    )
    assert tool_retry(parse_release(document), "echo") == expected_retry


def test_written_description_may_be_empty_and_absent_one_is_the_handlers() -> None:
    tools = {"a": python_tool(description=""), "b": python_tool()}
    specs = (capability("a"), capability("b"))
    catalog = load_release(freeze(release_document(tools=tools), *specs).body).catalog
    assert [spec.description for spec in catalog.capabilities] == ["", "Does b."]


def test_builtin_tools_enter_only_beside_a_tool_of_the_agents_own() -> None:
    assert load_release(freeze(release_document(), RESULT_READ).body).catalog.capabilities == ()


def test_null_inside_parameters_is_kept() -> None:
    release = frozen_release(models={"main": {"parameters": {"stop": None, "a": {"b": None}}}})
    assert release.model.parameters == (("a", {"b": None}), ("stop", None))


# --- the digest


def digest(document: dict[str, Any]) -> bytes:
    return freeze(document, *SPECS).digest


def test_order_and_written_defaults_do_not_change_the_digest() -> None:
    plain = two_tools()
    turned = {key: plain[key] for key in reversed(plain)}
    turned["agent"] = plain["agent"] | {"tools": ["beta", "zeta"]}
    assert digest(turned) == digest(plain)
    assert freeze(plain, *reversed(SPECS)).digest == digest(plain)
    explicit = two_tools(
        agent={"role": "assistant", "limits": {"max_loops": 50}},
        models={"main": {"idle_timeout_ms": None, "retry": {"max_attempts": 4, "multiplier": 2}}},
        context={"output_reserve_tokens": 4096, "trigger_ratio": "0.80"},
    )
    assert digest(explicit) == digest(plain)


def test_models_that_the_agent_cannot_reach_do_not_change_the_digest() -> None:
    spare = release_document()["models"]["main"] | {"model": "other"}
    assert digest(two_tools(models={"spare": spare})) == digest(two_tools())


@pytest.mark.parametrize(
    "overrides",
    [
        {"agent": {"prompt": "Answer briefly. "}},
        {"agent": {"limits": {"deadline_s": 3601}}},
        {"models": {"main": {"base_url": "script:other"}}},
        {"models": {"main": {"parameters": {"seed": 1}}}},
        {"models": {"main": {"credential": "env:KEY"}}},
        {"context": {"trigger_ratio": "0.8"}},
        {"retry": {"model": {"initial_ms": 1001}}},
        {"retry": {"tools": {"initial_ms": 1001}}},
        {"beta": {"effect": "read"}},
    ],
)
def test_whatever_a_run_can_notice_changes_the_digest(overrides: dict[str, Any]) -> None:
    assert digest(two_tools(**overrides)) != digest(two_tools())


def test_later_optional_field_leaves_older_bytes_and_digests_as_they_are() -> None:
    class LaterAgent(wire.FrozenAgent):
        hooks: list[str] | None = None

    written = json.loads(freeze(release_document()).body)["agent"]
    assert LaterAgent.model_validate(written).model_dump() == written
    with_hooks = LaterAgent.model_validate(written | {"hooks": ["a"]})
    assert with_hooks.model_dump() == written | {"hooks": ["a"]}


def test_newer_default_changes_no_release_that_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    body = freeze(two_tools(), *SPECS).body
    before = load_release(body)
    newer = wire.MODEL_RETRY.model_copy(update={"max_attempts": 9})
    monkeypatch.setattr(wire, "MODEL_RETRY", newer)
    monkeypatch.setattr(wire, "TOOL_RETRY", newer)
    assert load_release(freeze(two_tools(), *SPECS).body).model.retry.max_attempts == 9
    assert load_release(body) == before


# --- damage


def places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key)
            yield from places(item, (*path, key))


def resolved_places(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Where a value must stand: all but free JSON and what may be absent."""
    free = {"parameters", "input_schema", "output_schema"}
    optional = {"max_output_tokens", "credential", "idle_timeout_ms", "output_schema"}
    return [path for path in places(document) if not free.intersection(path[:-1]) and path[-1] not in optional]


def without(document: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    if len(path) == 1:
        return {key: value for key, value in document.items() if key != path[0]}
    return document | {path[0]: without(document[path[0]], path[1:])}


def test_release_from_which_any_value_is_missing_is_not_read() -> None:
    model = {
        "max_output_tokens": 4096,
        "credential": "env:KEY",
        "idle_timeout_ms": 9,
        "parameters": {"seed": 1},
    }
    document = json.loads(freeze(two_tools(models={"main": model}), *SPECS).body)
    checked = resolved_places(document)
    assert len(checked) > 80
    for path in checked:
        with pytest.raises(InvariantError) as caught:
            load_release(canonical_bytes(without(document, path)))
        assert path[-1] in str(caught.value), path


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hooks": []}, "/hooks: extra_forbidden"),
        ({"schema_version": 2}, "/schema_version: less_than_equal"),
        ({"agent": "SECRET TEXT"}, "/agent: model_type"),
    ],
)
def test_release_of_a_later_program_is_not_read_and_not_quoted(change: dict[str, Any], expected: str) -> None:
    document = json.loads(freeze(release_document()).body) | change
    with pytest.raises(InvariantError, match=expected) as caught:
        load_release(canonical_bytes(document))
    assert "SECRET TEXT" not in "".join(traceback.format_exception(caught.value))


def test_bytes_that_are_not_json_are_not_read() -> None:
    with pytest.raises(InvariantError, match="not JSON"):
        load_release(b"{")


def test_catalog_out_of_order_is_not_read() -> None:
    document = json.loads(freeze(two_tools(), *SPECS).body)
    document["agent"]["tools"].reverse()
    with pytest.raises(InvariantError, match="not sorted"):
        load_release(canonical_bytes(document))


# --- tools that do not belong


@pytest.mark.parametrize(
    "specs", [(), (capability("zeta"),), (*SPECS, capability("more")), (*SPECS, capability("beta"))]
)
def test_tools_other_than_the_documents_are_our_own_bug(specs: tuple[CapabilitySpec, ...]) -> None:
    with pytest.raises(InvariantError, match="are not those of agent assistant"):
        freeze(two_tools(), *specs)


def test_tool_with_the_model_name_of_a_builtin_is_refused() -> None:
    builtin = capability("other.builtin", kind=CapabilityKind.BUILTIN, model_name="beta")
    with pytest.raises(ReleaseInvalidError) as caught:
        freeze(two_tools(), *SPECS, builtin)
    assert [path for path, _ in caught.value.problems] == ["/tools/other.builtin"]


# --- the context


def with_window(window: int, **overrides: Any) -> FrozenRelease:
    context = {"output_reserve_tokens": 100, "safety_margin_tokens": 0}
    return frozen_release(models={"main": {"context_window_tokens": window}}, context=context, **overrides)


def test_fixed_cost_counts_prompt_tools_and_envelope() -> None:
    bare = fixed_cost(frozen_release())
    longer = fixed_cost(frozen_release(agent={"prompt": "Answer briefly.\u00e9\u00e9"}))
    assert longer.system_prompt_tokens == bare.system_prompt_tokens + 4
    assert bare.tool_schemas_tokens == 0
    tools = fixed_cost(load_release(freeze(two_tools(), *SPECS).body))
    assert tools.envelope_tokens == bare.envelope_tokens + 3 * 64
    described = capability("beta", description="Does beta.xxxxx")
    more = fixed_cost(load_release(freeze(two_tools(), SPECS[0], described, RESULT_READ).body))
    assert more.tool_schemas_tokens == tools.tool_schemas_tokens + 5
    assert tools.total_tokens == (tools.system_prompt_tokens + tools.tool_schemas_tokens + tools.envelope_tokens)


def test_K04_fixed_part_at_the_budget_is_refused_with_the_breakdown() -> None:
    # The digits of the window are no part of a request, so its cost is the same for every window here.
    cost = fixed_cost(with_window(5000))
    with pytest.raises(ReleaseInvalidError) as caught:
        validate_context(with_window(cost.total_tokens + 100))
    ((path, text),) = caught.value.problems
    assert path == "/context"
    for number in (cost.system_prompt_tokens, cost.envelope_tokens, cost.total_tokens):
        assert f" {number} " in text
    assert f"input budget {cost.total_tokens} (window {cost.total_tokens + 100} - output reserve 100" in text


def test_K04_fixed_part_between_trigger_and_budget_is_accepted_with_a_warning() -> None:
    cost = fixed_cost(with_window(5000))
    (warning,) = validate_context(with_window(cost.total_tokens + 101))
    assert f"trigger of {(cost.total_tokens + 1) * 4 // 5}" in warning
    assert f"= {cost.total_tokens} estimated tokens" in warning


def test_K04_warning_begins_exactly_at_the_trigger() -> None:
    cost = fixed_cost(with_window(5000))
    at_trigger = next(b for b in range(cost.total_tokens, 5000) if b * 4 // 5 == cost.total_tokens)
    above = next(b for b in range(cost.total_tokens, 5000) if b * 4 // 5 == cost.total_tokens + 1)
    assert validate_context(with_window(at_trigger + 100)) != ()
    assert validate_context(with_window(above + 100)) == ()


def test_output_limit_above_the_window_leaves_room_for_input_and_is_told() -> None:
    release = frozen_release(models={"main": {"max_output_tokens": 384_000}})
    assert (release.budget.output_reserve_tokens, release.max_output_tokens) == (32_000, 32_000)
    (warning,) = validate_context(release)
    assert "maximum output 384000 exceeds its window 128000" in warning


@pytest.mark.parametrize(("maximum", "reserve", "asked"), [(None, 900, 900), (500, 900, 500), (1000, 900, 900)])
def test_request_never_asks_for_more_output_than_is_reserved(maximum: int | None, reserve: int, asked: int) -> None:
    release = frozen_release(
        models={"main": {"max_output_tokens": maximum}}, context={"output_reserve_tokens": reserve}
    )
    assert release.max_output_tokens == asked
