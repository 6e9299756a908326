"""The frozen release as the runtime reads it: defaults resolved, nothing looked up again (RULINGS A25)."""

from dataclasses import dataclass

from agentloom_worker.domain.budget import Budget
from agentloom_worker.domain.capability import Catalog
from agentloom_worker.domain.policy import RetryPolicy


@dataclass(frozen=True, slots=True)
class ModelBinding:
    """One model as the release binds it. `credential_ref` is `env:NAME` or `file:PATH`, never the secret."""

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


@dataclass(frozen=True, slots=True)
class RunLimits:
    """`max_loops` is one quota for the whole run tree; the deadline counts from acceptance."""

    max_loops: int
    deadline_s: int
    max_step_attempts: int


@dataclass(frozen=True, slots=True)
class FrozenRelease:
    """Parsed from the frozen canonical bytes and from nothing else. `digest` is their SHA-256."""

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
