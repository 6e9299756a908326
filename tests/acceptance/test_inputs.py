"""What a user sends while a session lives: where it goes, when a model gets it, and that nothing of it is lost."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from agentloom_worker import limits
from agentloom_worker.audit import run_audit
from agentloom_worker.canonical import parse
from agentloom_worker.domain.model import Category, Executed, Failure, FirstOutputKind, Partial, ResponseCall
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.domain.recipe import Recipe
from agentloom_worker.domain.run import Run, RunStatus
from agentloom_worker.domain.session import DeliveryState, InputKind, OnBusy, QueueState, Session
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.ids import InputId, RunId, SessionId
from agentloom_worker.llm.adapters.scripted import (
    CallsTurn,
    FailureTurn,
    ScriptedCall,
    ScriptedRequest,
    ScriptedTurn,
    TextTurn,
)
from agentloom_worker.runtime.accept import Sending, accept_input, stop_run
from agentloom_worker.runtime.inputs import InputReceipt, InputState, list_inputs, read_receipt, withdraw_input
from agentloom_worker.runtime.ports import Ports, Settings
from agentloom_worker.runtime.publish import publish_release
from tests.acceptance.harness import (
    FUSED,
    ONE_BY_ONE,
    at_fault,
    events,
    frozen_requests,
    kinds,
    model_operations,
    query,
    rows,
    run_of,
    simulated,
)
from tests.factories import python_tool, release_document, run_of_receipt
from tests.simulator import Worker

QUESTION, SUPPLEMENT, SEND = Sending.QUESTION, Sending.SUPPLEMENT, Sending.SEND
TOOLS = {"echo": python_tool()}
REJECTED = Failure(Code.MODEL_REQUEST_REJECTED, Category.VALIDATION, "rejected", Executed.EXECUTED)
OVERLOADED = Failure(
    Code.MODEL_PROVIDER_ERROR, Category.TRANSPORT, "overloaded", Executed.NOT_EXECUTED, RetryClass.TRANSPORT
)
CALL = CallsTurn((ScriptedCall("echo", '{"text":"a"}', "c1"),))


class Talk:
    """A session on a simulated worker. `acts` are done when the model is asked, before it says anything."""

    def __init__(self, worker: Worker, session: Session) -> None:
        self.worker = worker
        self.session = session

    @property
    def ports(self) -> Ports:
        return self.worker.ports

    def say(self, text: str, sending: Sending = QUESTION, key: str | None = None) -> InputReceipt:
        """Send words; the key is the words' own unless one is given."""
        return accept_input(self.ports, self.session, sending, text, None, key or f"{sending} {text}")

    def states(self, receipt: InputReceipt) -> list[tuple[DeliveryState, RunId | None]]:
        """The chain of an input's deliveries, oldest first."""
        found = {one.previous_delivery_id: one for one in self.ports.store.list_deliveries([receipt.input_id])}
        chain, following = [], found.get(None)
        while following is not None:
            chain.append((following.state, following.target_run_id))
            following = found.get(following.delivery_id)
        assert len(chain) == len(found)
        return chain

    def now(self, receipt: InputReceipt) -> InputReceipt:
        """The receipt with where its input is now."""
        (row,) = [
            one
            for one in list_inputs(self.ports, self.session, after=receipt.input_seq - 1, limit=1)
            if one.input_id == receipt.input_id
        ]
        again = InputReceipt(
            row.session_id, row.run_id, row.input_id, row.input_seq, receipt.release_id, row.kind, row.state
        )
        return again

    def runs(self) -> list[Run]:
        """The session's runs, oldest first."""
        found = self.ports.store.list_runs(session_id=self.session.session_id)
        return sorted(found, key=lambda run: run.run_no)

    def users(self, run_id: RunId) -> list[list[str]]:
        """What each request that a run froze holds of the words that were given to this run, wherever it stands."""
        found = self.ports.store.list_inputs(self.session.session_id, limit=100)
        given = {one.input.input_id: parse(one.input.body.inline or b"") for one in found}
        targets = self.ports.store.list_deliveries(list(given))
        own = {given[one.input_id] for one in targets if one.target_run_id == run_id}
        return [
            [
                message["content"]
                for message in request["messages"]
                if message["role"] == "user" and message["content"] in own
            ]
            for request in frozen_requests(self.ports, run_id)
        ]


