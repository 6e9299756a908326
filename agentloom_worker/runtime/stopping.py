"""Stopping a run: one commit that voids every claim of it and leaves finalize (RULINGS R3).

The first cause wins: a run that is stopping or over refuses the commit. Nothing but the run's own row is
needed, so that a run whose other rows cannot be read can be stopped all the same.
"""

from agentloom_worker.domain.commit import Event
from agentloom_worker.domain.dispatch import Successor
from agentloom_worker.domain.run import EndCause, RunStatus
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.result import RunEnd, hash_command


def stop_end(cause: EndCause, code: str, detail: str | None) -> RunEnd:
    """What the stop writes on the run."""
    return RunEnd(RunStatus.STOPPING, cause, code, detail, None)


def stop_event(cause: EndCause) -> Event:
    """What clients hear of it."""
    return Event("run.stopping", (("cause", cause.value),))


def stop_successor(run_id: RunId) -> Successor:
    """The one row that is left."""
    return Successor("finalize_run", run_id, f"finalize:{run_id}")


def stop_command(key: str, cause: EndCause, code: str) -> bytes:
    """The command hash of a stop."""
    return hash_command(key, cause, code)
