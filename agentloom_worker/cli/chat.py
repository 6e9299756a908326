"""`agentloom chat`: a session in the terminal. What is typed while a run works is added to it."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from agentloom_worker.cli.keyboard import Interrupts, Keyboard
from agentloom_worker.cli.output import note, own_stdout
from agentloom_worker.cli.place import (
    Broker,
    Database,
    Embedded,
    Redis,
    Workers,
    chosen_workers,
    locate,
    open_to_run,
    terminable,
)
from agentloom_worker.cli.progress import Progress
from agentloom_worker.cli.run import publish, tell
from agentloom_worker.client import (
    TERMINAL_EVENTS,
    Agentloom,
    InputKind,
    InputReceipt,
    InputState,
    ReleaseRef,
    RunSummary,
    Session,
)
from agentloom_worker.errors import Code, RequestError, TransientError

BUSY_TICK_S = 0.1
IDLE_TICK_S = 1.0
RUNS_LOOKED_AT = 20
INTERRUPTED = 130
FAILED = 1
HELP = (
    "what you type while a run works is added to it; Ctrl-C stops the run, twice within a second or between runs it"
    " leaves, as Ctrl-D does"
)


def chat(
    release: Annotated[Path | None, typer.Argument(metavar="RELEASE", help="A release document.")] = None,
    *,
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="Go on with this session; else one is opened.")
    ] = None,
    embedded: Embedded = None,
    database: Database = None,
    broker: Broker = None,
    redis: Redis = None,
    workers: Workers = None,
) -> None:
    """Talk to an agent: steps are shown as they happen, an answer when its run has ended.

    What is typed while a run works is added to it. Ctrl-C stops the run; twice within a second, or while nothing
    runs, it leaves, and so does the end of the input once nothing runs. Leaving says what waits for the next question.
    Without RELEASE the agent's newest release answers. Where stdin is no terminal, each line is a question, and the
    next one is taken when its run has ended: the exit code is then 1 if one did not succeed. Answers stand on stdout,
    all else on stderr.
    """
    if release is None and session is None:
        raise typer.BadParameter("give RELEASE, or --session ID")
    place = locate(embedded, database, broker, redis)
    workers = chosen_workers(workers, broker, redis, place)
    with own_stdout(), terminable(), open_to_run(place, workers=workers) as loom:
        reference = None if release is None else publish(loom, release)
        found = _session(loom, session, reference)
        with Keyboard(loom.ports.clock, sys.stdin.fileno()) as keyboard:
            code = Chat(loom, keyboard, found, reference, option=place.option).talk()
    if code:
        raise typer.Exit(code)


def _session(loom: Agentloom, named: str | None, reference: ReleaseRef | None) -> Session:
    if named is None:
        assert reference is not None, "the command line was checked"
        return loom.open_session(reference)
    found = loom.session(named)
    if reference is not None and reference.agent_id != found.agent_id:
        raise RequestError(
            Code.RELEASE_AGENT_MISMATCH,
            f"session {found.session_id} belongs to agent {found.agent_id!r}, the release to {reference.agent_id!r}:"
            " name another session, or leave the release out",
        )
    return found


@dataclass(frozen=True, slots=True)
class _Words:
    """A line that is not stored yet, with the key that makes sending it again harmless."""

    text: str
    key: str


class Chat:
    """The conversation: one loop that looks at the session's run, sends what was typed, obeys Ctrl-C.

    It keeps nothing that matters: whatever it shows is read from the store.
    """

    def __init__(
        self, loom: Agentloom, keyboard: Keyboard, session: Session, release: ReleaseRef | None, *, option: str
    ) -> None:
        self._loom = loom
        self._keyboard = keyboard
        self._session = session
        self._release = release
        self._option = option
        self._interrupts = Interrupts()
        self._run: RunSummary | None = None
        self._seen = 0
        self._progress = Progress()
        self._stopping = False
        self._words: _Words | None = None
        self._failed = False
        self._away = False
        self._prompted = False
        self._known = {run.run_id for run in loom.runs(limit=RUNS_LOOKED_AT, session=session) if run.ended}

    def talk(self) -> int:
        """Go on until the input ends or Ctrl-C leaves; the exit code."""
        self._greet()
        try:
            code = self._converse()
        except SystemExit:
            self._farewell()
            raise
        self._farewell()
        return code

    def _converse(self) -> int:
        while True:
            self._tick()
            self._prompt()
            heard = self._keyboard.hear(IDLE_TICK_S if self._run is None else BUSY_TICK_S, reading=self._takes_words())
            for at_s in heard.interrupts:
                if self._interrupts.leaves(at_s, working=self._run is not None):
                    return INTERRUPTED
                self._stop()
            if heard.line is not None:
                self._prompted = False
                if heard.line.strip():
                    self._words = _Words(heard.line, str(self._loom.ports.ids.new()))
            if heard.ended and self._run is None and self._words is None:
                return FAILED if self._failed and not self._keyboard.is_terminal else 0

    def _takes_words(self) -> bool:
        """A person may always type, but for what a stopping run could not take; lines of a pipe come one by one."""
        if self._words is not None or self._stopping:
            return False
        return self._keyboard.is_terminal or self._run is None

    def _tick(self) -> None:
        """Look and send. A store that is away is waited for: nothing is lost, and nothing is sent twice."""
        try:
            self._look()
            if self._words is not None and not self._stopping:
                self._send(self._words)
                self._begin()
            self._away = False
        except TransientError as error:
            if not self._away:
                note(f"waiting for the store: {error.message}")
            self._away = True

    def _look(self) -> None:
        """Show what is new of the run, to its end; then another may have begun: a queued one, or somebody else's."""
        self._begin()
        if self._run is None:
            return
        # Asked before the events are read: what has ended then has all of them.
        ended = self._loom.run(self._run).ended
        for event in self._loom.events(self._run, self._seen, follow=False):
            self._seen = event.run_seq
            self._progress.show(event)
            ended = ended or event.kind in TERMINAL_EVENTS
        if ended:
            self._finish(self._run)
            self._begin()

    def _begin(self) -> None:
        """Follow the oldest run that was not shown yet; it may have ended already."""
        if self._run is None:
            found = self._loom.runs(limit=RUNS_LOOKED_AT, session=self._session)
            fresh = [run for run in found if run.run_id not in self._known]
            if fresh:
                self._follow(fresh[-1])

    def _follow(self, run: RunSummary) -> None:
        self._run, self._seen, self._stopping = run, 0, False
        self._known.add(run.run_id)
        self._progress = Progress()
        self._break_line()
        note(f"run {run.run_id}")

    def _finish(self, run: RunSummary) -> None:
        result = self._loom.run(run)
        self._run, self._stopping = None, False
        if not tell(result, quiet=False, option=self._option):
            self._failed = True
        late = [one for one in self._loom.waiting(self._session) if one.state is InputState.PENDING_NEXT_RUN]
        if late:
            note(f"{len(late)} input(s) came too late for this run and go with the next question")

    def _send(self, words: _Words) -> None:
        try:
            receipt = self._loom.send(self._session, words.text, self._release, words.key)
        except RequestError as error:
            if error.code in (Code.RUN_STOPPING, Code.SESSION_BUSY):
                # Somebody else stopped the run, or began one: the words keep their key and go when it has ended.
                self._stopping = self._run is not None
                return
            self._words = None
            self._failed = True
            note(f"error {error.code}: {error.message}")
            return
        self._words = None
        self._acknowledge(receipt)

    def _acknowledge(self, receipt: InputReceipt) -> None:
        """Where the words are: stored, and with whom; never that they were understood. A run shows itself."""
        if receipt.state is InputState.QUEUED:
            note("stored: the question waits for the run's end")
        elif receipt.run_id is None:
            note("stored: it goes with the next question")
        elif receipt.kind is InputKind.SUPPLEMENT:
            note(f"stored: added to run {receipt.run_id}")

    def _stop(self) -> None:
        assert self._run is not None, "between runs Ctrl-C leaves"
        try:
            receipt = self._loom.stop(self._run)
        except TransientError as error:
            note(f"not stopped: {error.message}; Ctrl-C again within a second leaves")
            return
        self._stopping = True
        note(f"stopping run {receipt.run_id}; Ctrl-C again within a second leaves")

    def _greet(self) -> None:
        session = self._session
        note(f"session {session.session_id} of agent {session.agent_id}, {session.run_head} run(s) so far")
        self._tell_waiting()
        if self._keyboard.is_terminal:
            note(HELP)

    def _farewell(self) -> None:
        self._break_line()
        if self._words is not None:
            note(f"not stored: {_first_line(self._words.text)}")
        try:
            if self._run is not None:
                run = self._loom.run(self._run)
                if not run.ended:
                    note(f"run {run.run_id} is {run.state}: agentloom run --resume {run.run_id} {self._option}")
            self._tell_waiting()
        except TransientError as error:
            note(f"what waits cannot be told: {error.message}")
        note(f"go on with: agentloom chat --session {self._session.session_id} {self._option}")

    def _tell_waiting(self) -> None:
        for one in self._loom.waiting(self._session):
            whom = "the next question" if one.state is InputState.PENDING_NEXT_RUN else "its turn in the queue"
            note(f"waits for {whom} ({one.state}): {_first_line(one.text)}")

    def _prompt(self) -> None:
        if self._keyboard.is_terminal and self._run is None and self._words is None and not self._prompted:
            self._prompted = True
            sys.stderr.write("> ")
            sys.stderr.flush()

    def _break_line(self) -> None:
        """Leave the line of a prompt at which nothing was typed."""
        if self._prompted:
            self._prompted = False
            note("")


def _first_line(text: str, longest: int = 80) -> str:
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
