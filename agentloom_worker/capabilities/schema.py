"""Checking JSON values against frozen schemas: compiled once, quick when all is well, clear when not."""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from jsonschema import ValidationError
from jsonschema.protocols import Validator
from referencing.jsonschema import EMPTY_REGISTRY

from agentloom_worker import limits
from agentloom_worker.capabilities.dialect import validator_class
from agentloom_worker.capabilities.precheck import Check, compile_check
from agentloom_worker.domain.capability import CapabilitySpec
from agentloom_worker.errors import InvariantError

_JSON_TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
# These messages of jsonschema name properties only, never values.
_NAMING = frozenset({"required", "additionalProperties", "unevaluatedProperties", "dependentRequired"})


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    """A schema ready for use by many threads at once."""

    check: Check | None
    validator: Validator

    def problems(self, value: object) -> tuple[str, ...]:
        """What is wrong with a value, `(pointer): text` each, in a stable order; empty if nothing is.

        At most SCHEMA_ERRORS_SHOWN_MAX texts of SCHEMA_ERROR_CHARS_MAX characters, and a line that says
        so if there are more. May raise RecursionError on a value that is nested very deeply.
        """
        if self.check is not None and self.check(value):
            return ()
        errors = list(islice(self.validator.iter_errors(cast(Any, value)), limits.SCHEMA_ERRORS_SCANNED_MAX))
        return _bounded(leaf for error in errors for leaf in leaves(error))


def compile_schema(schema: Mapping[str, Any]) -> CompiledSchema:
    """Compile a schema that `dialect.check_schema` found right. Never opens a socket."""
    dialect = validator_class(schema)
    if dialect is None:
        raise InvariantError(f"a frozen schema names the unknown dialect {schema.get('$schema')!r}")
    return CompiledSchema(compile_check(schema), dialect(schema, registry=EMPTY_REGISTRY))


class _Cache:
    """Compiled schemas by fingerprint; a full cache forgets its oldest entry."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, str], CompiledSchema] = {}

    def get(self, fingerprint: str, side: str, schema: Mapping[str, Any]) -> CompiledSchema:
        # A plain read needs no lock: entries are immutable, and a miss only compiles once more.
        found = self._entries.get((fingerprint, side))
        if found is None:
            found = compile_schema(schema)
            with self._lock:
                while len(self._entries) >= self._entries_max:
                    del self._entries[next(iter(self._entries))]
                self._entries[fingerprint, side] = found
        return found


_cache = _Cache(limits.VALIDATOR_CACHE)


def input_problems(spec: CapabilitySpec, value: object) -> tuple[str, ...]:
    """What is wrong with the arguments of a call; see CompiledSchema.problems."""
    return _cache.get(spec.schema_fingerprint, "input", spec.input_schema).problems(value)


def output_problems(spec: CapabilitySpec, value: object) -> tuple[str, ...]:
    """What is wrong with a returned value; nothing if the capability declares no output schema."""
    if spec.output_schema is None:
        return ()
    return _cache.get(spec.schema_fingerprint, "output", spec.output_schema).problems(value)


def _bounded(errors: Iterable[ValidationError]) -> tuple[str, ...]:
    found = sorted({(pointer_of(error), str(error.validator), _said(error)) for error in errors})
    texts = [
        f"{pointer or '(root)'}: {text}"[: limits.SCHEMA_ERROR_CHARS_MAX]
        for pointer, _, text in found[: limits.SCHEMA_ERRORS_SHOWN_MAX]
    ]
    if len(found) > len(texts):
        texts.append("(more problems are not shown)")
    return tuple(texts)


def leaves(error: ValidationError) -> Iterator[ValidationError]:
    """The errors worth telling: of a choice with one branch of the right type, what that branch says."""
    branches: dict[object, list[ValidationError]] = {}
    for inner in error.context or ():
        branches.setdefault(inner.relative_schema_path[0], []).append(inner)
    fitting = [
        branch
        for branch in branches.values()
        if not any(inner.validator == "type" and not inner.relative_path for inner in branch)
    ]
    if len(fitting) != 1:
        yield error
        return
    for inner in fitting[0]:
        yield from leaves(inner)


def pointer_of(error: ValidationError) -> str:
    """Where the value stands in its document (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in error.absolute_path)


def _said(error: ValidationError) -> str:
    """What is wrong, in words that repeat no value: a value may be long, or nobody's business."""
    keyword = str(error.validator)
    wanted = _short(error.validator_value)
    if keyword in _NAMING:
        return error.message
    if keyword == "type":
        return f"expected {wanted}, got {type_name(error.instance)}"
    if keyword in ("enum", "const"):
        return f"must be {'one of ' if keyword == 'enum' else ''}{wanted}"
    if keyword in ("anyOf", "oneOf"):
        if keyword == "oneOf" and not error.context:
            return "matches more than one of the allowed forms"
        return f"{type_name(error.instance)} matches none of the allowed forms{_forms(error)}"
    if keyword == "None":
        return "is not allowed here"
    return f"violates {keyword}: {wanted}"


def _forms(error: ValidationError) -> str:
    value = error.validator_value
    names = [branch.get("type") for branch in value if isinstance(branch, dict)] if isinstance(value, list) else []
    known = [name for name in names if isinstance(name, str)]
    return f" ({', '.join(known)})" if known and len(known) == len(names) else ""


def type_name(value: object) -> str:
    """The JSON type of a value, in the words of JSON Schema."""
    return "null" if value is None else _JSON_TYPES.get(type(value), type(value).__name__)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}…"
