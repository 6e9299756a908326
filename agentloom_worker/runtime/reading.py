"""What people may read of a session's material, each read under an authority (seed 000, 12, row L25; C03).

A foreign session, another role and something that does not exist are refused with one and the same error, which
holds no id and no text: whoever may not read learns nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agentloom_worker.canonical import effective_text
from agentloom_worker.capabilities.result import decode_result, raw_text
from agentloom_worker.context.protocol import Item, ItemKind, Source
from agentloom_worker.context.request import fragment_tokens, hash_request
from agentloom_worker.context.view import View
from agentloom_worker.domain.authority import ReadAuthority
from agentloom_worker.domain.model import Role
from agentloom_worker.domain.operation import Operation, OperationKind
from agentloom_worker.domain.recipe import Recipe
from agentloom_worker.domain.response import decode_response
from agentloom_worker.domain.run import Run, RunStatus
from agentloom_worker.domain.session import DeliveryState, InputKind, Session
from agentloom_worker.errors import Code, InvariantError, RequestError
from agentloom_worker.frozen import replace
from agentloom_worker.ids import InputId, OperationId, OwnerId, RunId, SessionId
from agentloom_worker.limits import HISTORY_RUNS_PAGE, INPUTS_PAGE
from agentloom_worker.runtime.history import read_runs
from agentloom_worker.runtime.inputs import InputView, list_inputs, list_waiting_inputs
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.release import adapter_of, load_owned_release
from agentloom_worker.runtime.request import head_of, served_model
from agentloom_worker.runtime.view import read_items


@dataclass(frozen=True, slots=True)
class ShownItem:
    """One message of a request as the model saw it. `tokens` is its share of the estimate.

    `raw` is what was stored before it was made fit for the model: a result before its preview was cut, a text
    with its lone surrogates. It is None for what only the projection says.
    """

    number: int
    kind: ItemKind
    role: Role
    raw: str | None
    effective: str
    fragment: bytes
    tokens: int
    protected: bool
    source: Source
    why: str


@dataclass(frozen=True, slots=True)
class Materialized:
    """A frozen request with its items; it was proved to hash to what was frozen.

    `served_model` is the model that the provider says it answered with, where that is another name than it was asked
    for.
    """

    operation_id: OperationId
    run_id: RunId
    request_hash: bytes
    tokens: int
    budget_tokens: int
    items: tuple[ShownItem, ...]
    served_model: str | None = None


@dataclass(frozen=True, slots=True)
class GivenWords:
    """An input as it stands in one run. `state` is that of its delivery there."""

    input_id: InputId
    input_seq: int
    kind: InputKind
    state: DeliveryState
    origin_run_id: RunId | None
    text: str


@dataclass(frozen=True, slots=True)
class SessionRound:
    """An ended run: what was asked and added, what came of it, how it ended. Instants in microseconds."""

    run_id: RunId
    run_no: int
    question_seq: int
    status: RunStatus
    code: str | None
    created_at: int
    ended_at: int | None
    inputs: tuple[GivenWords, ...]
    answer: str | None


def authority_of(ports: Ports, session_id: SessionId, role_key: str | None = None) -> ReadAuthority:
    """The authority over a session's root role: the one that is named, else the one of the agent's newest release.

    Raises RequestError(CONTEXT_FORBIDDEN) where there is no such session; a role is checked when it reads.
    """
    if role_key is not None:
        return ReadAuthority(session_id, role_key)
    session = ports.store.load_session(session_id)
    newest = None if session is None else ports.store.newest_release(session.owner_id)
    if newest is None:
        raise _forbidden()
    return ReadAuthority(session_id, load_owned_release(ports, newest).release.role_key)


def inputs(
    ports: Ports, authority: ReadAuthority, *, after_seq: int = 0, limit: int = INPUTS_PAGE
) -> tuple[InputView, ...]:
    """A page of what the user has sent in the session, above an input_seq. Raises RequestError(CONTEXT_FORBIDDEN)."""
    return list_inputs(ports, require_session(ports, authority), after=after_seq, limit=limit)


def waiting_inputs(ports: Ports, authority: ReadAuthority) -> tuple[InputView, ...]:
    """What waits for the session's next run, and its queue. Raises RequestError(CONTEXT_FORBIDDEN)."""
    return list_waiting_inputs(ports, require_session(ports, authority))


def history(
    ports: Ports, authority: ReadAuthority, *, after_seq: int = 0, limit: int = HISTORY_RUNS_PAGE
) -> tuple[SessionRound, ...]:
    """A page of the session's ended runs of this role, in the order of their questions, behind a question's place.

    Raises RequestError(CONTEXT_FORBIDDEN).
    """
    session = require_session(ports, authority)
    mine: list[Run] = []
    while len(mine) < limit:
        page = ports.store.list_ended_runs(
            session.session_id, run_no_max=session.run_head, after_seq=after_seq, limit=limit
        )
        roles = ports.store.list_root_roles([run.run_id for run in page])
        mine += [run for run in page if roles.get(run.run_id) == authority.role_key]
        if len(page) < limit:
            break
        after_seq = page[-1].question_seq
    return _rounds(ports, mine[:limit])


