"""What became of the user's words: receipts, the inputs of a session in pages, and taking a queued question back.

A delivery's state is written nowhere but on deliveries; what is told here is read from them (seed 004, 3.2). It says
that words are stored and where they went, never that a model has understood them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from agentloom_worker.canonical import canonical_bytes, effective_text, parse
from agentloom_worker.domain.commit import Part, Put, RuntimeCommit
from agentloom_worker.domain.session import (
    DeliveryState,
    InputKind,
    QueuedQuestion,
    QueueState,
    Session,
    UserInputDelivery,
)
from agentloom_worker.errors import Code, InvariantError, RequestError, RevisionConflictError
from agentloom_worker.frozen import replace
from agentloom_worker.ids import InputId, ReleaseId, RunId, SessionId
from agentloom_worker.limits import INPUT_TRIES
from agentloom_worker.runtime.commit import commit
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.result import hash_command
from agentloom_worker.storage.session import StoredInput

KEY_BYTES_MAX = 200


class InputState(StrEnum):
    """Where an input is, read from its newest delivery, or from the queue while it has none."""

    PENDING = "pending"  # its run has not sent it yet
    CLAIMED = "claimed"  # it is in a request that has no output yet
    DELIVERED = "delivered"  # the first output of a request that holds it is saved
    PENDING_NEXT_RUN = "pending_next_run"  # the session's next run will take it; nothing starts by itself
    QUEUED = "queued"  # a question that waits for the live run to end
    WITHDRAWN = "withdrawn"  # a question that was taken back before it became a run
    FAILED = "failed"  # a question that waited and could become no run: `code` says why


@dataclass(frozen=True, slots=True)
class InputReceipt:
    """An input is safe in the store. `run_id` and `state` say where it is now; the rest never changes.

    `run_id` is None while the input waits for a run. `release_id` is that of a question. `code` is there where its
    state is `failed`: RELEASE_UNREADABLE.
    """

    session_id: SessionId
    run_id: RunId | None
    input_id: InputId
    input_seq: int
    release_id: ReleaseId | None
    kind: InputKind = InputKind.QUESTION
    state: InputState = InputState.PENDING
    code: Code | None = None


@dataclass(frozen=True, slots=True)
class InputView:
    """One input of a session, with its effective text and the instant at which it came, in microseconds.

    `origin_run_id` is the run that took it when it came, `run_id` the one that has it now; `run_ids` are all that
    it was given to, in order: more than one where it was carried on. `code` as in a receipt.
    """

    input_id: InputId
    session_id: SessionId
    input_seq: int
    kind: InputKind
    text: str
    received_at: int
    state: InputState
    origin_run_id: RunId | None
    run_id: RunId | None
    run_ids: tuple[RunId, ...]
    code: Code | None = None


def client_key(key: str) -> bytes:
    """A client's idempotency key as it is stored. Raises RequestError for an empty or overlong one."""
    require_text(key, "an idempotency key")
    body = key.encode("utf-8", "backslashreplace")
    if not 1 <= len(body) <= KEY_BYTES_MAX:
        raise RequestError(
            Code.INPUT_INVALID, f"an idempotency key has 1 to {KEY_BYTES_MAX} bytes, this one has {len(body)}"
        )
    return b"client:" + body


def require_text(value: object, what: str) -> None:
    """Refuse what a caller without a type checker may pass: once stored, it would stop its run at every step."""
    if not isinstance(value, str):
        raise RequestError(Code.INPUT_INVALID, f"{what} is text, not {type(value).__name__}")


def receipt_bytes(input_id: InputId, kind: InputKind, run_id: RunId | None, release_id: ReleaseId | None) -> bytes:
    """What a commit keeps for the sender of an input: what was decided then."""
    document: dict[str, object] = {"v": 1, "input": str(input_id), "kind": kind.value}
    optional = {"run": run_id, "release": release_id}
    return canonical_bytes(document | {name: str(value) for name, value in optional.items() if value is not None})


def read_receipt(ports: Ports, session_id: SessionId, body: bytes) -> InputReceipt:
    """A stored receipt, with where its input is now."""
    document = parse(body)
    input_id = InputId(UUID(document["input"]))
    stored = ports.store.load_input(input_id)
    if stored is None:
        raise InvariantError(f"input {input_id} of a receipt is missing")
    release = document.get("release")
    return _receipt(ports, session_id, stored, ReleaseId(UUID(release)) if release else None)


def _receipt(ports: Ports, session_id: SessionId, stored: StoredInput, release_id: ReleaseId | None) -> InputReceipt:
    found = stored.input
    place = _places(ports, [found.input_id])[found.input_id]
    run_id = place.run_ids[-1] if place.run_ids and place.state is not InputState.PENDING_NEXT_RUN else None
    return InputReceipt(
        session_id, run_id, found.input_id, found.input_seq, release_id, found.kind, place.state, _code(place.state)
    )


def _code(state: InputState) -> Code | None:
    """Why a question could become no run: there is one reason."""
    return Code.RELEASE_UNREADABLE if state is InputState.FAILED else None


