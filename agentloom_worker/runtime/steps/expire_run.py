"""expire_run: the deadline's timer fired; the same commit as a stop, with its own cause (RULINGS R3, U8)."""

from agentloom_worker.domain.run import EndCause
from agentloom_worker.errors import Code
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.result import StepResult
from agentloom_worker.runtime.slice import Slice
from agentloom_worker.runtime.stopping import stop_result


def expire_run(ports: Ports, slice_: Slice) -> StepResult:
    """Move the run to stopping; finalize follows."""
    del ports
    detail = "the run's deadline passed"
    return stop_result(slice_, f"expire:{slice_.run.run_id}", EndCause.DEADLINE, Code.RUN_DEADLINE_EXCEEDED, detail)