@contextmanager
def talking(
    url: str,
    script: Callable[["Talk", ScriptedRequest], ScriptedTurn],
    *,
    settings: Settings = FUSED,
    on_busy: OnBusy = OnBusy.REJECT,
    **overrides: Any,
) -> Iterator[Talk]:
    """A session; the database holds every invariant in the end."""
    held: list[Talk] = []
    scripts = {"main": lambda request: script(held[0], request)}
    with simulated(url, settings=settings, scripts=scripts) as worker:
        publish_release(worker.ports, release_document(tools=TOOLS, **overrides))
        owner = worker.ports.store.find_owner("assistant")
        assert owner is not None
        session_id = SessionId(worker.ports.ids.new())
        worker.ports.store.open_session(session_id, owner, on_busy)
        session = worker.ports.store.load_session(session_id)
        assert session is not None
        held.append(Talk(worker, session))
        yield held[0]
        assert run_audit(worker.ports) == ()


def plain(_talk: Talk, _request: ScriptedRequest) -> ScriptedTurn:
    """An answer at once."""
    return TextTurn("done")


def _loop_no(request: ScriptedRequest) -> int:
    return 1 + sum(message["role"] == "assistant" for message in request.body["messages"])


both = pytest.mark.parametrize("settings", [FUSED, ONE_BY_ONE], ids=["fused", "single"])


@both
def test_C02_five_supplements_are_five_inputs_of_one_run_and_reach_its_next_loop_in_order(
    database_url: str, settings: Settings
) -> None:
    more = [f"and {number}" for number in range(5)]
    sent: list[InputReceipt] = []

    def script(talk: Talk, request: ScriptedRequest) -> ScriptedTurn:
        if _loop_no(request) == 1:
            sent.extend(talk.say(text, SUPPLEMENT) for text in more)
            return CALL
        return TextTurn("done")

    with talking(database_url, script, settings=settings) as talk:
        asked = talk.say("first")
        run_id = run_of_receipt(asked)
        talk.worker.drive()
        assert len(talk.runs()) == 1
        assert len({receipt.input_id for receipt in (asked, *sent)}) == 6
        assert [receipt.input_seq for receipt in sent] == [2, 3, 4, 5, 6]
        assert {(receipt.kind, receipt.state, receipt.run_id) for receipt in sent} == {
            (InputKind.SUPPLEMENT, InputState.PENDING, run_id)
        }
        assert talk.users(run_id) == [["first"], ["first", *more]]
        assert kinds(talk.ports, run_id) == [
            "prompt",
            "user_ref",
            "assistant",
            "tool_result",
            *["user_ref"] * 5,
            "assistant",
        ]
        assert [talk.states(receipt) for receipt in sent] == [[(DeliveryState.DELIVERED, run_id)]] * 5


@both
def test_C17_a_supplement_after_the_cutoff_waits_for_the_next_loop(database_url: str, settings: Settings) -> None:
    """The cutoff is the prepare's; nothing that follows it in the loop takes more in, a retry neither."""
    sent: list[InputReceipt] = []

    def script(talk: Talk, request: ScriptedRequest) -> ScriptedTurn:
        if _loop_no(request) == 1 and not sent:
            sent.append(talk.say("while it is asked", SUPPLEMENT))
            return FailureTurn(OVERLOADED)
        return CALL if _loop_no(request) == 1 else TextTurn("done")

    with talking(database_url, script, settings=settings) as talk:
        run_id = run_of_receipt(talk.say("first"))
        between: list[InputReceipt] = []

        def supplement() -> None:
            between.append(talk.say("before it is frozen", SUPPLEMENT))

        with at_fault("step.loaded", "freeze_request", supplement) as hits:
            talk.worker.drive()
        if settings is ONE_BY_ONE:
            # Loaded with the row of freeze, prepared before it: it may not claim what no record shows.
            assert hits and len(between) == 1
            first, second = model_operations(talk.ports, run_id)
            recipes = [Recipe.from_bytes(one.request or b"") for one in (first, second)]
            assert [recipe.input_cutoff for recipe in recipes] == [1, 3]
            assert len(recipes[0].claimed) == 1
            assert set(recipes[1].claimed) == {between[0].input_id, sent[0].input_id}
            assert talk.users(run_id) == [["first"], ["first", "before it is frozen", "while it is asked"]]
        else:
            assert talk.users(run_id) == [["first"], ["first", "while it is asked"]]
        assert [one.attempts_made for one in model_operations(talk.ports, run_id)] == [2, 1]
        for receipt in (*between, *sent):
            assert talk.states(receipt) == [(DeliveryState.DELIVERED, run_id)]


