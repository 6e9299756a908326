"""Whether a model's answer is the output that its role declares; pure (seed 004, 6.3).

`jsonschema` decides; the words are our own, so that no version of a library changes what a model is told. What
a schema can cost on a hostile candidate (branches that refer to themselves, arrays that are compared item by
item) is bounded by counted work, not by time: the same candidate has the same verdict everywhere.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jsonschema import ValidationError, validators
from jsonschema.protocols import Validator
from referencing.jsonschema import EMPTY_REGISTRY

from agentloom_worker import limits
from agentloom_worker.canonical import canonical_bytes, effective_text
from agentloom_worker.capabilities.dialect import check_schema, subschemas, validator_class
from agentloom_worker.capabilities.json_text import TOO_DEEP, RefusedJsonError, decode_json
from agentloom_worker.capabilities.problem import DeclarationProblem
from agentloom_worker.capabilities.schema import leaves, pointer_of, type_name
from agentloom_worker.domain.model import ModelResponse
from agentloom_worker.domain.output import OutputValidation, ValidationIssue
from agentloom_worker.errors import InvariantError

_Keyword = Callable[[Validator, Any, Any, Any], Iterable[ValidationError] | None]
_IssueKey = tuple[str, str, str]

# Keywords that only look at the value itself; their errors are counted where they are made.
_ASSERTIONS = frozenset(
    {"type", "enum", "const", "pattern", "format", "multipleOf", "divisibleBy", "disallow"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"}
    | {"minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "required", "dependentRequired"}
)
_ERROR_WORK = 20  # an error of the library holds about 2.5 KB


class _RejectedError(Exception):
    """The candidate as a whole is no output, whatever the schema says of its parts."""

    def __init__(self, keyword: str, message: str) -> None:
        super().__init__(message)
        self.issue = ValidationIssue("", keyword, _short(message))


def check_output_schema(schema: object, path: str) -> list[DeclarationProblem]:
    """Every problem of a role's output schema: as of a tool's, and it must be short enough to be shown whole."""
    problems = check_schema(schema, path)
    if problems or not isinstance(schema, dict):
        return problems
    size = len(canonical_bytes(schema))
    if size > limits.OUTPUT_SCHEMA_BYTES_MAX:
        text = f"has {size} bytes of {limits.OUTPUT_SCHEMA_BYTES_MAX}: a correction shows the model all of it"
        problems.append(DeclarationProblem(path, text))
    for where, node in subschemas(schema, path):
        if node is not schema and "$schema" in node:
            problems.append(DeclarationProblem(f"{where}/$schema", "only the root of a schema may name a dialect"))
    return problems


def validate_output(schema: Mapping[str, Any], response: ModelResponse) -> OutputValidation:
    """Whether a complete response without calls is the declared output: one JSON text, valid, not cut, not refused.

    `schema` is one that `check_output_schema` found right. What is checked is the effective text, which is what
    the run's answer will be.
    """
    try:
        return _issues(schema, _read(response))
    except _RejectedError as rejected:
        return OutputValidation((rejected.issue,))
    except (RecursionError, OverflowError):
        text = "is nested too deeply, or has numbers too large, to be checked against the schema"
        return OutputValidation((ValidationIssue("", "depth", text),))


def _read(response: ModelResponse) -> object:
    """The JSON value of the answer. Raises _RejectedError where there is none."""
    if response.refusal:
        raise _RejectedError("refusal", "is a refusal, not a JSON text")
    if response.finish_reason == "length":
        raise _RejectedError("truncated", "was cut at the output limit; a shorter answer is needed")
    if response.finish_reason == "content_filter":
        raise _RejectedError("filtered", "was cut by the provider's content filter")
    text = effective_text(response.text)[0]
    if not text.strip():
        raise _RejectedError("empty", "is empty")
    size = len(text.encode())
    if size > limits.OUTPUT_BYTES_MAX:
        raise _RejectedError("size", f"has {size} bytes, at most {limits.OUTPUT_BYTES_MAX} are checked")
    try:
        return decode_json(text)
    except json.JSONDecodeError as error:
        raise _RejectedError("json", _broken_json(text, error)) from None
    except RecursionError:
        raise _RejectedError("depth", f"is {TOO_DEEP}") from None
    except RefusedJsonError as refused:
        said = str(refused)
        keyword, said = ("depth", f"is {said}") if said == TOO_DEEP else ("json", f"is not accepted: {said}")
        raise _RejectedError(keyword, said) from None


def _broken_json(text: str, error: json.JSONDecodeError) -> str:
    if text.lstrip().startswith("```"):
        return "is not a JSON text: it stands in a code fence, which must be left out"
    return f"is not a JSON text: reading ends at character {error.pos} of {len(text)}"


def _issues(schema: Mapping[str, Any], value: object) -> OutputValidation:
    """The first issues in their order. Every error is looked at: the library's own order is not always the same."""
    kept: dict[_IssueKey, ValidationError] = {}
    more = False
    for error in _errors(schema, value):
        for leaf in leaves(error):
            keyword = "false" if leaf.validator is None else str(leaf.validator)
            where = "/".join(map(str, leaf.absolute_schema_path))
            kept.setdefault((_short(pointer_of(leaf)), keyword, where), leaf)
        if len(kept) > 10 * limits.OUTPUT_ISSUES_MAX:
            kept, more = _smallest(kept), True
    more = more or len(kept) > limits.OUTPUT_ISSUES_MAX
    issues = (
        ValidationIssue(pointer, keyword, _short(_said(keyword, error, value)), _expected(error))
        for (pointer, keyword, _), error in _smallest(kept).items()
    )
    return OutputValidation(tuple(issues), more)


