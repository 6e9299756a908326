"""The client on both databases: one promise a test."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from agentloom_worker import Agentloom, faults
from agentloom_worker.audit import run_audit
from agentloom_worker.bootstrap import migrate_database
from agentloom_worker.cli.progress import describe
from agentloom_worker.client import InputKind, InputState, OnBusy, RunStatus, Settings, database_url
from agentloom_worker.clock import SystemClock
from agentloom_worker.devmodel import DevModel, parse_script
from agentloom_worker.errors import AgentloomError, Code, InvariantError, RequestError
from agentloom_worker.ids import RunId
from agentloom_worker.llm.adapters.scripted import CallsTurn, ScriptedCall, ScriptedRequest, TextTurn
from agentloom_worker.storage.schema import metadata
from tests.factories import python_tool, release_document, run_of_receipt
from tests.programs import QUICK
from tests.servers import PostgresServer

WAIT_S = 20.0
TOOLS = {"echo": python_tool(), "add": python_tool(handler="tests.tools:add")}


def script(request: ScriptedRequest) -> TextTurn | CallsTurn:
    if request.message_count == 2:
        return CallsTurn((ScriptedCall("echo", '{"text":"a"}', "1"), ScriptedCall("add", '{"left":1,"right":2}', "2")))
    return TextTurn("three")


def wait_until(holds: Callable[[], bool], timeout_s: float = WAIT_S) -> bool:
    """Poll a row until it says so, at most so long."""
    clock, never = SystemClock(), threading.Event()
    until_s = clock.monotonic_s() + timeout_s
    while not holds():
        if clock.monotonic_s() > until_s:
            return False
        clock.wait(never, 0.01)
    return True


@pytest.fixture(scope="module")
def shared_postgres(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """One database for this file: emptying it is much faster than making another."""
    url = postgres_server.create_database(template=postgres_template)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A migrated, empty database of each kind; every invariant holds of what the test leaves in it."""
    if request.param == "sqlite":
        found = database_url(tmp_path)
        migrate_database(found)
    else:
        found = request.getfixturevalue("shared_postgres")
        engine = sa.create_engine(found)
        with engine.begin() as connection:
            connection.execute(sa.text(f"TRUNCATE {', '.join(metadata.tables)} CASCADE"))
        engine.dispose()
    yield found
    with Agentloom.connect(found) as loom:
        assert run_audit(loom.ports) == ()


@pytest.fixture
def loom(url: str) -> Iterator[Agentloom]:
    """A client whose workers run in this process, on a scripted model."""
    with Agentloom.connect(url, run_workers=True, threads=4, settings=QUICK, scripts={"main": script}) as opened:
        yield opened


@pytest.fixture
def idle(url: str) -> Iterator[Agentloom]:
    """A client without workers: whatever is asked stays queued."""
    with Agentloom.connect(url, scripts={"main": script}) as opened:
        yield opened


def code_of(error: pytest.ExceptionInfo[AgentloomError]) -> Code:
    return error.value.code


def test_a_question_is_answered_by_tools_and_model(loom: Agentloom) -> None:
    release = loom.publish(release_document(tools=TOOLS))
    receipt = loom.ask(loom.open_session("assistant"), "what is 1 + 2?")
    result = loom.wait(receipt, WAIT_S)
    assert (result.status, result.answer, result.code) == (RunStatus.SUCCEEDED, "three", None)
    assert (result.release_id, result.agent_id, result.loops) == (release.release_id, "assistant", 2)
    assert not (result.truncated or result.filtered or result.refused or result.empty or result.blocked)


def test_ids_are_taken_as_uuid_as_text_and_as_what_holds_them(idle: Agentloom) -> None:
    release = idle.publish(release_document())
    session = idle.open_session(release)
    receipt = idle.ask(str(session.session_id), "hello", str(release.release_id))
    found = idle.run(receipt)
    assert found == idle.run(receipt.run_id) == idle.run(str(receipt.run_id)) == idle.run(found)
    assert idle.runs(session=session) == idle.runs(session=receipt)
    with pytest.raises(RequestError) as error:
        idle.run("not-an-id")
    assert code_of(error) is Code.INPUT_INVALID