@both
def test_C17_A5_a_supplement_that_the_final_answer_leaves_is_carried_and_starts_nothing(
    database_url: str, settings: Settings
) -> None:
    sent: list[InputReceipt] = []

    def script(talk: Talk, _request: ScriptedRequest) -> ScriptedTurn:
        if not sent:
            sent.append(talk.say("one more thing", SUPPLEMENT))
        return TextTurn("done")

    with talking(database_url, script, settings=settings) as talk:
        first = run_of_receipt(talk.say("first"))
        talk.worker.drive()
        assert [run.status for run in talk.runs()] == [RunStatus.SUCCEEDED]
        assert run_of(talk.ports, first).loops_used == 1, "no extra loop"
        assert talk.states(sent[0]) == [(DeliveryState.CARRIED, first), (DeliveryState.PENDING, None)]
        carried = talk.now(sent[0])
        assert (carried.state, carried.run_id) == (InputState.PENDING_NEXT_RUN, None)
        assert events(talk.ports, first)[-1] == "run.succeeded"

        second = run_of_receipt(talk.say("second"))
        assert talk.states(sent[0])[1:] == [(DeliveryState.PENDING, second)]
        talk.worker.drive()
        assert talk.users(second) == [["one more thing", "second"]]
        assert talk.states(sent[0]) == [(DeliveryState.CARRIED, first), (DeliveryState.DELIVERED, second)]
        assert talk.now(sent[0]).run_id == second


def _second_loop(sent: list[InputReceipt], turn: ScriptedTurn) -> Callable[[Talk, ScriptedRequest], ScriptedTurn]:
    """A supplement comes in the first loop, so that the second one claims it and ends by `turn`; later runs answer."""
    turns = [turn]

    def script(talk: Talk, _request: ScriptedRequest) -> ScriptedTurn:
        if not sent:
            sent.append(talk.say("by the way", SUPPLEMENT))
            return CALL
        return turns.pop() if turns else TextTurn("done")

    return script


@both
def test_L13_a_claimed_supplement_without_a_first_output_goes_to_the_next_question_once(
    database_url: str, settings: Settings
) -> None:
    sent: list[InputReceipt] = []
    with talking(database_url, _second_loop(sent, FailureTurn(REJECTED)), settings=settings) as talk:
        first = run_of_receipt(talk.say("first"))
        talk.worker.drive()
        assert run_of(talk.ports, first).end_code == Code.MODEL_REQUEST_REJECTED
        assert talk.users(first) == [["first"], ["first", "by the way"]]
        assert talk.states(sent[0]) == [(DeliveryState.CARRIED, first), (DeliveryState.PENDING, None)]

        second = run_of_receipt(talk.say("second"))
        talk.worker.drive()
        third = run_of_receipt(talk.say("third"))
        talk.worker.drive()
        assert talk.users(second) == [["by the way", "second"]]
        assert talk.users(third) == [["third"]], "it is delivered, and goes no further by itself"
        assert talk.now(sent[0]).input_id == sent[0].input_id
        assert talk.states(sent[0]) == [(DeliveryState.CARRIED, first), (DeliveryState.DELIVERED, second)]
        inputs = query(talk.ports, "SELECT count(*) FROM user_input")
        assert inputs[0][0] == 4


