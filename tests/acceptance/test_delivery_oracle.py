"""Whatever users, workers and death do to a session, every input is where the slow account says (C02, C07, C08, L12).

One session on SQLite, two workers in this process on one clock. A rule is a command, or a row that one of them takes,
which may die on the way, lose its claim to the other one, or hear of a command in its middle.
"""

import json
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from agentloom_worker import faults, limits
from agentloom_worker.audit import run_audit
from agentloom_worker.clock import ManualClock
from agentloom_worker.domain.session import OnBusy
from agentloom_worker.errors import RequestError
from agentloom_worker.ids import InputId, SessionId
from agentloom_worker.limits import RUN_DEADLINE_S
from agentloom_worker.llm.adapters.scripted import ScriptedRequest, ScriptedTurn, TextTurn
from agentloom_worker.runtime.accept import Sending, accept_input, stop_run
from agentloom_worker.runtime.inputs import InputReceipt, find_receipt, list_inputs, withdraw_input
from agentloom_worker.runtime.ports import ALL_QUEUES, Ports
from agentloom_worker.runtime.publish import publish_release
from agentloom_worker.runtime.request import rebuild_request
from agentloom_worker.runtime.table import STEPS
from tests.acceptance.harness import query
from tests.conversation import FUSED, STEPWISE, breaks_off, calls
from tests.factories import python_tool, release_document
from tests.oracle_delivery import Account, LoopFact, Refused, RunFact
from tests.simulator import Worker, make_worker

WORDS = st.text(alphabet='ab \n"\\[]雪🙂', max_size=6)
SENDINGS = st.sampled_from(Sending)
SAID = st.lists(st.tuples(SENDINGS, WORDS), min_size=1, max_size=3)
TURNS = st.lists(
    st.one_of(
        st.lists(st.sampled_from("xyz"), min_size=1, max_size=2).map(lambda texts: calls(*texts)),
        st.sampled_from(["", "done"]).map(TextTurn),
        st.sampled_from(["", "half"]).map(breaks_off),
    ),
    max_size=4,
)
POINTS = st.sampled_from([point for point in faults.POINTS if not point.startswith(("command", "late"))])
WORKERS = st.integers(0, 1)
PATIENCE_ROWS = 60
ROOM = 5  # inputs that may wait for a model: few, so that the bound is met
EXAMPLES = 8  # for each on_busy
# The whole audit takes ten times as long as a rule: the short form asks for it now and then, and at each end.
AUDIT_EVERY = 20


class DiedError(BaseException):
    """A worker is gone; no handler survives it."""


