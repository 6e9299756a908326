import threading

import pytest

from agentloom_worker.cancellation import CancelReason
from agentloom_worker.clock import ManualClock, SystemClock
from agentloom_worker.domain.model import (
    Cancelled,
    Category,
    Executed,
    Failure,
    FirstOutput,
    FirstOutputKind,
    Message,
    ModelOutcome,
    Partial,
    ResponseCall,
    Role,
)
from agentloom_worker.errors import Code, RunError
from agentloom_worker.llm.adapter import DeliveryStoppedError
from agentloom_worker.llm.adapters import ADAPTERS, AdapterPorts
from agentloom_worker.llm.adapters.scripted import (
    CallsTurn,
    FailureTurn,
    Script,
    ScriptedAdapter,
    ScriptedCall,
    ScriptedRequest,
    ScriptedTurn,
    StallTurn,
    TextTurn,
)
from agentloom_worker.llm.profiles import PROFILES
from tests.unit.llm.calls import Attempt, completed, failed, once, request_to

GENERIC = PROFILES["generic"]
_FAILURE = Failure(Code.MODEL_PROVIDER_ERROR, Category.TRANSPORT, "scripted", Executed.UNKNOWN)


def scripted(script: Script, clock: ManualClock | SystemClock | None = None) -> ScriptedAdapter:
    return ScriptedAdapter(clock or ManualClock(), GENERIC, {"demo": script})


def test_the_scripted_model_uses_the_bytes_of_openai_chat() -> None:
    ports = AdapterPorts(ManualClock(), {})
    ours, theirs = ADAPTERS["scripted"](ports, GENERIC), ADAPTERS["openai-chat"](ports, GENERIC)
    message = Message(Role.USER, "né")
    assert ours.encode_message(message) == theirs.encode_message(message)
    assert request_to(ours, "x").body.join() == request_to(theirs, "x").body.join()
    assert ours.version != theirs.version


def test_a_script_sees_the_request_and_its_text_is_the_answer() -> None:
    seen: list[ScriptedRequest] = []

    def script(request: ScriptedRequest) -> ScriptedTurn:
        seen.append(request)
        return TextTurn("done")

    attempt = Attempt()
    assert completed(once(scripted(script), "script:demo", attempt)).text == "done"
    assert (seen[0].message_count, seen[0].last_message) == (1, {"role": "user", "content": "hello"})
    assert seen[0].body["max_tokens"] == 100
    assert (attempt.sent, attempt.first_outputs) == (1, [FirstOutput(FirstOutputKind.TEXT, True)])


def test_calls_are_numbered_in_order() -> None:
    turn = CallsTurn((ScriptedCall("add", '{"x":1}', "a"), ScriptedCall("sub", "{}")))
    attempt = Attempt()
    response = completed(once(scripted(lambda request: turn), "script:demo", attempt))
    assert response.calls == (ResponseCall(0, "a", "add", '{"x":1}'), ResponseCall(1, None, "sub", "{}"))
    assert response.finish_reason == "tool_calls"
    assert attempt.first_outputs == [FirstOutput(FirstOutputKind.TOOL_NAME, True)]


def test_an_empty_answer_is_a_complete_frame() -> None:
    attempt = Attempt()
    completed(once(scripted(lambda request: TextTurn("")), "script:demo", attempt))
    assert attempt.first_outputs == [FirstOutput(FirstOutputKind.COMPLETE_FRAME, False)]


def test_a_failure_is_handed_on_with_its_partial() -> None:
    failure = Failure(Code.MODEL_PROVIDER_ERROR, Category.TRANSPORT, "scripted", Executed.UNKNOWN)
    attempt = Attempt()
    turn = FailureTurn(failure, Partial(text="Hi"))
    outcome = failed(once(scripted(lambda request: turn), "script:demo", attempt))
    assert (outcome.failure, outcome.partial.text) == (failure, "Hi")
    assert len(attempt.first_outputs) == 1


def test_a_stall_after_output_ends_with_the_cancellation() -> None:
    waiting = threading.Event()
    attempt = Attempt(on_first_output=lambda output: waiting.set())
    adapter = scripted(lambda request: StallTurn("Hi"), SystemClock())
    outcomes: list[ModelOutcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(once(adapter, "script:demo", attempt)))
    thread.start()
    assert waiting.wait(10.0)
    attempt.cancellation.cancel(CancelReason.STOP)
    thread.join(2.0)
    assert outcomes == [Cancelled(Partial(text="Hi"), sent=True)]


@pytest.mark.parametrize(
    ("turn", "partial"),
    [
        (TextTurn("said", reasoning="thought"), Partial("said", "thought")),
        (
            CallsTurn((ScriptedCall("f", "{}"),), text="I do"),
            Partial("I do", calls=(ResponseCall(0, None, "f", "{}"),)),
        ),
        (FailureTurn(_FAILURE, Partial("half")), Partial("half")),
        (StallTurn("half"), Partial("half")),
    ],
)
def test_C07_a_delivery_that_is_stopped_leaves_what_had_come(turn: ScriptedTurn, partial: Partial) -> None:
    def stop(output: FirstOutput) -> None:
        raise DeliveryStoppedError

    outcome = once(scripted(lambda request: turn), "script:demo", Attempt(on_first_output=stop))
    assert outcome == Cancelled(partial, sent=True)


def test_a_stall_ends_with_the_nearest_limit() -> None:
    silent = scripted(lambda request: StallTurn())
    assert (
        failed(once(silent, "script:demo", Attempt(deadline_s=100.0))).failure.code == Code.MODEL_FIRST_OUTPUT_TIMEOUT
    )
    stalled = scripted(lambda request: StallTurn("Hi"))
    idle = failed(once(stalled, "script:demo", Attempt(idle_timeout_s=1.0)))
    assert idle.failure.code == Code.MODEL_TRANSPORT_FAILED
    attempt = Attempt()
    assert isinstance(once(stalled, "script:demo", attempt), Cancelled)
    assert attempt.cancellation.reason is CancelReason.DEADLINE


def test_a_cancelled_attempt_asks_no_script() -> None:
    attempt = Attempt()
    attempt.cancellation.cancel(CancelReason.STOP)
    outcome = once(scripted(lambda request: TextTurn("x")), "script:demo", attempt)
    assert outcome == Cancelled(Partial(), sent=False)
    assert attempt.sent == 0


@pytest.mark.parametrize("url", ["script:other", "demo", "http://demo"])
def test_a_name_without_script_is_rejected(url: str) -> None:
    with pytest.raises(RunError) as caught:
        once(scripted(lambda request: TextTurn("x")), url)
    assert caught.value.code is Code.MODEL_REQUEST_REJECTED
