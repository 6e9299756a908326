import json
import socket
from pathlib import Path

import pytest

from agentloom_worker.capabilities.arguments import check_arguments
from agentloom_worker.capabilities.declare import declare_python, recall_python
from agentloom_worker.capabilities.handler import load_handler
from agentloom_worker.capabilities.problem import DeclarationError
from agentloom_worker.domain.capability import Effect
from agentloom_worker.errors import Code, RunError
from tests.unit.capabilities import sample_tools
from tests.unit.capabilities.declaring import MODULE, RETRY, declare, problems_of


def test_signature_becomes_a_closed_schema_without_the_context():
    spec = declare("look")
    assert spec.input_schema == {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "limit": {"type": "integer", "default": 5},
            "item": {"anyOf": [{"$ref": "#/$defs/Item"}, {"type": "null"}], "default": None},
        },
        "required": ["path"],
        "additionalProperties": False,
        "$defs": {
            "Item": {
                "type": "object",
                "description": "A thing to buy.",
                "properties": {"name": {"type": "string"}, "count": {"type": "integer", "default": 1}},
                "required": ["name"],
                "additionalProperties": False,
            }
        },
    }
    assert spec.description == "Look at a path.\n\nSays what it was given."
    assert spec.schema_derived
    assert spec.output_schema is None


def test_function_without_parameters_has_an_empty_closed_schema():
    spec = declare("nothing")
    assert spec.input_schema == {"type": "object", "properties": {}, "additionalProperties": False}


def test_parameters_may_be_named_like_methods_of_a_model():
    spec = declare("odd_names")
    assert set(spec.input_schema["properties"]) == {"json", "copy", "_private"}
    handler = recall_python(spec)
    assert handler.bind({"json": 1, "_private": 3}) == {"json": 1, "_private": 3.0}


def test_default_that_pydantic_knows_reaches_the_function():
    spec = declare("field_default")
    assert spec.input_schema["properties"]["count"] == {
        "type": "integer",
        "default": 5,
        "minimum": 1,
        "description": "How many.",
    }
    assert recall_python(spec).bind({}) == {"count": 5}


def test_arguments_arrive_as_the_types_of_the_signature():
    handler = recall_python(declare("typed"))
    bound = handler.bind({"on": "2030-01-02", "colour": "red", "items": [{"name": "a"}]})
    assert bound["colour"] is sample_tools.Colour.RED
    assert bound["items"] == [sample_tools.Item(name="a")]


def test_callable_object_is_declared_by_its_call():
    assert list(declare("an_object").input_schema["properties"]) == ["path"]


@pytest.mark.parametrize(
    ("name", "path", "word"),
    [
        ("untyped", "handler/path", "no annotation"),
        ("spread", "handler/paths", "*paths"),
        ("spread", "handler/more", "**more"),
        ("positional", "handler/path", "positional-only"),
        ("two_contexts", "handler/second", "second ToolContext"),
        ("no_schema", "handler/lock", "no JSON Schema"),
        ("asynchronous", "handler", "async"),
        ("generator", "handler", "generator"),
        ("unknown_annotation", "handler", "Missing"),
        ("Item", "handler", "class"),
        ("a_number", "handler", "not a callable"),
        ("absent", "handler", "has no 'absent'"),
    ],
)
def test_signature_problem_names_its_place(name: str, path: str, word: str):
    assert word in problems_of(name)[path]


def test_all_problems_of_one_declaration_are_listed_at_once():
    found = problems_of(
        "spread",
        model_name="not a name",
        timeout_ms=0,
        output_schema={"type": "object", "properties": {"x": {"$ref": "http://example.test/x"}}},
    )
    assert set(found) == {
        "model_name",
        "timeout_ms",
        "output_schema/properties/x/$ref",
        "handler/paths",
        "handler/more",
    }


@pytest.mark.parametrize(
    ("schema", "path", "word"),
    [
        ({"type": "array"}, "input_schema/type", "type: object"),
        ({"type": "object", "required": "x"}, "input_schema/required", "not valid JSON Schema"),
        (
            {"type": "object", "properties": {"x": {"pattern": "("}}},
            "input_schema/properties/x/pattern",
            "regex",
        ),
        ({"type": "object", "$schema": "http://example.test/own"}, "input_schema/$schema", "unknown dialect"),
        (
            {"type": "object", "properties": {"x": {"$ref": "https://example.test/s.json"}}},
            "input_schema/properties/x/$ref",
            "leaves the document",
        ),
        ({"type": "object", "allOf": [{"$ref": "other.json#/x"}]}, "input_schema/allOf/0/$ref", "leaves"),
        ({"type": "object", "$ref": "#/$defs/none"}, "input_schema/$ref", "leads nowhere"),
        (
            {"type": "object", "$ref": "#/hidden", "hidden": {"$ref": "https://example.test/s"}},
            "input_schema/#/hidden/$ref",
            "leaves the document",
        ),
        (
            {"type": "object", "properties": {"x": {"$id": "http://a.test/"}}},
            "input_schema/properties/x/$id",
            "root",
        ),
        ({"type": "object", "$ref": "#"}, "input_schema", "without end"),
        ({"type": "object", "default": float("nan")}, "input_schema", "not JSON"),
    ],
)
def test_given_schema_problem_names_its_place(schema: dict[str, object], path: str, word: str):
    assert word in problems_of("raw", input_schema=schema)[path]


