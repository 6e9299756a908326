"""The one door for outside effects: the intent is durable, the effect is made once, its outcome returned.

Every check of the sender stands here, at the moment of the send: permit, ticket, hash, credential, deadline.
"""

from collections.abc import Callable, Mapping
from uuid import UUID

from agentloom_worker import faults
from agentloom_worker.cancellation import Cancellation, CancelReason
from agentloom_worker.capabilities.arguments import check_arguments
from agentloom_worker.capabilities.builtin.result import read_arguments, read_slice, result_not_found
from agentloom_worker.capabilities.catalog import find
from agentloom_worker.capabilities.context import ToolContext, open_context
from agentloom_worker.capabilities.declare import recall_python
from agentloom_worker.capabilities.http import prepare_request
from agentloom_worker.capabilities.result import decode_result, failed, model_text, parse_result_ref
from agentloom_worker.context.request import hash_request
from agentloom_worker.domain.authority import ReadAuthority
from agentloom_worker.domain.capability import CapabilityKind, CapabilitySpec, ToolResult
from agentloom_worker.domain.commit import Part, Put, RunFence, RuntimeCommit
from agentloom_worker.domain.model import (
    Cancelled,
    Category,
    Executed,
    Failed,
    Failure,
    FirstOutput,
    ModelOutcome,
    Partial,
    ResponseCall,
)
from agentloom_worker.domain.operation import Attempt, AttemptState, Operation, OperationKind, idempotency_key_of
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.domain.run import TicketState
from agentloom_worker.domain.session import DeliveryState
from agentloom_worker.errors import AgentloomError, Code, InvariantError, SupersededError
from agentloom_worker.frozen import replace
from agentloom_worker.http.credentials import CredentialError, learn_secrets
from agentloom_worker.http.recording import Recording
from agentloom_worker.llm.adapter import AttemptContext, DeliveryStoppedError, ModelCall, RequestBody
from agentloom_worker.runtime.commit import commit
from agentloom_worker.runtime.lane import Lane, Share, open_lanes, open_shares, pause_us, window_pause_us
from agentloom_worker.runtime.live import Live
from agentloom_worker.runtime.outcome import Answered, Bound, LaneFull, MaybeSent, ModelEnded, Outcome, ToolEnded
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.reading import may_read
from agentloom_worker.runtime.request import head_of
from agentloom_worker.runtime.result import hash_command
from agentloom_worker.runtime.slice import Slice, adapter_of, load_response
from agentloom_worker.runtime.transport import take_down
from agentloom_worker.secrecy import conceal_value, known_secrets

Perform = Callable[[ToolContext, Cancellation], ToolResult]


def perform_model(ports: Ports, slice_: Slice, live: Live) -> tuple[Slice, Outcome]:
    """Send the frozen request once. The slice that comes back knows of a first output that was committed."""
    operation, attempt = slice_.operation, slice_.attempt
    if operation is None or attempt is None or attempt.state is not AttemptState.INTENT:
        raise InvariantError(f"dispatch {live.claim.dispatch_id} has no intent to send")
    if attempt.maybe_sent or not live.claim.first:
        return slice_, MaybeSent()
    body = _checked_body(ports, slice_, operation)
    binding = slice_.release.model
    try:
        secret = ports.resolve_credential(binding.credential_ref) if binding.credential_ref else None
    except CredentialError as error:
        return slice_, ModelEnded(Failed(_without_credential(error, Category.PERMISSION), Partial()), None)
    if live.remaining_s(slice_.run.deadline_at) <= 0:
        # After a long standstill this row and the deadline's are due together, in any order.
        live.cancel(CancelReason.DEADLINE)
        return slice_, ModelEnded(Cancelled(Partial(), sent=False), live.cancellation.reason)
    lanes = open_lanes(ports, binding, live.claim)
    waited_us = 0 if attempt.started_at is None else live.now_us() - attempt.started_at
    shares = open_shares(ports, binding, live.claim, body.size_bytes, waited_us)
    full = _take_places(ports, lanes, shares, waited_us)
    if full is not None:
        return slice_, full
    live.lanes = lanes
    try:
        moved, ended = _stream(ports, slice_, live, body, secret)
    finally:
        live.lanes = ()
        for lane in lanes:
            lane.give()
    for share in shares:
        share.settle(ended.outcome)
    return moved, ended