class Talk(RuleBasedStateMachine):
    """The session, its workers, and the account of it."""

    def __init__(self, template: Path, folder: Path, on_busy: OnBusy, audit_every: int) -> None:
        super().__init__()
        self.on_busy = on_busy
        self.audit_every = audit_every
        self.looks = 0
        path = folder / "session.sqlite"
        for old in folder.iterdir():
            old.unlink()
        shutil.copy(template, path)
        self.url = f"sqlite:///{path}"
        self.clock = ManualClock()
        self.turns: list[ScriptedTurn] = []
        self.asked: list[list[str]] = []
        self.frozen: list[list[str]] = []
        self.keys: dict[str, tuple[Sending, str, int]] = {}
        self.numbers = count(1)
        self.trouble: BaseException | None = None
        self.workers: list[Worker] = []

    @initialize(fused=st.booleans())
    def begin(self, fused: bool) -> None:
        self.settings_of = FUSED if fused else STEPWISE
        self.workers = [self._worker(), self._worker()]
        ports = self.ports
        agent = {"limits": {"max_loops": 3}}
        windows = {"main": {"context_window_tokens": 1_000_000}}
        publish_release(ports, release_document(tools={"echo": python_tool()}, agent=agent, models=windows))
        owner = ports.store.find_owner("assistant")
        assert owner is not None
        self.session_id = SessionId(ports.ids.new())
        ports.store.open_session(self.session_id, owner, self.on_busy)
        self.account = Account(self.on_busy.value, limits.UNDELIVERED_INPUTS_MAX)

    # -- commands -----------------------------------------------------------------------------------

    @rule(said=SAID, turns=TURNS, dies=st.sampled_from([None, "command.before", "command.after"]))
    def say(self, said: list[tuple[Sending, str]], turns: list[ScriptedTurn], dies: str | None) -> None:
        """A client that dies on the way says it again, under the same key."""
        self.turns += turns
        for sending, words in said:
            if dies is not None:
                self._say_and_die(sending, words, dies)
            else:
                self._say(sending, words)
        self._settle()

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def say_again(self, data: st.DataObject) -> None:
        """The same command changes nothing, and tells where its input is by now."""
        key = data.draw(st.sampled_from(sorted(self.keys)))
        sending, text, seq = self.keys[key]
        self._check_receipt(accept_input(self.ports, self.session, sending, text, None, key), seq)

    @precondition(lambda self: self.account.words)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        """Of any input; only those that wait in the queue can be."""
        seqs = self.account.queue or [words.seq for words in self.account.words]
        self._told(lambda: self._withdraw(data.draw(st.sampled_from(seqs))))

    @precondition(lambda self: self.account.live is not None)
    @rule()
    def stop(self) -> None:
        """As a client does."""
        self._told(self._stop)

    # -- time and workers ---------------------------------------------------------------------------

    @precondition(lambda self: self.account.live is not None)
    @rule(place=WORKERS, rows=st.integers(1, 4))
    def work(self, place: int, rows: int) -> None:
        """Rows that are due, each with what the slot goes on to do."""
        for _ in range(rows):
            self._run_row(place)

    @precondition(lambda self: self.account.live is not None)
    @rule(place=WORKERS, point=POINTS, rows=st.integers(0, 4))
    def die(self, place: int, point: str, rows: int) -> None:
        """At the first hit of a point, behind so many rows; another process comes in its place."""
        for _ in range(rows):
            self._run_row(place)
        self._struck(place, point, _die)

    @precondition(lambda self: self.account.live is not None)
    @rule(place=WORKERS, point=POINTS, rows=st.integers(1, 4))
    def lose(self, place: int, point: str, rows: int) -> None:
        """It stands still at a point until its claim is another worker's, which goes on; then it wakes up."""

        def take_over() -> None:
            self._expire(1 - place)
            for _ in range(rows):
                self._run_row(1 - place)

        self._struck(place, point, take_over)

    @precondition(lambda self: self.account.live is not None)
    @rule(place=WORKERS, point=st.one_of(st.just("commit.before"), POINTS), said=SAID, rows=st.integers(0, 2))
    def say_meanwhile(self, place: int, point: str, said: list[tuple[Sending, str]], rows: int) -> None:
        """While a worker is in the middle of a row."""

        def say() -> None:
            for sending, words in said:
                self._say(sending, words)

        for _ in range(rows):
            self._run_row(place)
        self._struck(place, point, say)

    @precondition(lambda self: self.account.live is not None)
    @rule(place=WORKERS, said=SAID, rows=st.integers(1, 6))
    def say_to_a_prepare(self, place: int, said: list[tuple[Sending, str]], rows: int) -> None:
        """Behind what a prepare has read, before its commit, whatever step it is part of."""
        prepares: list[str] = []

        def say() -> None:
            for sending, words in said:
                self._say(sending, words)

        def trigger(point: str, detail: str) -> None:
            if (point, detail) == ("tail.raise", "prepare_context"):
                prepares.append(point)
            elif point == "commit.before" and len(prepares) == 1:
                prepares.append(point)
                self._guarded(say)

        faults.install(trigger)
        try:
            while rows and not prepares:
                rows -= 1
                self._run_row(place)
        finally:
            faults.install(None)
        self._settle()

    @precondition(lambda self: self.account.live is not None)
    @rule(place=WORKERS, point=POINTS)
    def stop_meanwhile(self, place: int, point: str) -> None:
        """While a worker is in the middle of a row; it hears of it."""

        def stop() -> None:
            self._stop()
            self.workers[place].keeper.poll_control()

        self._struck(place, point, stop)

    @precondition(lambda self: self.account.live is not None)
    @rule(place=WORKERS)
    def wait(self, place: int) -> None:
        """Until claims have run out and what waits is due."""
        self._expire(place)
        self._run_row(place)

    @precondition(lambda self: self.account.live is not None)
    @rule(place=WORKERS)
    def run_out_of_time(self, place: int) -> None:
        """The live run's deadline passes."""
        self.clock.advance(RUN_DEADLINE_S + 60)
        self.workers[place].sweeper.sweep()
        self._run_row(place)

    @precondition(lambda self: self.account.live is not None)
    @rule(place=WORKERS)
    def rest(self, place: int) -> None:
        """Until nothing is left to do."""
        self._come_to_rest(place)

    def _come_to_rest(self, place: int) -> None:
        """An operator lets parked rows be tried again."""
        worker = self.workers[place]
        for _ in range(PATIENCE_ROWS):
            worker.drive()
            parked = self.ports.store.list_dispatches(parked_only=True)
            if not parked:
                break
            for row in parked:
                assert "died three times" in (row.last_error or ""), row
                assert self.ports.store.retry_dispatch(row, STEPS[row.step].queue.value)
        self._settle()
        assert self.account.live is None and not self.account.queue
        assert self.ports.store.list_dispatches() == []

    def teardown(self) -> None:
        if not self.workers:
            return
        try:
            if self.trouble is None:
                self._come_to_rest(0)
                assert run_audit(self.ports) == ()
                for key, (_, _, seq) in self.keys.items():
                    self._check_receipt(find_receipt(self.ports, self.session_id, key), seq)
                assert all(users in self.frozen for users in self.asked), "a request that was never frozen was sent"
        finally:
            faults.install(None)
            for worker in self.workers:
                worker.close()

    # -- how it is done -----------------------------------------------------------------------------

    @property
    def ports(self) -> Ports:
        return self.workers[0].ports

    @property
    def session(self) -> Any:
        return self.ports.store.load_session(self.session_id)

    def _worker(self) -> Worker:
        return make_worker(
            self.url,
            clock=self.clock,
            scripts={"main": self._answer},
            settings=self.settings_of,
            seed=next(self.numbers) * 1000,
        )

    def _answer(self, request: ScriptedRequest) -> ScriptedTurn:
        self.asked.append(_users(request.body["messages"]))
        return self.turns.pop(0) if self.turns else TextTurn("that is all")

    def _told(self, command: Callable[[], None]) -> None:
        command()
        self._settle()

    def _say(self, sending: Sending, words: str) -> None:
        number = next(self.numbers)
        self._look()
        self._say_under(sending, f"{number}: {words}", f"key {number}")

    def _say_and_die(self, sending: Sending, words: str, point: str) -> None:
        number = next(self.numbers)
        text, key = f"{number}: {words}", f"key {number}"
        faults.install(_once(point, _die))
        try:
            accept_input(self.ports, self.session, sending, text, None, key)
        except (DiedError, RequestError):
            pass
        finally:
            faults.install(None)
        self._say_under(sending, text, key)

    def _say_under(self, sending: Sending, text: str, key: str) -> None:
        try:
            words = self.account.say(sending.value, text)
        except Refused as refusal:
            with pytest.raises(RequestError) as refused:
                accept_input(self.ports, self.session, sending, text, None, key)
            assert refused.value.code == str(refusal)
            return
        receipt = accept_input(self.ports, self.session, sending, text, None, key)
        self.keys[key] = (sending, text, words.seq)
        self._check_receipt(receipt, words.seq)

    def _withdraw(self, seq: int) -> None:
        ((input_id,),) = query(
            self.ports,
            "SELECT input_id FROM user_input WHERE session_id = :session AND input_seq = " + str(seq),
            session=self.session_id,
        )
        named = InputId(_uuid(input_id))
        try:
            self.account.withdraw(seq)
        except Refused as refusal:
            with pytest.raises(RequestError) as refused:
                withdraw_input(self.ports, self.session, named)
            assert refused.value.code == str(refusal)
            return
        self._check_receipt(withdraw_input(self.ports, self.session, named), seq)

    def _stop(self) -> None:
        self._look()
        run = self.ports.store.find_live_run(self.session_id)
        if run is not None:
            stop_run(self.ports, run.run_id)
            self.account.stop()

    def _run_row(self, place: int) -> None:
        worker = self.workers[place]
        due = self.ports.store.list_due((*ALL_QUEUES, "solitary"), 1)
        if due:
            worker.runner.run(due[0])
        self._settle()

    def _expire(self, place: int) -> None:
        """Twice, since a claim that has run out is suspected first."""
        for _ in range(2):
            self.clock.advance(30.0)
            self.workers[place].sweeper.sweep()

    def _struck(self, place: int, point: str, act: Callable[[], None]) -> None:
        """Take a row, and act at the first hit of a point on the way."""
        faults.install(_once(point, lambda: self._guarded(act)))
        try:
            self._run_row(place)
        except DiedError:
            self.workers[place].close()
            self.workers[place] = self._worker()
        finally:
            faults.install(None)
        self._settle()

    def _guarded(self, act: Callable[[], None]) -> None:
        """What goes wrong here is for the test, not for the step in which it happens."""
        try:
            act()
        except DiedError:
            raise
        except BaseException as error:
            self.trouble = self.trouble or error
            raise

    def _settle(self) -> None:
        """Look, and hold everything against the account."""
        if self.trouble is not None:
            raise self.trouble
        self._look()
        self._compare()

    def _look(self) -> None:
        for run_no, loop_no in self.account.look(_facts(self.ports, self.session_id)):
            users = self._users_of(run_no, loop_no)
            self.frozen.append(users)
            self.account.check_request(run_no, loop_no, users)

    def _users_of(self, run_no: int, loop_no: int) -> list[str]:
        (run,) = [run for run in self.ports.store.list_runs(session_id=self.session_id) if run.run_no == run_no]
        (operation,) = [
            one
            for one in self.ports.store.list_operations(run.run_id)
            if one.loop_no == loop_no and one.ordinal is None
        ]
        return _users(json.loads(rebuild_request(self.ports, operation))["messages"])

    def _compare(self) -> None:
        assert _chains(self.ports, self.session_id) == [words.chain for words in self.account.words]
        queue = [one.input_id for one in self.ports.store.list_queue(self.session_id)]
        views = list_inputs(self.ports, self.session, after=0, limit=1000)
        seqs = {view.input_id: view.input_seq for view in views}
        assert [seqs[input_id] for input_id in queue] == self.account.queue
        numbers = {run.run_id: run.run_no for run in self.ports.store.list_runs(session_id=self.session_id)}
        numbers_of = {view.input_id: numbers[view.run_id] for view in views if view.run_id is not None}
        shown = [
            (view.input_seq, view.text, view.kind.value, view.state.value, numbers_of.get(view.input_id))
            for view in views
        ]
        assert shown == [(one.seq, one.text, one.kind, one.state, one.run_no) for one in self.account.words]
        self.looks += 1
        if self.looks % self.audit_every == 0:
            assert run_audit(self.ports) == ()

    def _check_receipt(self, receipt: InputReceipt | None, seq: int) -> None:
        """A receipt against the account, as of now."""
        assert receipt is not None
        words = self.account.words[seq - 1]
        run_no = None
        if receipt.run_id is not None:
            run = self.ports.store.load_run(receipt.run_id)
            assert run is not None
            run_no = run.run_no
        assert (receipt.input_seq, receipt.kind.value, receipt.state.value, run_no) == (
            seq, words.kind, words.state, words.run_no,
        )  # fmt: skip


