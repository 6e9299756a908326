"""A question, a supplement or a stop becomes rows and a first dispatch, in one commit (RUNTIME, table of steps).

The client's key makes a repetition return the first receipt; another command under the same key is refused. Where an
input goes is decided on what is read, and asserted by the commit: where the run has moved on, it is decided anew.
"""

from dataclasses import dataclass
from enum import StrEnum

from agentloom_worker import faults, limits
from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.domain.commit import Part, Put, RunFence, RunMove, RuntimeCommit
from agentloom_worker.domain.run import EndCause, Run, RunStatus
from agentloom_worker.domain.session import (
    DeliveryState,
    InputKind,
    OnBusy,
    QueuedQuestion,
    QueueState,
    Session,
    UserInput,
    UserInputDelivery,
)
from agentloom_worker.errors import Code, InvariantError, LeaseLostError, RequestError, RevisionConflictError
from agentloom_worker.ids import DeliveryId, InputId, ReleaseId, RunId
from agentloom_worker.limits import INPUT_BYTES_MAX, INPUT_TRIES, QUEUED_QUESTIONS_MAX
from agentloom_worker.runtime.commit import commit
from agentloom_worker.runtime.dispatch import outbox_row, wake_up
from agentloom_worker.runtime.inputs import InputReceipt, client_key, read_receipt, receipt_bytes, require_text
from agentloom_worker.runtime.opening import open_run
from agentloom_worker.runtime.payload import make_payload
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.result import hash_command
from agentloom_worker.runtime.slice import load_owned_release
from agentloom_worker.runtime.stopping import stop_command, stop_end, stop_event, stop_successor

INTERRUPTED = "another question of the user took its place"


class Sending(StrEnum):
    """What a user may do with words: ask, add to what is going on, or the one where the other cannot be."""

    QUESTION = "question"
    SUPPLEMENT = "supplement"
    SEND = "send"


# The names of the commands in their hashes: the caller's words decide, not what became of them (RULINGS T6).
_COMMANDS = {Sending.QUESTION: "ask", Sending.SUPPLEMENT: "supplement", Sending.SEND: "send"}


@dataclass(frozen=True, slots=True)
class StopReceipt:
    """What stands after a stop: the first cause, whoever gave it."""

    run_id: RunId
    status: str
    end_cause: str | None
    applied: bool


def accept_question(
    ports: Ports, session: Session, text: str, release_id: ReleaseId | None, idempotency_key: str
) -> InputReceipt:
    """`accept_input` of a question."""
    return accept_input(ports, session, Sending.QUESTION, text, release_id, idempotency_key)


def accept_input(
    ports: Ports, session: Session, sending: Sending, text: str, release_id: ReleaseId | None, idempotency_key: str
) -> InputReceipt:
    """Register the user's words where they belong, or return the receipt that the key has already.

    A question opens a run, or meets one and does what the session's `on_busy` says. A supplement goes to the live run,
    or waits for the next one and starts nothing, while there is room for it. `send` is a supplement where a run can
    take it, else a question.

    Raises RequestError: SESSION_BUSY, RUN_STOPPING, SESSION_QUEUE_FULL, RELEASE_AGENT_MISMATCH, RELEASE_NOT_FOUND,
    IDEMPOTENCY_CONFLICT, INPUT_INVALID. Nothing is written then.
    """
    key = client_key(idempotency_key)
    require_text(text, "an input")
    if not text.strip():
        raise RequestError(Code.INPUT_INVALID, "the input is blank: say what is asked")
    body = canonical_bytes(text)
    if len(body) > INPUT_BYTES_MAX:
        raise RequestError(
            Code.INPUT_INVALID,
            f"the input has {len(body)} bytes, at most {INPUT_BYTES_MAX} are taken: pass large material as a tool",
        )
    if sending is Sending.SUPPLEMENT and release_id is not None:
        raise RequestError(Code.INPUT_INVALID, "a supplement goes to a run, which has its release: name none")
    # The caller's words only: a release that was filled in is no part of the command (RULINGS T6).
    command = hash_command(_COMMANDS[sending], body.decode(), release_id or "")
    found = ports.store.find_commit(session.session_id, key)
    if found is None:
        refused = _register(_Input(ports, session, body, release_id, key, command), sending)
        found = ports.store.find_commit(session.session_id, key)
        if found is None and refused is not None:
            raise refused
    if found is None or found[1] is None:
        raise InvariantError(f"session {session.session_id}: an accepted input left no receipt")
    if found[0] != command:
        raise RequestError(
            Code.IDEMPOTENCY_CONFLICT,
            f"key {idempotency_key!r} was used before for another input: use a new key",
        )
    return read_receipt(ports, session.session_id, found[1])