def _without_credential(error: CredentialError, category: Category) -> Failure:
    """Nothing was sent. A revocation is final at once (A14); a provider that cannot tell now is asked again."""
    retry_class = RetryClass.TRANSPORT if error.transient else None
    return Failure(error.code, category, error.message, Executed.NOT_EXECUTED, retry_class)


def _take_places(ports: Ports, lanes: tuple[Lane, ...], shares: tuple[Share, ...], waited_us: int) -> LaneFull | None:
    """A place in each lane and each window; None: the attempt may go. Where one is full, all are given back."""
    full = _first_full(ports, lanes, shares, waited_us)
    if full is not None:
        for lane in lanes:
            lane.give()
    return full


def _first_full(ports: Ports, lanes: tuple[Lane, ...], shares: tuple[Share, ...], waited_us: int) -> LaneFull | None:
    for lane in lanes:
        if not lane.take():
            return LaneFull(lane.name, pause_us(ports.chance, waited_us))
    for entered, share in enumerate(shares):
        free_ms = share.take()
        if free_ms > 0:
            for other in shares[:entered]:
                other.leave(free_ms)
            return LaneFull(share.name, window_pause_us(ports.chance, free_ms, waited_us), Bound.WINDOW)
    return None


def _stream(ports: Ports, slice_: Slice, live: Live, body: RequestBody, secret: str | None) -> tuple[Slice, ModelEnded]:
    """With everything checked: the send, and what came of it."""
    operation, binding = slice_.operation, slice_.release.model
    assert operation is not None, "an attempt has an operation"
    receiver = _FirstOutputReceiver(ports, slice_, live)
    recording = Recording()
    key = idempotency_key_of(operation.operation_id, _earlier(ports, operation))
    asked = head_of(ports, slice_.run, slice_.release).parameters
    live.begin_effect()
    faults.hit("attempt.before", "attempt_model")
    context = AttemptContext(
        deadline_s=max(0.0, live.remaining_s(slice_.run.deadline_at)),
        first_output_timeout_s=binding.first_output_timeout_ms / 1000,
        idle_timeout_s=binding.idle_timeout_ms / 1000 if binding.idle_timeout_ms else None,
        cancellation=live.cancellation,
        on_first_output=receiver.take,
        on_sent=lambda: faults.hit("attempt.sent", "attempt_model"),
        api_key=secret,
        idempotency_key=key,
        recording=recording,
    )
    fragments = slice_.view.length
    call = ModelCall(body, binding.base_url, fragments, slice_.view.last(), asked)
    outcome: ModelOutcome = adapter_of(ports, slice_.release).stream_once(call, context)
    if isinstance(receiver.unsaved, SupersededError):
        # The claim is void: what came is a late fact (RULINGS R3).
        live.cancel(CancelReason.SUPERSEDED)
    faults.hit("effect.done", "attempt_model")
    # A server that echoes its request must not put a credential of ours into a row.
    secrets = known_secrets()
    clean = conceal_value(outcome, secrets)
    transport = take_down(ports, recording, clean, secrets, spelled=clean is not outcome)
    return receiver.slice, ModelEnded(clean, live.cancellation.reason, transport, receiver.unsaved)


def _earlier(ports: Ports, operation: Operation) -> list[Attempt]:
    """The attempts before this one; nothing is read for a first one."""
    return ports.store.list_attempts([operation.operation_id]) if operation.attempts_made > 1 else []


