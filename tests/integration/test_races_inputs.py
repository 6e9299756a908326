"""Inputs against the steps of the run that may take them, in every order: none is lost, none is in two places.

On PostgreSQL the order is forced by a lock that the test holds, on SQLite by barriers and many rounds.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from agentloom_worker.audit import run_audit
from agentloom_worker.bootstrap import migrate_database
from agentloom_worker.domain.run import Phase, RunStatus
from agentloom_worker.domain.session import DeliveryState, OnBusy, UserInputDelivery
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.limits import QUEUED_QUESTIONS_MAX
from agentloom_worker.llm.adapters.scripted import ScriptedRequest, ScriptedTurn, TextTurn
from agentloom_worker.runtime.accept import Sending, accept_input, stop_run
from agentloom_worker.runtime.inputs import InputReceipt, InputState, read_receipt, withdraw_input
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.storage.tables import metadata
from tests.factories import run_of_receipt
from tests.ground import Ground, open_session, stand
from tests.locks import Running, Session, holding, together, wait_for_waiters

_HOLD_RUN = "SELECT 1 FROM run WHERE run_id = %s FOR NO KEY UPDATE"
_HOLD_SESSION = "SELECT 1 FROM session WHERE session_id = %s FOR NO KEY UPDATE"
ROUNDS = 12


def say(ground: Ground, text: str, sending: Sending = Sending.SUPPLEMENT, ports: Ports | None = None) -> InputReceipt:
    """Send words to the ground's session."""
    session = ground.store.load_session(ground.session_id)
    assert session is not None
    return accept_input(ports or ground.ports, session, sending, text, None, f"{sending} {text}")


def now(ground: Ground, text: str, sending: Sending = Sending.SUPPLEMENT) -> InputReceipt:
    """Where what was sent is now."""
    found = ground.store.find_commit(ground.session_id, f"client:{sending} {text}".encode())
    assert found is not None and found[1] is not None
    return read_receipt(ground.ports, ground.session_id, found[1])


def chain(ground: Ground, receipt: InputReceipt) -> list[DeliveryState]:
    """The states of an input's deliveries, oldest first."""
    found: dict[object, UserInputDelivery] = {
        one.previous_delivery_id: one for one in ground.store.list_deliveries([receipt.input_id])
    }
    states, following = [], found.get(None)
    while following is not None:
        states.append(following.state)
        following = found.get(following.delivery_id)
    assert len(states) == len(found)
    return states


def in_order(ground: Ground, *calls: Callable[[], object]) -> list[object]:
    """Let calls queue up for the session's lock in this order, then let them have it."""
    with holding(ground.store.url, _HOLD_SESSION, ground.session_id) as lock:
        return _release_in_order(ground, lock, calls)


def _release_in_order(ground: Ground, lock: Session, calls: Sequence[Callable[[], object]]) -> list[object]:
    running = []
    for number, call in enumerate(calls, 1):
        running.append(Running(call))
        wait_for_waiters(ground.store.url, number)
    lock.rollback()
    return [each.result() for each in running]


def quick(_request: ScriptedRequest) -> ScriptedTurn:
    return TextTurn("done")


def claimed_ground(url: str) -> tuple[Ground, InputReceipt]:
    """A run whose first request holds a supplement that no output has delivered."""
    ground = stand(url, script=quick)
    receipt = say(ground, "more")
    ground.worker.drive(until=lambda: ground.slice().node.phase is Phase.AWAIT_MODEL)
    assert chain(ground, receipt) == [DeliveryState.CLAIMED]
    return ground, receipt


def finish(ground: Ground) -> None:
    """Let the session come to rest, and hold everything against the invariants."""
    ground.worker.drive()
    assert run_audit(ground.ports) == ()


@pytest.mark.parametrize("first", ["output", "stop"])
def test_C08_a_first_output_and_the_end_of_the_run_in_both_orders(clean_postgres: str, first: str) -> None:
    """Both want the run's row: delivered, and the end carries nothing; or ended, and the late output takes nothing."""
    ground, receipt = claimed_ground(clean_postgres)
    output = partial(ground.worker.runner.run, ground.row_of("attempt_model"))
    stop = partial(stop_run, ground.other_worker().ports, ground.run_id)
    calls = (output, stop) if first == "output" else (stop, output)
    with holding(ground.store.url, _HOLD_RUN, ground.run_id) as lock:
        _release_in_order(ground, lock, calls)
    finish(ground)
    assert ground.store.load_run(ground.run_id).status is RunStatus.CANCELLED
    delivered = [DeliveryState.DELIVERED]
    assert chain(ground, receipt) == (
        delivered if first == "output" else [DeliveryState.CARRIED, DeliveryState.PENDING]
    )
    say(ground, "next", Sending.QUESTION)
    finish(ground)
    assert chain(ground, receipt)[-1:] == delivered