def test_reference_in_a_name_or_an_example_is_not_a_reference():
    schema = {
        "type": "object",
        "properties": {"$ref": {"type": "string", "default": {"$ref": "http://example.test/"}}},
        "examples": [{"$ref": "http://example.test/"}],
    }
    assert problems_of("raw", input_schema=schema) == {}


def test_remote_reference_opens_no_socket(monkeypatch: pytest.MonkeyPatch):
    def no_socket(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", no_socket)
    monkeypatch.setattr(socket, "getaddrinfo", no_socket)
    schema = {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/x.json"}}}
    assert list(problems_of("raw", input_schema=schema)) == ["input_schema/properties/x/$ref"]
    local = {
        "type": "object",
        "$id": "http://127.0.0.1:9/root.json",
        "properties": {"x": {"$ref": "#/$defs/a"}},
    }
    spec = declare("raw", input_schema={**local, "$defs": {"a": {"type": "integer"}}})
    assert check_arguments(spec, '{"x": 1}') == {"x": 1}
    assert "expected integer" in check_arguments(spec, '{"x": "1"}').message


def test_given_schema_must_agree_with_the_function():
    schema = {"type": "object", "properties": {"path": {}, "depth": {}}, "required": ["path"]}
    found = problems_of("exact", input_schema=schema)
    assert "no such parameter" in found["input_schema/properties/depth"]
    assert "does not require it" in found["handler/limit"]


def test_older_dialect_is_used_where_the_schema_names_it():
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"arguments": {"items": [{"type": "integer"}]}},
    }
    spec = declare("raw", input_schema=schema)
    assert check_arguments(spec, '{"arguments": [1, "x"]}') == {"arguments": [1, "x"]}
    assert "expected integer" in check_arguments(spec, '{"arguments": ["x"]}').message


def test_entry_point_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    info = tmp_path / "loom_sample-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loom-sample\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[agentloom]\nlooker = {MODULE}:look\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_handler("looker").__name__ == "look"
    with pytest.raises(DeclarationError, match="installed entry point"):
        load_handler("nobody")


def test_module_that_breaks_at_import_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "loom_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DeclarationError, match="ZeroDivisionError"):
        load_handler("loom_broken:f")


def test_changed_signature_is_a_version_mismatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "loom_old.py").write_text("def f(a: int) -> int:\n    return a\n")
    (tmp_path / "loom_new.py").write_text("def f(a: str) -> str:\n    return a\n")
    options = {"model_name": "f", "effect": Effect.NONE, "timeout_ms": 1, "retry": RETRY}
    old = declare_python("f", "loom_old:f", **options)
    assert recall_python(old).bind({"a": 1}) == {"a": 1}
    moved = type(old)(**{name: getattr(old, name) for name in old.__slots__} | {"handler_ref": "loom_new:f"})
    with pytest.raises(RunError) as caught:
        recall_python(moved)
    assert caught.value.code is Code.CAPABILITY_VERSION_MISMATCH
    gone = type(old)(**{name: getattr(old, name) for name in old.__slots__} | {"handler_ref": "loom_new:g"})
    with pytest.raises(RunError) as caught:
        recall_python(gone)
    assert caught.value.code is Code.CAPABILITY_VERSION_MISMATCH


def test_declared_schema_has_the_bytes_of_the_frozen_one():
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    spec = declare("raw", input_schema=schema)
    schema["properties"]["c"] = {}
    assert json.dumps(spec.input_schema) == '{"properties": {"a": {}, "b": {}}, "type": "object"}'


def test_fingerprint_does_not_depend_on_the_order_of_keys():
    schema = {"type": "object", "properties": {"b": {}, "a": {}}, "required": ["a"]}
    turned = json.loads(json.dumps(schema, sort_keys=True))
    first, second = declare("raw", input_schema=schema), declare("raw", input_schema=turned)
    assert first.schema_fingerprint == second.schema_fingerprint
    assert len(first.schema_fingerprint) == 64
