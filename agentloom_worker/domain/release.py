"""The frozen release: every default resolved, nothing looked up again (RULINGS A25).

`freeze_release` turns an author's document and its resolved tools into canonical bytes, `load_release` reads
those bytes and nothing else, `validate_context` refuses what could never send a request (CASES K04).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from agentloom_worker.canonical import canonical_bytes, parse, sha256, sha256_hex
from agentloom_worker.domain.budget import Budget, derive_budget, utf8_envelope_tokens
from agentloom_worker.domain.capability import CapabilityKind, CapabilitySpec, Catalog, Effect, HttpHeader, HttpSpec
from agentloom_worker.domain.policy import Jitter, OnUnknown, OnUnknownAction, RetryPolicy
from agentloom_worker.errors import InvariantError, ReleaseInvalidError
from agentloom_worker.limits import RECENT_RUNS
from agentloom_worker.wire import release as wire
from agentloom_worker.wire.release_source import pointer

CUSTOM_PROFILE = "custom"
ROUNDS = "rounds@1"  # the context protocol of a release that names none


@dataclass(frozen=True, slots=True)
class ModelBinding:
    """One model as the release binds it. `credential_ref` is a reference, never the secret (http/credentials.py).

    `dialect` are the flags of the profile `custom` as canonical JSON; empty for all others, which may have
    `encrypted_reasoning` instead.
    """

    key: str
    protocol: str
    profile: str
    base_url: str
    model: str
    context_window_tokens: int
    model_max_output_tokens: int | None
    credential_ref: str | None
    first_output_timeout_ms: int
    idle_timeout_ms: int | None
    parameters: tuple[tuple[str, object], ...]
    retry: RetryPolicy
    dialect: str = ""
    encrypted_reasoning: bool = False

    @property
    def connection(self) -> tuple[str, str, str, str | None]:
        """What a provider's sealed words belong to: nobody else can open them."""
        return self.protocol, self.base_url, self.model, self.credential_ref


@dataclass(frozen=True, slots=True)
class RunLimits:
    """`max_loops` is one quota for the whole run tree; the deadline counts from acceptance."""

    max_loops: int
    deadline_s: int
    max_step_attempts: int


@dataclass(frozen=True, slots=True)
class FrozenRelease:
    """Parsed from the frozen canonical bytes and from nothing else. `digest` is their SHA-256.

    `protocol` is the context protocol as `id@version`; `recent_runs` is how many ended runs it shows in full.
    """

    digest: bytes
    schema_version: int
    agent_id: str
    role_key: str
    prompt: str
    model: ModelBinding
    catalog: Catalog
    limits: RunLimits
    budget: Budget
    estimator: str
    max_output_tokens: int  # what a business request asks for: min(model maximum, output reserve)
    output_schema: dict[str, object] | None = None  # of the role's answer; None takes any text
    recent_runs: int = RECENT_RUNS
    protocol: str = ROUNDS

    @property
    def credential_refs(self) -> frozenset[str]:
        """Every credential reference that its model and its tools name."""
        headers = (header for spec in self.catalog.capabilities if spec.http for header in spec.http.headers)
        named = (self.model.credential_ref, *(header.credential_ref for header in headers))
        return frozenset(reference for reference in named if reference is not None)


@dataclass(frozen=True, slots=True)
class FrozenDocument:
    """The bytes that a release is, and their SHA-256 (32 raw bytes)."""

    body: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class FixedCost:
    """What every request of a release costs before anything is asked, in estimated tokens."""

    system_prompt_tokens: int
    tool_schemas_tokens: int
    envelope_tokens: int

    @property
    def total_tokens(self) -> int:
        """The sum."""
        return self.system_prompt_tokens + self.tool_schemas_tokens + self.envelope_tokens


def tool_retry(document: wire.ReleaseDocument, key: str) -> RetryPolicy:
    """The policy of one tool: its own rules, else those for all tools, else the built-in ones."""
    tool = document.tools[key]
    return _policy(wire.resolve_retry(wire.TOOL_RETRY, tool.retry, document.retry.tools))


def freeze_release(document: wire.ReleaseDocument, tools: tuple[CapabilitySpec, ...]) -> FrozenDocument:
    """Resolve a checked document to canonical bytes.

    `tools` are the agent's tools as their handlers declare them, and the built-in ones in any case; these
    enter the catalog only where the agent has a tool of its own. Name, effect, timeout, retry and a written
    description are taken from the document; schemas and fingerprint from the declaration, which has seen
    the document's. Raises ReleaseInvalidError for what only the resolved
    tools show, InvariantError if `tools` are not those of the document.
    """
    catalog = _freeze_tools(document, tools)
    key = document.agent.model
    agent, limits, model = document.agent, document.agent.limits, document.models[key]
    frozen = wire.FrozenReleaseDocument(
        schema_version=document.schema_version,
        agent=wire.FrozenAgent(
            id=agent.id,
            role=agent.role,
            prompt=agent.prompt,
            model=key,
            tools=list(catalog),
            limits=wire.FrozenLimits(
                max_loops=limits.max_loops,
                deadline_s=limits.deadline_s,
                max_step_attempts=limits.max_step_attempts,
            ),
            output_schema=agent.output_schema,
        ),
        models={key: _freeze_model(document, model)},
        tools=catalog,
        context=_freeze_context(document.context, model),
    )
    body = canonical_bytes(frozen.model_dump())
    return FrozenDocument(body, sha256(body))