def test_C08_a_first_output_that_is_saved_before_the_end_is_not_carried(database_url: str) -> None:
    ground, receipt = claimed_ground(database_url)
    assert ground.worker.runner.run(ground.row_of("attempt_model"))
    assert chain(ground, receipt) == [DeliveryState.DELIVERED]
    assert stop_run(ground.ports, ground.run_id).applied
    finish(ground)
    assert ground.store.load_run(ground.run_id).status is RunStatus.CANCELLED
    assert chain(ground, receipt) == [DeliveryState.DELIVERED]


def test_C08_an_end_before_the_first_output_is_not_undone_by_it(database_url: str) -> None:
    """The old process says its first output when the run has ended, and another has the supplement."""
    held: list[Ground] = []

    def ends_first(request: ScriptedRequest) -> ScriptedTurn:
        if len(held) == 1:
            (ground,) = held
            held.append(ground)
            other = ground.other_worker(scripts={"main": quick})
            stop_run(other.ports, ground.run_id)
            other.drive()
            say(ground, "next", Sending.QUESTION)
            other.drive()
        return TextTurn("too late")

    ground = stand(database_url, script=ends_first)
    receipt = say(ground, "more")
    ground.worker.drive(until=lambda: ground.slice().node.phase is Phase.AWAIT_MODEL)
    held.append(ground)
    ground.worker.runner.run(ground.row_of("attempt_model"))
    finish(ground)
    assert chain(ground, receipt) == [DeliveryState.CARRIED, DeliveryState.DELIVERED]


@pytest.mark.parametrize("first", ["supplement", "end"])
def test_C08_a_supplement_and_the_end_of_the_run_in_both_orders(clean_postgres: str, first: str) -> None:
    ground = stand(clean_postgres, script=quick)
    ground.worker.drive(until=lambda: ground.slice().node.phase is Phase.SETTLED)
    end = partial(ground.worker.runner.run, ground.row_of("finalize_run"))
    other = ground.other_worker()
    send = partial(say, ground, "more", ports=other.ports)
    in_order(ground, *((send, end) if first == "supplement" else (end, send)))
    finish(ground)
    receipt = now(ground, "more")
    assert receipt.state is InputState.PENDING_NEXT_RUN
    carried = [DeliveryState.CARRIED, DeliveryState.PENDING]
    assert chain(ground, receipt) == (carried if first == "supplement" else [DeliveryState.PENDING])


@pytest.mark.parametrize("first", ["question", "end"])
def test_A10_a_queued_question_and_the_end_of_the_run_in_both_orders(clean_postgres: str, first: str) -> None:
    """Behind the run or, too late for that, at once: it is never left in the queue."""
    ground = _busy_ground(clean_postgres, OnBusy.ENQUEUE)
    ground.worker.drive(until=lambda: ground.slice().node.phase is Phase.SETTLED)
    end = partial(ground.worker.runner.run, ground.row_of("finalize_run"))
    other = ground.other_worker()
    send = partial(say, ground, "next", Sending.QUESTION, other.ports)
    in_order(ground, *((send, end) if first == "question" else (end, send)))
    finish(ground)
    receipt = now(ground, "next", Sending.QUESTION)
    assert receipt.state is InputState.DELIVERED
    queued = ground.store.find_queued([receipt.input_id])
    assert len(queued) == (1 if first == "question" else 0)


@pytest.mark.parametrize("first", ["withdraw", "end"])
def test_A10_a_withdrawal_and_the_end_of_the_run_in_both_orders(clean_postgres: str, first: str) -> None:
    ground = _busy_ground(clean_postgres, OnBusy.ENQUEUE)
    receipt = say(ground, "next", Sending.QUESTION)
    ground.worker.drive(until=lambda: ground.slice().node.phase is Phase.SETTLED)
    end = partial(ground.worker.runner.run, ground.row_of("finalize_run"))
    other = ground.other_worker()
    session = ground.store.load_session(ground.session_id)
    assert session is not None
    told: list[Code] = []

    def withdraw() -> None:
        try:
            withdraw_input(other.ports, session, receipt.input_id)
        except RequestError as error:
            told.append(error.code)

    in_order(ground, *((withdraw, end) if first == "withdraw" else (end, withdraw)))
    finish(ground)
    runs = ground.store.list_runs(session_id=ground.session_id)
    if first == "withdraw":
        assert (len(runs), told, now(ground, "next", Sending.QUESTION).state) == (1, [], InputState.WITHDRAWN)
    else:
        assert (len(runs), told) == (2, [Code.INPUT_NOT_QUEUED])


def _busy_ground(url: str, on_busy: OnBusy) -> Ground:
    """A run in a session that does this with a second question."""
    ground = stand(url, script=quick)
    ground.worker.drive()
    ground.session_id = open_session(ground.worker)
    with ground.store.driver.engine.connect() as conn:
        table = metadata.tables["session"]
        conn.execute(table.update().where(table.c.session_id == ground.session_id).values(on_busy=str(on_busy)))
    ground.receipt = say(ground, "first", Sending.QUESTION)
    return ground