def _smallest(kept: dict[_IssueKey, ValidationError]) -> dict[_IssueKey, ValidationError]:
    return {key: kept[key] for key in sorted(kept)[: limits.OUTPUT_ISSUES_MAX]}


def _errors(schema: Mapping[str, Any], value: Any) -> Iterator[ValidationError]:
    dialect = validator_class(schema)
    if dialect is None:
        raise InvariantError(f"a frozen schema names the unknown dialect {schema.get('$schema')!r}")
    counted = validators.extend(dialect, _counted(dialect))  # type: ignore[no-untyped-call]
    # Without its `$schema`, or the library would go on with its own class behind a reference to the root.
    root = {name: node for name, node in schema.items() if name != "$schema"}
    found: Iterator[ValidationError] = counted(root, registry=EMPTY_REGISTRY).iter_errors(value)
    return found


def _counted(dialect: type[Validator]) -> dict[str, _Keyword]:
    """The dialect's keywords, which reject the candidate after OUTPUT_WORK_MAX units, all of them together.

    A unit is about a keyword looked at, or an item that it looks at.
    """
    left = limits.OUTPUT_WORK_MAX

    def spend(units: int) -> None:
        nonlocal left
        left -= units
        if left < 0:
            text = "takes too long to be checked against the schema; a smaller answer is needed"
            raise _RejectedError("work", text)

    def count(name: str, keyword: _Keyword) -> _Keyword:
        def counted(validator: Validator, wanted: Any, instance: Any, schema: Any) -> Iterable[ValidationError]:
            spend(_work(name, wanted, instance))
            found = keyword(validator, wanted, instance, schema) or ()
            if name not in _ASSERTIONS:
                return found
            errors = list(found)
            spend(_ERROR_WORK * len(errors))
            return errors

        return counted

    keywords: dict[str, _Keyword] = {**dialect.VALIDATORS, "uniqueItems": _unique_items}
    return {name: count(name, keyword) for name, keyword in keywords.items()}


def _work(name: str, wanted: object, instance: object) -> int:
    branches = len(wanted) if isinstance(wanted, list | dict) else 0
    if name in _ASSERTIONS and name != "uniqueItems":
        return 1 + branches
    width = len(instance) if isinstance(instance, list | dict) else 0
    if name == "patternProperties":
        return 1 + width * branches
    if name.startswith("unevaluated"):
        return 1 + width * width // 64  # the library compares each name with each
    return 1 + width + branches


