"""The release document: what is accepted, what is refused, and how a refusal reads."""

import copy
import json
import traceback
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from agentloom_worker import limits
from agentloom_worker.domain.budget import derive_budget
from agentloom_worker.errors import Code, ReleaseInvalidError
from agentloom_worker.llm import chat_encoding, responses_encoding
from agentloom_worker.wire import release as wire
from agentloom_worker.wire.release import ReleaseDocument, parse_release, release_schema, resolve_retry
from agentloom_worker.wire.release_check import OWNED_PARAMETERS
from tests.factories import python_tool, release_document

HTTP = "http://127.0.0.1:8000/v1"

FULL_YAML = """
schema_version: 1
agent:
  id: incident-analyst
  role: assistant
  prompt: |
    Read the log and answer.
  model: main
  tools: [read_log, sum_csv]
  limits: {max_loops: 50, deadline_s: 3600, max_step_attempts: 5}
models:
  main: {protocol: openai-chat, profile: generic, base_url: "http://127.0.0.1:8000/v1", model: name,
         context_window_tokens: 128000, max_output_tokens: 4096, credential: "env:MODEL_KEY",
         first_output_timeout_ms: 60000, idle_timeout_ms: null,
         parameters: {temperature: 0.2, stop: null, parallel_tool_calls: false},
         retry: {max_attempts: 6, multiplier: 2}}
tools:
  read_log: {kind: python, handler: "pkg.module:function", effect: read, description: Reads.,
             input_schema: {type: object}, output_schema: {type: string}, timeout_ms: 1000,
             retry: {on_unknown: {action: retry, max: 2}}}
  sum_csv: {kind: python, handler: sum-csv, name: sumCsv, effect: none}
context: {output_reserve_tokens: 8192, safety_margin_tokens: 1280, trigger_ratio: "0.80",
          estimator: utf8-envelope-v1}
retry:
  model: {max_attempts: 4, initial_ms: 1000, multiplier: 2.0, max_ms: 60000, jitter: full,
          on_unknown: {action: retry, max: 1}}
  tools: {on_unknown: {action: fail, max: 0}}
"""


def problems_of(source: bytes | str | dict[str, Any], **options: Any) -> dict[str, str]:
    with pytest.raises(ReleaseInvalidError) as caught:
        parse_release(source, **options)
    assert caught.value.code is Code.RELEASE_INVALID
    return dict(caught.value.problems)


def only_problem(source: bytes | str | dict[str, Any], **options: Any) -> tuple[str, str]:
    problems = problems_of(source, **options)
    assert len(problems) == 1, problems
    return next(iter(problems.items()))


def test_yaml_json_and_mapping_give_the_same_document() -> None:
    from_yaml = parse_release(FULL_YAML)
    tree = yaml.safe_load(FULL_YAML)
    assert parse_release(tree) == from_yaml
    assert parse_release(json.dumps(tree, indent=1)) == from_yaml
    assert parse_release("\ufeff" + FULL_YAML) == from_yaml
    assert parse_release(FULL_YAML.encode()) == from_yaml
    assert parse_release(yaml.safe_dump(tree, default_flow_style=True)) == from_yaml  # begins with a brace


def test_absent_fields_take_the_documented_defaults() -> None:
    document = parse_release(release_document(base_url=HTTP, tools={"echo": python_tool()}))
    assert (document.agent.role, document.agent.limits) == (
        "assistant",
        wire.LimitsDocument(max_loops=50, deadline_s=3600, max_step_attempts=5),
    )
    model = document.models["main"]
    assert (model.profile, model.first_output_timeout_ms, model.idle_timeout_ms) == ("generic", 60_000, None)
    assert document.tools["echo"].timeout_ms == 60_000
    assert (document.context.trigger_ratio, document.context.estimator) == ("0.80", "utf8-envelope-v1")
    assert wire.MODEL_RETRY.model_dump() == {
        "max_attempts": 4,
        "initial_ms": 1000,
        "multiplier": 2.0,
        "max_ms": 60_000,
        "jitter": "full",
        "on_unknown": {"action": "retry", "max": 1},
    }
    assert wire.TOOL_RETRY.on_unknown == wire.FrozenOnUnknown(action="fail", max=0)


MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown field": ({"agent": {"tols": []}}, "/agent/tols", "did you mean `tools`?"),
    "unknown section": ({"modles": {}}, "/modles", "did you mean `models`?"),
    "unknown field of an optional section": (
        {"models": {"main": {"retry": {"max_atempts": 2}}}},
        "/models/main/retry/max_atempts",
        "did you mean `max_attempts`?",
    ),
    "other version": ({"schema_version": 2}, "/schema_version", "must be less than or equal to 1"),
    "version as boolean": (
        {"schema_version": True},
        "/schema_version",
        "must be a whole number, not a boolean",
    ),
    "agent id": ({"agent": {"id": "Not A Slug"}}, "/agent/id", "must be a slug"),
    "agent id as boolean": ({"agent": {"id": True}}, "/agent/id", "must be text, not a boolean (put it in"),
    "blank prompt": ({"agent": {"prompt": " \n"}}, "/agent/prompt", "must not be blank"),
    "unknown model": ({"agent": {"model": "mian"}}, "/agent/model", "did you mean `main`?"),
    "unknown tool": ({"agent": {"tools": ["no_such"]}}, "/agent/tools/0", "names no entry of `tools`"),
    "section of wrong type": ({"context": []}, "/context", "must be a mapping, not a list"),
    "entry of wrong type": ({"models": {"spare": None}}, "/models/spare", "must be a mapping, not null"),
    "number as text": ({"agent": {"limits": {"max_loops": "9"}}}, "/agent/limits/max_loops", "not text"),
    "fraction": ({"agent": {"limits": {"max_loops": 9.0}}}, "/agent/limits/max_loops", "whole number"),
    "zero loops": ({"agent": {"limits": {"max_loops": 0}}}, "/agent/limits/max_loops", "must be greater"),
    "key": ({"models": {"a/b ~": release_document()["models"]["main"]}}, "/models/a~1b ~0", "must be a key"),
    "protocol": (
        {"models": {"main": {"protocol": "soap"}}},
        "/models/main/protocol",
        "must be 'openai-chat', 'openai-responses' or",
    ),
    "profile": (
        {"models": {"main": {"profile": "acme"}}},
        "/models/main/profile",
        "MODEL_FEATURE_UNSUPPORTED: is not a known profile (generic)",
    ),
    "script address": ({"models": {"main": {"base_url": HTTP}}}, "/models/main/base_url", "script:NAME"),
    "owned parameter": (
        {"models": {"main": {"parameters": {"max_tokens": 5}}}},
        "/models/main/parameters/max_tokens",
        "say `max_output_tokens` instead",
    ),
    "infinite parameter": (
        {"models": {"main": {"parameters": {"x": [1, float("nan")]}}}},
        "/models/main/parameters/x/1",
        "must be a finite number",
    ),
    "multiplier": ({"retry": {"model": {"multiplier": float("inf")}}}, "/retry/model/multiplier", "finite"),
    "huge number": (
        {"models": {"main": {"context_window_tokens": 10**30}}},
        "/models/main/context_window_tokens",
        "must fit into 64 bits",
    ),
    "a number as key": (
        {"models": {"main": {"parameters": {7: 1}}}},
        "/models/main/parameters",
        "keys are text",
    ),
    "no JSON value": (
        {"models": {"main": {"parameters": {"a": {1}}}}},
        "/models/main/parameters/a",
        "Python set",
    ),
    "half a surrogate pair": ({"agent": {"prompt": "a\ud800"}}, "/agent/prompt", "half of a surrogate pair"),
    "ratio as number": ({"context": {"trigger_ratio": 0.8}}, "/context/trigger_ratio", "put it in quotes"),
    "ratio of one": ({"context": {"trigger_ratio": "1.0"}}, "/context/trigger_ratio", "between 0 and 1"),
    "ratio of zero": ({"context": {"trigger_ratio": "0.00"}}, "/context/trigger_ratio", "between 0 and 1"),
    "reserve above window": (
        {"context": {"output_reserve_tokens": 128_000}},
        "/context/output_reserve_tokens",
        "128000 tokens leave nothing of the window of 128000 tokens",
    ),
    "no input budget": (
        {"context": {"output_reserve_tokens": 127_000, "safety_margin_tokens": 1000}},
        "/context",
        "window 128000 - output reserve 127000 - safety margin 1000 = 0 tokens",
    ),
    "fail with a maximum": (
        {"retry": {"tools": {"on_unknown": {"action": "fail", "max": 1}}}},
        "/retry/tools/on_unknown",
        "says `fail`, so `max` must be 0 or absent",
    ),
    "retry never": (
        {"retry": {"tools": {"on_unknown": {"action": "retry", "max": 0}}}},
        "/retry/tools/on_unknown",
        "write `action: fail`",
    ),
    "delays against a default": (
        {"retry": {"model": {"max_ms": 999}}},
        "/retry/model",
        "max_ms 999 is below initial_ms 1000",
    ),
    "delays across layers": (
        {
            "retry": {"model": {"initial_ms": 10, "max_ms": 20}},
            "models": {"main": {"retry": {"initial_ms": 21}}},
        },
        "/models/main/retry",
        "max_ms 20 is below initial_ms 21",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_refused_with_its_path_and_nothing_else(name: str) -> None:
    overrides, path, text = MISTAKES[name]
    found_path, found_text = only_problem(release_document(**overrides))
    assert found_path == path
    assert text in found_text


@pytest.mark.parametrize(
    ("tools", "path", "text"),
    [
        (
            {"a": python_tool(name="x"), "b": python_tool(name="x")},
            "/tools/b/name",
            "same model name as the tool `a`",
        ),
        ({"a": python_tool(name="b"), "b": python_tool()}, "/tools/b", "same model name as the tool `a`"),
        ({"a": python_tool(name="result_read")}, "/tools/a/name", "belongs to a built-in tool"),
        ({"result_read": python_tool()}, "/tools/result_read", "belongs to a built-in tool"),
        ({"result.read": python_tool(name="x")}, "/tools/result.read", "is the key of a built-in tool"),
        ({"a": python_tool(name="not ok")}, "/tools/a/name", "must match ^[a-zA-Z0-9_-]{1,64}$"),
        ({"a": python_tool(name="a\n")}, "/tools/a/name", "must match"),
        ({"a.b": python_tool()}, "/tools/a.b", "needs a `name`"),
        ({"a": python_tool(handler="x y")}, "/tools/a/handler", "package.module:function"),
        ({"a": python_tool(effect="writes")}, "/tools/a/effect", "must be 'none', 'read',"),
        ({"a": {"kind": "python", "handler": "x"}}, "/tools/a/effect", "is required"),
        ({"a": python_tool(timeout_ms=0)}, "/tools/a/timeout_ms", "must be greater"),
    ],
)
def test_tool_that_a_model_could_not_call_is_refused(tools: dict[str, Any], path: str, text: str) -> None:
    found_path, found_text = only_problem(release_document(tools=tools))
    assert found_path == path
    assert text in found_text


def test_tool_listed_twice_is_refused() -> None:
    document = release_document(tools={"a": python_tool()}, agent={"tools": ["a", "a"]})
    assert only_problem(document) == ("/agent/tools/1", "is listed more than once")


def test_model_without_a_window_is_refused_and_no_window_is_guessed() -> None:
    document = release_document()
    del document["models"]["main"]["context_window_tokens"]
    path, text = only_problem(document)
    assert path == "/models/main/context_window_tokens"
    assert "a window is never guessed" in text


@pytest.mark.parametrize(
    ("base_url", "text"),
    [
        ("ftp://host/v1", "must be an http or https URL"),
        ("http:///v1", "must be an http or https URL"),
        ("http://host:0/v1", "must be an http or https URL"),
        ("http://host /v1", "must be an http or https URL"),
        ("http://host:99999/v1", "is not a URL"),
        ("http://[::1/v1", "is not a URL"),
        ("https://user:word@host/v1", "holds a user or a password"),
        ("https://host/v1?version=1", "must end with a path"),
        ("https://host/v1?api-version=1&key=word", "must end with a path"),
        ("https://host/v1?api-version=", "must end with a path"),
        ("https://host/v1#part", "must end with a path"),
        ("https://host/v1/chat/completions?api-version=1", "must end in front of `/chat/completions`"),
    ],
)
def test_address_that_no_request_could_use_is_refused(base_url: str, text: str) -> None:
    path, found = only_problem(release_document(models={"main": {"protocol": "openai-chat", "base_url": base_url}}))
    assert path == "/models/main/base_url"
    assert text in found


@pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses"])
def test_an_address_may_name_the_version_of_the_api_that_stands_there(protocol: str) -> None:
    address = "https://host/openai/deployments/x?api-version=2024-10-21-preview"
    document = release_document(models={"main": {"protocol": protocol, "base_url": address}})
    assert parse_release(document).models["main"].base_url == address


def test_each_protocol_owns_the_parameters_that_its_encoding_refuses() -> None:
    assert OWNED_PARAMETERS["openai-chat"] == chat_encoding.RESERVED_PARAMETERS
    assert OWNED_PARAMETERS["openai-responses"] == responses_encoding.RESERVED_PARAMETERS
    model = {"protocol": "openai-responses", "base_url": HTTP, "parameters": {"previous_response_id": "resp_1", "n": 1}}
    path, found = only_problem(release_document(models={"main": model}))
    assert path == "/models/main/parameters/previous_response_id"
    assert "is set by the worker itself" in found


def test_profiles_known_to_the_caller_are_accepted() -> None:
    document = release_document(models={"main": {"profile": "acme"}})
    assert parse_release(document, known_profiles=("acme",)).models["main"].profile == "acme"


def test_every_problem_is_listed_at_once() -> None:
    text = """
        schema_version: 1
        agent: {id: x, id: y, prompt: 5, model: mian, tools: [gone], tols: []}
        models:
          main: {protocol: openai-chat, base_url: 'http://h', model: m, context_window_tokens: 1000,
                 credential: secret, parameters: {a: .nan, b: off, n: 2}}
        tools:
          t: {kind: shell, handler: h, effect: none, name: result_read}
        context: {trigger_ratio: 0.8}
    """
    assert list(problems_of(text)) == [
        "/agent/id",
        "/agent/model",
        "/agent/prompt",
        "/agent/tols",
        "/agent/tools/0",
        "/context/trigger_ratio",
        "/models/main/credential",
        "/models/main/parameters/a",
        "/models/main/parameters/b",
        "/models/main/parameters/n",
        "/tools/t/kind",
        "/tools/t/name",
    ]


# --- YAML and JSON as text


@pytest.mark.parametrize("value", ["yes", "No", "on", "OFF"])
def test_word_that_some_readers_take_for_a_boolean_is_refused_unless_quoted(value: str) -> None:
    text = yaml.safe_dump(release_document()) + "context: {estimator: utf8-envelope-v1}\n"
    flagged = text.replace("model: dev-model", f"model: {value}")
    path, found = only_problem(flagged)
    assert (path, "write true or false, or quote it" in found) == ("/models/main/model", True)
    quoted = text.replace("model: dev-model", f"model: '{value}'")
    assert parse_release(quoted).models["main"].model == value


@pytest.mark.parametrize("value", ["2024-01-01", "1:30", "0o17", "0x1F", "010", "1_000", "=", "12e", "."])
def test_plain_text_that_older_yaml_would_convert_stays_text(value: str) -> None:
    text = yaml.safe_dump(release_document()).replace("model: dev-model", f"model: {value}")
    assert parse_release(text).models["main"].model == value


def test_yaml_scalars_have_the_types_of_the_core_schema() -> None:
    parameters = "{a: 1, b: -2, c: 0.5, d: 1e3, e: true, f: ~, g: , h: +3, i: .5, j: 2., k: !!str 7}"
    text = json.dumps(release_document())[:-3] + f', "parameters": {parameters}}}}}}}'
    assert parse_release(text).models["main"].parameters == {
        "a": 1,
        "b": -2,
        "c": 0.5,
        "d": 1000.0,
        "e": True,
        "f": None,
        "g": None,
        "h": 3,
        "i": 0.5,
        "j": 2.0,
        "k": "7",
    }


def test_json_key_given_twice_is_refused_with_its_path() -> None:
    text = json.dumps(release_document()).replace('"model": "dev-model"', '"model": "a", "model": "dev-model"')
    assert only_problem(text) == ("/models/main/model", "is given more than once")


def test_yaml_key_given_twice_is_refused_with_its_path() -> None:
    text = yaml.safe_dump(release_document()).replace("model: dev-model", "model: a\n    model: dev-model")
    assert only_problem(text) == ("/models/main/model", "is given more than once")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("[1, 2]", "must be a mapping"),
        ("text", "must be a mapping"),
        ("a: 1\n---\na: 2", "a second document begins"),
        ("a: !!python/object:os.system {}", "tags are not supported"),
        ("a: [1, 2", "line 1 column"),
        ("a: *nowhere", "this alias has no anchor"),
        ("a: \x01", "a character that YAML does not allow"),
        ('{"a": 1,}}', "is neither JSON ("),
        (b"a: \xff", "is not UTF-8 at byte 3"),
        ("a: " + "x" * limits.RELEASE_BYTES_MAX, "is larger than"),
    ],
)
def test_text_that_is_no_document_is_refused_with_the_reason(text: bytes | str, reason: str) -> None:
    path, found = only_problem(text)
    assert path == ""
    assert reason in found


