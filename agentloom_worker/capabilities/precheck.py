"""A compiled yes-or-no check for the plain part of JSON Schema 2020-12, some 20 times faster than a walk.

Arguments are checked on every call, and nearly always they are fine. `compile_check` turns a schema
into closures; they give exactly the verdict of `jsonschema` (a property test compares the two), but no
reasons. A schema with a keyword that is not listed here has no closure, and `jsonschema` alone decides.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from agentloom_worker.capabilities.dialect import DRAFT_2020_12

Check = Callable[[Any], bool]
_Builder = Callable[[Any, Mapping[str, Any], "_Compiler"], Check]

_ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "format"),
        *("$comment", "$schema", "$defs", "definitions", "discriminator"),
    }
)


class _UnsupportedError(Exception):
    """The schema says something that closures do not cover."""


def compile_check(schema: Mapping[str, Any]) -> Check | None:
    """The closure of a schema whose local references all resolve, or None where it must be walked.

    The closure may raise RecursionError, as the walk may.
    """
    if schema.get("$schema", DRAFT_2020_12) not in (DRAFT_2020_12, f"{DRAFT_2020_12}#") or "$id" in schema:
        return None
    try:
        return _Compiler(schema).check(schema)
    except (_UnsupportedError, re.error, RecursionError):
        return None


class _Compiler:
    """Compiles the nodes of one document; references are compiled once and may be recursive."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._referenced: dict[str, Check] = {}

    def check(self, schema: object) -> Check:
        if isinstance(schema, bool):
            return _always if schema else _never
        if not isinstance(schema, Mapping):
            raise _UnsupportedError
        checks = []
        for keyword, value in schema.items():
            if keyword in _ANNOTATIONS or (keyword == "required" and not value):
                continue
            if keyword in _BY_OTHERS:
                if _BY_OTHERS[keyword] not in schema:
                    checks.append(_properties({}, schema, self))
                continue
            if keyword not in _KEYWORDS:
                raise _UnsupportedError
            checks.append(_KEYWORDS[keyword](value, schema, self))
        return _all(checks)

    def reference(self, reference: str) -> Check:
        match = re.fullmatch(r"#/(\$defs|definitions)/([^/~%]+)", reference)
        target = self._root.get(match[1], {}).get(match[2]) if match else None
        if target is None:
            raise _UnsupportedError
        if reference not in self._referenced:
            # A recursive schema meets its own reference while it is being compiled: look it up late.
            self._referenced[reference] = lambda value: self._referenced[reference](value)  # noqa: PLW0108
            self._referenced[reference] = self.check(target)
        return self._referenced[reference]


def _all(checks: list[Check]) -> Check:
    if not checks:
        return _always
    if len(checks) == 1:
        return checks[0]
    if len(checks) == 2:
        first, second = checks
        return lambda value: first(value) and second(value)
    return lambda value: all(check(value) for check in checks)


def _always(_: object) -> bool:
    return True


def _never(_: object) -> bool:
    return False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Check] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _is_number,
    "integer": lambda value: (
        not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    ),
}


def _type(value: Any, _: Mapping[str, Any], __: _Compiler) -> Check:
    names = [value] if isinstance(value, str) else value
    if not all(name in _TYPES for name in names):
        raise _UnsupportedError
    if len(names) == 1:
        return _TYPES[names[0]]
    checks = [_TYPES[name] for name in names]
    return lambda instance: any(check(instance) for check in checks)


def _properties(value: Any, schema: Mapping[str, Any], compiler: _Compiler) -> Check:
    """`properties` and `additionalProperties` together: one pass over what is there."""
    if "patternProperties" in schema:
        raise _UnsupportedError
    named = {name: compiler.check(sub) for name, sub in value.items()}
    others = compiler.check(schema.get("additionalProperties", True))

    def check(instance: Any) -> bool:
        if not isinstance(instance, dict):
            return True
        for name, item in instance.items():  # noqa: SIM110  (a generator costs more than the check)
            if not named.get(name, others)(item):
                return False
        return True

    return check


def _required(value: Any, _: Mapping[str, Any], __: _Compiler) -> Check:
    names = tuple(value)

    def check(instance: Any) -> bool:
        if isinstance(instance, dict):
            for name in names:
                if name not in instance:
                    return False
        return True

    return check


def _items(value: Any, schema: Mapping[str, Any], compiler: _Compiler) -> Check:
    if "prefixItems" in schema:
        raise _UnsupportedError
    item_check = compiler.check(value)
    return lambda instance: not isinstance(instance, list) or all(map(item_check, instance))


def _enum(value: Any, _: Mapping[str, Any], __: _Compiler) -> Check:
    # Only strings: JSON's equality of numbers and booleans is not Python's.
    if not all(isinstance(option, str) for option in value):
        raise _UnsupportedError
    options = frozenset(value)
    return lambda instance: isinstance(instance, str) and instance in options


def _const(value: Any, schema: Mapping[str, Any], compiler: _Compiler) -> Check:
    return _enum([value], schema, compiler)


def _pattern(value: Any, _: Mapping[str, Any], __: _Compiler) -> Check:
    search = re.compile(value).search
    return lambda instance: not isinstance(instance, str) or search(instance) is not None


def _any_of(value: Any, _: Mapping[str, Any], compiler: _Compiler) -> Check:
    checks = [compiler.check(sub) for sub in value]
    return lambda instance: any(check(instance) for check in checks)


def _all_of(value: Any, _: Mapping[str, Any], compiler: _Compiler) -> Check:
    return _all([compiler.check(sub) for sub in value])


def _one_of(value: Any, _: Mapping[str, Any], compiler: _Compiler) -> Check:
    checks = [compiler.check(sub) for sub in value]
    return lambda instance: sum(check(instance) for check in checks) == 1


def _reference(value: Any, _: Mapping[str, Any], compiler: _Compiler) -> Check:
    return compiler.reference(value)


def _bound(holds: Callable[[Any, Any], bool]) -> _Builder:
    return lambda value, _, __: lambda instance: not _is_number(instance) or holds(instance, value)


def _length(of: type[str] | type[list[Any]], holds: Callable[[int, Any], bool]) -> _Builder:
    return lambda value, _, __: lambda instance: not isinstance(instance, of) or holds(len(instance), value)


_KEYWORDS: dict[str, _Builder] = {
    "type": _type,
    "properties": _properties,
    "required": _required,
    "items": _items,
    "enum": _enum,
    "const": _const,
    "pattern": _pattern,
    "anyOf": _any_of,
    "allOf": _all_of,
    "oneOf": _one_of,
    "$ref": _reference,
    "minimum": _bound(lambda instance, bound: bool(instance >= bound)),
    "maximum": _bound(lambda instance, bound: bool(instance <= bound)),
    "exclusiveMinimum": _bound(lambda instance, bound: bool(instance > bound)),
    "exclusiveMaximum": _bound(lambda instance, bound: bool(instance < bound)),
    "minLength": _length(str, lambda length, bound: bool(length >= bound)),
    "maxLength": _length(str, lambda length, bound: bool(length <= bound)),
    "minItems": _length(list, lambda length, bound: bool(length >= bound)),
    "maxItems": _length(list, lambda length, bound: bool(length <= bound)),
}
# A keyword that the check of another keyword covers, if that one is there.
_BY_OTHERS = {"additionalProperties": "properties"}