def _once(point: str, act: Callable[[], None]) -> Callable[[str, str], None]:
    """A trigger that acts at the first hit of a point."""
    done = False

    def trigger(found: str, _detail: str) -> None:
        nonlocal done
        if found == point and not done:
            done = True
            act()

    return trigger


def _die() -> None:
    raise DiedError


def _users(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "user"]


def _uuid(value: Any) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))


def _facts(ports: Ports, session_id: SessionId) -> list[RunFact]:
    """Runs, their loops, and what of them is frozen or answered, by plain reads."""
    runs = query(
        ports,
        "SELECT run_id, run_no, question_seq, status FROM run WHERE session_id = :session ORDER BY run_no",
        session=session_id,
    )
    loops = query(
        ports,
        "SELECT run_id, loop_no, request IS NOT NULL, operation_id FROM operation WHERE kind = 'model'"
        " ORDER BY loop_no",
    )
    # The commits that took a first output in; what a voided claim brought back stands on its attempt, and is none.
    keys = [bytes(key) for (key,) in query(ports, "SELECT key FROM scope_commit")]
    begun = b"first-output:"
    answered = {key.removeprefix(begun).partition(b"/")[0].decode() for key in keys if key.startswith(begun)}
    return [
        RunFact(
            run_no,
            question,
            status,
            tuple(
                LoopFact(no, bool(frozen), str(_uuid(operation)) in answered)
                for of, no, frozen, operation in loops
                if of == run_id
            ),
        )
        for run_id, run_no, question, status in runs
    ]