def _freeze_dialect(model: wire.ModelDocument) -> wire.DialectDocument | None:
    """The flags of `custom`, every default written out; those of other profiles are fixed by name and version."""
    return (model.dialect or wire.DialectDocument()) if model.profile == CUSTOM_PROFILE else None


def _freeze_model(document: wire.ReleaseDocument, model: wire.ModelDocument) -> wire.FrozenModel:
    if model.base_url is None:
        raise InvariantError(f"model {model.model} of profile {model.profile} has no address")
    return wire.FrozenModel(
        protocol=model.protocol,
        profile=model.profile,
        base_url=model.base_url,
        dialect=_freeze_dialect(model),
        encrypted_reasoning=True if model.encrypted_reasoning else None,
        model=model.model,
        context_window_tokens=model.context_window_tokens,
        max_output_tokens=model.max_output_tokens,
        credential=model.credential,
        first_output_timeout_ms=model.first_output_timeout_ms,
        idle_timeout_ms=model.idle_timeout_ms,
        parameters=model.parameters,
        retry=wire.resolve_retry(wire.MODEL_RETRY, model.retry, document.retry.model),
    )


def _freeze_context(context: wire.ContextDocument, model: wire.ModelDocument) -> wire.FrozenContext:
    try:
        budget = derive_budget(
            model.context_window_tokens,
            model.max_output_tokens,
            context.output_reserve_tokens,
            context.safety_margin_tokens,
            context.trigger_ratio,
        )
    except ValueError as error:
        raise ReleaseInvalidError(((pointer(("context",)), str(error)),)) from error
    reserve = budget.output_reserve_tokens
    return wire.FrozenContext(
        window_tokens=budget.window_tokens,
        output_reserve_tokens=reserve,
        safety_margin_tokens=budget.safety_margin_tokens,
        input_budget_tokens=budget.input_budget_tokens,
        trigger_ratio=budget.trigger_ratio,
        trigger_tokens=budget.trigger_tokens,
        request_output_tokens=min(model.max_output_tokens or reserve, reserve),
        estimator=context.estimator,
        recent_runs=context.recent_runs,
        protocol=None if context.protocol is None else wire.FrozenProtocol(**context.protocol.model_dump()),
    )


def _freeze_tools(document: wire.ReleaseDocument, specs: tuple[CapabilitySpec, ...]) -> dict[str, wire.FrozenTool]:
    """The catalog by key, in the order of model names."""
    own = {spec.key for spec in specs if spec.kind is not CapabilityKind.BUILTIN}
    if own != set(document.agent.tools) or len({spec.key for spec in specs}) != len(specs):
        raise InvariantError(f"resolved tools {sorted(own)} are not those of agent {document.agent.id}")
    if not own:
        return {}
    catalog: dict[str, wire.FrozenTool] = {}
    problems: list[tuple[str, str]] = []
    named = {spec.key: _freeze_tool(document, spec) for spec in specs}
    first_key_of: dict[str, str] = {}
    for key, tool in sorted(named.items(), key=lambda item: (item[1].model_name, item[0])):
        other = first_key_of.setdefault(tool.model_name, key)
        if other != key:
            text = f"has the model name `{tool.model_name}` of `{other}`: the model could not choose"
            problems.append((pointer(("tools", key)), text))
        catalog[key] = tool
    if problems:
        raise ReleaseInvalidError(tuple(problems))
    return catalog


def _freeze_tool(document: wire.ReleaseDocument, spec: CapabilitySpec) -> wire.FrozenTool:
    facts: dict[str, object] = {
        "kind": spec.kind.value,
        "model_name": spec.model_name,
        "description": spec.description,
        "input_schema": spec.input_schema,
        "output_schema": spec.output_schema,
        "schema_fingerprint": spec.schema_fingerprint,
        "schema_derived": spec.schema_derived,
        "handler_ref": spec.handler_ref,
        "effect": spec.effect.value,
        "timeout_ms": spec.timeout_ms,
        "retry": _freeze_policy(spec.retry),
    }
    if spec.http is not None:
        facts["http"] = _freeze_http(spec.http)
    if spec.kind is not CapabilityKind.BUILTIN:
        written = document.tools[spec.key]
        facts["model_name"] = written.name or spec.key
        facts["effect"] = written.effect
        facts["timeout_ms"] = written.timeout_ms
        facts["retry"] = wire.resolve_retry(wire.TOOL_RETRY, written.retry, document.retry.tools)
        if written.description is not None:
            facts["description"] = written.description
    return wire.FrozenTool.model_validate(facts)