@both
def test_L14_C07_a_first_output_delivers_though_its_response_never_becomes_whole(
    database_url: str, settings: Settings, tool_calls: list[tuple[str, object]]
) -> None:
    partial = Partial(calls=(ResponseCall(0, "c2", "echo", '{"text":"never"}'),))
    sent: list[InputReceipt] = []
    with talking(database_url, _second_loop(sent, FailureTurn(REJECTED, partial)), settings=settings) as talk:
        first = run_of_receipt(talk.say("first"))
        talk.worker.drive()
        assert run_of(talk.ports, first).status is RunStatus.FAILED
        assert talk.states(sent[0]) == [(DeliveryState.DELIVERED, first)]
        assert talk.now(sent[0]).state is InputState.DELIVERED
        assert tool_calls == [("echo", "a")], "a fragment of a call is executed by nobody"
        assert kinds(talk.ports, first) == ["prompt", "user_ref", "assistant", "tool_result", "user_ref"]
        assert {kind.partition(".")[0] for kind in events(talk.ports, first)} == {"run", "model", "call"}

        second = run_of_receipt(talk.say("second"))
        talk.worker.drive()
        assert talk.users(second) == [["second"]]


def test_C07_what_is_no_output_delivers_nothing_and_an_empty_answer_delivers(database_url: str) -> None:
    """Silence leaves the supplement claimed; a complete frame without a word counts, and shows nothing."""
    sent: list[InputReceipt] = []
    with talking(database_url, _second_loop(sent, TextTurn(""))) as talk:
        first = run_of_receipt(talk.say("first"))
        claimed: list[InputReceipt] = []
        with at_fault("attempt.sent", "attempt_model", lambda: claimed.extend(map(talk.now, sent)), times=2):
            talk.worker.drive()
        assert [receipt.state for receipt in claimed] == [InputState.CLAIMED]
        assert talk.states(sent[0]) == [(DeliveryState.DELIVERED, first)]
        answered = model_operations(talk.ports, first)[1]
        (attempt,) = talk.ports.store.list_attempts([answered.operation_id])
        assert attempt.first_output is not None
        assert (attempt.first_output.kind, attempt.first_output.has_display_content) == (
            FirstOutputKind.COMPLETE_FRAME,
            False,
        )


# -- A9: the states of inputs by the state of the run -----------------------------------------------


def _reach(talk: Talk, state: str) -> RunId | None:
    """Bring the session's first run into a state; None where there is none."""
    if state == "none":
        return None
    run_id = run_of_receipt(talk.say("first"))
    match state:
        case "queued":
            pass
        case "running":
            talk.worker.drive(until=lambda: bool(rows(talk.ports, run_id, "attempt_model")))
        case "settled":
            talk.worker.drive(until=lambda: bool(rows(talk.ports, run_id, "finalize_run")))
            assert run_of(talk.ports, run_id).status is RunStatus.RUNNING
        case "stopping":
            stop_run(talk.ports, run_id)
        case "terminal":
            talk.worker.drive()
    return run_id


@pytest.mark.parametrize("state", ["none", "queued", "running", "settled", "stopping", "terminal"])
def test_A9_a_supplement_goes_to_the_run_that_can_take_it_and_waits_otherwise(database_url: str, state: str) -> None:
    with talking(database_url, plain, settings=ONE_BY_ONE) as talk:
        run_id = _reach(talk, state)
        receipt = talk.say("more", SUPPLEMENT)
        taken = state in ("queued", "running", "settled")
        assert (receipt.kind, receipt.release_id) == (InputKind.SUPPLEMENT, None)
        assert receipt.run_id == (run_id if taken else None)
        assert receipt.state is (InputState.PENDING if taken else InputState.PENDING_NEXT_RUN)
        before = len(talk.runs())
        talk.worker.drive()
        assert len(talk.runs()) == before, "it starts nothing"
        if state == "queued":
            assert talk.now(receipt).state is InputState.DELIVERED
            return
        assert talk.now(receipt).state is InputState.PENDING_NEXT_RUN
        second = run_of_receipt(talk.say("next"))
        talk.worker.drive()
        assert talk.users(second)[0] == ["more", "next"]


