"""The view of a context: built from its records and the session's history, kept, and extended by what is new.

A process that has a view extends it and reads no history; one that has none reads the history once, in pages
(CONTEXT, Constant cost). Whoever needs the items themselves, not their bytes, walks through the same ones.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from agentloom_worker.context.protocol import EndedRun, FrozenContext, Item, Record
from agentloom_worker.context.view import View
from agentloom_worker.domain.context import MessageKind, RoleContext
from agentloom_worker.domain.release import FrozenRelease
from agentloom_worker.domain.run import Run
from agentloom_worker.limits import HISTORY_BUDGETS
from agentloom_worker.llm.adapter import ModelAdapter
from agentloom_worker.runtime.history import read_ended, read_records
from agentloom_worker.runtime.ports import CachedView, Ports
from agentloom_worker.runtime.release import adapter_of, protocol_of


def remember_view(ports: Ports, context: RoleContext, view: View) -> None:
    """Keep a view whose content is settled for the next load; keyed by revision, so it can never be stale."""
    ports.views.put(context.context_id, CachedView(context.effective_revision, context.record_head, view))


def load_view(ports: Ports, run: Run, context: RoleContext, release: FrozenRelease) -> View:
    """The view at the context's head: the cached one where it fits, extended by what came since, in pages."""
    cached = ports.views.get(context.context_id)
    if cached is None or cached.revision > context.effective_revision:
        cached = CachedView(0, 0, View(seam=adapter_of(ports, release).seam))
    if cached.revision == context.effective_revision:
        return cached.view
    view = build_view(ports, run, context, release, cached, history=history_of(run))
    remember_view(ports, context, view)
    return view


def history_of(run: Run) -> int:
    """The greatest run_no of the runs that this one shows: each one before it had ended when it was made (A13)."""
    return run.run_no - 1


def build_view(
    ports: Ports, run: Run, context: RoleContext, release: FrozenRelease, base: CachedView, *, history: int
) -> View:
    """Extend a view by the records after it, as of the context's revision.

    `history` is the greatest run_no of the earlier runs to show; they are read only where the view begins.
    """
    adapter, room = adapter_of(ports, release), _Room(release)
    items = read_items(
        ports,
        run,
        context,
        release,
        history=history,
        after_seq=base.record_head,
        wire_ids=base.view.wire_ids,
        room=room,
    )
    # A view that begins here gets the seams of its adapter's encoding, and keeps them as it grows.
    begun = base.view if base.view.length else View(seam=adapter.seam)
    return extend_view(adapter, begun, run, items, room)


def add_history(ports: Ports, run: Run, context: RoleContext, release: FrozenRelease, prompted: View) -> View:
    """A view that holds the prompt alone, with the session's earlier runs behind it: a run's first prepare.

    `context` has that one record. What it shows is fixed with the run, so it is kept before it is committed: a
    prepare that is built again, since an input came meanwhile, does not read the history again.
    """
    kept = ports.views.get(context.context_id)
    if kept is not None and (kept.revision, kept.record_head) == (context.effective_revision, context.record_head):
        return kept.view
    first = Record(1, MessageKind.PROMPT, release.prompt)
    room = _Room(release)
    earlier = read_ended(
        ports, run.session_id, run_no_max=history_of(run), recent=release.recent_runs, model=release.model
    )
    ended = room.take(earlier)
    items = protocol_of(release).project(FrozenContext(run.run_id, run.run_no, (first,), ended))
    view = extend_view(adapter_of(ports, release), prompted, run, islice(items, 1, None), room)
    remember_view(ports, context, view)
    return view


def read_items(
    ports: Ports,
    run: Run,
    context: RoleContext,
    release: FrozenRelease,
    *,
    history: int,
    after_seq: int = 0,
    wire_ids: tuple[str, ...] = (),
    room: "_Room | None" = None,
) -> Iterator[Item]:
    """The items of a request as of the context's revision, in order, behind the record `after_seq`.

    Of a history for which there is no `room` the rest is left out: no request of its run can be frozen.

    The one source of what a request shows: the view, a rebuilt request, the audit and `context show`.
    """
    records = read_records(ports, run.owner_id, context, prompt=release.prompt, after_seq=after_seq)
    ended = read_ended(ports, run.session_id, run_no_max=history, recent=release.recent_runs, model=release.model)
    ended = ended if room is None else room.take(ended)
    return protocol_of(release).project(FrozenContext(run.run_id, run.run_no, records, ended, wire_ids))


def extend_view(
    adapter: ModelAdapter, view: View, run: Run, items: Iterable[Item], room: "_Room | None" = None
) -> View:
    """A view with these items of a request of the run behind it; `room` is told how it grows."""
    for item in items:
        view = view.extend(
            [adapter.encode_message(item.message)],
            item.wire_ids,
            protected=item.protected,
            history=item.source.run_id != run.run_id,
        )
        if room is not None:
            room.see(view)
    return view


class _Room:
    """How much of a history a view takes: more than fits any request, and no more than a few times that.

    A session's history has no bound, a process's memory has one. What is left out is never sent nor frozen: a view
    beyond its room is beyond the budget, whatever comes behind it.
    """

    def __init__(self, release: FrozenRelease) -> None:
        # Each byte is a token at least.
        self._bytes_max = HISTORY_BUDGETS * release.budget.input_budget_tokens
        self._left = True

    def take(self, ended: Iterator[EndedRun]) -> Iterator[EndedRun]:
        """The runs for which there is room, read one by one."""
        while self._left and (run := next(ended, None)) is not None:
            yield run

    def see(self, view: View) -> None:
        """The view as it has grown."""
        self._left = view.joined_bytes <= self._bytes_max