class _Way(StrEnum):
    """Where an input goes."""

    OPEN = "open"  # a run of its own, now
    TAKE = "take"  # a supplement of the live run
    WAIT = "wait"  # a supplement for the next run
    QUEUE = "queue"  # a run of its own, behind the others that wait
    INTERRUPT = "interrupt"  # a run of its own, before all others; the live one is stopped, if it is not already


@dataclass(frozen=True, slots=True)
class _Input:
    """The caller's command."""

    ports: Ports
    session: Session
    body: bytes
    release_id: ReleaseId | None
    key: bytes
    command: bytes


def _register(given: _Input, sending: Sending) -> RequestError | None:
    """Decide and commit, or say why not. What met the same command under way is not refused: its key tells (A24)."""
    try:
        _place(given, sending)
    except RequestError as refused:
        return refused
    return None


def _place(given: _Input, sending: Sending) -> None:
    """Commit what is decided; a run that ended, began to end or began meanwhile makes it be decided again."""
    ports = given.ports
    for _ in range(INPUT_TRIES):
        live = ports.store.find_live_run(given.session.session_id)
        todo = _write(given, _decide(given.session, sending, live), live)
        faults.hit("command.before", "ask")
        try:
            commit(ports, todo)
        except (LeaseLostError, RevisionConflictError):
            continue
        except RequestError as error:
            if error.code is Code.SESSION_BUSY:
                continue
            raise
        faults.hit("command.after", "ask")
        _tell(ports, todo)
        return
    raise RevisionConflictError(f"the live run of session {given.session.session_id}")


def _decide(session: Session, sending: Sending, live: Run | None) -> _Way:
    """The states of inputs by the state of the run (RULINGS A9), and `on_busy` (A10)."""
    taking = live is not None and live.status in (RunStatus.QUEUED, RunStatus.RUNNING)
    if sending is not Sending.QUESTION and taking:
        return _Way.TAKE
    if sending is Sending.SUPPLEMENT:
        return _Way.WAIT
    if live is None:
        return _Way.OPEN
    match session.on_busy:
        case OnBusy.ENQUEUE:
            return _Way.QUEUE
        case OnBusy.INTERRUPT:
            return _Way.INTERRUPT
        case OnBusy.SUPPLEMENT if taking:
            return _Way.TAKE
    if not taking:
        raise RequestError(
            Code.RUN_STOPPING, f"run {live.run_id} of session {session.session_id} is stopping: ask when it has ended"
        )
    raise RequestError(
        Code.SESSION_BUSY,
        f"session {session.session_id} has a run that has not ended: wait for it, or stop it",
    )


def _write(given: _Input, way: _Way, live: Run | None) -> RuntimeCommit:
    """The commit of a decision, with what it was decided on asserted."""
    input_id = InputId(given.ports.ids.new())
    match way:
        case _Way.TAKE:
            assert live is not None, "a run takes it"
            return _supplement(given, input_id, RunFence(live.run_id, RunMove.TAKE))
        case _Way.WAIT:
            return _supplement(given, input_id, None)
        case _Way.OPEN:
            return _question(given, input_id)
        case _Way.QUEUE | _Way.INTERRUPT:
            assert live is not None, "it waits for a run"
            return _queued(given, input_id, live, front=way is _Way.INTERRUPT)


def _supplement(given: _Input, input_id: InputId, fence: RunFence | None) -> RuntimeCommit:
    session_id, run_id = given.session.session_id, fence.run_id if fence else None
    _require_room(given)
    payload, blobs = make_payload(given.ports, given.session.owner_id, given.body)
    delivery = UserInputDelivery(
        DeliveryId(given.ports.ids.new()), input_id, session_id, run_id, DeliveryState.PENDING, 1
    )
    return RuntimeCommit(
        scope_id=session_id,
        key=given.key,
        parts=(Part(f"accept:{input_id}", given.command),),
        session_id=session_id,
        fence=fence,
        blobs=blobs,
        puts=(
            Put(None, UserInput(input_id, session_id, 0, run_id, InputKind.SUPPLEMENT, payload)),
            Put(None, delivery),
        ),
        receipt=receipt_bytes(input_id, InputKind.SUPPLEMENT, run_id, None),
    )


