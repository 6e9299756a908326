"""What a model attempt received, byte for byte: whether it is kept, how it reaches its row, and how it is read.

It goes into the commit that ends the attempt, inline up to 4 KiB of compressed bytes, else as a blob of the run's owner
(RULINGS T14). A complete and ordinary answer says no more than the response that is made of it: an operator for whom
what its bytes add to the log of the database is too much can leave them out.
"""

import json
from uuid import UUID

from agentloom_worker.domain.commit import BlobPut
from agentloom_worker.domain.model import Completed, ModelOutcome, ModelResponse
from agentloom_worker.domain.operation import Attempt
from agentloom_worker.domain.transport import Transport, decode_transport, encode_transport
from agentloom_worker.errors import Code, InvariantError, RequestError
from agentloom_worker.frozen import replace
from agentloom_worker.http.recording import Recording
from agentloom_worker.ids import OwnerId
from agentloom_worker.runtime.inspect import require_operation
from agentloom_worker.runtime.payload import make_payload
from agentloom_worker.runtime.ports import KeepTransport, Ports

_USUAL_ENDS = ("stop", "tool_calls", "completed")


def take_down(
    ports: Ports, recording: Recording, outcome: ModelOutcome, secrets: tuple[str, ...], *, spelled: bool
) -> bytes | None:
    """The bytes of an attempt as they are stored; None where there are none, or none to be kept.

    `spelled`: a secret stood in the outcome (http/recording.py).
    """
    if ports.settings.keep_transport == KeepTransport.UNUSUAL and not spelled and _usual(outcome):
        return None
    found = recording.finish(secrets, spelled=spelled)
    return None if found is None else encode_transport(found)


def _usual(outcome: ModelOutcome) -> bool:
    match outcome:
        case Completed(response=response):
            said = bool(response.text or response.calls) and not response.refusal
            return said and response.finish_reason in _USUAL_ENDS and _readable(response)
        case _:
            return False


def _readable(response: ModelResponse) -> bool:
    """Whether the arguments of every call are a JSON object."""
    try:
        return all(isinstance(json.loads(call.arguments_text or "{}"), dict) for call in response.calls)
    except (ValueError, RecursionError):
        return False


def with_transport(
    ports: Ports, owner_id: OwnerId, attempt: Attempt, encoded: bytes | None
) -> tuple[Attempt, tuple[BlobPut, ...]]:
    """The attempt with what it received, and the blobs that its commit must carry."""
    if encoded is None:
        return attempt, ()
    payload, blobs = make_payload(ports, owner_id, encoded)
    return replace(attempt, transport=payload), blobs


def read_transport(ports: Ports, operation_id: UUID, attempt_no: int | None) -> tuple[int, Transport]:
    """What an attempt of a model operation received, and its number; without one the newest that kept anything.

    Raises RequestError OPERATION_NOT_FOUND, ATTEMPT_NOT_FOUND, TRANSPORT_NOT_KEPT.
    """
    operation = require_operation(ports, operation_id)
    run = ports.store.load_run(operation.run_id)
    if run is None:
        raise InvariantError(f"run {operation.run_id} of an operation is missing")
    attempts = ports.store.list_attempts([operation.operation_id])
    if attempt_no is not None:
        attempts = [one for one in attempts if one.attempt_no == attempt_no]
    if not attempts:
        number = "no attempt" if attempt_no is None else f"no attempt {attempt_no}"
        raise RequestError(Code.ATTEMPT_NOT_FOUND, f"operation {operation_id} has {number}: see `agentloom steps RUN`")
    for one in reversed(attempts):
        if one.transport is not None:
            body = ports.store.load_payload(run.owner_id, one.transport)
            return one.attempt_no, decode_transport(body)
    raise RequestError(
        Code.TRANSPORT_NOT_KEPT,
        f"operation {operation_id} kept no bytes: nothing was received, or its answers were complete and ordinary"
        " under AGENTLOOM_KEEP_TRANSPORT=unusual; `all` keeps those of every attempt from then on",
    )
