"""Declaring a Python function as a capability, and finding it again for a frozen one."""

import inspect
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from agentloom_worker import limits
from agentloom_worker.canonical import canonical_bytes, parse, sha256_hex
from agentloom_worker.capabilities.dialect import check_input_schema, check_schema
from agentloom_worker.capabilities.handler import (
    PythonHandler,
    derive_schema,
    load_handler,
    plain_handler,
    plain_problems,
    typed_handler,
)
from agentloom_worker.capabilities.problem import DeclarationError, DeclarationProblem
from agentloom_worker.domain.capability import CapabilityKind, CapabilitySpec, Effect
from agentloom_worker.domain.policy import RetryPolicy
from agentloom_worker.errors import Code, RunError

# What every supported provider takes as the name of a function.
_MODEL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def declare_python(
    key: str,
    handler_ref: str,
    *,
    model_name: str,
    description: str | None = None,
    input_schema: Mapping[str, Any] | None = None,
    output_schema: Mapping[str, Any] | None = None,
    effect: Effect,
    timeout_ms: int,
    retry: RetryPolicy,
) -> CapabilitySpec:
    """Resolve a declaration to its frozen form. `handler_ref` is `module:function` or an entry point's name.

    Without `input_schema` it is derived from the typed signature; a parameter annotated `ToolContext`
    is injected and no part of it. A function with a given schema receives the JSON values unconverted.
    Without `description` the docstring speaks. An output is checked only where `output_schema` is given.
    Raises DeclarationError with every problem at once.
    """
    problems = list(name_problems(model_name, timeout_ms))
    if output_schema is not None:
        problems += check_schema(output_schema, "output_schema")
    try:
        function = load_handler(handler_ref)
    except DeclarationError as error:
        if input_schema is not None:
            problems += check_input_schema(input_schema, "input_schema")
        raise DeclarationError(key, [*problems, *error.problems]) from error
    resolved: dict[str, Any] = {}
    if input_schema is None:
        handler, found = typed_handler(function)
        if handler.parameters is not None:
            resolved = derive_schema(handler.parameters)
            found = found or check_input_schema(resolved, "input_schema")
    else:
        handler, found = plain_handler(function)
        given = check_input_schema(input_schema, "input_schema")
        resolved = dict(input_schema)
        if not given and not found:
            given = list(plain_problems(handler, resolved))
        found = found + given
    problems += found
    if problems:
        raise DeclarationError(key, problems)
    # In the form in which it is frozen and read again: a copy, with sorted keys.
    resolved = parse(canonical_bytes(resolved))
    output = None if output_schema is None else parse(canonical_bytes(output_schema))
    return CapabilitySpec(
        key=key,
        kind=CapabilityKind.PYTHON,
        model_name=model_name,
        description=inspect.getdoc(function) or "" if description is None else description,
        input_schema=resolved,
        output_schema=output,
        schema_fingerprint=schema_fingerprint(resolved, output),
        handler_ref=handler_ref,
        effect=effect,
        timeout_ms=timeout_ms,
        retry=retry,
        schema_derived=input_schema is None,
    )


def schema_fingerprint(input_schema: Mapping[str, Any], output_schema: Mapping[str, Any] | None) -> str:
    """SHA-256, hexadecimal, of the canonical pair of schemas."""
    return sha256_hex(canonical_bytes({"input": input_schema, "output": output_schema}))


_recalled: dict[tuple[str, str, bool], PythonHandler] = {}
_recalled_lock = threading.Lock()


def recall_python(spec: CapabilitySpec) -> PythonHandler:
    """Find the function of a frozen capability; cached, for a process never loads newer code.

    Raises RunError CAPABILITY_VERSION_MISMATCH if the function is gone, or if the schema that was
    derived from it has changed since the release was frozen. Safe for use by many threads.
    """
    key = (spec.handler_ref, spec.schema_fingerprint, spec.schema_derived)
    handler = _recalled.get(key)
    if handler is None:
        handler = _recall(spec)
        with _recalled_lock:
            while len(_recalled) >= limits.HANDLER_CACHE:
                del _recalled[next(iter(_recalled))]
            _recalled[key] = handler
    return handler


def _recall(spec: CapabilitySpec) -> PythonHandler:
    try:
        function = load_handler(spec.handler_ref)
    except DeclarationError as error:
        raise _mismatch(spec, error.problems[0].text) from error
    handler, problems = typed_handler(function) if spec.schema_derived else plain_handler(function)
    if problems:
        raise _mismatch(spec, f"{problems[0].path}: {problems[0].text}")
    if handler.parameters is not None:
        now = schema_fingerprint(derive_schema(handler.parameters), spec.output_schema)
        if now != spec.schema_fingerprint:
            text = f"its signature gives the schema {now[:12]}, frozen is {spec.schema_fingerprint[:12]}"
            raise _mismatch(spec, text)
    return handler


def _mismatch(spec: CapabilitySpec, text: str) -> RunError:
    return RunError(Code.CAPABILITY_VERSION_MISMATCH, f"capability {spec.key!r} ({spec.handler_ref}): {text}")


def name_problems(model_name: str, timeout_ms: int) -> Iterator[DeclarationProblem]:
    """What is wrong with the words that every kind of tool has."""
    if not _MODEL_NAME.fullmatch(model_name):
        yield DeclarationProblem("model_name", f"{model_name!r} must be 1 to 64 of A-Z a-z 0-9 _ -")
    if timeout_ms <= 0:
        yield DeclarationProblem("timeout_ms", f"{timeout_ms} must be above 0")