@pytest.mark.parametrize("state", ["none", "queued", "running", "settled", "stopping", "terminal"])
def test_A9_send_is_a_supplement_where_a_run_can_take_it_and_a_question_otherwise(
    database_url: str, state: str
) -> None:
    with talking(database_url, plain, settings=ONE_BY_ONE) as talk:
        run_id = _reach(talk, state)
        if state == "stopping":
            with pytest.raises(RequestError) as refused:
                talk.say("words", SEND)
            assert refused.value.code is Code.RUN_STOPPING
            return
        receipt = talk.say("words", SEND)
        taken = state in ("queued", "running", "settled")
        assert receipt.kind is (InputKind.SUPPLEMENT if taken else InputKind.QUESTION)
        assert (receipt.run_id == run_id) is (taken or (run_id is None and receipt.run_id is None))
        talk.worker.drive()


# -- A10: on_busy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["queued", "running", "stopping"])
@pytest.mark.parametrize("on_busy", OnBusy)
def test_A10_a_question_meets_a_live_run(database_url: str, on_busy: OnBusy, state: str) -> None:
    with talking(database_url, plain, settings=ONE_BY_ONE, on_busy=on_busy) as talk:
        first = _reach(talk, state)
        assert first is not None
        refusal = {OnBusy.REJECT: Code.SESSION_BUSY, OnBusy.SUPPLEMENT: None}.get(on_busy)
        if state == "stopping" and on_busy in (OnBusy.REJECT, OnBusy.SUPPLEMENT):
            refusal = Code.RUN_STOPPING
        if refusal is not None:
            with pytest.raises(RequestError) as refused:
                talk.say("second")
            assert refused.value.code is refusal
            assert query(talk.ports, "SELECT count(*) FROM user_input")[0][0] == 1
            return
        receipt = talk.say("second")
        if on_busy is OnBusy.SUPPLEMENT:
            assert (receipt.kind, receipt.run_id) == (InputKind.SUPPLEMENT, first)
            return
        assert (receipt.kind, receipt.run_id, receipt.state) == (InputKind.QUESTION, None, InputState.QUEUED)
        stops = on_busy is OnBusy.INTERRUPT or state == "stopping"
        assert run_of(talk.ports, first).status is (
            RunStatus.STOPPING if stops else {"queued": RunStatus.QUEUED, "running": RunStatus.RUNNING}[state]
        )
        talk.worker.drive()
        ended, second = talk.runs()
        assert ended.status is (RunStatus.CANCELLED if stops else RunStatus.SUCCEEDED)
        assert second.status is RunStatus.SUCCEEDED
        now = talk.now(receipt)
        assert (now.state, now.run_id) == (InputState.DELIVERED, second.run_id)
        assert talk.users(second.run_id) == [["second"]]


@both
def test_A10_queued_questions_become_runs_one_by_one_in_the_commits_that_end_the_ones_before(
    database_url: str, settings: Settings
) -> None:
    with talking(database_url, plain, settings=settings, on_busy=OnBusy.ENQUEUE) as talk:
        talk.say("1")
        supplement = talk.say("more", SUPPLEMENT)
        receipts = [talk.say(str(number)) for number in range(2, 10)]
        with pytest.raises(RequestError) as refused:
            talk.say("10")
        assert refused.value.code is Code.SESSION_QUEUE_FULL
        withdrawn = withdraw_input(talk.ports, talk.session, receipts[3].input_id)
        assert withdrawn.state is InputState.WITHDRAWN
        assert withdraw_input(talk.ports, talk.session, receipts[3].input_id) == withdrawn
        last = talk.say("10")
        stop_run(talk.ports, talk.runs()[0].run_id)
        talk.worker.drive()
        runs = talk.runs()
        assert [talk.users(run.run_id)[-1][-1:] for run in runs[1:]] == [
            [text] for text in ("2", "3", "4", "6", "7", "8", "9", "10")
        ]
        assert talk.users(runs[1].run_id) == [["more", "2"]], "carried and bound by the same commit"
        assert talk.states(supplement) == [
            (DeliveryState.CARRIED, runs[0].run_id),
            (DeliveryState.DELIVERED, runs[1].run_id),
        ]
        with pytest.raises(RequestError) as started:
            withdraw_input(talk.ports, talk.session, last.input_id)
        assert started.value.code is Code.INPUT_NOT_QUEUED
        parts = [row[0].split() for row in query(talk.ports, "SELECT parts FROM scope_commit")]
        ends = [part for part in parts if "finalize" in part]
        assert (len(ends), sum("accept" in part for part in ends)) == (len(runs), len(runs) - 1)
        assert sum("carry" in part and "accept" in part for part in ends) == 1
        for before, after in pairwise(runs):
            assert before.ended_at is not None and before.ended_at <= after.created_at
        assert events(talk.ports, runs[1].run_id)[0] == "run.accepted"


