"""The messages of a context and its frozen requests, built again from the records.

One walk over the records serves every request: a context only ever grows, so each request is the beginning
of the next one. That is so while each record has a single effective entry. What the session's runs show of the earlier
ones is read once for all of them (`earlier.py`), and anew for a run whose requests are others then.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agentloom_worker.audit.earlier import Beginning, Earlier
from agentloom_worker.audit.message import Pairing, WireMessage, read_message
from agentloom_worker.context.request import estimate_tokens, hash_request
from agentloom_worker.context.view import View
from agentloom_worker.domain.context import MessageKind, RoleContext
from agentloom_worker.domain.damage import DAMAGED, describe
from agentloom_worker.domain.recipe import Recipe
from agentloom_worker.domain.run import Run
from agentloom_worker.ids import OperationId
from agentloom_worker.runtime.ports import CachedView, Ports
from agentloom_worker.runtime.release import adapter_of, load_owned_release
from agentloom_worker.runtime.request import head_of
from agentloom_worker.runtime.view import build_view, history_of
from agentloom_worker.storage.audit_rows import OperationRow


@dataclass(frozen=True, slots=True)
class FrozenRequest:
    """A request as its recipe gives it today, beside what was frozen."""

    operation_id: OperationId
    recipe: Recipe
    frozen_hash: bytes
    rebuilt_hash: bytes
    message_count: int  # of the whole request, the session's earlier runs included
    record_count: int
    estimate_tokens: int
    budget_tokens: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Where the walk ended: at an operation's request, or (None) at a record behind the last request."""

    operation_id: OperationId | None
    detail: str


@dataclass(frozen=True, slots=True)
class History:
    """`own` are the messages of the context's own records, by context_seq, as far as nothing is damaged.

    `messages` are those of all requests behind their first `settled`, which pair as `pairing` says.
    """

    own: tuple[WireMessage, ...]
    messages: tuple[WireMessage, ...]
    requests: tuple[FrozenRequest, ...]
    damage: Damage | None
    settled: int = 0
    pairing: Pairing = field(default_factory=Pairing)


def read_history(
    ports: Ports, run: Run, context: RoleContext, operations: Sequence[OperationRow], earlier: Earlier
) -> History:
    """Build every frozen request of a context's node anew. Never raises for what is damaged.

    What `earlier` keeps is used only where it leads to the very requests that were frozen.
    """
    frozen = sorted(
        (row for row in operations if row.node_id == context.node_id and row.request is not None),
        key=lambda row: row.loop_no,
    )
    earlier.note(run)
    shared = _begin(ports, run, context, earlier) if frozen else None
    if shared is not None:
        history = _walk(ports, run, context, frozen, shared)
        if history.damage is None and all(one.rebuilt_hash == one.frozen_hash for one in history.requests):
            return history
    return _walk(ports, run, context, frozen, None)


def _begin(ports: Ports, run: Run, context: RoleContext, earlier: Earlier) -> Beginning | None:
    """How the run's requests begin; None where that cannot be built, or its own records do not begin like that."""
    try:
        release = load_owned_release(ports, run.release_id).release
        rows = ports.store.load_view_rows(context.context_id, after_seq=0, revision=context.effective_revision, limit=1)
        if not rows or (rows[0].context_seq, rows[0].message_kind) != (1, MessageKind.PROMPT):
            return None
        return earlier.begin(ports, run, release)
    except DAMAGED:
        return None


def _walk(
    ports: Ports, run: Run, context: RoleContext, frozen: Sequence[OperationRow], shared: Beginning | None
) -> History:
    requests: list[FrozenRequest] = []
    # A view that holds the prompt's record at least; which revision that was does not matter.
    base = CachedView(0, 0, View()) if shared is None else CachedView(0, 1, shared.view)
    damage: Damage | None = None
    for row in frozen:
        try:
            request, base = _rebuild(ports, run, context, row, base)
        except DAMAGED as error:
            damage = Damage(row.operation_id, describe(error))
            break
        requests.append(request)
    if damage is None:
        try:
            # Without a request nobody has shown the history, however large it is.
            base = _extend(ports, run, context, base, history_of(run) if frozen else 0)
        except DAMAGED as error:
            damage = Damage(None, describe(error))
    settled, pairing = (0, Pairing()) if shared is None else (shared.settled, shared.pairing)
    view, length = base.view, base.view.history_length
    try:
        messages = tuple(read_message(fragment) for fragment in view.fragments(settled))
        prompt = tuple(read_message(fragment) for fragment in view.fragments(0, 1))
    except DAMAGED as error:
        return History((), (), tuple(requests), Damage(None, describe(error)))
    own = (*prompt, *messages[max(0, 1 + length - settled) :])
    return History(own, messages, tuple(requests), damage, settled, pairing)


def _rebuild(
    ports: Ports, run: Run, context: RoleContext, row: OperationRow, base: CachedView
) -> tuple[FrozenRequest, CachedView]:
    assert row.request is not None, "only frozen operations are rebuilt"
    recipe = Recipe.from_bytes(row.request)
    release = load_owned_release(ports, run.release_id).release
    adapter, head = adapter_of(ports, release), head_of(ports, run, release)
    then = replace(context, effective_revision=recipe.revision, record_head=recipe.record_head)
    grown = _extend(ports, run, then, base, recipe.history)
    arguments = (adapter, head.parameters, head.tools, grown.view)
    request = FrozenRequest(
        operation_id=row.operation_id,
        recipe=recipe,
        frozen_hash=row.request_hash or b"",
        rebuilt_hash=hash_request(*arguments),
        message_count=grown.view.length,
        record_count=grown.view.length - grown.view.history_length,
        estimate_tokens=estimate_tokens(*arguments, head.tool_count),
        budget_tokens=release.budget.input_budget_tokens,
    )
    return request, grown


def _extend(ports: Ports, run: Run, context: RoleContext, base: CachedView, history: int) -> CachedView:
    release = load_owned_release(ports, run.release_id).release
    view = build_view(ports, run, context, release, base, history=history)
    return CachedView(context.effective_revision, context.record_head, view)