@pytest.mark.parametrize("tagged", ["!!python/name:os.system x", "!!binary aGk=", "!own x", "! x"])
def test_tagged_scalar_is_refused_with_its_path(tagged: str) -> None:
    text = yaml.safe_dump(release_document()).replace("model: dev-model", f"model: {tagged}")
    assert only_problem(text) == ("/models/main/model", "tags are not supported")


def test_alias_stands_for_its_anchor() -> None:
    text = yaml.safe_dump(release_document()) + "retry: {model: &r {max_attempts: 2}, tools: *r}\n"
    retry = parse_release(text).retry
    assert retry.model == retry.tools == wire.RetryDocument(max_attempts=2)


def laughs(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (laughs(30), "holds more than 20000 values"),
        ("a: [" + "x, " * 30_000 + "x]", "holds more than 20000 values"),
        ("- x\n" * 250_000, "holds more than 20000 values"),
        ("a: &a [*a, *a]", "is nested deeper than 64 levels"),
        ("a: &a {k: *a}", "is nested deeper than 64 levels"),
        ("a: " + "[" * 100_000, "is nested deeper than 64 levels"),
        ('{"a":' * 100_000, "is nested deeper than 64 levels"),
        (f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 20)}]", "holds more than 1048576 characters"),
        ("a: " + "9" * 10_000, "must fit into 64 bits"),
        ('{"a": ' + "9" * 10_000 + "}", "must fit into 64 bits"),
    ],
)
def test_document_that_grows_without_bound_is_refused(text: str, reason: str) -> None:
    assert any(reason in found for found in problems_of(text).values())


