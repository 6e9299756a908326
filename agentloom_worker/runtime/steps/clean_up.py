"""clean_up: what follows a run's end. While a run owns no environment there is nothing to remove (R15)."""

from agentloom_worker.domain.commit import RunMove
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.result import StepResult, hash_command
from agentloom_worker.runtime.slice import Slice


def clean_up(ports: Ports, slice_: Slice) -> StepResult:
    """Mark the run as cleaned; its row is the last one."""
    del ports
    key = f"cleanup:{slice_.run.run_id}:run"
    return StepResult(slice_, key, hash_command(key), move=RunMove.CLEANED)
