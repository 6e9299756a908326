"""Stopping a run: one commit that voids every claim of it and leaves finalize (RULINGS R3)."""

from agentloom_worker.domain.commit import Event, RunMove
from agentloom_worker.domain.dispatch import Successor
from agentloom_worker.domain.run import EndCause, RunStatus
from agentloom_worker.frozen import replace
from agentloom_worker.runtime.result import RunEnd, StepResult, hash_command
from agentloom_worker.runtime.slice import Slice


def stop_result(slice_: Slice, key: str, cause: EndCause, code: str, detail: str | None) -> StepResult:
    """The stop's part; the first cause wins, so a run that is stopping or over refuses it."""
    run = slice_.run
    moved = replace(
        run, status=RunStatus.STOPPING, epoch=run.epoch + 1, end_cause=cause, end_code=code, end_detail=detail
    )
    return StepResult(
        replace(slice_, run=moved),
        key,
        hash_command(key, cause, code),
        events=(Event("run.stopping", (("cause", cause.value),)),),
        successors=(Successor("finalize_run", run.run_id, f"finalize:{run.run_id}"),),
        move=RunMove.STOP,
        deletes_run_rows=True,
        end=RunEnd(RunStatus.STOPPING, cause, code, detail, None),
    )
