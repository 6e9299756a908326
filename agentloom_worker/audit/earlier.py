"""The earlier runs of a session as its runs show them, one run after the other, each of them read once.

A later run shows an older one as the run before it did, but where an input was carried on. So the beginnings of the
requests of a session's runs are kept as one stack, a step for each older run; what a run shows otherwise falls off it.
Whoever builds on it holds the result against what was frozen, and reads everything anew where they differ.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from agentloom_worker.audit.message import Pairing, read_message
from agentloom_worker.context.protocol import EndedRun, FrozenContext, Item, Record
from agentloom_worker.context.view import View
from agentloom_worker.domain.context import MessageKind
from agentloom_worker.domain.release import FrozenRelease
from agentloom_worker.domain.run import Run
from agentloom_worker.ids import ReleaseId, SessionId
from agentloom_worker.limits import AUDIT_RELEASES
from agentloom_worker.runtime.history import list_recent, read_older, read_recent
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.release import adapter_of, protocol_of
from agentloom_worker.runtime.view import extend_view, history_of


@dataclass(frozen=True, slots=True)
class Beginning:
    """A request up to its run's own records but the prompt. `settled` of its messages pair as `pairing` says."""

    view: View
    settled: int
    pairing: Pairing


@dataclass(frozen=True, slots=True)
class _Step:
    """An older run on the stack, and all before it. A run from the run_no `until` on shows it otherwise."""

    question_seq: int
    until: int | None
    view: View
    pairing: Pairing


@dataclass(slots=True)
class _Stack:
    """What the runs of one release show. `run_no` is that of the run that was shown last."""

    prompted: View
    pairing: Pairing
    run_no: int
    steps: list[_Step] = field(default_factory=list)

    def cut(self, size: int) -> None:
        del self.steps[size:]


class Earlier:
    """Walks through the runs of a session in the order of their run_no; another order costs reading anew."""

    def __init__(self) -> None:
        self._session_id: SessionId | None = None
        self._questions: dict[int, int] = {}
        self._stacks: dict[ReleaseId, _Stack] = {}

    def note(self, run: Run) -> None:
        """The walk is at this run, whether its requests begin somehow or not."""
        if run.session_id != self._session_id:
            self._session_id, self._questions, self._stacks = run.session_id, {}, {}
        self._questions[run.run_no] = run.question_seq

    def begin(self, ports: Ports, run: Run, release: FrozenRelease) -> Beginning:
        """How the requests of a run that was noted begin. Raises what reading the earlier runs raises."""
        stack = self._stack(ports, run, release)
        recent = list_recent(ports, run.session_id, run_no_max=history_of(run), recent=release.recent_runs)
        before = recent[0].question_seq if recent else None
        self._fit(stack, run, before)
        stack.run_no = run.run_no
        older = read_older(
            ports,
            run.session_id,
            run_no_max=history_of(run),
            after_seq=stack.steps[-1].question_seq if stack.steps else 0,
            before_seq=before,
            model=release.model,
        )
        for shown, ended in older:
            view, pairing = self._top(stack)
            begins = view.length
            view = _extend(ports, release, view, run, ended)
            for fragment in view.fragments(begins):
                pairing = pairing.after(read_message(fragment))
            stack.steps.append(_Step(shown.question_seq, _until(ended, run.run_no), view, pairing))
        view, pairing = self._top(stack)
        settled = view.length
        for ended in read_recent(ports, recent, model=release.model):
            view = _extend(ports, release, view, run, ended)
        return Beginning(view, settled, pairing)

    def _stack(self, ports: Ports, run: Run, release: FrozenRelease) -> _Stack:
        """That of the release; a new one where it has none, or where runs in between were not seen here."""
        stack = self._stacks.pop(run.release_id, None)
        if stack is None or not all(no in self._questions for no in range(stack.run_no, run.run_no + 1)):
            prompted = _prompted(ports, run, release)
            stack = _Stack(prompted, Pairing().after(read_message(prompted.fragments()[0])), run.run_no)
        self._stacks[run.release_id] = stack
        while len(self._stacks) > AUDIT_RELEASES:
            del self._stacks[next(iter(self._stacks))]
        return stack

    def _fit(self, stack: _Stack, run: Run, before: int | None) -> None:
        """Take off the stack what this run shows at another place, in another form, or not at all."""
        if stack.run_no >= run.run_no:
            stack.cut(0)
        # A question that waited while others were asked stands before them.
        new = [self._questions[no] for no in range(stack.run_no, run.run_no)]
        limit = min([*new, *([] if before is None else [before])], default=None)
        for place, step in enumerate(stack.steps):
            moved = limit is not None and step.question_seq >= limit
            if moved or (step.until is not None and step.until <= run.run_no):
                stack.cut(place)
                return

    def _top(self, stack: _Stack) -> tuple[View, Pairing]:
        if not stack.steps:
            return stack.prompted, stack.pairing
        return stack.steps[-1].view, stack.steps[-1].pairing


def _until(ended: EndedRun, current: int) -> int | None:
    """The first run_no above `current` from which on an input of the run is said to stand elsewhere."""
    changes: list[int] = []
    for one in ended.inputs:
        given = {place.run_no for place in one.places}
        if current in given:
            changes.append(next(no for no in range(current + 1, max(given) + 2) if no not in given))
        else:
            changes.extend(no for no in given if no > current)
    return min(changes, default=None)


def _items(ports: Ports, release: FrozenRelease, run: Run, *ended: EndedRun) -> Iterator[Item]:
    first = Record(1, MessageKind.PROMPT, release.prompt)
    return protocol_of(release).project(FrozenContext(run.run_id, run.run_no, (first,), ended))


def _prompted(ports: Ports, run: Run, release: FrozenRelease) -> View:
    adapter = adapter_of(ports, release)
    return extend_view(adapter, View(seam=adapter.seam), run, _items(ports, release, run))


def _extend(ports: Ports, release: FrozenRelease, view: View, run: Run, ended: EndedRun) -> View:
    behind_prompt = islice(_items(ports, release, run, ended), 1, None)
    return extend_view(adapter_of(ports, release), view, run, behind_prompt)
