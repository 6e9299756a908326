"""One row, one process: `python -m agentloom_worker.solitary DISPATCH_ID` (RULINGS T8).

A step that cost two processes their life runs here, alone, so that a third death harms nobody else. The
database URL comes from AGENTLOOM_DATABASE, so that no password stands in a process list; how long a claim
lasts and when it may be taken over is the parent's to say, in AGENTLOOM_SETTINGS.
"""

import json
import os
import signal
import sys
import threading
from uuid import UUID

from agentloom_worker.bootstrap import make_ports
from agentloom_worker.ids import DispatchId, ProcessId
from agentloom_worker.runtime.lease import Keeper
from agentloom_worker.runtime.ports import Settings
from agentloom_worker.runtime.step import StepRunner


def main() -> int:
    """Claim the row, run its step, follow nothing inline."""
    settings = Settings(**json.loads(os.environ.get("AGENTLOOM_SETTINGS", "{}")))
    ports = make_ports(os.environ["AGENTLOOM_DATABASE"], settings=settings, pool_size=3)
    ports.store.check_schema()
    keeper = Keeper(ports)
    keeper.start()
    _drain_on_signal(keeper)
    runner = StepRunner(ports, ProcessId(ports.ids.new()), keeper, solitary=True)
    ran = runner.run(DispatchId(UUID(sys.argv[1])), force=True)
    keeper.stop()
    ports.fast.close()
    ports.store.close()
    return 0 if ran else 1


def _drain_on_signal(keeper: Keeper) -> None:
    """A parent that leaves is no death of the step: it ends its effect and leaves a row that anybody may take."""
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())

    def drain() -> None:
        told.wait()
        keeper.drain()

    threading.Thread(target=drain, name="agentloom-drain", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
