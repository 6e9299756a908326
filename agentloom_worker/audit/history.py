"""The messages of a context and its frozen requests, built again from the records.

One walk over the records serves every request: a context only ever grows, so each request is the beginning
of the next one. That is so while each record has a single effective entry. The session's earlier runs are
read anew for each run that shows them, as its own requests were made.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentloom_worker.canonical import parse, sha256
from agentloom_worker.context.request import estimate_tokens, fragment_tokens, hash_request
from agentloom_worker.context.view import View
from agentloom_worker.domain.context import RoleContext
from agentloom_worker.domain.damage import DAMAGED, describe
from agentloom_worker.domain.model import Role
from agentloom_worker.domain.recipe import Recipe
from agentloom_worker.domain.run import Run
from agentloom_worker.ids import OperationId
from agentloom_worker.runtime.ports import CachedView, Ports
from agentloom_worker.runtime.release import adapter_of, load_owned_release
from agentloom_worker.runtime.request import head_of
from agentloom_worker.runtime.view import build_view, history_of
from agentloom_worker.storage.audit import OperationRow


@dataclass(frozen=True, slots=True)
class WireMessage:
    """A message as it goes to the model, without its text. `tokens` is the estimate of its fragment."""

    role: Role
    text_hash: bytes
    call_ids: tuple[str, ...]
    wire_id: str | None
    tokens: int


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
    """`messages` are those of all requests, and where nothing is damaged those of the whole context.

    The session's earlier runs are `history_length` of them, right behind the first; `own` leaves them out.
    """

    messages: tuple[WireMessage, ...]
    requests: tuple[FrozenRequest, ...]
    damage: Damage | None
    history_length: int = 0

    @property
    def own(self) -> tuple[WireMessage, ...]:
        """The messages of the context's own records, by context_seq."""
        return (*self.messages[:1], *self.messages[1 + self.history_length :])


def read_history(ports: Ports, run: Run, context: RoleContext, operations: Sequence[OperationRow]) -> History:
    """Build every frozen request of a context's node anew. Never raises for what is damaged."""
    frozen = sorted(
        (row for row in operations if row.node_id == context.node_id and row.request is not None),
        key=lambda row: row.loop_no,
    )
    requests: list[FrozenRequest] = []
    base = CachedView(0, 0, View())
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
            base = _extend(ports, run, context, base, history_of(run))
        except DAMAGED as error:
            damage = Damage(None, describe(error))
    try:
        messages = tuple(_read(fragment) for fragment in base.view.fragments())
    except DAMAGED as error:
        messages, damage = (), Damage(None, describe(error))
    return History(messages, tuple(requests), damage, base.view.history_length if messages else 0)


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


def _read(fragment: bytes) -> WireMessage:
    """A fragment of either protocol: a message of chat completions, or the items of a Responses request that make one.

    No other form of a fragment is stored or sent anywhere.
    """
    role, text, wire_id = Role.ASSISTANT, "", None
    calls: list[str] = []
    for item in parse(b"[" + fragment + b"]"):
        match item.get("type"):
            case "function_call":
                calls.append(item["call_id"])
            case "function_call_output":
                role, text, wire_id = Role.TOOL, item["output"], item["call_id"]
            case "reasoning":
                pass  # of the assistant's message that follows
            case _:
                role, text, wire_id = Role(item["role"]), _text(item["content"]), item.get("tool_call_id")
                calls += [call["id"] for call in item.get("tool_calls", ())]
    return WireMessage(role, sha256(text.encode()), tuple(calls), wire_id, fragment_tokens(fragment))


def _text(content: str | list[dict[str, str]] | None) -> str:
    return "".join(part["text"] for part in content) if isinstance(content, list) else content or ""
