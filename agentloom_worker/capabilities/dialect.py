"""Which JSON Schemas a capability may carry: a known dialect and local references only.

Nothing here or later opens a socket: the registries have no retrieval, and a reference that leaves the
document is a named problem of the release (seed 004, 7.1).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import validators
from jsonschema.protocols import Validator
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import EMPTY_REGISTRY, specification_with

from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.capabilities.problem import DeclarationProblem

DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLES = (
    *("items", "additionalItems", "additionalProperties", "contains", "propertyNames", "contentSchema"),
    *("not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties"),
)
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def validator_class(schema: Mapping[str, Any]) -> type[Validator] | None:
    """The class of the dialect that `$schema` names (2020-12 without one), or None for an unknown one."""
    declared = schema.get("$schema", DRAFT_2020_12)
    if not isinstance(declared, str):
        return None
    # Any URI that is not a key yields the default, which is how an unknown dialect shows itself.
    found: type[Validator] | None = validators.validator_for({"$schema": declared}, default=None)  # type: ignore[arg-type]
    return found


def check_input_schema(schema: object, path: str) -> list[DeclarationProblem]:
    """The same as `check_schema`; besides, arguments are always an object."""
    problems = check_schema(schema, path)
    if isinstance(schema, dict) and schema.get("type") != "object":
        problems.append(DeclarationProblem(f"{path}/type", "the root of an input schema must say type: object"))
    return problems


def check_schema(schema: object, path: str) -> list[DeclarationProblem]:
    """Every problem of a schema that a release gives. `path` is where it stands in the capability."""
    if not isinstance(schema, dict):
        return [DeclarationProblem(path, f"must be a JSON Schema object, not {type(schema).__name__}")]
    try:
        canonical_bytes(schema)
        return list(_problems(schema, path))
    except (TypeError, ValueError) as error:
        return [DeclarationProblem(path, f"is not JSON: {error}")]
    except RecursionError:
        return [DeclarationProblem(path, "is nested too deeply, or refers to itself without end")]


def subschemas(schema: object, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each schema object inside a schema, itself first, with its path; examples and constants are none."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for keyword in _MAPS:
        children = schema.get(keyword)
        if isinstance(children, dict):
            for name, child in children.items():
                yield from subschemas(child, f"{path}/{keyword}/{name}")
    for keyword in _LISTS:
        children = schema.get(keyword)
        if isinstance(children, list):
            for index, child in enumerate(children):
                yield from subschemas(child, f"{path}/{keyword}/{index}")
    for keyword in _SINGLES:
        yield from subschemas(schema.get(keyword), f"{path}/{keyword}")


def _problems(schema: dict[str, Any], path: str) -> Iterator[DeclarationProblem]:
    dialect = validator_class(schema)
    if dialect is None:
        yield DeclarationProblem(f"{path}/$schema", f"unknown dialect {schema['$schema']!r}")
        return
    meta = dialect(dialect.META_SCHEMA, format_checker=dialect.FORMAT_CHECKER)
    broken = sorted(meta.iter_errors(schema), key=lambda error: error.json_path)
    if broken:
        for error in broken:
            where = "/".join((path, *map(str, error.absolute_path)))
            yield DeclarationProblem(where, f"is not valid JSON Schema: {error.message[:200]}")
        return
    foreign = list(_foreign(schema, path))
    yield from foreign
    if not foreign:
        # `{}` walks every reference that stands at the root; a circle of them never ends.
        dialect(schema, registry=EMPTY_REGISTRY).is_valid({})


def _foreign(schema: dict[str, Any], path: str) -> Iterator[DeclarationProblem]:
    """References that leave the document, lead nowhere, or stand where a nested `$id` moves their base."""
    specification = specification_with(schema.get("$schema", DRAFT_2020_12))
    resource = specification.create_resource(schema)
    registry: Registry[Any] = EMPTY_REGISTRY.with_resource(resource.id() or "", resource)
    resolver = registry.resolver_with_root(resource)
    pending = list(subschemas(schema, path))
    seen: set[int] = set()
    while pending:
        where, node = pending.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        if "$id" in node and node is not schema:
            yield DeclarationProblem(f"{where}/$id", "only the root of a schema may have an $id")
        for keyword in _REFERENCES:
            reference = node.get(keyword)
            if reference is None:
                continue
            if not isinstance(reference, str) or not reference.startswith("#"):
                yield DeclarationProblem(
                    f"{where}/{keyword}",
                    f"{reference!r} leaves the document; only local references (#/…) work",
                )
                continue
            try:
                target = resolver.lookup(reference).contents
            except Unresolvable:
                yield DeclarationProblem(f"{where}/{keyword}", f"{reference!r} leads nowhere")
                continue
            # A reference may point to a place that no keyword covers: what stands there is a schema too.
            pending.extend(subschemas(target, f"{path}/{reference}"))
