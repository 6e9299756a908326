"""Capabilities: what a role may call, frozen with the release (seed 004, 7.1)."""

from dataclasses import dataclass, field
from enum import StrEnum

from agentloom_worker.domain.model import Failure, ToolSchema
from agentloom_worker.domain.policy import RetryPolicy
from agentloom_worker.frozen import quick_init


class CapabilityKind(StrEnum):
    """Who answers the call."""

    PYTHON = "python"
    HTTP = "http"
    BUILTIN = "builtin"  # internal operations: no attempt, a pure part of a step (RULINGS A23)


class Effect(StrEnum):
    """What a call may change outside."""

    NONE = "none"
    READ = "read"
    WRITE_EXTERNAL = "write_external"
    WRITE_WORKSPACE = "write_workspace"


@dataclass(frozen=True, slots=True)
class HttpHeader:
    """`text` is the whole value, or what stands before the secret that `credential_ref` leads to."""

    name: str
    text: str
    credential_ref: str | None = None


@dataclass(frozen=True, slots=True)
class HttpSpec:
    """How an http tool calls. The templates hold `{argument}`; capabilities/http_template.py fills them in.

    `allow` lists hosts as `host` (the scheme's own port) or `host:port`. `body` is a one-element tuple with the
    template; without one the arguments that the URL does not take are the body, where the method has one.
    """

    method: str
    url: str
    allow: tuple[str, ...]
    headers: tuple[HttpHeader, ...]  # sorted by name
    body: tuple[object] | None
    idempotency_header: str
    max_bytes: int
    max_redirects: int

    @property
    def has_body(self) -> bool:
        """Whether the method carries one."""
        return self.method in ("POST", "PUT", "PATCH")


@dataclass(frozen=True, slots=True)
class CapabilitySpec:
    """One entry of a catalog.

    `handler_ref` is `module:function` or the name of an entry point; of an http tool it is its method and URL.
    """

    key: str
    kind: CapabilityKind
    model_name: str
    description: str
    input_schema: dict[str, object]
    output_schema: dict[str, object] | None
    schema_fingerprint: str  # SHA-256 hex of the canonical schemas
    handler_ref: str
    effect: Effect
    timeout_ms: int
    retry: RetryPolicy  # its `on_unknown.action = retry` is what makes a tool "idempotent" (RULINGS U12)
    # The input schema was derived from the function's signature, so that a worker can prove that its
    # code still has the frozen shape; a schema that the release gave proves nothing about the code.
    schema_derived: bool = False
    http: HttpSpec | None = None  # there if and only if the kind is http

    @property
    def tool_schema(self) -> ToolSchema:
        """As the model sees it."""
        return ToolSchema(self.model_name, self.description, self.input_schema)


@dataclass(frozen=True, slots=True)
class Catalog:
    """The resolved tools of one role, sorted by model name (stable request prefix).

    `catalog_hash` is over what the frozen release holds of them: `domain/release.py` alone makes it.
    """

    capabilities: tuple[CapabilitySpec, ...]
    catalog_hash: str
    by_model_name: dict[str, CapabilitySpec] = field(compare=False)


class ResultStatus(StrEnum):
    """How a call ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@quick_init
@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a handler gave back: text for the model, or a structured JSON value, or a failure.

    `structured` is a one-element tuple holding the JSON value, so that JSON null differs from nothing.
    """

    status: ResultStatus
    text: str = ""
    structured: tuple[object] | None = None
    failure: Failure | None = None