def _unique_items(_: Validator, wanted: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
    """The library's own compares each item with each; this one is linear and has the same verdict."""
    if wanted and isinstance(instance, list) and len({_identity(item) for item in instance}) < len(instance):
        yield ValidationError("not unique")


def _identity(value: object) -> object:
    """Hashable, and equal for values that are equal in JSON: 1 and 1.0 are, true and 1 are not."""
    match value:
        case bool():
            return "boolean", value
        case list():
            return "array", tuple(_identity(item) for item in value)
        case dict():
            return "object", frozenset((name, _identity(item)) for name, item in value.items())
        case _:
            return type_name(value) == "string", value


def _short(text: str) -> str:
    most = limits.OUTPUT_ISSUE_CHARS_MAX
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _expected(error: ValidationError) -> str | None:
    return None if error.validator is None else _short(canonical_bytes(error.validator_value).decode())


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


_SIMPLE = {
    "enum": "is none of the allowed values",
    "const": "is not the one allowed value",
    "pattern": "does not match the pattern",
    "multipleOf": "is not a multiple of what is expected",
    "divisibleBy": "is not a multiple of what is expected",
    "minimum": "is below the minimum",
    "maximum": "is above the maximum",
    "exclusiveMinimum": "is not above the limit",
    "exclusiveMaximum": "is not below the limit",
    "uniqueItems": "holds the same item more than once",
    "contains": "holds no item of the expected form",
    "minContains": "holds too few items of the expected form",
    "maxContains": "holds too many items of the expected form",
    "items": "has items that are not allowed",
    "additionalItems": "has items that are not allowed",
    "unevaluatedItems": "has items that are not allowed",
    "unevaluatedProperties": "has properties that are not allowed",
    "anyOf": "has none of the allowed forms",
    "not": "has a form that is not allowed",
    "disallow": "has a type that is not allowed",
    "format": "does not have the expected format",
    "false": "has a part that is not allowed",
}
_SIZES = {"Length": "characters", "Items": "items", "Properties": "properties"}


def _said(keyword: str, error: ValidationError, value: object) -> str:
    """What is wrong, in words that repeat no value of the candidate."""
    said = _violation(keyword, error)
    return f"has a property whose name {said}" if _is_name(error, value) else said


def _violation(keyword: str, error: ValidationError) -> str:
    instance: Any = error.instance
    wanted: Any = error.validator_value
    if keyword == "type":
        return f"is of the type {type_name(instance)}, which is not expected"
    if keyword == "required":
        names = wanted if isinstance(wanted, list) else ()
        return f"lacks required properties: {_names(name for name in names if name not in instance)}"
    if keyword in ("dependentRequired", "dependencies"):
        return f"lacks properties that others of its properties require{_dependent(wanted, instance)}"
    if keyword == "additionalProperties":
        return f"has properties that are not allowed: {_names(_additional(error.schema, instance))}"
    if keyword == "oneOf":
        return "has none of the allowed forms" if error.context else "has more than one of the allowed forms"
    if keyword[:3] in ("min", "max") and keyword[3:] in _SIZES:
        most = "at least" if keyword.startswith("min") else "at most"
        return f"has {len(instance)} {_SIZES[keyword[3:]]}, expected are {most} {wanted}"
    return _SIMPLE.get(keyword, f"violates {keyword}")


def _dependent(wanted: Any, instance: Any) -> str:
    missing = {
        name
        for owner, names in wanted.items()
        if owner in instance and isinstance(names, list)
        for name in names
        if name not in instance
    }
    return f": {_names(missing)}" if missing else ""


def _additional(schema: Any, instance: Mapping[str, object]) -> Iterator[str]:
    patterns = schema.get("patternProperties", {})
    for name in instance:
        if name not in schema.get("properties", {}) and not any(re.search(one, name) for one in patterns):
            yield name


def _is_name(error: ValidationError, value: Any) -> bool:
    """Whether what failed is not a value of the candidate but the name of a property (`propertyNames`)."""
    if not isinstance(error.instance, str):
        return False
    for part in error.absolute_path:
        value = value[part]
    return isinstance(value, dict)
