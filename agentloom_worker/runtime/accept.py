"""A question or a stop becomes rows and a first dispatch, in one commit (RUNTIME, table of steps: accept).

The client's key makes a repetition return the first receipt; another command under the same key is refused.
"""

from dataclasses import dataclass
from uuid import UUID

from agentloom_worker.canonical import canonical_bytes, parse
from agentloom_worker.domain.commit import Event, Part, Put, RunAccept, RunFence, RunMove, RuntimeCommit
from agentloom_worker.domain.context import EMPTY_MANIFEST, RoleContext
from agentloom_worker.domain.dispatch import Successor, first_prepare
from agentloom_worker.domain.run import (
    AgentInvocation,
    Continuation,
    EndCause,
    GraphExecution,
    NodeTask,
    Phase,
    Run,
    ScopeStatus,
)
from agentloom_worker.domain.session import (
    DeliveryState,
    InputKind,
    Session,
    UserInput,
    UserInputDelivery,
)
from agentloom_worker.errors import Code, InvariantError, LeaseLostError, RequestError
from agentloom_worker.ids import (
    ContextId,
    DeliveryId,
    GraphId,
    InputId,
    InvocationId,
    NodeId,
    ReleaseId,
    RunId,
    SessionId,
)
from agentloom_worker.limits import INPUT_BYTES_MAX
from agentloom_worker.runtime.commit import commit
from agentloom_worker.runtime.dispatch import outbox_row, wake_up
from agentloom_worker.runtime.payload import make_payload
from agentloom_worker.runtime.ports import US, Ports
from agentloom_worker.runtime.request import bind_requests
from agentloom_worker.runtime.result import hash_command
from agentloom_worker.runtime.slice import load_owned_release
from agentloom_worker.runtime.stopping import stop_command, stop_end, stop_event, stop_successor

KEY_BYTES_MAX = 200


@dataclass(frozen=True, slots=True)
class InputReceipt:
    """A question is safe in the store; it says nothing about whether a model has seen it."""

    session_id: SessionId
    run_id: RunId
    input_id: InputId
    input_seq: int
    release_id: ReleaseId


@dataclass(frozen=True, slots=True)
class StopReceipt:
    """What stands after a stop: the first cause, whoever gave it."""

    run_id: RunId
    status: str
    end_cause: str | None
    applied: bool


def client_key(key: str) -> bytes:
    """A client's idempotency key as it is stored. Raises RequestError for an empty or overlong one."""
    _require_text(key, "an idempotency key")
    body = key.encode("utf-8", "backslashreplace")
    if not 1 <= len(body) <= KEY_BYTES_MAX:
        raise RequestError(
            Code.INPUT_INVALID, f"an idempotency key has 1 to {KEY_BYTES_MAX} bytes, this one has {len(body)}"
        )
    return b"client:" + body


def _require_text(value: object, what: str) -> None:
    """Refuse what a caller without a type checker may pass: once stored, it would stop its run at every step."""
    if not isinstance(value, str):
        raise RequestError(Code.INPUT_INVALID, f"{what} is text, not {type(value).__name__}")


def accept_question(
    ports: Ports, session: Session, text: str, release_id: ReleaseId | None, idempotency_key: str
) -> InputReceipt:
    """Register the user's words and create their run, or return the receipt that the key has already.

    Raises RequestError: SESSION_BUSY, RELEASE_AGENT_MISMATCH, RELEASE_NOT_FOUND, IDEMPOTENCY_CONFLICT,
    INPUT_INVALID. Nothing is written then.
    """
    key = client_key(idempotency_key)
    _require_text(text, "a question")
    if not text.strip():
        raise RequestError(Code.INPUT_INVALID, "the question is blank: say what is asked")
    body = canonical_bytes(text)
    if len(body) > INPUT_BYTES_MAX:
        raise RequestError(
            Code.INPUT_INVALID,
            f"the question has {len(body)} bytes, at most {INPUT_BYTES_MAX} are taken: pass large material as a tool",
        )
    # The caller's words only: a release that was filled in is no part of the command (RULINGS T6).
    command = hash_command("ask", body.decode(), release_id or "")
    found = ports.store.find_commit(session.session_id, key)
    if found is None:
        todo = _question(ports, session, body, _release(ports, session, release_id), key, command)
        commit(ports, todo)
        rows = todo.outbox
        ports.publish([wake_up(row) for row in rows])
        found = ports.store.find_commit(session.session_id, key)
    if found is None or found[1] is None:
        raise InvariantError(f"session {session.session_id}: an accepted question left no receipt")
    if found[0] != command:
        raise RequestError(
            Code.IDEMPOTENCY_CONFLICT,
            f"key {idempotency_key!r} was used before for another question: use a new key",
        )
    return _receipt(ports, session.session_id, found[1])


def find_receipt(ports: Ports, session_id: SessionId, idempotency_key: str) -> InputReceipt | None:
    """The receipt of a question that was accepted under this key; None if none was (RULINGS R6)."""
    found = ports.store.find_commit(session_id, client_key(idempotency_key))
    return None if found is None or found[1] is None else _receipt(ports, session_id, found[1])