def test_A10_the_newest_interruption_comes_first(database_url: str) -> None:
    with talking(database_url, plain, settings=ONE_BY_ONE, on_busy=OnBusy.INTERRUPT) as talk:
        first = run_of_receipt(talk.say("first"))
        one, two = talk.say("one"), talk.say("two")
        run = run_of(talk.ports, first)
        assert (run.status, run.end_code, run.epoch) == (RunStatus.STOPPING, Code.RUN_STOPPED, 2)
        assert [row.step for row in rows(talk.ports, first)] == ["finalize_run"]
        assert events(talk.ports, first)[-1] == "run.stopping"
        queue = talk.ports.store.list_queue(talk.session.session_id)
        assert [waiting.input_id for waiting in queue] == [two.input_id, one.input_id]
        talk.worker.drive()
        assert [talk.users(run.run_id)[0] for run in talk.runs() if run.run_id != first] == [["two"], ["one"]]
        assert [waiting.state for waiting in talk.ports.store.find_queued([one.input_id, two.input_id])] == [
            QueueState.STARTED
        ] * 2


# -- keys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_busy", OnBusy)
@pytest.mark.parametrize("sending", Sending)
def test_every_command_is_done_once_under_its_key(database_url: str, sending: Sending, on_busy: OnBusy) -> None:
    with talking(database_url, plain, settings=ONE_BY_ONE, on_busy=on_busy) as talk:
        if not (sending is QUESTION and on_busy is OnBusy.REJECT):
            talk.say("first")
        given = talk.say("words", sending, "key")
        again = talk.say("words", sending, "key")
        assert again == given
        with pytest.raises(RequestError) as other:
            talk.say("other words", sending, "key")
        assert other.value.code is Code.IDEMPOTENCY_CONFLICT
        with pytest.raises(RequestError) as another:
            talk.say("words", SUPPLEMENT if sending is QUESTION else QUESTION, "key")
        assert another.value.code is Code.IDEMPOTENCY_CONFLICT
        found = talk.ports.store.find_commit(talk.session.session_id, b"client:key")
        assert found is not None and found[1] is not None
        assert read_receipt(talk.ports, talk.session.session_id, found[1]) == given
        count = query(talk.ports, "SELECT count(*) FROM user_input")[0][0]
        talk.worker.drive()
        later = talk.say("words", sending, "key")
        assert (later.input_id, later.input_seq, later.kind) == (given.input_id, given.input_seq, given.kind)
        assert query(talk.ports, "SELECT count(*) FROM user_input")[0][0] == count


def test_an_input_of_another_session_is_not_withdrawn(database_url: str) -> None:
    with talking(database_url, plain, on_busy=OnBusy.ENQUEUE) as talk:
        talk.say("first")
        queued = talk.say("second")
        other = SessionId(talk.ports.ids.new())
        talk.ports.store.open_session(other, talk.session.owner_id)
        session = talk.ports.store.load_session(other)
        assert session is not None
        for input_id in (queued.input_id, InputId(talk.ports.ids.new())):
            with pytest.raises(RequestError) as refused:
                withdraw_input(talk.ports, session, input_id)
            assert refused.value.code is Code.INPUT_NOT_FOUND
        assert talk.now(queued).state is InputState.QUEUED


@both
def test_A6_a_supplement_that_comes_in_the_middle_of_a_fused_step_is_in_the_request_that_it_makes(
    database_url: str, settings: Settings
) -> None:
    """It comes while a call is made: the results and it are in the next request, fused or not."""
    said: list[InputReceipt] = []

    def script(_talk: Talk, request: ScriptedRequest) -> ScriptedTurn:
        return CALL if _loop_no(request) == 1 else TextTurn("done")

    with talking(database_url, script, settings=settings) as talk:
        run_id = run_of_receipt(talk.say("first"))
        with at_fault("effect.done", "attempt_call", lambda: said.append(talk.say("meanwhile", SUPPLEMENT))):
            talk.worker.drive()
        assert talk.users(run_id) == [["first"], ["first", "meanwhile"]]
        assert json.dumps(frozen_requests(talk.ports, run_id)[1]).count("meanwhile") == 1


