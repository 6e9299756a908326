"""Commands of platforms that share the broker only: run, reply if asked to, never repeat (RULINGS R6)."""

import logging
from collections.abc import Callable

from celery import Celery

from agentloom_worker import telemetry
from agentloom_worker.errors import AgentloomError
from agentloom_worker.runtime.command import run_command
from agentloom_worker.wire.command import COMMANDS
from tasks.lifecycle import process


def register(app: Celery) -> None:
    """Give every command its task, `agentloom.<command>`."""
    for name in COMMANDS:
        app.task(_command(name), name=f"agentloom.{name}", typing=False)


def _command(name: str) -> Callable[..., None]:
    def command(*_arguments: object, **fields: object) -> None:
        """Run the command; the sender repeats it until it has read a receipt, so a failure is only logged."""
        worker = process()
        try:
            reply, reply_to = run_command(worker.ports, name, fields.get("command"))
        except AgentloomError as error:
            telemetry.count("commands_failed")
            telemetry.log(logging.WARNING, "command_failed", command=name, code=error.code, error=error.message)
            return
        except Exception as error:  # noqa: BLE001 - Celery would log what it says, which may be the command's words
            telemetry.count("command_crashes")
            telemetry.log(logging.ERROR, "command_crashed", command=name, traceback=telemetry.frames_of(error))
            return
        telemetry.count("commands_run" if reply.ok else "commands_refused")
        telemetry.log(logging.INFO, "command_run", command=name, key=reply.key, ok=reply.ok, code=reply.code)
        if reply_to is not None:
            worker.publisher.reply(reply_to, reply.model_dump(mode="json", exclude_none=True))

    return command
