"""What a step sees: the run's rows loaded once, immutable, changed only by building a new slice."""

from dataclasses import dataclass
from uuid import UUID

from agentloom_worker.canonical import parse
from agentloom_worker.capabilities.result import decode_result, model_text
from agentloom_worker.context.message import assistant_message, note_message, prompt_message, tool_message, user_message
from agentloom_worker.context.view import View
from agentloom_worker.domain.commit import BlobPut
from agentloom_worker.domain.context import MessageKind, RoleContext
from agentloom_worker.domain.model import ModelResponse
from agentloom_worker.domain.operation import Attempt, Operation, Payload, call_id_of
from agentloom_worker.domain.release import FrozenRelease, load_release
from agentloom_worker.domain.response import decode_response
from agentloom_worker.domain.run import CallBatch, LoopTicket, NodeTask, Run
from agentloom_worker.domain.session import PendingInput
from agentloom_worker.errors import InvariantError
from agentloom_worker.frozen import replace
from agentloom_worker.ids import OperationId, ReleaseId, RunId
from agentloom_worker.llm.adapter import ModelAdapter
from agentloom_worker.runtime.ports import CachedView, OwnedRelease, Ports
from agentloom_worker.storage.context import ViewRow

_PAGE = 500


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


def adapter_of(ports: Ports, release: FrozenRelease) -> ModelAdapter:
    """The adapter of the release's protocol and profile."""
    key = (release.model.protocol, release.model.profile)
    adapter = ports.adapters.get(key)
    if adapter is None:
        raise InvariantError(f"this process has no adapter for protocol and profile {key}")
    return adapter


def load_owned_release(ports: Ports, release_id: ReleaseId) -> OwnedRelease:
    """A frozen release, parsed once per process; its digest is checked when it is read."""
    cached = ports.releases.get(release_id)
    if cached is None:
        stored = ports.store.load_release(release_id)
        if stored is None:
            raise InvariantError(f"release {release_id} is missing")
        release = load_release(stored.body)
        if release.digest != stored.digest:
            raise InvariantError(f"release {release_id} does not hash to its digest")
        cached = OwnedRelease(stored.owner_id, release)
        ports.releases.put(release_id, cached)
    return cached


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


def remember_view(ports: Ports, context: RoleContext, view: View) -> None:
    """Keep a committed view for the next load; keyed by revision, so it can never be stale."""
    ports.views.put(context.context_id, CachedView(context.effective_revision, context.record_head, view))


def load_view(ports: Ports, run: Run, context: RoleContext, release: FrozenRelease) -> View:
    """The view at the context's head: the cached one where it fits, extended by what came since, in pages."""
    cached = ports.views.get(context.context_id)
    if cached is None or cached.revision > context.effective_revision:
        cached = CachedView(0, 0, View())
    if cached.revision == context.effective_revision:
        return cached.view
    view = build_view(ports, run, context, release, cached)
    remember_view(ports, context, view)
    return view


def build_view(ports: Ports, run: Run, context: RoleContext, release: FrozenRelease, base: CachedView) -> View:
    """Extend a view by the records after it, as of the context's revision."""
    adapter = adapter_of(ports, release)
    view, after = base.view, base.record_head
    while after < context.record_head:
        rows = ports.store.load_view_rows(
            context.context_id,
            after_seq=after,
            revision=context.effective_revision,
            limit=min(_PAGE, context.record_head - after),
        )
        if not rows:
            raise InvariantError(f"context {context.context_id} lacks records after {after}")
        for row in rows:
            view = _append(ports, run, release, adapter, view, row)
        after = rows[-1].context_seq
    return view


def _append(ports: Ports, run: Run, release: FrozenRelease, adapter: ModelAdapter, view: View, row: ViewRow) -> View:
    match row.message_kind:
        case MessageKind.PROMPT:
            return view.extend([adapter.encode_message(prompt_message(release.prompt))], protected=True)
        case MessageKind.USER_REF:
            body = ports.store.load_payload(run.owner_id, row.source)
            return view.extend([adapter.encode_message(user_message(body))], protected=True)
        case MessageKind.FEEDBACK:
            body = ports.store.load_payload(run.owner_id, row.source)
            return view.extend([adapter.encode_message(note_message(body))])
        case MessageKind.ASSISTANT:
            body = ports.store.load_payload(run.owner_id, row.source)
            assert row.operation_id is not None
            response = decode_response(body)
            message, wire_ids = assistant_message(response, call_ids(row.operation_id, response))
            return view.extend([adapter.encode_message(message)], wire_ids)
        case MessageKind.TOOL_RESULT:
            body = ports.store.load_payload(run.owner_id, row.source)
            assert row.ordinal is not None
            text = model_text(decode_result(body)).text
            return view.extend([adapter.encode_message(tool_message(text, view.wire_ids[row.ordinal]))])


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
    "build_view",
    "call_ids",
    "input_text",
    "load_body",
    "load_owned_release",
    "load_response",
    "load_slice",
    "load_view",
    "remember_view",
]