def materialize(ports: Ports, authority: ReadAuthority, operation_id: OperationId) -> Materialized:
    """A model operation's request, item by item, built again from what its recipe names.

    Raises RequestError: CONTEXT_FORBIDDEN, or OPERATION_NOT_FOUND for one of this role whose request was never
    frozen; InvariantError(REQUEST_HASH_MISMATCH) where it is not the one that was frozen.
    """
    session = require_session(ports, authority)
    operation = ports.store.load_operation(operation_id)
    if operation is None or not may_read(ports, authority, operation):
        raise _forbidden()
    if operation.kind is not OperationKind.MODEL or operation.request is None or operation.request_hash is None:
        raise RequestError(Code.OPERATION_NOT_FOUND, f"operation {operation_id} has no frozen request")
    rows = ports.store.load_slice(operation.run_id)
    if rows is None:
        raise InvariantError(f"run {operation.run_id} is missing")
    recipe = Recipe.from_bytes(operation.request)
    release = load_owned_release(ports, rows.run.release_id).release
    adapter, head = adapter_of(ports, release), head_of(ports, rows.run, release)
    context = replace(rows.context, effective_revision=recipe.revision, record_head=recipe.record_head)
    items = list(read_items(ports, rows.run, context, release, history=recipe.history))
    fragments = [adapter.encode_message(item.message) for item in items]
    if hash_request(adapter, head.parameters, head.tools, View().extend(fragments)) != operation.request_hash:
        raise InvariantError(
            f"operation {operation_id}: its request is built as another one", Code.REQUEST_HASH_MISMATCH
        )
    raws = _raw_texts(ports, session.owner_id, items)
    shown = tuple(
        ShownItem(
            number,
            item.kind,
            item.message.role,
            raw,
            item.message.text,
            fragment,
            fragment_tokens(fragment),
            item.protected,
            item.source,
            item.why,
        )
        for number, (item, fragment, raw) in enumerate(zip(items, fragments, raws, strict=True), 1)
    )
    budget = release.budget.input_budget_tokens
    served = served_model(ports, rows.run, operation)
    return Materialized(operation_id, rows.run.run_id, operation.request_hash, recipe.tokens, budget, shown, served)


def require_session(ports: Ports, authority: ReadAuthority) -> Session:
    """The session that the authority names. Raises RequestError(CONTEXT_FORBIDDEN) for one without such a role."""
    session = ports.store.load_session(authority.session_id)
    if session is None:
        raise _forbidden()
    newest = ports.store.newest_release(session.owner_id)
    if newest is not None and load_owned_release(ports, newest).release.role_key == authority.role_key:
        return session
    if not ports.store.has_root_role(session.session_id, authority.role_key):
        raise _forbidden()
    return session


def may_read(ports: Ports, authority: ReadAuthority, operation: Operation) -> bool:
    """Whether an operation is one of this role's root in a run of this session."""
    run, node = ports.store.load_run(operation.run_id), ports.store.load_node(operation.run_id)
    if run is None or node is None or run.session_id != authority.session_id:
        return False
    return (node.node_id, node.role_key) == (operation.node_id, authority.role_key)


def _forbidden() -> RequestError:
    return RequestError(
        Code.CONTEXT_FORBIDDEN,
        "this session and role may not read that, or it does not exist: name the session and the role it belongs to",
    )


def _rounds(ports: Ports, runs: Sequence[Run]) -> tuple[SessionRound, ...]:
    if not runs:
        return ()
    given, _ = ports.store.list_given_inputs([run.run_id for run in runs])
    states = {(one.run_id, one.input_id): (one.kind, one.state) for one in given}
    found = []
    for run, one in zip(runs, read_runs(ports, runs), strict=True):
        words = tuple(
            GivenWords(
                said.input_id,
                said.input_seq,
                *states[run.run_id, said.input_id],
                origin_run_id=said.origin_run_id,
                text=effective_text(said.text)[0],
            )
            for said in one.inputs
        )
        answer = None if one.answer is None else effective_text(one.answer.text or one.answer.refusal)[0]
        found.append(
            SessionRound(
                run.run_id,
                run.run_no,
                run.question_seq,
                run.status,
                run.end_code,
                run.created_at,
                run.ended_at,
                words,
                answer,
            )
        )
    return tuple(found)


def _raw_texts(ports: Ports, owner_id: OwnerId, items: Sequence[Item]) -> list[str | None]:
    """What stands behind each item: its own raw text, or that of its operation's raw result."""
    spoken = [item for item in items if item.kind is ItemKind.EFFECTIVE_RECORD and item.source.operation_id is not None]
    ids = [item.source.operation_id for item in spoken if item.source.operation_id is not None]
    operations = ports.store.load_operations(ids)
    held = [operation for operation in operations.values() if operation.raw is not None]
    bodies = ports.store.load_bodies(owner_id, [operation.raw for operation in held if operation.raw is not None])
    texts = {operation.operation_id: _said(operation, body) for operation, body in zip(held, bodies, strict=True)}
    return [
        texts.get(item.source.operation_id)
        if item.kind is ItemKind.EFFECTIVE_RECORD and item.source.operation_id is not None
        else item.raw
        for item in items
    ]


def _said(operation: Operation, body: bytes) -> str:
    if operation.kind is OperationKind.MODEL:
        response = decode_response(body)
        return response.text or response.refusal
    return raw_text(decode_result(body))