def test_mapping_that_holds_itself_is_refused() -> None:
    document = release_document()
    document["context"] = document
    assert "is nested deeper than 64 levels" in problems_of(document)[""]


# --- secrets


SECRET = "sk-Vq7-not-to-be-shown"


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from leaves(item, (*path, key))


def replaced(document: dict[str, Any], path: tuple[Any, ...], value: object) -> dict[str, Any]:
    result = copy.deepcopy(document)
    place: Any = result
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return result


def refusal(source: str | dict[str, Any]) -> str:
    try:
        parse_release(source)
    except ReleaseInvalidError as error:
        return "".join(traceback.format_exception(error)) + repr(error.problems)
    return ""


@pytest.mark.parametrize("credential", [SECRET, f"env:{SECRET}", "env:", "file:", "Bearer " + SECRET, {"k": SECRET}])
def test_secret_written_as_credential_is_refused_and_not_shown(credential: object) -> None:
    document = release_document(base_url=HTTP, models={"main": {"credential": credential}})
    path, _ = only_problem(document)
    assert path == "/models/main/credential"
    assert SECRET not in refusal(document)


def test_value_in_the_wrong_place_is_never_shown() -> None:
    document = parse_release(FULL_YAML).model_dump()
    refused = 0
    for path in leaves(document):
        for value in (SECRET, [SECRET], {"x": SECRET}):
            shown = refusal(replaced(document, path, value))
            refused += bool(shown)
            assert SECRET not in shown, path
    assert refused > 100