def _release(ports: Ports, session: Session, release_id: ReleaseId | None) -> ReleaseId:
    chosen = release_id or ports.store.newest_release(session.owner_id)
    if chosen is None:
        raise RequestError(Code.RELEASE_NOT_FOUND, f"agent {session.agent_id!r} has no release: publish one first")
    if ports.store.load_release(chosen) is None:
        raise RequestError(Code.RELEASE_NOT_FOUND, f"there is no release {chosen}")
    owned = load_owned_release(ports, chosen)
    if owned.owner_id != session.owner_id:
        raise RequestError(
            Code.RELEASE_AGENT_MISMATCH,
            f"release {chosen} belongs to agent {owned.release.agent_id!r}, the session to {session.agent_id!r}",
        )
    return chosen


def _question(
    ports: Ports, session: Session, body: bytes, release_id: ReleaseId, key: bytes, command: bytes
) -> RuntimeCommit:
    new = ports.ids.new
    run_id, input_id = RunId(new()), InputId(new())
    graph_id, invocation_id = GraphId(new()), InvocationId(new())
    node_id, context_id = NodeId(new()), ContextId(new())
    release = load_owned_release(ports, release_id).release
    payload, blobs = make_payload(ports, session.owner_id, body)
    first = first_prepare(node_id, session.run_head + 1)
    expiry = Successor("expire_run", run_id, f"expire:{run_id}")
    receipt = canonical_bytes({"v": 1, "run": str(run_id), "input": str(input_id), "release": str(release_id)})
    return RuntimeCommit(
        scope_id=session.session_id,
        key=key,
        parts=(Part(f"accept:{input_id}", command),),
        session_id=session.session_id,
        accept=RunAccept(
            run_id,
            session.owner_id,
            session.session_id,
            release_id,
            release.limits.max_loops,
            release.limits.deadline_s * US,
            bind_requests(ports, release).to_bytes(),
            input_id,
        ),
        blobs=blobs,
        puts=(
            Put(None, UserInput(input_id, session.session_id, 0, run_id, InputKind.QUESTION, payload)),
            Put(None, GraphExecution(graph_id, run_id, ScopeStatus.RUNNING, 1)),
            Put(
                None,
                AgentInvocation(invocation_id, run_id, graph_id, release.agent_id, ScopeStatus.RUNNING, 1),
            ),
            Put(
                None,
                NodeTask(
                    node_id,
                    run_id,
                    invocation_id,
                    release.role_key,
                    Phase.PREPARE_CONTEXT,
                    Continuation(),
                    1,
                ),
            ),
            Put(
                None,
                RoleContext(
                    context_id,
                    run_id,
                    invocation_id,
                    node_id,
                    release.role_key,
                    0,
                    0,
                    EMPTY_MANIFEST,
                    None,
                    1,
                ),
            ),
            Put(
                None,
                UserInputDelivery(DeliveryId(new()), input_id, session.session_id, run_id, DeliveryState.PENDING, 1),
            ),
        ),
        events=(Event("run.accepted"),),
        outbox=(outbox_row(ports, first),),
        deadline=outbox_row(ports, expiry),
        receipt=receipt,
    )


def _receipt(ports: Ports, session_id: SessionId, body: bytes) -> InputReceipt:
    document = parse(body)
    input_id = InputId(UUID(document["input"]))
    input_seq = ports.store.find_input_seq(input_id)
    if input_seq is None:
        raise InvariantError(f"input {input_id} of a receipt is missing")
    return InputReceipt(
        session_id, RunId(UUID(document["run"])), input_id, input_seq, ReleaseId(UUID(document["release"]))
    )


def stop_run(
    ports: Ports,
    run_id: RunId,
    cause: EndCause = EndCause.STOP,
    code: Code = Code.RUN_STOPPED,
    detail: str | None = None,
) -> StopReceipt:
    """Stop a run now; one that is stopping or over keeps its first cause and nothing is written (R3)."""
    run = ports.store.load_run(run_id)
    if run is None:
        raise RequestError(Code.RUN_NOT_FOUND, f"there is no run {run_id}")
    if run.end_cause is not None or run.status.terminal:
        return _stands(run, applied=False)
    key = f"stop:{run_id}"
    end = stop_end(cause, code, detail)
    outbox = (outbox_row(ports, stop_successor(run_id)),)
    todo = RuntimeCommit(
        scope_id=run_id,
        key=key.encode(),
        parts=(Part(key, stop_command(key, cause, code)),),
        fence=RunFence(run_id, RunMove.STOP, status=end.status, cause=cause, code=code, detail=detail),
        events=(stop_event(cause),),
        delete_run_rows=True,
        outbox=outbox,
    )
    try:
        commit(ports, todo)
        applied = True
    except (LeaseLostError, RequestError):
        # Somebody ended it first, or stopped it for another cause under the same key.
        applied = False
    if applied:
        ports.fast.push_cancel(run_id)
    ports.publish([wake_up(row) for row in outbox])
    ports.on_event(run_id)
    after = ports.store.load_run(run_id)
    assert after is not None, f"run {run_id} has vanished"
    return _stands(after, applied=applied)


def _stands(run: Run, *, applied: bool) -> StopReceipt:
    cause = run.end_cause.value if run.end_cause else None
    return StopReceipt(run.run_id, run.status.value, cause, applied)
