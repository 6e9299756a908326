"""What is an answer of the declared form, and what is said of one that is not (seed 004, 6.3)."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloom_worker import limits
from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.capabilities.output import check_output_schema, validate_output
from agentloom_worker.domain.model import ModelResponse
from agentloom_worker.domain.output import OutputValidation, ValidationIssue, correction_text

GOLDEN = Path(__file__).parents[2] / "golden" / "output_v1"
ANSWER = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
# Branches that refer to themselves: each level costs the library both of them.
TREE: dict[str, Any] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "anyOf": [
                {"type": "object", "properties": {"of": {"$ref": "#/$defs/node"}, "op": {"const": op}}}
                for op in ("not", "minus")
            ]
            + [{"type": "integer"}]
        }
    },
}


def judge(schema: dict[str, Any], text: str, **facts: Any) -> OutputValidation:
    return validate_output(schema, ModelResponse(text=text, calls=(), **{"finish_reason": "stop", **facts}))


def said(schema: dict[str, Any], value: object) -> list[tuple[str, str, str]]:
    """(pointer, keyword, message) of each issue."""
    return [(issue.json_pointer, issue.keyword, issue.message) for issue in judge(schema, json.dumps(value)).issues]


@pytest.mark.parametrize("text", ['{"answer": "yes"}', ' \n{"answer":""}\t', '{"answer": "\\ud83d\\ude00", "more": 1}'])
def test_one_json_text_that_matches_is_valid(text: str) -> None:
    assert judge(ANSWER, text) == OutputValidation()
    assert judge(ANSWER, text).valid


@pytest.mark.parametrize(
    ("text", "facts", "keyword", "message"),
    [
        ("", {}, "empty", "is empty"),
        (" \n", {}, "empty", "is empty"),
        ("", {"refusal": "I will not."}, "refusal", "is a refusal, not a JSON text"),
        ('{"answer":"yes"}', {"refusal": "I will not."}, "refusal", "is a refusal, not a JSON text"),
        (
            '{"answer": "yes"}',
            {"finish_reason": "length"},
            "truncated",
            "was cut at the output limit; a shorter answer is needed",
        ),
        (
            '{"answer": "yes"}',
            {"finish_reason": "content_filter"},
            "filtered",
            "was cut by the provider's content filter",
        ),
        ("yes", {}, "json", "is not a JSON text: reading ends at character 0 of 3"),
        ('{"answer": "yes"} and', {}, "json", "is not a JSON text: reading ends at character 18 of 21"),
        (
            '```json\n{"answer": "yes"}\n```',
            {},
            "json",
            "is not a JSON text: it stands in a code fence, which must be left out",
        ),
        (
            '{"answer": "a", "answer": "b"}',
            {},
            "json",
            "is not accepted: the name 'answer' appears twice in one object",
        ),
        ('{"answer": NaN}', {}, "json", "is not accepted: NaN is not a JSON number"),
        ("9" * 5000, {}, "json", "is not accepted: a number has too many digits"),
        ("[" * 101 + "]" * 101, {}, "depth", "is nested more than 100 levels deep"),
        ("[" * 100_000 + "]" * 100_000, {}, "depth", "is nested more than 100 levels deep"),
    ],
)
def test_what_is_no_json_text_is_one_issue_of_the_whole(
    text: str, facts: dict[str, Any], keyword: str, message: str
) -> None:
    assert judge(ANSWER, text, **facts).issues == (ValidationIssue("", keyword, message),)


@pytest.mark.parametrize(
    ("schema", "value", "issues"),
    [
        (
            {"properties": {"n": {"type": ["integer", "null"]}}},
            {"n": "7"},
            [("/n", "type", "is of the type string, which is not expected")],
        ),
        ({"required": ["b", "a", "c"]}, {"c": 1}, [("", "required", "lacks required properties: `a`, `b`")]),
        (
            {"additionalProperties": False, "properties": {"a": {}}, "patternProperties": {"^x": {}}},
            {"z": 1, "y": 1, "a": 1, "x1": 1},
            [("", "additionalProperties", "has properties that are not allowed: `y`, `z`")],
        ),
        (
            {"dependentRequired": {"a": ["b", "c"], "d": ["e"]}},
            {"a": 1},
            [("", "dependentRequired", "lacks properties that others of its properties require: `b`, `c`")],
        ),
        (
            {"propertyNames": {"maxLength": 2}},
            {"abc": 1},
            [("", "maxLength", "has a property whose name has 3 characters, expected are at most 2")],
        ),
        ({"items": {"minimum": 3}}, [3, 2], [("/1", "minimum", "is below the minimum")]),
        ({"minItems": 2}, [], [("", "minItems", "has 0 items, expected are at least 2")]),
        ({"uniqueItems": True}, [1, 1.0], [("", "uniqueItems", "holds the same item more than once")]),
        ({"uniqueItems": True}, [1, True, "1", None, 0, False, [1], [True], {"a": 1}, {"a": True}], []),
        ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, 3, [("", "oneOf", "has more than one of the allowed forms")]),
        ({"properties": {"a": False}}, {"a": 1}, [("", "false", "has a part that is not allowed")]),
        (
            {"anyOf": [{"type": "null"}, {"type": "object", "required": ["x"]}]},
            {},
            [("", "required", "lacks required properties: `x`")],
        ),
        ({"enum": ["a", "b"]}, "c", [("", "enum", "is none of the allowed values")]),
        (
            {
                "$defs": {"all": {"items": {"$ref": "#/$defs/one"}}, "one": {"type": "string"}},
                "$ref": "#/$defs/all",
            },
            ["a", 1, {"b": 2}],
            [
                ("/1", "type", "is of the type integer, which is not expected"),
                ("/2", "type", "is of the type object, which is not expected"),
            ],
        ),
        (
            {"additionalProperties": {"type": "string"}},
            {"b/c": 1, "a~": 1, "": 1},
            [
                ("/", "type", "is of the type integer, which is not expected"),
                ("/a~0", "type", "is of the type integer, which is not expected"),
                ("/b~1c", "type", "is of the type integer, which is not expected"),
            ],
        ),
    ],
)
def test_an_issue_says_where_and_what_in_our_own_words(
    schema: dict[str, Any], value: object, issues: list[tuple[str, str, str]]
) -> None:
    assert check_output_schema(schema, "output_schema") == []
    assert said(schema, value) == issues


def test_every_keyword_of_every_dialect_has_words_without_the_value() -> None:
    value = {"a": "SECRET", "b": ["SECRET", "SECRET"], "c": 7}
    schema: dict[str, Any] = {
        "properties": {
            "a": {
                "const": "x", "enum": ["x"], "pattern": "^x$", "minLength": 9, "maxLength": 1, "not": {},
                "anyOf": [{"type": "null"}, {"type": "array"}], "oneOf": [{"const": "x"}],
            },
            "b": {
                "contains": {"type": "null"}, "prefixItems": [{}], "items": False, "uniqueItems": True, "maxItems": 1,
            },
            "c": {"multipleOf": 4, "maximum": 6, "exclusiveMinimum": 7, "exclusiveMaximum": 7},
        },
        "maxProperties": 1,
        "minProperties": 9,
        "unevaluatedProperties": False,
        "dependentSchemas": {"a": {"required": ["z"]}},
        "if": {"required": ["a"]},
        "then": {"required": ["y"]},
    }  # fmt: skip
    verdict = judge(schema, json.dumps(value))
    assert len(verdict.issues) == limits.OUTPUT_ISSUES_MAX
    assert "SECRET" not in correction_text(verdict, schema)
    assert not [issue for issue in verdict.issues if issue.message.startswith("violates")]


@pytest.mark.parametrize(
    "dialect",
    [
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-06/schema#",
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    ],
)
def test_a_schema_may_name_its_dialect(dialect: str) -> None:
    schema = {"$schema": dialect, "type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["id"]}
    assert check_output_schema(schema, "output_schema") == []
    assert said(schema, {"id": 1, "next": {"next": 3}}) == [
        ("/next", "required", "lacks required properties: `id`"),
        ("/next/next", "type", "is of the type integer, which is not expected"),
    ]


def test_at_most_twenty_issues_are_shown_the_first_ones_and_that_there_are_more() -> None:
    schema = {"additionalProperties": {"type": "string"}}
    verdict = judge(schema, json.dumps({f"{number:03}": number for number in range(300)}))
    assert [issue.json_pointer for issue in verdict.issues] == [f"/{number:03}" for number in range(20)]
    assert verdict.more
    exact = judge(schema, json.dumps({f"{number:03}": number for number in range(20)}))
    assert (len(exact.issues), exact.more) == (20, False)


def test_texts_of_an_issue_are_short_however_long_names_and_schemas_are() -> None:
    schema = {"additionalProperties": False, "required": ["r" * 1000], "propertyNames": {"enum": ["e" * 1000]}}
    (extra, name, missing) = judge(schema, json.dumps({"x" * 1000: 1})).issues
    for issue in (extra, name, missing):
        for text in (issue.json_pointer, issue.message, issue.expected or ""):
            assert len(text) <= limits.OUTPUT_ISSUE_CHARS_MAX
    assert extra.message.endswith("x…") and missing.message.endswith("r…")
    deep = judge({"additionalProperties": {"type": "string"}}, json.dumps({"p" * 1000: 1}))
    assert deep.issues[0].json_pointer.endswith("p…")


@pytest.mark.parametrize(
    ("schema", "text", "keyword"),
    [
        ({}, '"' + "x" * limits.OUTPUT_BYTES_MAX + '"', "size"),
        ({}, '"' + "雪" * (limits.OUTPUT_BYTES_MAX // 3) + '"', "size"),
        ({"items": {"type": "string"}}, "[" + "1," * 500_000 + "1]", "work"),
        ({"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "[" + "1," * 500_000 + "1]", "work"),
        ({"unevaluatedProperties": False}, json.dumps({f"k{number}": 1 for number in range(20_000)}), "work"),
        (TREE, '{"op":"minus","of":' * 60 + '"x"' + "}" * 60, "work"),
        ({"multipleOf": 0.1}, "1" + "0" * 400, "depth"),
    ],
    ids=["bytes", "bytes, not characters", "many errors", "many branches", "many names", "doubling", "overflow"],
)
def test_a_candidate_that_costs_too_much_is_rejected_as_a_whole(
    schema: dict[str, Any], text: str, keyword: str
) -> None:
    (issue,) = judge(schema, text).issues
    assert (issue.json_pointer, issue.keyword) == ("", keyword)


def test_a_large_valid_candidate_is_taken() -> None:
    assert judge({"items": {"type": "integer"}}, "[" + "1," * 50_000 + "1]").valid
    assert judge({"uniqueItems": True}, json.dumps([{"n": number} for number in range(20_000)])).valid


def test_lone_surrogates_are_told_and_stay_valid_utf_8() -> None:
    lone = '{"\\ud800": 1, "雪": 2}'
    verdict = judge({"additionalProperties": False}, lone)
    (issue,) = verdict.issues
    assert issue.message == "has properties that are not allowed: `雪`, `\ud800`"
    text = correction_text(verdict, {"title": "\udfff"})
    assert text.encode() and "\\ud800" in text
    assert judge({"const": "�"}, '"\ud800"').valid, "what is checked is the text that the answer will be"


def test_the_correction_has_its_recorded_form() -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "string", "minLength": 3}, "score": {"type": "number", "maximum": 1}},
        "required": ["answer", "score"],
        "additionalProperties": False,
    }
    found = {
        "empty": judge(schema, ""),
        "broken": judge(schema, "The answer is 42."),
        "several": judge(schema, '{"answer": "no", "more": [1], "score": 2}'),
        "many": judge({"items": {"type": "string"}}, json.dumps(list(range(25)))),
    }
    for name, verdict in found.items():
        assert correction_text(verdict, schema) == (GOLDEN / f"{name}.txt").read_text(), name


@pytest.mark.parametrize(
    ("schema", "path", "text"),
    [
        ({"type": "objekt"}, "output_schema/type", "is not valid JSON Schema"),
        ({"$ref": "https://example.com/a.json"}, "output_schema/$ref", "leaves the document"),
        ({"$ref": "#/$defs/none"}, "output_schema/$ref", "leads nowhere"),
        ({"$schema": "https://example.com/mine"}, "output_schema/$schema", "unknown dialect"),
        ({"$ref": "#"}, "output_schema", "refers to itself without end"),
        ({"description": "x" * limits.OUTPUT_SCHEMA_BYTES_MAX}, "output_schema", "a correction shows the model all"),
        (
            {"items": {"$schema": "http://json-schema.org/draft-07/schema#"}},
            "output_schema/items/$schema",
            "only the root",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_a_problem_with_its_place(schema: dict[str, Any], path: str, text: str) -> None:
    (problem,) = check_output_schema(schema, "output_schema")
    assert problem.path == path
    assert text in problem.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("ab\ud800雪", max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc~/", max_size=2), inner, max_size=4),
    max_leaves=12,
)
LEAF = st.sampled_from(
    [
        {"type": "string"}, {"type": ["integer", "null"]}, {"minimum": 1}, {"maxLength": 1}, {"enum": ["a", 1, None]},
        {"minItems": 2, "uniqueItems": True}, {"required": ["a", "b"]}, {"additionalProperties": False}, {"const": 1.0},
        {"propertyNames": {"maxLength": 1}}, {"dependentRequired": {"a": ["b"]}}, {"multipleOf": 0.5}, {"maxItems": 1},
        {"unevaluatedProperties": False}, {"contains": {"type": "null"}, "minContains": 2},
    ]
)  # fmt: skip
SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.builds(lambda one: {"items": one}, inner),
        st.builds(lambda one: {"additionalProperties": one}, inner),
        st.builds(lambda one, other: {"properties": {"a": one, "b": other}}, inner, inner),
        st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner),
        st.builds(lambda one, other: {"oneOf": [one, other]}, inner, inner),
        st.builds(lambda one, other: {"allOf": [one, other]}, inner, inner),
        st.builds(lambda one: {"not": one}, inner),
        st.builds(lambda one, other: {"if": one, "then": other}, inner, inner),
    ),
    max_leaves=6,
)
PROMPT = "SYSTEM-PROMPT-OF-THE-ROLE"


@given(SCHEMAS, JSON)
def test_the_verdict_is_that_of_jsonschema_and_its_issues_are_sorted_and_the_same_each_time(
    schema: dict[str, Any], value: object
) -> None:
    text = json.dumps(value)
    verdict = judge(schema, text)
    assert verdict.valid == jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    order = [(issue.json_pointer, issue.keyword) for issue in verdict.issues]
    assert order == sorted(order)
    assert len({(*key, issue.message, issue.expected) for key, issue in zip(order, verdict.issues, strict=True)}) <= 20
    assert judge(schema, text) == verdict
    assert judge(json.loads(canonical_bytes(schema)), text) == verdict


@given(SCHEMAS, JSON)
def test_a_correction_holds_nothing_but_schema_names_and_places(schema: dict[str, Any], value: object) -> None:
    hidden = json.dumps({"a": value, "b": [PROMPT, {"c": PROMPT}], "d": PROMPT * 20})
    verdict = judge(schema, hidden)
    text = correction_text(verdict, schema)
    assert PROMPT not in text
    assert text == correction_text(judge(schema, hidden), schema)
    for issue in verdict.issues:
        place: Any = json.loads(hidden)
        for part in issue.json_pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            place = place[int(name)] if isinstance(place, list) else place[name]
