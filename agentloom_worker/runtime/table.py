"""STEPS: every step, its queue and version, and what is special about it.

A new step is one file under steps/, one line here, its tests; the crash suite refuses one without fault points.
A step's version rises when its rows must not reach older code; this code runs the rows of all versions before.
"""

from collections.abc import Callable
from dataclasses import dataclass

from agentloom_worker.domain.dispatch import Queue
from agentloom_worker.runtime.live import Live
from agentloom_worker.runtime.operations import perform_call, perform_model
from agentloom_worker.runtime.outcome import Outcome
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.result import StepResult
from agentloom_worker.runtime.slice import Slice
from agentloom_worker.runtime.steps.accept_model import accept_model
from agentloom_worker.runtime.steps.attempt_call import attempt_call
from agentloom_worker.runtime.steps.attempt_model import attempt_model
from agentloom_worker.runtime.steps.clean_up import clean_up
from agentloom_worker.runtime.steps.deliver_batch import deliver_batch
from agentloom_worker.runtime.steps.expire_run import expire_run
from agentloom_worker.runtime.steps.finalize_run import finalize_run
from agentloom_worker.runtime.steps.freeze_request import freeze_request
from agentloom_worker.runtime.steps.prepare_context import prepare_context
from agentloom_worker.runtime.steps.settle_node import settle_node
from agentloom_worker.runtime.steps.validate_output import validate_output

Pure = Callable[[Ports, Slice], StepResult]
Perform = Callable[[Ports, Slice, Live], tuple[Slice, Outcome]]
Record = Callable[[Ports, Slice, Live, Outcome], StepResult]


@dataclass(frozen=True, slots=True)
class PureStep:
    """Awaits nothing outside, so it may run on the slice that the step before it left (RUNTIME 6).

    `alone` keeps it out of fused commits: its successor reads what its commit wrote.
    """

    queue: Queue
    run: Pure
    version: int = 1
    alone: bool = False


@dataclass(frozen=True, slots=True)
class EffectStep:
    """Makes one outside effect, then records its outcome."""

    queue: Queue
    perform: Perform
    record: Record
    version: int = 1


STEPS: dict[str, PureStep | EffectStep] = {
    "prepare_context": PureStep(Queue.CONTROL, prepare_context),
    "freeze_request": PureStep(Queue.CONTROL, freeze_request),
    "attempt_model": EffectStep(Queue.MODEL, perform_model, attempt_model),
    "accept_model": PureStep(Queue.CONTROL, accept_model),
    "attempt_call": EffectStep(Queue.TOOLS, perform_call, attempt_call),
    "deliver_batch": PureStep(Queue.CONTROL, deliver_batch),
    "validate_output": PureStep(Queue.CONTROL, validate_output),
    "settle_node": PureStep(Queue.CONTROL, settle_node),
    "finalize_run": PureStep(Queue.CONTROL, finalize_run),
    # Alone, because finalize reads which attempts the stop marked as maybe sent (RULINGS R3).
    "expire_run": PureStep(Queue.CONTROL, expire_run, alone=True),
    "clean_up": PureStep(Queue.MAINTENANCE, clean_up, alone=True),
}