def _chains(ports: Ports, session_id: SessionId) -> list[list[tuple[int | None, str]]]:
    """Each input's deliveries by input_seq, oldest first."""
    rows = query(
        ports,
        "SELECT i.input_seq, d.delivery_id, d.previous_delivery_id, r.run_no, d.state FROM user_input i"
        " LEFT JOIN user_input_delivery d ON d.input_id = i.input_id LEFT JOIN run r ON r.run_id = d.target_run_id"
        " WHERE i.session_id = :session ORDER BY i.input_seq",
        session=session_id,
    )
    chains: list[list[tuple[int | None, str]]] = []
    for seq in sorted({row[0] for row in rows}):
        after = {row[2]: row for row in rows if row[0] == seq and row[1] is not None}
        chain, following = [], after.get(None)
        while following is not None:
            chain.append((following[3], following[4]))
            following = after.get(following[1])
        assert len(chain) == sum(row[0] == seq and row[1] is not None for row in rows), "deliveries that are no chain"
        chains.append(chain)
    return chains


def _live_through(
    template: Path, folder: Path, on_busy: OnBusy, *, examples: int, steps: int, audit_every: int
) -> None:
    run_state_machine_as_test(
        lambda: Talk(template, folder, on_busy, audit_every),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            # A story that goes wrong is told as it happened: making it shorter takes minutes.
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("on_busy", OnBusy)
def test_C02_C07_C08_L13_every_input_is_where_the_account_says_whatever_happens(
    sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_busy: OnBusy
) -> None:
    monkeypatch.setattr(limits, "UNDELIVERED_INPUTS_MAX", ROOM)
    _live_through(sqlite_template, tmp_path, on_busy, examples=EXAMPLES, steps=25, audit_every=AUDIT_EVERY)


@pytest.mark.soak
@pytest.mark.parametrize("on_busy", OnBusy)
def test_C02_C07_C08_L13_the_same_for_long(
    sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_busy: OnBusy
) -> None:
    monkeypatch.setattr(limits, "UNDELIVERED_INPUTS_MAX", ROOM)
    _live_through(sqlite_template, tmp_path, on_busy, examples=300, steps=60, audit_every=1)
