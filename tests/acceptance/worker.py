"""A worker in a process of its own: `python -m tests.acceptance.worker`, told what to do by two variables.

Says `ready` when it has begun, drains when its input ends, and then says what it counted, as JSON.
"""

import json
import os
import sys

from agentloom_worker import telemetry
from agentloom_worker.embedded import make_dispatcher
from agentloom_worker.runtime.ports import Settings

DATABASE_VARIABLE = "ACCEPTANCE_DATABASE"
SETTINGS_VARIABLE = "ACCEPTANCE_SETTINGS"


def main() -> int:
    """Serve rows until the input ends."""
    settings = Settings(**json.loads(os.environ[SETTINGS_VARIABLE]))
    dispatcher = make_dispatcher(os.environ[DATABASE_VARIABLE], settings=settings, threads=2)
    dispatcher.start()
    _say("ready")
    sys.stdin.read()
    dispatcher.drain(10.0)
    _say(json.dumps(telemetry.counters()))
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
