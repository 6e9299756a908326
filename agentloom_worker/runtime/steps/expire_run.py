"""expire_run: the deadline's timer fired; the same commit as a stop, with its own cause (RULINGS R3, U8)."""

from agentloom_worker.domain.commit import RunMove
from agentloom_worker.domain.run import EndCause, RunStatus
from agentloom_worker.errors import Code
from agentloom_worker.frozen import replace
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.result import StepResult
from agentloom_worker.runtime.slice import Slice
from agentloom_worker.runtime.stopping import stop_command, stop_end, stop_event, stop_successor


def expire_run(ports: Ports, slice_: Slice) -> StepResult:
    """Move the run to stopping; finalize follows."""
    del ports
    run, cause, code = slice_.run, EndCause.DEADLINE, Code.RUN_DEADLINE_EXCEEDED
    detail = "the run's deadline passed"
    key = f"expire:{run.run_id}"
    moved = replace(
        run, status=RunStatus.STOPPING, epoch=run.epoch + 1, end_cause=cause, end_code=code, end_detail=detail
    )
    return StepResult(
        replace(slice_, run=moved),
        key,
        stop_command(key, cause, code),
        events=(stop_event(cause),),
        successors=(stop_successor(run.run_id),),
        move=RunMove.STOP,
        deletes_run_rows=True,
        end=stop_end(cause, code, detail),
    )
