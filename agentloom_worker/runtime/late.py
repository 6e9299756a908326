"""What a voided claim brought back: kept once on its attempt, advancing nothing (RULINGS R3)."""

import logging

from agentloom_worker import faults, telemetry
from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.capabilities.result import encode_result
from agentloom_worker.domain.model import Cancelled, Completed, Failed
from agentloom_worker.domain.operation import Attempt
from agentloom_worker.domain.response import encode_partial, encode_response
from agentloom_worker.errors import AgentloomError
from agentloom_worker.runtime.commit import save_late
from agentloom_worker.runtime.live import Live
from agentloom_worker.runtime.outcome import ModelEnded, Outcome, ToolEnded
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.slice import Slice
from agentloom_worker.runtime.transport import with_transport


def keep_late(ports: Ports, live: Live, slice_: Slice, outcome: Outcome) -> None:
    """Keep an outcome that came too late; a store that does not take it now never will."""
    attempt, fact = _late_fact(live, slice_, outcome)
    if attempt is None or fact is None:
        return
    faults.hit("late.before", live.claim.step)
    try:
        if isinstance(outcome, ModelEnded):
            attempt, blobs = with_transport(ports, slice_.run.owner_id, attempt, outcome.transport)
            for put in blobs:
                ports.store.put_blob(put)  # The fact has no commit to carry it (RULINGS T14).
        save_late(ports, attempt, fact)
        faults.hit("late.after", live.claim.step)
    except AgentloomError as error:
        telemetry.log(logging.WARNING, "late_fact_failed", code=error.code)


def _late_fact(live: Live, slice_: Slice, outcome: Outcome) -> tuple[Attempt | None, bytes | None]:
    """What a voided claim brought back, as one document on its attempt."""
    match outcome:
        case ModelEnded(outcome=Completed(response=response)):
            return slice_.attempt, encode_response(response)
        case ModelEnded(outcome=Failed(failure=failure, partial=partial)):
            broken = {"code": failure.code, "partial": (encode_partial(partial) or b"").decode()}
            return slice_.attempt, canonical_bytes(broken)
        case ModelEnded(outcome=Cancelled(partial=partial, sent=sent), reason=reason):
            document: dict[str, object] = {
                "cancelled": reason.value if reason else "unknown",
                "sent": sent,
                "partial": (encode_partial(partial) or b"").decode(),
            }
            return slice_.attempt, canonical_bytes(document)
        case ToolEnded(result=result):
            return slice_.member_attempt(live.claim.subject_id), encode_result(result)
        case _:
            return None, None
