"""The catalog of a role: no name twice, and what is found under one. Its order and hash are the frozen release's."""

from collections.abc import Iterable

from agentloom_worker.capabilities.problem import DeclarationError, DeclarationProblem
from agentloom_worker.domain.capability import CapabilitySpec, Catalog
from agentloom_worker.domain.model import Category, Executed, Failure
from agentloom_worker.errors import Code


def refuse_repeated(specs: Iterable[CapabilitySpec]) -> None:
    """Raise DeclarationError if two capabilities of one role share a model name or a key."""
    capabilities = sorted(specs, key=lambda spec: (spec.model_name, spec.key))
    problems = [
        *_repeated("model_name", [spec.model_name for spec in capabilities]),
        *_repeated("key", [spec.key for spec in capabilities]),
    ]
    if problems:
        raise DeclarationError("(catalog)", problems)


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