def _checked_body(ports: Ports, slice_: Slice, operation: Operation) -> RequestBody:
    """Permit, ticket and hash at the moment of the send (seed 004, 6.1); a mismatch parks and sends nothing."""
    ticket = slice_.ticket
    if ticket is None or ticket.state is not TicketState.RESERVED or ticket.operation_id != operation.operation_id:
        raise InvariantError(f"operation {operation.operation_id} has no reserved ticket: nothing is sent")
    adapter, head = adapter_of(ports, slice_.release), head_of(ports, slice_.run, slice_.release)
    found = hash_request(adapter, head.parameters, head.tools, slice_.view)
    if found != operation.request_hash:
        frozen = operation.request_hash.hex() if operation.request_hash else "nothing"
        raise InvariantError(
            f"operation {operation.operation_id}: the request hashes to {found.hex()}, frozen was {frozen}",
            Code.REQUEST_HASH_MISMATCH,
        )
    return adapter.frame_body(head.parameters, slice_.view, head.tools)


class _FirstOutputReceiver:
    """Takes the first output in the reading thread: commits it at once where inputs wait for it (R2).

    `unsaved` is why it could not be committed. Then nothing of it was delivered, as far as this process knows.
    """

    def __init__(self, ports: Ports, slice_: Slice, live: Live) -> None:
        self._ports = ports
        self._live = live
        self.slice = slice_
        self.unsaved: AgentloomError | None = None

    def take(self, first: FirstOutput) -> None:
        """Note it on the attempt. Raises DeliveryStoppedError where it could not be committed."""
        slice_ = self.slice
        attempt, operation = slice_.attempt, slice_.operation
        assert attempt is not None and operation is not None, "a stream has an attempt"
        noted = replace(attempt, first_output=first, first_output_at=self._live.now_us())
        self.slice = replace(slice_, attempt=noted)
        waiting = [
            pending
            for pending in slice_.inputs
            if pending.delivery.state is DeliveryState.CLAIMED
            and pending.delivery.operation_id == operation.operation_id
        ]
        if waiting:
            try:
                slice_ = self._deliver(slice_, attempt, noted)
            except AgentloomError as error:
                self.unsaved = error
                if not isinstance(error, SupersededError):
                    # What stands in memory alone is no receipt (seed 004, 3.3).
                    self.slice = slice_
                raise DeliveryStoppedError from error
        self.slice = replace(slice_, attempt=noted)
        faults.hit("first_output.saved", "attempt_model")

    def _deliver(self, slice_: Slice, attempt: Attempt, noted: Attempt) -> Slice:
        name = f"{attempt.operation_id}/{attempt.attempt_no}"
        puts: list[Put] = [Put(attempt, noted)]
        inputs = list(slice_.inputs)
        for position, pending in enumerate(inputs):
            before = pending.delivery
            if before.state is not DeliveryState.CLAIMED or before.operation_id != attempt.operation_id:
                continue
            after = replace(
                before,
                state=DeliveryState.DELIVERED,
                first_output_receipt=name,
                delivered_at=noted.first_output_at,
                revision=before.revision + 1,
            )
            puts.append(Put(before, after))
            inputs[position] = replace(pending, delivery=after)
        key = f"first-output:{name}"
        commit(
            self._ports,
            RuntimeCommit(
                scope_id=slice_.run.run_id,
                key=key.encode(),
                parts=(Part(key, hash_command(key)),),
                session_id=slice_.run.session_id,
                claim=self._live.claim,
                consume=False,
                fence=RunFence(slice_.run.run_id),
                puts=tuple(puts),
            ),
        )
        return replace(slice_, inputs=tuple(inputs))


def perform_call(ports: Ports, slice_: Slice, live: Live) -> tuple[Slice, Outcome]:
    """Make one member's call once, or answer an internal operation from the store."""
    operation = slice_.member(live.claim.subject_id)
    call = call_of(ports, slice_, operation)
    spec = find(slice_.release.catalog, call.name)
    if spec is None:
        raise InvariantError(f"operation {operation.operation_id} names no capability of its release")
    arguments = check_arguments(spec, call.arguments_text)
    if isinstance(arguments, Failure):
        raise InvariantError(f"operation {operation.operation_id} was accepted with invalid arguments")
    if operation.kind is OperationKind.INTERNAL:
        return slice_, Answered(_answer(ports, slice_, spec, arguments))
    attempt = slice_.member_attempt(operation.operation_id)
    if attempt is None or attempt.state is not AttemptState.INTENT:
        raise InvariantError(f"dispatch {live.claim.dispatch_id} has no intent to perform")
    if attempt.maybe_sent or not live.claim.first:
        return slice_, MaybeSent()
    # A tool may say a key of its release aloud, in a process that has sent none.
    learn_secrets(slice_.release.credential_refs, ports.clock.monotonic_s())
    return slice_, _invoke(ports, slice_, live, operation, spec, arguments)


