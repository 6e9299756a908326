"""Short forms for the tests of this folder."""

from typing import Any
from uuid import UUID

from agentloom_worker.capabilities.context import ToolContext, open_context
from agentloom_worker.capabilities.declare import declare_python
from agentloom_worker.capabilities.problem import DeclarationError
from agentloom_worker.clock import Clock, SystemClock
from agentloom_worker.domain.capability import CapabilitySpec, Effect
from agentloom_worker.domain.policy import Jitter, OnUnknown, OnUnknownAction, RetryPolicy
from agentloom_worker.ids import OperationId, RunId

MODULE = "tests.unit.capabilities.sample_tools"
RETRY = RetryPolicy(4, 1000, 2.0, 60_000, Jitter.FULL, OnUnknown(OnUnknownAction.FAIL, 0))
OPERATION = OperationId(UUID("01900000-0000-7000-8000-000000000001"))
RUN = RunId(UUID("01900000-0000-7000-8000-000000000002"))


def declare(name: str, **options: Any) -> CapabilitySpec:
    settings = {"model_name": name, "effect": Effect.READ, "timeout_ms": 30_000, "retry": RETRY, **options}
    return declare_python(name, f"{MODULE}:{name}", **settings)


def problems_of(name: str, **options: Any) -> dict[str, str]:
    """The problems of a declaration, text by path."""
    try:
        declare(name, **options)
    except DeclarationError as error:
        return {problem.path: problem.text for problem in error.problems}
    return {}


def context_of(clock: Clock | None = None, deadline_s: float = 30.0) -> ToolContext:
    return open_context(clock or SystemClock(), RUN, OPERATION, attempt_no=1, deadline_s=deadline_s)
