import json

import pytest

from agentloom_worker.capabilities.arguments import check_arguments
from agentloom_worker.capabilities.catalog import capability_not_found, find
from agentloom_worker.capabilities.json_text import nested_deeper
from agentloom_worker.domain.capability import Catalog
from agentloom_worker.domain.model import Executed, Failure
from agentloom_worker.errors import Code
from tests.unit.capabilities.declaring import declare


def refusal(text: str, name: str = "look") -> str:
    outcome = check_arguments(declare(name), text)
    assert isinstance(outcome, Failure)
    assert outcome.code == Code.TOOL_ARGUMENTS_INVALID
    assert outcome.external_outcome is Executed.NOT_EXECUTED
    assert len(outcome.message) < 2500
    return outcome.message


@pytest.mark.parametrize("text", ["", " \n\t", "null", " null ", "{}"])
def test_W07_empty_arguments_mean_an_empty_object(text: str):
    assert check_arguments(declare("nothing"), text) == {}


def test_W07_empty_arguments_still_obey_the_schema():
    assert "'path' is a required property" in refusal("")


def test_W07_arguments_against_the_schema_are_refused_with_every_place():
    message = refusal('{"path": 7, "item": {"count": "x"}, "more": 1}')
    assert "/path: expected string, got integer" in message
    assert "/item: 'name' is a required property" in message
    assert "/item/count: expected integer, got string" in message
    assert "'more' was unexpected" in message


def test_W07_unknown_name_is_looked_up_in_this_catalog_only():
    spec = declare("look")
    catalog = Catalog((spec,), "", {spec.model_name: spec})
    assert find(catalog, "look") is spec
    assert find(catalog, "nothing") is None
    failure = capability_not_found(catalog, "nothing")
    assert failure.code == Code.CAPABILITY_NOT_FOUND
    assert failure.external_outcome is Executed.NOT_EXECUTED
    assert "look" in failure.message


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"path": "a"', "not valid JSON"),
        ('{"path": "a",}', "at character"),
        ("{'path': 'a'}", "not valid JSON"),
        ('{"path": "a"} and more', "Extra data"),
        ('["a"]', "not an array"),
        ('"a"', "not a string"),
        ("true", "not a boolean"),
        ("1.5", "not a number"),
        ('{"path": "a", "path": "b"}', "'path' appears twice"),
        ('{"path": "a", "limit": NaN}', "NaN"),
        ('{"path": "a", "limit": -Infinity}', "-Infinity"),
        ('{"path": "a", "limit": 1e999}', "too large"),
        ('{"path": "a", "limit": ' + "9" * 5000 + "}", "too many digits"),
    ],
)
def test_W05_broken_arguments_tell_the_model_what_to_fix(text: str, word: str):
    assert word in refusal(text)


@pytest.mark.parametrize("levels", [101, 500, 100_000])
def test_W05_nesting_bomb_is_refused_and_harms_nobody(levels: int):
    assert "levels deep" in refusal('{"path":' + "[" * levels + "]" * levels + "}")
    assert "levels deep" in refusal('{"path":' * levels + "1" + "}" * levels)


def test_depth_counts_levels_and_not_brackets():
    wide = json.dumps({"path": "a", "item": None, "limit": 5})
    assert check_arguments(declare("look"), wide) == json.loads(wide)
    value: object = 1
    for _ in range(100):
        value = [value]
    assert not nested_deeper(value, 100)
    assert nested_deeper([value], 100)
    assert not nested_deeper([[]] * 500, 2)


def test_many_errors_are_bounded_and_stable():
    spec = declare("raw", input_schema={"type": "object", "additionalProperties": {"type": "integer"}})
    value = {f"k{number:03}": "x" * 1000 for number in range(150)}
    first = check_arguments(spec, json.dumps(value))
    second = check_arguments(spec, json.dumps(dict(reversed(value.items()))))
    assert isinstance(first, Failure)
    assert first == second
    assert first.message.count("expected integer, got string") == 5
    assert "/k004" in first.message
    assert "more problems" in first.message
    assert "xx" not in first.message


def test_one_error_text_is_bounded():
    name = "n" * 5000
    message = refusal(json.dumps({"path": "a", name: 1}))
    assert len(message) < 500


def test_schema_that_never_ends_for_a_value_is_an_answer_and_not_a_crash():
    schema = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"$ref": "#/$defs/a"}},
    }
    spec = declare("raw", input_schema=schema)
    outcome = check_arguments(spec, '{"x": 1}')
    assert isinstance(outcome, Failure)
    assert "without end" in outcome.message


def test_lone_surrogate_in_arguments_is_a_string_like_any_other():
    assert check_arguments(declare("look"), '{"path": "\\ud800\\u0000"}') == {"path": "\ud800\x00"}