@pytest.mark.parametrize("tail", ["\n : : [", "\n  - x\n a", '"', "\n\t- a: *b"])
def test_line_with_a_syntax_error_is_not_shown(tail: str) -> None:
    shown = refusal(f"api_key: '{SECRET}{tail}")
    assert shown
    assert SECRET not in shown
    shown = refusal(f'{{"api_key": "{SECRET}",, }}')
    assert shown
    assert SECRET not in shown


@pytest.mark.parametrize("reference", ["env:MODEL_KEY", "file:/run/secrets/model key", "file:secret.txt"])
def test_reference_to_a_secret_is_accepted(reference: str) -> None:
    document = release_document(base_url=HTTP, models={"main": {"credential": reference}})
    assert parse_release(document).models["main"].credential == reference


# --- the budget, which `domain.budget` derives and this floor checks beforehand


@given(
    window=st.integers(1, 20_000),
    maximum=st.none() | st.integers(1, 30_000),
    reserve=st.none() | st.integers(1, 21_000),
    margin=st.none() | st.integers(0, 21_000),
)
def test_budget_is_refused_exactly_where_its_formula_gives_none(
    window: int, maximum: int | None, reserve: int | None, margin: int | None
) -> None:
    document = release_document(
        models={"main": {"context_window_tokens": window, "max_output_tokens": maximum}},
        context={"output_reserve_tokens": reserve, "safety_margin_tokens": margin},
    )
    try:
        derive_budget(window, maximum, reserve, margin, "0.80")
    except ValueError as error:
        path, text = only_problem(document)
        assert path == "/context/output_reserve_tokens" or (path, text) == ("/context", str(error))
    else:
        parse_release(document)