def test_asking_again_with_the_same_key_returns_the_same_receipt(idle: Agentloom) -> None:
    session = idle.open_session(idle.publish(release_document()))
    first = idle.ask(session, "hello", idempotency_key="k")
    assert idle.ask(session, "hello", idempotency_key="k") == first
    assert idle.receipt(session, "k") == first
    assert idle.receipt(session, "another") is None
    assert len(idle.runs()) == 1


def test_a_key_that_was_used_for_other_words_is_refused(idle: Agentloom) -> None:
    session = idle.open_session(idle.publish(release_document()))
    idle.ask(session, "hello", idempotency_key="k")
    with pytest.raises(RequestError) as error:
        idle.ask(session, "other words", idempotency_key="k")
    assert code_of(error) is Code.IDEMPOTENCY_CONFLICT


def test_a_second_question_while_a_run_lives_is_refused(idle: Agentloom) -> None:
    session = idle.open_session(idle.publish(release_document()))
    idle.ask(session, "hello")
    with pytest.raises(RequestError) as error:
        idle.ask(session, "and this?")
    assert code_of(error) is Code.SESSION_BUSY
    assert len(idle.runs()) == 1


def test_a_release_of_another_agent_is_refused(idle: Agentloom) -> None:
    session = idle.open_session(idle.publish(release_document()))
    other = idle.publish(release_document(agent={"id": "somebody-else"}))
    with pytest.raises(RequestError) as error:
        idle.ask(session, "hello", other)
    assert code_of(error) is Code.RELEASE_AGENT_MISMATCH
    assert idle.runs() == ()


def test_what_is_not_there_is_named_by_its_own_code(idle: Agentloom) -> None:
    idle.publish(release_document())
    nothing = UUID(int=7)
    session = idle.open_session("assistant")
    cases: list[tuple[Code, Callable[[], object]]] = [
        (Code.AGENT_NOT_FOUND, lambda: idle.open_session("nobody")),
        (Code.SESSION_NOT_FOUND, lambda: idle.ask(nothing, "hello")),
        (Code.RELEASE_NOT_FOUND, lambda: idle.ask(session, "hello", nothing)),
        (Code.RUN_NOT_FOUND, lambda: idle.run(nothing)),
        (Code.RUN_NOT_FOUND, lambda: idle.wait(nothing, 1)),
        (Code.RUN_NOT_FOUND, lambda: idle.events(nothing)),
        (Code.RUN_NOT_FOUND, lambda: idle.steps(nothing)),
        (Code.RUN_NOT_FOUND, lambda: idle.stop(nothing)),
        (Code.OPERATION_NOT_FOUND, lambda: idle.request(nothing)),
        (Code.DISPATCH_NOT_FOUND, lambda: idle.retry_dispatch(nothing)),
        (Code.DISPATCH_NOT_FOUND, lambda: idle.fail_dispatch(nothing)),
    ]
    for code, call in cases:
        with pytest.raises(RequestError) as error:
            call()
        assert code_of(error) is code


def test_what_is_no_text_is_refused_before_anything_is_written(idle: Agentloom) -> None:
    """Stored once, it would stop the run at each of its steps."""
    session = idle.open_session(idle.publish(release_document()))
    calls: list[tuple[Code, Callable[[Any], object]]] = [
        (Code.INPUT_INVALID, lambda wrong: idle.ask(session, wrong)),
        (Code.INPUT_INVALID, lambda wrong: idle.ask(session, "hello", idempotency_key=wrong)),
        (Code.INPUT_INVALID, lambda wrong: idle.ask(wrong, "hello")),
        (Code.INPUT_INVALID, idle.run),
        (Code.RELEASE_INVALID, idle.publish),
    ]
    for code, call in calls:
        for wrong in (5, 0.5, b"hello", ["hello"]):
            with pytest.raises(AgentloomError) as error:
                call(wrong)
            assert code_of(error) is code
    assert idle.runs() == ()


