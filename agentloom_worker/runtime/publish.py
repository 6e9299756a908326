"""Publishing a release: parse, resolve its tools, freeze, refuse with every problem listed (RULINGS A25, U14)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import assert_never

from agentloom_worker import faults, limits
from agentloom_worker.capabilities.builtin import BUILTINS
from agentloom_worker.capabilities.catalog import refuse_repeated
from agentloom_worker.capabilities.declare import declare_python
from agentloom_worker.capabilities.http_declare import declare_http
from agentloom_worker.capabilities.output import check_output_schema
from agentloom_worker.capabilities.problem import DeclarationError
from agentloom_worker.domain.capability import CapabilitySpec, Effect
from agentloom_worker.domain.policy import RetryPolicy
from agentloom_worker.domain.release import (
    FrozenRelease,
    ModelBinding,
    freeze_release,
    http_spec,
    load_release,
    tool_retry,
    validate_context,
)
from agentloom_worker.errors import Code, ReleaseInvalidError, RequestError
from agentloom_worker.http.credentials import BUILT_IN, installed_providers
from agentloom_worker.ids import OwnerId, ReleaseId
from agentloom_worker.llm.profiles import PROFILES
from agentloom_worker.llm.profiles.check import model_problems, model_warnings
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.wire.release import (
    HttpToolDocument,
    PythonToolDocument,
    ReleaseDocument,
    ToolDocument,
    parse_release,
)


@dataclass(frozen=True, slots=True)
class ResolvedRelease:
    """A release ready to be stored: frozen bytes, their digest, and what its author should know."""

    agent_id: str
    schema_version: int
    body: bytes
    digest: bytes
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReleaseRef:
    """A stored release."""

    release_id: ReleaseId
    agent_id: str
    digest: str
    warnings: tuple[str, ...]


def resolve_release(source: bytes | str | dict[str, object]) -> ResolvedRelease:
    """Parse and freeze without storing. Raises ReleaseInvalidError with every problem and its path."""
    document = _parse(source)
    tools = _declare(document)
    frozen = freeze_release(document, tools)
    release = load_release(frozen.body)
    warnings = [*validate_context(release), *_model_warnings(release.model), *_unused(document), *_unknown(release)]
    return ResolvedRelease(release.agent_id, release.schema_version, frozen.body, frozen.digest, tuple(warnings))


def resolve_model(source: bytes | str | dict[str, object], key: str | None = None) -> ModelBinding:
    """An entry of a release's `models` as its runs would be given it; without a key, that of the agent.

    No tool is imported. Raises as `resolve_release` does, and RequestError for a key that there is not.
    """
    document = _parse(source)
    if key is not None and key not in document.models:
        raise RequestError(
            Code.INPUT_INVALID, f"the release has no model {key}: there are {', '.join(document.models)}"
        )
    agent = document.agent.model_copy(update={"model": key or document.agent.model, "tools": []})
    return load_release(freeze_release(document.model_copy(update={"agent": agent}), ()).body).model


def _parse(source: bytes | str | dict[str, object]) -> ReleaseDocument:
    """The document, with what its models have of their profiles: an address where they name none, what is settled."""
    document = parse_release(source, known_profiles=tuple(PROFILES), check_model=model_problems)
    models = {}
    for key, model in document.models.items():
        profile = PROFILES[model.profile]
        given = {"base_url": model.base_url or profile.base_url, "parameters": {**model.parameters, **profile.settled}}
        models[key] = model.model_copy(update=given)
    return document.model_copy(update={"models": models})


def _model_warnings(model: ModelBinding) -> Iterator[str]:
    return model_warnings(model.profile, model.model, model.context_window_tokens, model.model_max_output_tokens)


def _unused(document: ReleaseDocument) -> Iterator[str]:
    for noun, defined, used in (
        ("tool", document.tools, {*document.agent.tools}),
        ("model", document.models, {document.agent.model}),
    ):
        for key in sorted({*defined} - used):
            yield f"{noun} {key} is defined, and no agent uses it"


def _unknown(release: FrozenRelease) -> Iterator[str]:
    """References that nothing here can resolve; a worker may have what this process has not."""
    known = {*installed_providers(), *BUILT_IN}
    for reference in sorted(release.credential_refs):
        provider = reference.partition(":")[0]
        if provider not in known:
            yield f"credential {reference}: no provider {provider} is installed here, and every worker needs it"


def _declare(document: ReleaseDocument) -> tuple[CapabilitySpec, ...]:
    problems: list[tuple[str, str]] = []
    specs: list[CapabilitySpec] = []
    for key in sorted(set(document.agent.tools)):
        try:
            specs.append(_declare_tool(key, document.tools[key], tool_retry(document, key)))
        except DeclarationError as error:
            problems.extend((f"/tools/{key}/{problem.path}", problem.text) for problem in error.problems)
    if document.agent.output_schema is not None:
        found = check_output_schema(document.agent.output_schema, "output_schema")
        problems.extend((f"/agent/{problem.path}", problem.text) for problem in found)
    if problems:
        raise ReleaseInvalidError(tuple(problems))
    if specs:
        specs.extend(make() for make in BUILTINS.values())
    _refuse_duplicates(specs)
    return tuple(specs)


def _declare_tool(key: str, tool: ToolDocument, retry: RetryPolicy) -> CapabilitySpec:
    match tool:
        case PythonToolDocument():
            return declare_python(
                key,
                tool.handler,
                model_name=tool.name or key,
                description=tool.description,
                input_schema=tool.input_schema,
                output_schema=tool.output_schema,
                effect=Effect(tool.effect),
                timeout_ms=tool.timeout_ms,
                retry=retry,
            )
        case HttpToolDocument():
            return declare_http(
                key,
                http_spec(tool),
                model_name=tool.name or key,
                description=tool.description,
                input_schema=tool.input_schema,
                output_schema=tool.output_schema,
                effect=Effect(tool.effect),
                timeout_ms=tool.timeout_ms,
                retry=retry,
            )
        case _:
            assert_never(tool)


def _refuse_duplicates(specs: Iterable[CapabilitySpec]) -> None:
    try:
        refuse_repeated(specs)
    except DeclarationError as error:
        raise ReleaseInvalidError(
            tuple((f"/tools/{problem.path}", problem.text) for problem in error.problems)
        ) from error


def publish_release(ports: Ports, source: bytes | str | dict[str, object]) -> ReleaseRef:
    """Store a release; the same document again gives the same reference and makes it the newest."""
    resolved = resolve_release(source)
    faults.hit("command.before", "publish")
    release_id = ports.store.publish_release(
        resolved.agent_id,
        OwnerId(ports.ids.new()),
        ReleaseId(ports.ids.new()),
        digest=resolved.digest,
        body=resolved.body,
        version=resolved.schema_version,
        inline_max=limits.INLINE_BODY_BYTES,
    )
    faults.hit("command.after", "publish")
    return ReleaseRef(release_id, resolved.agent_id, resolved.digest.hex(), resolved.warnings)