@pytest.mark.parametrize("refusal", [Code.SESSION_BUSY, Code.RUN_STOPPING, Code.SESSION_QUEUE_FULL])
def test_a_command_that_met_itself_under_way_gets_its_receipt_and_no_refusal(database_url: str, refusal: Code) -> None:
    """A command that comes twice at once: the second one finds no receipt yet, then what the first one has done."""
    ground = _busy_ground(database_url, OnBusy.ENQUEUE if refusal is Code.SESSION_QUEUE_FULL else OnBusy.REJECT)
    if refusal is Code.SESSION_QUEUE_FULL:
        for number in range(QUEUED_QUESTIONS_MAX - 1):
            say(ground, f"{number}", Sending.QUESTION)
    else:
        ground.worker.drive()
    other = ground.other_worker()
    told: list[InputReceipt] = []
    entered: list[str] = []

    def says_it_first(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if not entered and "FROM run" in statement:
            entered.append(statement)
            told.append(say(ground, "twice", Sending.QUESTION, other.ports))
            if refusal is Code.RUN_STOPPING:
                stop_run(other.ports, run_of_receipt(told[0]))

    engine = ground.store.driver.engine
    sa.event.listen(engine, "before_cursor_execute", says_it_first)
    try:
        receipt = say(ground, "twice", Sending.QUESTION)
    finally:
        sa.event.remove(engine, "before_cursor_execute", says_it_first)
    assert (receipt.input_id, receipt.input_seq) == (told[0].input_id, told[0].input_seq)
    with pytest.raises(RequestError) as refused:
        say(ground, "something else", Sending.QUESTION)
    assert refused.value.code is refusal
    finish(ground)


@pytest.mark.parametrize("on_busy", [OnBusy.ENQUEUE, OnBusy.INTERRUPT, OnBusy.SUPPLEMENT])
def test_everything_at_once_loses_no_word_and_ends(database_url: str, on_busy: OnBusy) -> None:
    """Questions, supplements and sends from threads while others run the steps; then nothing is anywhere twice."""
    ground = _busy_ground(database_url, on_busy)
    workers = [ground.other_worker(scripts={"main": quick}) for _ in range(2)]
    senders = [ground.other_worker() for _ in range(3)]

    def steps(worker) -> None:
        for _ in range(4 * ROUNDS):
            for dispatch_id in worker.ports.store.list_due(worker.ports.settings.queues, 4):
                worker.runner.run(dispatch_id)

    def words(worker, sending: Sending) -> None:
        for number in range(ROUNDS):
            try:
                say(ground, f"{number}", sending, worker.ports)
            except RequestError as error:
                refused.append(error.code)

    refused: list[Code] = []
    together(
        [
            *(partial(steps, worker) for worker in workers),
            *(partial(words, worker, sending) for worker, sending in zip(senders, Sending, strict=True)),
        ]
    )
    finish(ground)
    assert set(refused) <= {Code.SESSION_QUEUE_FULL, Code.RUN_STOPPING}
    assert ground.store.list_queue(ground.session_id) == []
    waiting = ground.store.list_waiting(ground.session_id)
    say(ground, "the last", Sending.QUESTION)
    finish(ground)
    assert ground.store.list_waiting(ground.session_id) == []
    sent = ground.store.list_inputs(ground.session_id, limit=200)
    assert len(sent) == 2 + 3 * ROUNDS - len(refused)
    heads = {
        one.input_id: one.state
        for one in ground.store.list_deliveries([row.input.input_id for row in sent])
        if one.state is not DeliveryState.CARRIED
    }
    assert heads.keys() == {row.input.input_id for row in sent}
    assert all(heads[one.input_id] is DeliveryState.DELIVERED for one in waiting)


def test_C08_on_sqlite_threads_that_race_leave_each_supplement_in_one_place(tmp_path: Path) -> None:
    """Output, stop, end and supplement begin at one barrier, again and again."""
    seen: set[tuple[DeliveryState, ...]] = set()
    for number in range(ROUNDS):
        url = f"sqlite:///{tmp_path}/{number}.sqlite"
        migrate_database(url)
        ground, receipt = claimed_ground(url)
        other, third = ground.other_worker(), ground.other_worker()
        row = ground.row_of("attempt_model")

        def end(other=other, ground=ground) -> None:
            stop_run(other.ports, ground.run_id)
            other.drive()

        together([partial(ground.worker.runner.run, row), end, partial(say, ground, "too", ports=third.ports)])
        finish(ground)
        seen.add(tuple(chain(ground, receipt)))
        assert now(ground, "too").state is InputState.PENDING_NEXT_RUN
    assert seen <= {(DeliveryState.DELIVERED,), (DeliveryState.CARRIED, DeliveryState.PENDING)}