def test_events_are_gapless_and_end_with_the_terminal_one(loom: Agentloom) -> None:
    loom.publish(release_document(tools=TOOLS))
    receipt = loom.ask(loom.open_session("assistant"), "hello")
    events = list(loom.events(receipt, timeout_s=WAIT_S))
    assert [event.run_seq for event in events] == list(range(1, len(events) + 1))
    assert (events[0].kind, events[-1].kind) == ("run.accepted", "run.succeeded")
    assert list(loom.events(receipt, after=3)) == events[3:]
    assert list(loom.events(receipt, follow=False)) == events
    assert list(loom.events(receipt, after=len(events))) == []


def test_events_of_a_run_that_another_client_works_on_are_followed_to_the_end(loom: Agentloom, idle: Agentloom) -> None:
    loom.publish(release_document(tools=TOOLS))
    receipt = idle.ask(idle.open_session("assistant"), "hello")
    assert [event.kind for event in idle.events(receipt, timeout_s=WAIT_S)][-1] == "run.succeeded"
    assert idle.wait(receipt, WAIT_S).answer == "three"


def test_a_wait_that_is_too_short_says_so_and_changes_nothing(idle: Agentloom) -> None:
    idle.publish(release_document())
    receipt = idle.ask(idle.open_session("assistant"), "hello")
    for call in (lambda: idle.wait(receipt, 0.05), lambda: list(idle.events(receipt, timeout_s=0.05))):
        with pytest.raises(RequestError) as error:
            call()
        assert code_of(error) is Code.WAIT_TIMEOUT
    assert idle.run(receipt).status is RunStatus.QUEUED


def test_closing_ends_a_wait_and_refuses_later_calls(url: str) -> None:
    loom = Agentloom.connect(url, scripts={"main": script})
    loom.publish(release_document())
    receipt = loom.ask(loom.open_session("assistant"), "hello")
    caught: list[Code] = []

    def waits() -> None:
        try:
            loom.wait(receipt, WAIT_S)
        except RequestError as error:
            caught.append(error.code)

    waiter = threading.Thread(target=waits)
    waiter.start()
    loom.close()
    waiter.join(WAIT_S)
    assert caught == [Code.INPUT_INVALID]
    with pytest.raises(RequestError):
        loom.runs()
    loom.close()


def test_steps_say_what_was_done_and_hold_no_text(loom: Agentloom) -> None:
    loom.publish(release_document(tools=TOOLS))
    receipt = loom.ask(loom.open_session("assistant"), "what is 1 + 2?")
    loom.wait(receipt, WAIT_S)
    steps = loom.steps(receipt)
    assert [(step.loop_no, step.kind.value, step.capability) for step in steps] == [
        (1, "model", "main"),
        (1, "tool", "echo"),
        (1, "tool", "add"),
        (2, "model", "main"),
    ]
    for step in steps:
        assert [attempt.attempt_no for attempt in step.attempts] == [1]
        assert step.duration_ms is not None
        assert step.duration_ms >= 0
    assert "three" not in repr(steps)


def test_a_frozen_request_is_rebuilt_and_proven(loom: Agentloom) -> None:
    loom.publish(release_document(tools=TOOLS))
    receipt = loom.ask(loom.open_session("assistant"), "what is 1 + 2?")
    loom.wait(receipt, WAIT_S)
    steps = loom.steps(receipt)
    assert b"what is 1 + 2?" in loom.request(steps[0].operation_id)
    assert b"echo: a" in loom.request(str(steps[-1].operation_id))
    with pytest.raises(RequestError) as error:
        loom.request(steps[1].operation_id)
    assert code_of(error) is Code.OPERATION_NOT_FOUND


@pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses"])
@pytest.mark.parametrize(("said", "served"), [("m-2026-01-01", "m-2026-01-01"), ("dev", None)])
def test_the_model_that_a_provider_says_it_served_is_shown_where_it_is_another(
    url: str, protocol: str, said: str, served: str | None
) -> None:
    choice = {"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}
    item = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
    response = {"status": "completed", "output": [item], "model": said}
    frames = {
        "openai-chat": f"data: {json.dumps({'choices': [choice], 'model': said})}\n\ndata: [DONE]\n\n",
        "openai-responses": f"data: {json.dumps({'type': 'response.completed', 'response': response})}\n\n",
    }
    script = parse_script({"schema_version": 1, "turns": [{"answer": {"raw": {"text": frames[protocol]}}}]})
    with (
        DevModel(script) as model,
        Agentloom.connect(url, run_workers=True, threads=2, settings=QUICK) as loom,
    ):
        binding = {"protocol": protocol, "model": "dev"}
        loom.publish(release_document(base_url=model.base_url, models={"main": binding}))
        session = loom.open_session("assistant")
        receipt = loom.ask(session, "hello")
        assert loom.wait(receipt, WAIT_S).answer == "Hi"
        (step,) = loom.steps(receipt)
        assert loom.served_model(step.operation_id) == served
        assert loom.context(session, step.operation_id).served_model == served
        with pytest.raises(RequestError) as error:
            loom.served_model(UUID(int=7))
    assert code_of(error) is Code.OPERATION_NOT_FOUND


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (TextTurn("half", finish_reason="length"), ("half", True, False, False, False)),
        (TextTurn("half", finish_reason="content_filter"), ("half", False, True, False, False)),
        (TextTurn("", refusal="I will not"), ("I will not", False, False, True, False)),
        (TextTurn("", refusal="I w", finish_reason="content_filter"), ("I w", False, True, True, False)),
        (TextTurn(""), ("", False, False, False, True)),
    ],
)
def test_an_odd_answer_is_marked(url: str, turn: TextTurn, expected: tuple[object, ...]) -> None:
    with Agentloom.connect(url, run_workers=True, threads=2, settings=QUICK, scripts={"main": lambda _: turn}) as loom:
        loom.publish(release_document())
        result = loom.wait(loom.ask(loom.open_session("assistant"), "hello"), WAIT_S)
    assert result.status is RunStatus.SUCCEEDED
    assert (result.answer, result.truncated, result.filtered, result.refused, result.empty) == expected
    assert result.detail is None


SECRET = "PLOVER-7731"
SECRET_SCRIPT = {
    "schema_version": 1,
    "turns": [
        {
            "when": {"assistant_turns": 0},
            "answer": {
                "text": f"thinking {SECRET}",
                "reasoning": f"because {SECRET}",
                "tool_calls": [{"name": "echo", "arguments": {"text": f"argument {SECRET}"}}],
            },
        },
        {"answer": {"text": f"the answer is {SECRET}", "chunk_chars": 8, "hold": {"gate": "go", "after_chunks": 2}}},
    ],
}