def find_receipt(ports: Ports, session_id: SessionId, idempotency_key: str) -> InputReceipt | None:
    """The receipt of an input that was accepted under this key; None if none was (RULINGS R6)."""
    found = ports.store.find_commit(session_id, client_key(idempotency_key))
    return None if found is None or found[1] is None else read_receipt(ports, session_id, found[1])


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an input is, and the runs that it was given to, in order."""

    state: InputState
    run_ids: tuple[RunId, ...]


def _places(ports: Ports, input_ids: Sequence[InputId]) -> dict[InputId, _Place]:
    deliveries: dict[InputId, list[UserInputDelivery]] = {input_id: [] for input_id in input_ids}
    for delivery in ports.store.list_deliveries(input_ids):
        deliveries[delivery.input_id].append(delivery)
    # One without a delivery may get it at any moment: then it is no longer queued when it is looked up here.
    homeless = [input_id for input_id, found in deliveries.items() if not found]
    queued = {one.input_id: one for one in ports.store.find_queued(homeless)} if homeless else {}
    return {
        input_id: _delivered_place(found) if found else _queued_place(input_id, queued.get(input_id))
        for input_id, found in deliveries.items()
    }


_STATES = {
    DeliveryState.PENDING: InputState.PENDING,
    DeliveryState.CLAIMED: InputState.CLAIMED,
    DeliveryState.DELIVERED: InputState.DELIVERED,
}


def _delivered_place(deliveries: Sequence[UserInputDelivery]) -> _Place:
    """The chain from the first delivery to the newest, which alone tells the state."""
    after = {delivery.previous_delivery_id: delivery for delivery in deliveries}
    chain: list[UserInputDelivery] = []
    following = after.get(None)
    while following is not None and len(chain) < len(deliveries):
        chain.append(following)
        following = after.get(following.delivery_id)
    newest = chain[-1]
    state = InputState.PENDING_NEXT_RUN if newest.target_run_id is None else _STATES.get(newest.state)
    if len(chain) != len(deliveries) or state is None:
        raise InvariantError(f"the deliveries of input {newest.input_id} are no chain: run `agentloom audit`")
    return _Place(state, tuple(one.target_run_id for one in chain if one.target_run_id is not None))


def _queued_place(input_id: InputId, queued: QueuedQuestion | None) -> _Place:
    if queued is None:
        raise InvariantError(f"input {input_id} has neither a delivery nor a place in the queue")
    match queued.state:
        case QueueState.QUEUED:
            return _Place(InputState.QUEUED, ())
        case QueueState.WITHDRAWN:
            return _Place(InputState.WITHDRAWN, ())
        case QueueState.FAILED:
            return _Place(InputState.FAILED, ())
        case QueueState.STARTED:
            assert queued.run_id is not None, "a started question names its run"
            return _Place(InputState.PENDING, (queued.run_id,))


def list_inputs(ports: Ports, session: Session, *, after: int, limit: int) -> tuple[InputView, ...]:
    """A page of a session's inputs above an input_seq, in the order in which they came."""
    page = ports.store.list_inputs(session.session_id, after=after, limit=limit)
    places = _places(ports, [stored.input.input_id for stored in page])
    return tuple(_view(ports, session, stored, places[stored.input.input_id]) for stored in page)


def list_waiting_inputs(ports: Ports, session: Session) -> tuple[InputView, ...]:
    """What waits for the session's next run and the questions in its queue, in the order in which they came."""
    waiting = [delivery.input_id for delivery in ports.store.list_waiting(session.session_id)]
    queued = [question.input_id for question in ports.store.list_queue(session.session_id)]
    found = ports.store.load_inputs([*waiting, *queued]) if waiting or queued else []
    places = _places(ports, [stored.input.input_id for stored in found])
    return tuple(_view(ports, session, stored, places[stored.input.input_id]) for stored in found)


def _view(ports: Ports, session: Session, stored: StoredInput, place: _Place) -> InputView:
    found = stored.input
    text = parse(ports.store.load_payload(session.owner_id, found.body))
    assert isinstance(text, str), f"input {found.input_id} is no text"
    return InputView(
        found.input_id,
        found.session_id,
        found.input_seq,
        found.kind,
        effective_text(text)[0],
        stored.received_at,
        place.state,
        found.origin_run_id,
        place.run_ids[-1] if place.run_ids and place.state is not InputState.PENDING_NEXT_RUN else None,
        place.run_ids,
        _code(place.state),
    )


def withdraw_input(ports: Ports, session: Session, input_id: InputId) -> InputReceipt:
    """Take a question back that has not become a run; again, or where it has failed, changes nothing (RULINGS A10).

    Raises RequestError: INPUT_NOT_FOUND where the session has no such input, INPUT_NOT_QUEUED for one that was never
    queued or has become a run.
    """
    for _ in range(INPUT_TRIES):
        stored = ports.store.load_input(input_id)
        if stored is None or stored.input.session_id != session.session_id:
            raise RequestError(Code.INPUT_NOT_FOUND, f"session {session.session_id} has no input {input_id}")
        queued = next(iter(ports.store.find_queued([input_id])), None)
        if queued is None:
            raise RequestError(Code.INPUT_NOT_QUEUED, f"input {input_id} waits in no queue: it is with a run already")
        match queued.state:
            case QueueState.WITHDRAWN | QueueState.FAILED:
                return _receipt(ports, session.session_id, stored, queued.release_id)
            case QueueState.STARTED:
                raise RequestError(
                    Code.INPUT_NOT_QUEUED, f"input {input_id} has become run {queued.run_id}: stop that run instead"
                )
            case QueueState.QUEUED:
                _withdraw(ports, queued)
    raise RevisionConflictError(f"the queue of session {session.session_id}")


def _withdraw(ports: Ports, queued: QueuedQuestion) -> None:
    """One try: where the question moved on meanwhile, it is looked at again."""
    key = f"withdraw:{queued.input_id}"
    todo = RuntimeCommit(
        scope_id=queued.session_id,
        key=key.encode(),
        parts=(Part(key, hash_command(key)),),
        session_id=queued.session_id,
        puts=(Put(queued, replace(queued, state=QueueState.WITHDRAWN)),),
    )
    try:
        commit(ports, todo)
    except RevisionConflictError:
        return