def _require_room(given: _Input) -> None:
    """Refuse what the commit would: each load of a run's rows holds all that it has not delivered."""
    session_id, inputs_max, bytes_max = (
        given.session.session_id,
        limits.UNDELIVERED_INPUTS_MAX,
        limits.UNDELIVERED_BYTES_MAX,
    )
    found = given.ports.store.measure_undelivered(session_id)
    if found.inputs + 1 > inputs_max or found.size_bytes + len(given.body) > bytes_max:
        raise RequestError(
            Code.SESSION_QUEUE_FULL,
            f"{found.inputs} inputs of {found.size_bytes} bytes wait in session {session_id} for a model, at most"
            f" {inputs_max} of {bytes_max} bytes may: wait until the run has sent them, or ask if none lives",
        )


def _question(given: _Input, input_id: InputId) -> RuntimeCommit:
    ports, session_id = given.ports, given.session.session_id
    release_id = _release(ports, given.session, given.release_id)
    opened = open_run(ports, session_id, release_id, input_id, given.session.run_head + 1)
    payload, blobs = make_payload(ports, given.session.owner_id, given.body)
    return RuntimeCommit(
        scope_id=session_id,
        key=given.key,
        parts=(Part(f"accept:{input_id}", given.command),),
        session_id=session_id,
        blobs=blobs,
        puts=(Put(None, UserInput(input_id, session_id, 0, opened.run_id, InputKind.QUESTION, payload)),),
        accept=opened,
        first=outbox_row(ports, opened.first),
        deadline=outbox_row(ports, opened.expiry),
        receipt=receipt_bytes(input_id, InputKind.QUESTION, opened.run_id, release_id),
    )


def _queued(given: _Input, input_id: InputId, live: Run, *, front: bool) -> RuntimeCommit:
    """The question waits for the run's end; at the front, the run is stopped by the same commit, if it still goes."""
    ports, session_id = given.ports, given.session.session_id
    if len(ports.store.list_queue(session_id)) >= QUEUED_QUESTIONS_MAX:
        raise RequestError(
            Code.SESSION_QUEUE_FULL,
            f"{QUEUED_QUESTIONS_MAX} questions wait in session {session_id} already: withdraw one, or wait for a run",
        )
    release_id = _release(ports, given.session, given.release_id)
    payload, blobs = make_payload(ports, given.session.owner_id, given.body)
    stops = front and live.status is not RunStatus.STOPPING
    end = stop_end(EndCause.STOP, Code.RUN_STOPPED, INTERRUPTED)
    fence = RunFence(live.run_id, RunMove.QUEUE)
    if stops:
        fence = RunFence(
            live.run_id,
            RunMove.STOP,
            status=end.status,
            cause=end.cause,
            code=end.code,
            detail=end.detail,
            interrupted=True,
        )
    # Its place is given by the commit, from its input_seq; here only its sign counts.
    place = QueuedQuestion(input_id, session_id, -1 if front else 1, release_id, QueueState.QUEUED)
    return RuntimeCommit(
        scope_id=session_id,
        key=given.key,
        parts=(Part(f"accept:{input_id}", given.command),),
        session_id=session_id,
        fence=fence,
        blobs=blobs,
        puts=(
            Put(None, UserInput(input_id, session_id, 0, None, InputKind.QUESTION, payload)),
            Put(None, place),
        ),
        events=(stop_event(end.cause),) if stops else (),
        delete_run_rows=stops,
        outbox=(outbox_row(ports, stop_successor(live.run_id)),) if stops else (),
        receipt=receipt_bytes(input_id, InputKind.QUESTION, None, release_id),
    )


def _tell(ports: Ports, todo: RuntimeCommit) -> None:
    """After the commit: wake somebody up for its rows, and let a stopped run's steps hear of it."""
    rows = todo.outbox if todo.first is None else (*todo.outbox, todo.first)
    fence = todo.fence
    if fence is not None and fence.move is RunMove.STOP:
        ports.fast.push_cancel(fence.run_id)
    if rows:
        ports.publish([wake_up(row) for row in rows])
    if fence is not None and todo.events:
        ports.on_event(fence.run_id)


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
    faults.hit("command.before", "stop")
    try:
        commit(ports, todo)
        applied = True
    except (LeaseLostError, RequestError):
        # Somebody ended it first, or stopped it for another cause under the same key.
        applied = False
    faults.hit("command.after", "stop")
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
