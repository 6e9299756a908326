"""Parked rows: what an operator may do with a step that stopped by itself (RULINGS U13)."""

from agentloom_worker.domain.dispatch import DispatchRow, WakeUp
from agentloom_worker.domain.run import EndCause
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.ids import DispatchId
from agentloom_worker.runtime.accept import StopReceipt, stop_run
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.table import STEPS


def retry_parked(ports: Ports, dispatch_id: DispatchId) -> DispatchRow:
    """Let a parked step run again in the queue that is its own, and return the row as it was.

    Its counters start again; what its intent may have done outside stays marked, so that only `on_unknown`
    may repeat it. Raises RequestError(DISPATCH_NOT_FOUND, INPUT_INVALID).
    """
    row = _parked(ports, dispatch_id)
    entry = STEPS.get(row.step)
    if entry is None:
        raise RequestError(Code.INPUT_INVALID, f"this version knows no step {row.step!r}: retry with one that does")
    if not ports.store.retry_dispatch(row, entry.queue.value):
        raise _not_parked(dispatch_id)
    ports.publish([WakeUp(dispatch_id, row.step, entry.queue.value, entry.version)])
    return row


def fail_parked(ports: Ports, dispatch_id: DispatchId) -> StopReceipt:
    """End the role of a parked step as `failed` with STEP_FAILED_BY_OPERATOR.

    It is the commit of a stop with another cause: what else is under way for the run is void, and what may
    have been sent is recorded as unknown. Raises RequestError(DISPATCH_NOT_FOUND, INPUT_INVALID).
    """
    row = _parked(ports, dispatch_id)
    run = ports.store.load_run(row.run_id) if row.run_id else None
    if run is None or run.end_cause is not None or run.status.terminal:
        state = "belongs to no run" if run is None else f"belongs to a run that is {run.status.value} already"
        raise RequestError(Code.INPUT_INVALID, f"dispatch {dispatch_id} {state}: it can only be retried")
    detail = f"an operator failed the parked step {row.step}"
    return stop_run(ports, run.run_id, EndCause.FAILURE, Code.STEP_FAILED_BY_OPERATOR, detail)


def _parked(ports: Ports, dispatch_id: DispatchId) -> DispatchRow:
    row = ports.store.load_dispatch(dispatch_id)
    if row is None:
        raise RequestError(Code.DISPATCH_NOT_FOUND, f"there is no dispatch {dispatch_id}")
    if row.parked_at is None:
        raise _not_parked(dispatch_id)
    return row


def _not_parked(dispatch_id: DispatchId) -> RequestError:
    return RequestError(Code.INPUT_INVALID, f"dispatch {dispatch_id} is not parked: it goes on by itself")