@both
def test_A9_a_flood_of_supplements_meets_a_bound_and_nothing_of_it_is_lost(
    database_url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a run has them or they wait for one; what was refused is taken under its key when there is room."""
    monkeypatch.setattr(limits, "UNDELIVERED_INPUTS_MAX", 4)
    taken: list[str] = []
    refused: list[str] = []

    def flood(talk: Talk, texts: list[str]) -> None:
        for text in texts:
            try:
                talk.say(text, SUPPLEMENT)
                taken.append(text)
            except RequestError as error:
                assert error.code is Code.SESSION_QUEUE_FULL
                refused.append(text)

    def script(talk: Talk, request: ScriptedRequest) -> ScriptedTurn:
        match _loop_no(request) if len(talk.runs()) == 1 else 0:
            case 1:
                flood(talk, [f"early {number}" for number in range(5)])
                return CALL
            case 2:
                flood(talk, [f"late {number}" for number in range(5)])
                stop_run(talk.ports, talk.runs()[0].run_id)
                flood(talk, ["stopping 1"])
        return TextTurn("done")

    with talking(database_url, script, settings=settings) as talk:
        first = run_of_receipt(talk.say("first"))
        talk.worker.drive()
        # The question was with the model when the first flood came, and three of that one when the second did.
        assert taken == ["early 0", "early 1", "early 2", "late 0"]
        assert talk.users(first)[-1] == ["first", "early 0", "early 1", "early 2"]
        flood(talk, ["after"])
        assert len(taken) == 4, "four were carried on"
        assert refused == ["early 3", "early 4", "late 1", "late 2", "late 3", "late 4", "stopping 1", "after"]
        second = run_of_receipt(talk.say("second"))
        talk.worker.drive()
        assert talk.users(second)[-1] == [*taken, "second"]
        flood(talk, ["early 3"])
        assert taken[4:] == ["early 3"]


def test_A9_two_floods_at_once_do_not_pass_the_bound(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was decided on a session that had room is asserted by the commit."""
    monkeypatch.setattr(limits, "UNDELIVERED_INPUTS_MAX", 2)
    with talking(database_url, plain) as talk:
        with at_fault("command.before", "ask", lambda: talk.say("quicker", SUPPLEMENT)):
            talk.say("slower", SUPPLEMENT)
        with (
            at_fault("command.before", "ask", lambda: query(talk.ports, "SELECT 1")),
            pytest.raises(RequestError) as refused,
        ):
            talk.say("third", SUPPLEMENT)
        assert refused.value.code is Code.SESSION_QUEUE_FULL
        monkeypatch.setattr(limits, "UNDELIVERED_INPUTS_MAX", 3)
        with (
            at_fault("command.before", "ask", lambda: talk.say("the last", SUPPLEMENT)),
            pytest.raises(RequestError) as late,
        ):
            talk.say("too late", SUPPLEMENT)
        assert late.value.code is Code.SESSION_QUEUE_FULL
        assert [row[0] for row in query(talk.ports, "SELECT count(*) FROM user_input")] == [3]


def test_A9_the_bytes_of_what_waits_are_bounded_in_blobs_and_rows_alike(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = "x" * 10_000, "y" * 1000
    monkeypatch.setattr(limits, "UNDELIVERED_BYTES_MAX", 2 * (10_000 + 2) + 1000)
    with talking(database_url, plain) as talk:
        talk.say(large, SUPPLEMENT, "1")
        talk.say(large, SUPPLEMENT, "2")
        with pytest.raises(RequestError) as refused:
            talk.say(small, SUPPLEMENT, "3")
        assert refused.value.code is Code.SESSION_QUEUE_FULL
        talk.say(small[2:], SUPPLEMENT, "3")
        run_id = run_of_receipt(talk.say("all of it?"))
        talk.worker.drive()
        (request,) = frozen_requests(talk.ports, run_id)
        words = [message["content"] for message in request["messages"] if message["role"] == "user"]
        assert words == [large, large, small[2:], "all of it?"]