# --- the schema


def test_schema_accepts_what_the_worker_accepts() -> None:
    schema = release_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(yaml.safe_load(FULL_YAML))
    validator.validate(release_document())
    validator.validate(parse_release(FULL_YAML).model_dump())


# What JSON Schema cannot say, or says more loosely: references, sums, other numbers for whole ones, bytes.
BEYOND_SCHEMA = {
    "unknown model",
    "unknown tool",
    "fraction",
    "profile",
    "script address",
    "owned parameter",
    "infinite parameter",
    "multiplier",
    "a number as key",
    "no JSON value",
    "half a surrogate pair",
    "reserve above window",
    "no input budget",
    "fail with a maximum",
    "retry never",
    "delays against a default",
    "delays across layers",
}


@pytest.mark.parametrize("name", sorted(MISTAKES.keys() - BEYOND_SCHEMA))
def test_schema_refuses_mistakes_of_shape(name: str) -> None:
    document = release_document(**MISTAKES[name][0])
    assert not jsonschema.Draft202012Validator(release_schema()).is_valid(document)


def test_schema_describes_every_field() -> None:
    definitions = release_schema()["$defs"]
    assert isinstance(definitions, dict)
    described = 0
    for name, definition in definitions.items():
        for field, schema in definition.get("properties", {}).items():
            assert schema.get("description") or "$ref" in schema, f"{name}.{field}"
            described += 1
    assert described > 40


# --- retry rules


def test_retry_rules_are_filled_in_field_by_field_from_the_nearest_layer() -> None:
    own = wire.RetryDocument(max_attempts=9, on_unknown=wire.OnUnknownDocument(action="retry"))
    common = wire.RetryDocument(max_attempts=2, jitter="none", on_unknown=wire.OnUnknownDocument(action="retry", max=7))
    assert resolve_retry(wire.TOOL_RETRY, own, common).model_dump() == {
        "max_attempts": 9,
        "initial_ms": 1000,
        "multiplier": 2.0,
        "max_ms": 60_000,
        "jitter": "none",
        "on_unknown": {"action": "retry", "max": 1},
    }
    assert resolve_retry(wire.TOOL_RETRY, None, None) == wire.TOOL_RETRY
    failing = wire.RetryDocument(on_unknown=wire.OnUnknownDocument(action="fail"))
    assert resolve_retry(wire.MODEL_RETRY, failing).on_unknown == wire.FrozenOnUnknown(action="fail", max=0)


# --- anything at all

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(data=st.data())
@settings(max_examples=200)
def test_any_damage_is_either_accepted_or_listed(data: st.DataObject) -> None:
    document = yaml.safe_load(FULL_YAML)
    for _ in range(data.draw(st.integers(1, 4))):
        path = data.draw(st.sampled_from(list(leaves(document))))
        document = replaced(document, path, data.draw(json_values))
    try:
        parsed = parse_release(document)
    except ReleaseInvalidError as error:
        assert error.problems
    else:
        assert ReleaseDocument.model_validate(parsed.model_dump()) == parsed


@given(text=st.text(alphabet=":[]{}&*!|>'\"%@`-? \n\tab1.", max_size=40))
def test_any_text_is_refused_by_a_listed_problem(text: str) -> None:
    assert problems_of(text)
    assert problems_of("{" + text)


def test_shapes_alone_refuse_coercion() -> None:
    with pytest.raises(ValidationError):
        ReleaseDocument.model_validate(release_document(agent={"limits": {"deadline_s": "60"}}))