def test_no_model_text_is_seen_in_events_logs_or_progress(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with (
        DevModel(parse_script(SECRET_SCRIPT)) as model,
        Agentloom.connect(url, run_workers=True, threads=4, settings=QUICK) as loom,
    ):
        loom.publish(release_document(base_url=model.base_url, tools=TOOLS))
        receipt = loom.ask(loom.open_session("assistant"), "hello")
        # The second answer streams: its first fragments are here, its receipt is committed.
        assert model.wait_until(lambda requests: len(requests) == 2)
        assert wait_until(lambda: len(loom.steps(receipt)) == 3)
        live = [loom.run(receipt), loom.steps(receipt), loom.dispatches(), loom.runs()]
        assert loom.run(receipt).answer is None
        assert SECRET not in repr(live)
        model.open_gate("go")
        result = loom.wait(receipt, WAIT_S)
        events = list(loom.events(receipt))
    assert result.answer == f"the answer is {SECRET}"
    logged = [f"{record.getMessage()} {record.__dict__}" for record in caplog.records]
    assert logged
    shown = [describe(event) for event in events]
    assert SECRET not in repr((events, shown, logged))


def test_D17_a_stop_closes_the_stream_and_cancelled_survives_reopening(url: str) -> None:
    stalls = parse_script(
        {
            "schema_version": 1,
            "turns": [{"answer": {"text": f"so far {SECRET}", "cut": {"then": "stall", "after_chunks": 1}}}],
        }
    )
    with DevModel(stalls) as model:
        with Agentloom.connect(url, run_workers=True, threads=2) as loom:
            loom.publish(release_document(base_url=model.base_url))
            receipt = loom.ask(loom.open_session("assistant"), "hello")
            streams = lambda: [attempt for step in loom.steps(receipt) for attempt in step.attempts]  # noqa: E731
            assert wait_until(lambda: any(attempt.first_output_at is not None for attempt in streams()))
            stopped = loom.stop(receipt)
            assert model.wait_until(lambda requests: requests[0].client_gone, timeout_s=2.0)
            result = loom.wait(receipt, WAIT_S)
            again = loom.stop(receipt)
        assert (stopped.applied, stopped.end_cause) == (True, "stop")
        assert (again.applied, again.end_cause) == (False, "stop")
        assert (result.status, result.code, result.answer) == (RunStatus.CANCELLED, "RUN_STOPPED", None)
        with Agentloom.connect(url, run_workers=True, threads=2, settings=QUICK) as reopened:
            assert reopened.run(receipt).status is RunStatus.CANCELLED
            kinds = [event.kind for event in reopened.events(receipt)]
            assert wait_until(lambda: reopened.dispatches(run=receipt) == ())
        assert kinds[-2:] == ["run.stopping", "run.cancelled"]
        assert len(model.requests) == 1


def test_D17_a_queued_run_is_cancelled_without_a_worker_having_seen_it(idle: Agentloom, url: str) -> None:
    idle.publish(release_document())
    receipt = idle.ask(idle.open_session("assistant"), "hello")
    assert idle.stop(receipt).status == "stopping"
    with Agentloom.connect(url, run_workers=True, threads=2, settings=QUICK, scripts={"main": script}) as loom:
        assert loom.wait(receipt, WAIT_S).status is RunStatus.CANCELLED
        assert loom.steps(receipt) == ()


@pytest.fixture
def parks() -> Iterator[threading.Event]:
    """While the event is set, the second prepare_context of a run breaks an invariant."""
    broken = threading.Event()
    broken.set()

    def trigger(point: str, step: str) -> None:
        if (point, step) == ("step.loaded", "deliver_batch") and broken.is_set():
            raise InvariantError("a test broke this step")

    faults.install(trigger)
    yield broken
    faults.install(None)


@pytest.fixture
def parked(url: str, parks: threading.Event) -> Iterator[tuple[Agentloom, RunId]]:
    """A run whose step is parked."""
    single = Settings(fusion=False, inline_hops=0, sweep_tick_s=0.1, control_poll_s=0.1)
    with Agentloom.connect(url, run_workers=True, threads=2, settings=single, scripts={"main": script}) as loom:
        loom.publish(release_document(tools=TOOLS))
        receipt = loom.ask(loom.open_session("assistant"), "hello")
        assert wait_until(lambda: bool(loom.dispatches(parked_only=True)))
        yield loom, run_of_receipt(receipt)


def test_a_parked_step_shows_its_run_as_blocked_and_a_retry_lets_it_go_on(
    parked: tuple[Agentloom, RunId], parks: threading.Event
) -> None:
    loom, run_id = parked
    blocked = loom.run(run_id)
    assert (blocked.blocked, blocked.state, blocked.status) == (True, "blocked", RunStatus.RUNNING)
    assert [run.state for run in loom.runs()] == ["blocked"]
    (row,) = loom.dispatches(parked_only=True)
    assert (row.step, row.run_id) == ("deliver_batch", run_id)
    assert "a test broke this step" in (row.last_error or "")
    parks.clear()
    assert loom.retry_dispatch(row.dispatch_id).step == "deliver_batch"
    result = loom.wait(run_id, WAIT_S)
    assert (result.state, result.answer) == ("succeeded", "three")
    # The operator's retry repeated no call.
    assert [len(step.attempts) for step in loom.steps(run_id)] == [1, 1, 1, 1]


def test_failing_a_parked_step_ends_its_run_with_the_operators_code(parked: tuple[Agentloom, RunId]) -> None:
    loom, run_id = parked
    (row,) = loom.dispatches(parked_only=True)
    assert loom.fail_dispatch(str(row.dispatch_id)).applied
    result = loom.wait(run_id, WAIT_S)
    assert (result.status, result.code) == (RunStatus.FAILED, "STEP_FAILED_BY_OPERATOR")
    assert "deliver_batch" in (result.detail or "")
    assert wait_until(lambda: loom.dispatches() == ())


def test_only_a_parked_row_may_be_retried_or_failed(idle: Agentloom) -> None:
    idle.publish(release_document())
    receipt = idle.ask(idle.open_session("assistant"), "hello")
    row = idle.dispatches(run=receipt)[0]
    for call in (idle.retry_dispatch, idle.fail_dispatch):
        with pytest.raises(RequestError) as error:
            call(row.dispatch_id)
        assert code_of(error) is Code.INPUT_INVALID
    assert idle.run(receipt).status is RunStatus.QUEUED
    assert row in idle.dispatches(run=receipt)


def test_a_session_takes_words_at_any_time_and_tells_where_they_are(loom: Agentloom) -> None:
    session = loom.open_session(loom.publish(release_document(tools=TOOLS)), on_busy="enqueue")
    early = loom.supplement(session, "early", idempotency_key="e")
    assert (early.state, early.run_id) == (InputState.PENDING_NEXT_RUN, None)
    with pytest.raises(RequestError, match="has no run yet") as none:
        loom.wait(early, WAIT_S)
    assert none.value.code is Code.INPUT_INVALID
    asked = loom.send(session, "what is 1 + 2?", idempotency_key="q")
    assert asked.kind is InputKind.QUESTION
    assert loom.wait(asked, WAIT_S).answer == "three"
    (first, second) = loom.inputs(session)
    assert [(one.text, one.state, one.run_id, one.run_ids) for one in (first, second)] == [
        ("early", InputState.DELIVERED, asked.run_id, (asked.run_id,)),
        ("what is 1 + 2?", InputState.DELIVERED, asked.run_id, (asked.run_id,)),
    ]
    assert (first.origin_run_id, second.origin_run_id) == (None, asked.run_id)
    assert loom.inputs(session, after=1) == (second,)
    assert loom.inputs(session, limit=1) == (first,)
    assert loom.inputs(session, after=2) == ()
    now = loom.receipt(session, "e")
    assert now is not None and (now.input_id, now.state) == (early.input_id, InputState.DELIVERED)
    assert loom.supplement(session, "early", idempotency_key="e") == now


def test_a_session_is_read_back_with_what_each_request_showed(loom: Agentloom) -> None:
    session = loom.open_session(loom.publish(release_document(tools=TOOLS)))
    first = loom.ask(session, "what is 1 + 2?")
    loom.wait(first, WAIT_S)
    early = loom.supplement(session, "once more")
    (waiting,) = loom.waiting(session)
    assert (waiting.input_id, waiting.state) == (early.input_id, InputState.PENDING_NEXT_RUN)
    second = loom.ask(session, "and now?")
    loom.wait(second, WAIT_S)
    assert loom.waiting(session) == ()
    rounds = loom.history(str(session.session_id))
    assert [(one.run_id, one.answer, [said.text for said in one.inputs]) for one in rounds] == [
        (first.run_id, "three", ["what is 1 + 2?"]),
        (second.run_id, "three", ["once more", "and now?"]),
    ]
    assert loom.history(session, after=rounds[0].question_seq) == rounds[1:]
    assert loom.history(session, limit=1) == rounds[:1] == loom.history(first, role="assistant")[:1]
    model = loom.steps(second)[-1]
    shown = loom.context(session, str(model.operation_id))
    assert (shown.run_id, shown.operation_id) == (second.run_id, model.operation_id)
    assert [item.effective for item in shown.items if item.protected][1:] == ["once more", "and now?"]
    assert b"".join(item.fragment for item in shown.items[1:2]) in loom.request(model.operation_id)
    assert loom.session(session).run_head == 2
    (summary,) = loom.sessions()
    assert (summary.session_id, summary.runs, summary.inputs, summary.live_run_id) == (session.session_id, 2, 3, None)
    for bad in (lambda: loom.history(session, limit=0), lambda: loom.context(session, "x")):
        with pytest.raises(RequestError) as invalid:
            bad()
        assert invalid.value.code is Code.INPUT_INVALID


def test_sessions_are_listed_newest_first_with_what_lives_and_waits_in_them(idle: Agentloom) -> None:
    release = idle.publish(release_document())
    sessions = [idle.open_session(release, on_busy=OnBusy.ENQUEUE) for _ in range(3)]
    asked = idle.ask(sessions[0], "first")
    idle.ask(sessions[0], "second")
    idle.supplement(sessions[1], "for later")
    found = idle.sessions()
    assert [one.session_id for one in found] == [one.session_id for one in reversed(sessions)]
    assert [(one.live_run_id, one.live_status, one.waiting, one.queued) for one in found] == [
        (None, None, 0, 0),
        (None, None, 1, 0),
        (asked.run_id, RunStatus.QUEUED, 0, 1),
    ]
    assert [one.state for one in idle.waiting(sessions[0])] == [InputState.QUEUED]
    assert idle.sessions(limit=1) == found[:1]


def test_C03_L25_a_foreign_session_role_or_id_is_refused_alike_by_each_read_of_the_client(loom: Agentloom) -> None:
    session = loom.open_session(loom.publish(release_document(tools=TOOLS)))
    foreign = loom.open_session("assistant")
    receipt = loom.ask(session, "a secret question")
    loom.wait(receipt, WAIT_S)
    operation = loom.steps(receipt)[0].operation_id
    nothing = UUID(int=7)
    reads: list[Callable[[], object]] = [
        lambda: loom.context(foreign, operation),
        lambda: loom.context(session, nothing),
        lambda: loom.context(session, operation, role="planner"),
        lambda: loom.context(nothing, operation),
        *(
            lambda read=read, whose=whose, role=role: read(whose, role=role)
            for read in (loom.history, loom.inputs, loom.waiting)
            for whose, role in ((nothing, None), (nothing, "assistant"), (session, "planner"))
        ),
    ]
    heard = set()
    for read in reads:
        with pytest.raises(RequestError) as refused:
            read()
        heard.add((refused.value.code, refused.value.message))
    ((code, message),) = heard
    assert code is Code.CONTEXT_FORBIDDEN
    ids = (session.session_id, foreign.session_id, operation, receipt.run_id, receipt.input_id, nothing)
    assert not any(str(one) in message for one in ids)
    assert "secret" not in message and "planner" not in message and "assistant" not in message
    assert loom.history(foreign) == loom.inputs(foreign) == loom.waiting(foreign) == ()


def test_a_queued_question_is_withdrawn_or_refused(idle: Agentloom) -> None:
    session = idle.open_session(idle.publish(release_document()), on_busy=OnBusy.ENQUEUE)
    asked = idle.ask(session, "first")
    queued = idle.ask(session, "second", idempotency_key="q")
    assert (queued.state, queued.run_id, queued.release_id) == (InputState.QUEUED, None, asked.release_id)
    withdrawn = idle.withdraw(session, queued)
    assert (withdrawn.state, withdrawn.input_id) == (InputState.WITHDRAWN, queued.input_id)
    assert idle.withdraw(session, queued.input_id) == withdrawn == idle.ask(session, "second", idempotency_key="q")
    with pytest.raises(RequestError, match="has no run yet: `inputs` of its session names it"):
        idle.stop(queued)
    with pytest.raises(RequestError, match="is withdrawn and gets no run"):
        idle.wait(withdrawn, timeout_s=1)
    with pytest.raises(RequestError) as refused:
        idle.withdraw(session, asked)
    assert refused.value.code is Code.INPUT_NOT_QUEUED
    for bad in (lambda: idle.open_session("assistant", on_busy="wait"), lambda: idle.inputs(session, limit=0)):
        with pytest.raises(RequestError) as invalid:
            bad()
        assert invalid.value.code is Code.INPUT_INVALID