def _freeze_http(http: HttpSpec) -> wire.FrozenHttp:
    return wire.FrozenHttp.model_validate(
        {
            "method": http.method,
            "url": http.url,
            "allow": list(http.allow),
            "headers": {
                header.name: {"value": header.text}
                if header.credential_ref is None
                else {"credential": header.credential_ref, "prefix": header.text or None}
                for header in http.headers
            },
            "body": http.body[0] if http.body else None,
            "idempotency_header": http.idempotency_header,
            "max_bytes": http.max_bytes,
            "max_redirects": http.max_redirects,
        }
    )


def load_release(body: bytes) -> FrozenRelease:
    """Read frozen bytes; nothing absent is filled in.

    Raises InvariantError, without quoting the body, when a value is missing, unknown or of another version:
    the bytes were damaged, or written by a later version of this program.
    """
    digest = sha256(body)
    document = _parse_frozen(body, digest)
    declared = document.agent.output_schema
    model, context, limits = _bound_model(document, digest), document.context, document.agent.limits
    return FrozenRelease(
        digest=digest,
        schema_version=document.schema_version,
        agent_id=document.agent.id,
        role_key=document.agent.role,
        prompt=document.agent.prompt,
        model=model,
        catalog=_catalog(document, digest),
        limits=RunLimits(limits.max_loops, limits.deadline_s, limits.max_step_attempts),
        budget=Budget(
            window_tokens=context.window_tokens,
            output_reserve_tokens=context.output_reserve_tokens,
            safety_margin_tokens=context.safety_margin_tokens,
            input_budget_tokens=context.input_budget_tokens,
            trigger_ratio=context.trigger_ratio,
            trigger_tokens=context.trigger_tokens,
        ),
        estimator=context.estimator,
        max_output_tokens=context.request_output_tokens,
        output_schema=None if declared is None else dict(declared),
        recent_runs=RECENT_RUNS if context.recent_runs is None else context.recent_runs,
        protocol=ROUNDS if context.protocol is None else f"{context.protocol.id}@{context.protocol.version}",
    )


def _parse_frozen(body: bytes, digest: bytes) -> wire.FrozenReleaseDocument:
    try:
        return wire.FrozenReleaseDocument.model_validate(parse(body))
    except ValidationError as error:
        found = [(pointer(tuple(one["loc"])), one["type"]) for one in error.errors(include_input=False)]
    except ValueError:
        found = [("", "not JSON")]
    listed = ", ".join(f"{path or '(document)'}: {kind}" for path, kind in found)
    raise InvariantError(f"frozen release {digest.hex()} cannot be read: {listed}")


def _bound_model(document: wire.FrozenReleaseDocument, digest: bytes) -> ModelBinding:
    key = document.agent.model
    if key not in document.models:
        raise InvariantError(f"frozen release {digest.hex()} does not hold its model {key}")
    model = document.models[key]
    return ModelBinding(
        key=key,
        protocol=model.protocol,
        profile=model.profile,
        base_url=model.base_url,
        model=model.model,
        context_window_tokens=model.context_window_tokens,
        model_max_output_tokens=model.max_output_tokens,
        credential_ref=model.credential,
        first_output_timeout_ms=model.first_output_timeout_ms,
        idle_timeout_ms=model.idle_timeout_ms,
        parameters=tuple(sorted(model.parameters.items())),
        retry=_policy(model.retry),
        dialect="" if model.dialect is None else canonical_bytes(model.dialect.model_dump()).decode(),
        encrypted_reasoning=model.encrypted_reasoning is True,
    )


def _catalog(document: wire.FrozenReleaseDocument, digest: bytes) -> Catalog:
    missing = sorted(set(document.agent.tools) - set(document.tools))
    if missing:
        raise InvariantError(f"frozen release {digest.hex()} does not hold its tools {missing}")
    capabilities = tuple(_capability(key, document.tools[key]) for key in document.agent.tools)
    listed = [{"key": key, **document.tools[key].model_dump()} for key in document.agent.tools]
    by_model_name = {capability.model_name: capability for capability in capabilities}
    if list(by_model_name) != sorted(capability.model_name for capability in capabilities):
        raise InvariantError(f"frozen release {digest.hex()} holds a catalog that is not sorted or not unique")
    return Catalog(capabilities, sha256_hex(canonical_bytes(listed)), by_model_name)