def _invoke(
    ports: Ports,
    slice_: Slice,
    live: Live,
    operation: Operation,
    spec: CapabilitySpec,
    arguments: dict[str, object],
) -> ToolEnded:
    prepare = _PREPARE.get(spec.kind)
    if prepare is None:
        raise InvariantError(f"capability {spec.key} of kind {spec.kind} has no handler here")
    try:
        perform = prepare(ports, spec, arguments)
    except CredentialError as error:
        perform = _without_credential(error, Category.ENVIRONMENT)
    if isinstance(perform, Failure):
        return ToolEnded(failed(perform), None)
    live.begin_effect()
    # The keeper renews no longer than the call may take (RULINGS T9).
    live.deadline_us = min(slice_.run.deadline_at, live.now_us() + 1000 * spec.timeout_ms)
    faults.hit("attempt.before", "attempt_call")
    context = open_context(
        ports.clock,
        slice_.run.run_id,
        operation.operation_id,
        attempt_no=operation.attempts_made,
        deadline_s=max(0.0, live.remaining_s(slice_.run.deadline_at)),
    )
    result = perform(context, live.cancellation)
    faults.hit("effect.done", "attempt_call")
    return ToolEnded(conceal_value(result, known_secrets()), live.cancellation.reason)


def _entered() -> None:
    faults.hit("attempt.sent", "attempt_call")


def _prepare_python(ports: Ports, spec: CapabilitySpec, arguments: dict[str, object]) -> Perform:
    handler = recall_python(spec)
    return lambda context, cancellation: ports.tools(
        handler, spec, arguments, context, cancellation=cancellation, entered=_entered
    )


def _prepare_http(ports: Ports, spec: CapabilitySpec, arguments: dict[str, object]) -> Perform | Failure:
    request = prepare_request(spec, arguments, ports.resolve_credential)
    if isinstance(request, Failure):
        return request
    return lambda context, cancellation: ports.http.call(
        spec, request, context, cancellation=cancellation, entered=_entered
    )


# What can be wrong before anything begins is found by the first call, the effect is the second one. Built-ins
# have no attempt, so they are not here.
_PREPARE: Mapping[CapabilityKind, Callable[[Ports, CapabilitySpec, dict[str, object]], Perform | Failure]] = {
    CapabilityKind.PYTHON: _prepare_python,
    CapabilityKind.HTTP: _prepare_http,
}


def call_of(ports: Ports, slice_: Slice, operation: Operation) -> ResponseCall:
    """A member's call as the model gave it; it stands once, in the model operation's raw result."""
    model = slice_.operation
    if model is None or model.operation_id != operation.model_operation_id or operation.ordinal is None:
        raise InvariantError(f"operation {operation.operation_id} has no model operation in its slice")
    return load_response(ports, slice_.run, model).calls[operation.ordinal]


def _answer(ports: Ports, slice_: Slice, spec: CapabilitySpec, arguments: dict[str, object]) -> ToolResult:
    """result.read: only results that the role may see in its session; a reference is no permission (7.2, L25)."""
    if spec.key != "result.read":
        raise InvariantError(f"no built-in answers {spec.key}")
    request = read_arguments(arguments)
    source_id: UUID | None = parse_result_ref(request.result_ref)
    source = ports.store.load_operation(source_id) if source_id else None
    if source is None or source.kind is OperationKind.MODEL or source.raw is None:
        return result_not_found(request.result_ref)
    authority = ReadAuthority(slice_.run.session_id, slice_.node.role_key)
    if source.node_id != slice_.node.node_id and not may_read(ports, authority, source):
        return result_not_found(request.result_ref)
    body = ports.store.load_payload(slice_.run.owner_id, source.raw)
    return read_slice(model_text(decode_result(body)).text.encode(), request)
