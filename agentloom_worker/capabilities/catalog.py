"""The catalog of a role: its resolved capabilities in a fixed order, with one hash."""

from collections.abc import Iterable
from dataclasses import asdict

from agentloom_worker.canonical import canonical_bytes, sha256_hex
from agentloom_worker.capabilities.problem import DeclarationError, DeclarationProblem
from agentloom_worker.domain.capability import CapabilitySpec, Catalog
from agentloom_worker.domain.model import Category, Executed, Failure
from agentloom_worker.errors import Code


def build_catalog(specs: Iterable[CapabilitySpec]) -> Catalog:
    """Sort by model name (a stable request prefix) and hash what a call depends on.

    Raises DeclarationError if two capabilities share a model name or a key.
    """
    capabilities = tuple(sorted(specs, key=lambda spec: (spec.model_name, spec.key)))
    problems = [
        *_repeated("model_name", [spec.model_name for spec in capabilities]),
        *_repeated("key", [spec.key for spec in capabilities]),
    ]
    if problems:
        raise DeclarationError("(catalog)", problems)
    return Catalog(
        capabilities=capabilities,
        catalog_hash=sha256_hex(canonical_bytes([_hashed(spec) for spec in capabilities])),
        by_model_name={spec.model_name: spec for spec in capabilities},
    )


def find(catalog: Catalog, model_name: str) -> CapabilitySpec | None:
    """The capability that the model called by this name; nowhere else is looked."""
    return catalog.by_model_name.get(model_name)


def capability_not_found(catalog: Catalog, model_name: str) -> Failure:
    """What the model is told of a name that its catalog does not have."""
    names = ", ".join(catalog.by_model_name)
    text = f"there is no tool {model_name[:64]!r}; available: {names[:1000] or 'none'}"
    return Failure(Code.CAPABILITY_NOT_FOUND, Category.NOT_FOUND, text, Executed.NOT_EXECUTED)


def _repeated(what: str, names: list[str]) -> list[DeclarationProblem]:
    return [
        DeclarationProblem(what, f"{name!r} is given {names.count(name)} times")
        for name in sorted(set(names))
        if names.count(name) > 1
    ]


def _hashed(spec: CapabilitySpec) -> dict[str, object]:
    http: dict[str, object] = {} if spec.http is None else {"http": asdict(spec.http)}
    return http | {
        "model_name": spec.model_name,
        "description": spec.description,
        "input_schema": spec.input_schema,
        "output_schema": spec.output_schema,
        "kind": spec.kind,
        "handler_ref": spec.handler_ref,
        "effect": spec.effect,
        "timeout_ms": spec.timeout_ms,
        "retry": asdict(spec.retry),
    }
