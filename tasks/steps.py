"""One task a step. A message is the hint for a row: whatever is wrong with it, it is dropped and the row stays."""

import logging
from collections.abc import Callable

from celery import Celery
from pydantic import ValidationError

from agentloom_worker import telemetry
from agentloom_worker.ids import DispatchId
from agentloom_worker.runtime.table import STEPS
from agentloom_worker.wire.message import WakeUpMessage
from tasks.lifecycle import process


def register(app: Celery) -> None:
    """Give every step of the table its task, `agentloom.<step>`."""
    for step in STEPS:
        app.task(_wake(step), name=f"agentloom.{step}", typing=False)


def _wake(step: str) -> Callable[..., None]:
    def wake(*arguments: object, **fields: object) -> None:
        """Carry the row on; its claim decides whether there is anything to do."""
        try:
            if arguments:
                raise ValueError("a wake-up has no positional arguments")
            message = WakeUpMessage.model_validate(fields)
        except (ValidationError, ValueError) as error:
            telemetry.count("wake_ups_invalid")
            telemetry.log(logging.WARNING, "wake_up_invalid", step=step, error=type(error).__name__)
            return
        process().run(DispatchId(message.dispatch_id), force=message.force)

    return wake
