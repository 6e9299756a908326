"""What a step sees: the run's rows loaded once, immutable, changed only by building a new slice."""

from dataclasses import dataclass
from uuid import UUID

from agentloom_worker.canonical import parse
from agentloom_worker.context.view import View
from agentloom_worker.domain.commit import BlobPut
from agentloom_worker.domain.context import RoleContext
from agentloom_worker.domain.model import ModelResponse
from agentloom_worker.domain.operation import Attempt, Operation, Payload, call_id_of
from agentloom_worker.domain.release import FrozenRelease
from agentloom_worker.domain.response import decode_response
from agentloom_worker.domain.run import CallBatch, LoopTicket, NodeTask, Run
from agentloom_worker.domain.session import PendingInput
from agentloom_worker.errors import InvariantError
from agentloom_worker.frozen import replace
from agentloom_worker.ids import OperationId, RunId
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.release import adapter_of, load_owned_release
from agentloom_worker.runtime.view import load_view


@dataclass(frozen=True, slots=True)
class Slice:
    """One run's rows. `operation` and `attempt` are those of the current model operation.

    `members` are the operations of the current batch by ordinal, `member_attempts` their newest attempts.
    `view` holds the wire fragments up to the context's effective revision. `unsaved` are bodies that the
    steps before it made and the commit that is being built will store.
    """

    run: Run
    node: NodeTask
    context: RoleContext
    release: FrozenRelease
    view: View
    operation: Operation | None
    attempt: Attempt | None
    ticket: LoopTicket | None
    batch: CallBatch | None
    members: tuple[Operation, ...]
    member_attempts: tuple[Attempt, ...]
    inputs: tuple[PendingInput, ...]
    unsaved: tuple[BlobPut, ...] = ()

    @property
    def decided_on(self) -> tuple[object, ...]:
        """The rows; two slices in which they are equal lead to the same commit."""
        calls = (self.operation, self.attempt, self.ticket, self.batch, self.members, self.member_attempts)
        return (self.run, self.node, self.context, *calls, self.inputs)

    def member(self, operation_id: UUID) -> Operation:
        """A member of the current batch."""
        for member in self.members:
            if member.operation_id == operation_id:
                return member
        raise InvariantError(f"operation {operation_id} is no member of the current batch")

    def member_attempt(self, operation_id: UUID) -> Attempt | None:
        """The newest attempt of a member."""
        for attempt in self.member_attempts:
            if attempt.operation_id == operation_id:
                return attempt
        return None

    def with_member(self, member: Operation, attempt: Attempt | None) -> "Slice":
        """The slice with one member and its newest attempt replaced."""
        members = tuple(member if old.operation_id == member.operation_id else old for old in self.members)
        attempts = tuple(old for old in self.member_attempts if old.operation_id != member.operation_id)
        return replace(self, members=members, member_attempts=(*attempts, attempt) if attempt else attempts)


def load_slice(ports: Ports, run_id: RunId) -> Slice:
    """Read everything a step of this run may look at. Raises InvariantError if the run is missing."""
    rows = ports.store.load_slice(run_id)
    if rows is None:
        raise InvariantError(f"run {run_id} is missing")
    owned = load_owned_release(ports, rows.run.release_id)
    return Slice(
        run=rows.run,
        node=rows.node,
        context=rows.context,
        release=owned.release,
        view=load_view(ports, rows.run, rows.context, owned.release),
        operation=rows.operation,
        attempt=rows.attempt,
        ticket=rows.ticket,
        batch=rows.batch,
        members=rows.members,
        member_attempts=rows.member_attempts,
        inputs=rows.inputs,
    )


def call_ids(operation_id: OperationId, response: ModelResponse) -> tuple[UUID, ...]:
    """The identities of a response's calls."""
    return tuple(call_id_of(operation_id, call.ordinal) for call in response.calls)


def load_body(ports: Ports, slice_: Slice, payload: Payload) -> bytes:
    """A body that the slice refers to: a fused step may ask for one that no commit has stored yet."""
    for put in slice_.unsaved:
        if put.blob_id == payload.blob_id:
            return put.body
    return ports.store.load_payload(slice_.run.owner_id, payload)


def load_response(ports: Ports, run: Run, operation: Operation) -> ModelResponse:
    """The effective response of a completed model operation."""
    payload = operation.effective or operation.raw
    if payload is None:
        raise InvariantError(f"operation {operation.operation_id} has no response yet")
    return decode_response(ports.store.load_payload(run.owner_id, payload))


def input_text(body: bytes) -> str:
    """The raw text of an input."""
    text = parse(body)
    assert isinstance(text, str)
    return text


__all__ = [
    "Payload",
    "Slice",
    "adapter_of",
    "call_ids",
    "input_text",
    "load_body",
    "load_owned_release",
    "load_response",
    "load_slice",
]