def _capability(key: str, tool: wire.FrozenTool) -> CapabilitySpec:
    kind = CapabilityKind(tool.kind)
    if (tool.http is not None) != (kind is CapabilityKind.HTTP):
        raise InvariantError(f"frozen tool {key} of kind {kind} cannot be called")
    return CapabilitySpec(
        key=key,
        kind=kind,
        model_name=tool.model_name,
        description=tool.description,
        input_schema=dict(tool.input_schema),
        output_schema=None if tool.output_schema is None else dict(tool.output_schema),
        schema_fingerprint=tool.schema_fingerprint,
        handler_ref=tool.handler_ref,
        effect=Effect(tool.effect),
        timeout_ms=tool.timeout_ms,
        retry=_policy(tool.retry),
        schema_derived=tool.schema_derived,
        http=None if tool.http is None else http_spec(tool.http),
    )


def http_spec(http: wire.FrozenHttp | wire.HttpToolDocument) -> HttpSpec:
    """How an http tool calls, as its author or its frozen form says it."""
    headers: Mapping[str, wire.HttpHeaderDocument | wire.FrozenHttpHeader] = http.headers
    return HttpSpec(
        method=http.method,
        url=http.url,
        allow=tuple(http.allow),
        headers=tuple(
            HttpHeader(name, (header.prefix if header.credential else header.value) or "", header.credential)
            for name, header in sorted(headers.items())
        ),
        body=None if http.body is None else (http.body,),
        idempotency_header=http.idempotency_header,
        max_bytes=http.max_bytes,
        max_redirects=http.max_redirects,
    )


def _policy(retry: wire.FrozenRetry) -> RetryPolicy:
    return RetryPolicy(
        max_attempts=retry.max_attempts,
        initial_ms=retry.initial_ms,
        multiplier=retry.multiplier,
        max_ms=retry.max_ms,
        jitter=Jitter(retry.jitter),
        on_unknown=OnUnknown(OnUnknownAction(retry.on_unknown.action), retry.on_unknown.max),
    )


def _freeze_policy(policy: RetryPolicy) -> wire.FrozenRetry:
    return wire.FrozenRetry(
        max_attempts=policy.max_attempts,
        initial_ms=policy.initial_ms,
        multiplier=policy.multiplier,
        max_ms=policy.max_ms,
        jitter=policy.jitter.value,
        on_unknown=wire.FrozenOnUnknown(action=policy.on_unknown.action.value, max=policy.on_unknown.maximum),
    )


def fixed_cost(release: FrozenRelease) -> FixedCost:
    """Count a request that holds the system prompt and the tools alone, in a chat body's form.

    An adapter's own body may differ by a few field names; the gate before a send counts that one.
    """
    tools = [
        {
            "type": "function",
            "function": {
                "name": capability.model_name,
                "description": capability.description,
                "parameters": capability.input_schema,
            },
        }
        for capability in release.catalog.capabilities
    ]
    frame = dict(release.model.parameters) | {
        "model": release.model.model,
        "max_completion_tokens": release.max_output_tokens,
        "messages": [],
        "tools": [],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return FixedCost(
        system_prompt_tokens=len(canonical_bytes({"role": "system", "content": release.prompt})),
        tool_schemas_tokens=len(canonical_bytes(tools)) if tools else 0,
        envelope_tokens=utf8_envelope_tokens(len(canonical_bytes(frame)), messages=1, tools=len(tools)),
    )


def validate_context(release: FrozenRelease) -> tuple[str, ...]:
    """Check that a question can follow what every request holds; returns warnings.

    Raises ReleaseInvalidError with the breakdown when the fixed part alone reaches the input budget.
    """
    cost, budget = fixed_cost(release), release.budget
    breakdown = (
        f"system prompt {cost.system_prompt_tokens} + tool schemas {cost.tool_schemas_tokens}"
        f" + envelope {cost.envelope_tokens} = {cost.total_tokens} estimated tokens"
    )
    if cost.total_tokens >= budget.input_budget_tokens:
        text = (
            f"no room for a question: {breakdown}, input budget {budget.input_budget_tokens}"
            f" (window {budget.window_tokens} - output reserve {budget.output_reserve_tokens}"
            f" - safety margin {budget.safety_margin_tokens})"
        )
        raise ReleaseInvalidError(((pointer(("context",)), text),))
    warnings: list[str] = []
    if cost.total_tokens >= budget.trigger_tokens:
        warnings.append(
            f"every request reaches the compaction trigger of {budget.trigger_tokens} before any question: {breakdown}"
        )
    most = release.model.model_max_output_tokens
    if most is not None and most > budget.window_tokens:
        warnings.append(
            f"the model's maximum output {most} exceeds its window {budget.window_tokens};"
            f" requests ask for at most {release.max_output_tokens}"
        )
    return tuple(warnings)
