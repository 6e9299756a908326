from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing.jsonschema import EMPTY_REGISTRY

from agentloom_worker.capabilities.precheck import compile_check

NAMES = st.sampled_from(["a", "b", "c"])
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, 1.0, -2.0]),
    st.sampled_from(["", "a", "bb"]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
TYPES = st.sampled_from(["object", "array", "string", "boolean", "null", "number", "integer"])


def schemas_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keywords = {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
        "properties": st.dictionaries(NAMES, inner, max_size=3),
        "additionalProperties": inner,
        "required": st.lists(NAMES, max_size=2, unique=True),
        "items": inner,
        "enum": st.lists(st.sampled_from(["", "a", "bb"]), min_size=1, max_size=2, unique=True),
        "const": st.sampled_from(["a", "bb"]),
        "pattern": st.sampled_from(["^a$", "b"]),
        "anyOf": st.lists(inner, min_size=1, max_size=3),
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "oneOf": st.lists(inner, min_size=1, max_size=3),
        "$ref": st.sampled_from(["#/$defs/leaf", "#/$defs/tree"]),
        "minimum": st.integers(-2, 2),
        "exclusiveMaximum": st.integers(-2, 2),
        "maximum": st.integers(-2, 2),
        "exclusiveMinimum": st.integers(-2, 2),
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(0, 2),
        "minItems": st.integers(0, 2),
        "maxItems": st.integers(0, 2),
        "description": st.just("words"),
    }
    return st.lists(st.sampled_from(sorted(keywords)), max_size=4, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({name: keywords[name] for name in chosen})
    )


SCHEMAS = st.recursive(st.booleans(), schemas_of, max_leaves=6).filter(lambda schema: isinstance(schema, dict))
DEFINITIONS = {
    "leaf": {"type": ["integer", "string"]},
    "tree": {"type": "object", "properties": {"a": {"$ref": "#/$defs/tree"}}, "additionalProperties": False},
}


@settings(max_examples=400, deadline=None)
@given(SCHEMAS, st.lists(VALUES, min_size=1, max_size=6))
def test_compiled_verdict_is_that_of_the_reference_validator(schema: dict[str, Any], values: list[Any]):
    document = {**schema, "$defs": DEFINITIONS}
    check = compile_check(document)
    assert check is not None
    validator = Draft202012Validator(document, registry=EMPTY_REGISTRY)
    for value in values:
        assert check(value) == validator.is_valid(value)


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {"a": True}, "properties": {}},
        {"prefixItems": [True], "items": False},
        {"enum": [1, True]},
        {"not": {}},
        {"someday": 1},
        {"$ref": "#/properties/a", "properties": {"a": {}}},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
    ],
)
def test_what_is_not_covered_is_left_to_the_reference_validator(schema: dict[str, Any]):
    assert compile_check(schema) is None
