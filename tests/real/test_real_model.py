"""The real loop against a real server and a real small model: what it says is not judged, how it is heard is."""

from collections.abc import Sequence

import pytest

from agentloom_worker.audit import run_audit
from agentloom_worker.cancellation import CancelReason
from agentloom_worker.context.message import note
from agentloom_worker.domain.model import (
    Cancelled,
    Completed,
    Executed,
    Failed,
    FirstOutputKind,
    Message,
    ModelOutcome,
    RequestParameters,
)
from agentloom_worker.domain.operation import AttemptState
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.errors import Code
from agentloom_worker.llm.adapter import ModelCall
from agentloom_worker.llm.profiles import PROFILES
from agentloom_worker.runtime.accept import stop_run
from tests.acceptance.harness import answer, ask, attempts, dispatching, over, run_of, wait_for
from tests.real.runs import ENDLESS_TOKENS, OUTPUT_TOKENS, PROTOCOLS, WAIT_S, release, slot, wait_for_output
from tests.real.server import CONTEXT_TOKENS, MODEL
from tests.unit.llm.calls import Attempt, new_adapter, once, request_to
from tests.unit.llm.test_role_order import CONVERSATION, adapter_of, view_of

pytestmark = pytest.mark.realmodel


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("tools", [False, True], ids=["text", "a tool offered"])
def test_a_run_ends_with_the_streamed_answer_of_a_real_model_and_its_usage(
    clean_sqlite: str, real_model: str, protocol: str, *, tools: bool
) -> None:
    with dispatching(clean_sqlite, threads=2) as dispatcher:
        ports = dispatcher.ports
        run_id = ask(ports, release(real_model, protocol, tools=tools), "Say hello.")
        wait_for(over(ports, run_id), "the run is over", WAIT_S)
        assert run_of(ports, run_id).status is RunStatus.SUCCEEDED, run_of(ports, run_id)
        assert answer(ports, run_id).strip()
        (attempt,) = attempts(ports, run_id)
        assert attempt.state is AttemptState.COMPLETE
        assert attempt.first_output is not None and attempt.first_output.has_display_content
        (done,) = [event for event in ports.store.list_events(run_id) if event.kind == "model.completed"]
        sent, received = done.fields["input_tokens"], done.fields["output_tokens"]
        assert isinstance(sent, int) and sent > 1
        assert isinstance(received, int) and 1 <= received <= OUTPUT_TOKENS


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_stop_in_the_middle_of_an_answer_closes_the_stream_and_frees_the_real_server(
    clean_sqlite: str, real_model: str, protocol: str
) -> None:
    with dispatching(clean_sqlite, threads=2) as dispatcher:
        ports = dispatcher.ports
        document = release(real_model, protocol, output_tokens=ENDLESS_TOKENS)
        run_id = ask(ports, document, "Count from one to ten thousand, in words.")
        wait_for_output(ports, run_id)
        assert slot(real_model)["is_processing"]
        assert stop_run(ports, run_id).applied
        wait_for(over(ports, run_id), "the stopped run has ended", WAIT_S)
        run = run_of(ports, run_id)
        assert (run.status, run.end_code) == (RunStatus.CANCELLED, Code.RUN_STOPPED)
        written = [0]

        def is_free() -> bool:
            found = slot(real_model)
            written.append(found["next_token"][0]["n_decoded"])
            return not found["is_processing"]

        wait_for(is_free, "the server has noticed that nobody reads its answer", WAIT_S)
        assert max(written) < ENDLESS_TOKENS
        other = ask(ports, release(real_model, protocol), "Say hello.")
        wait_for(over(ports, other), "another run has got the server", WAIT_S)
        assert run_of(ports, other).status is RunStatus.SUCCEEDED


def test_what_a_real_server_streams_is_read_by_the_adapter_frame_by_frame(real_model: str) -> None:
    attempt = Attempt(deadline_s=WAIT_S, first_output_timeout_s=WAIT_S)
    outcome = once(new_adapter(), real_model, attempt)
    assert isinstance(outcome, Completed), outcome
    response = outcome.response
    assert response.text.strip() and response.finish_reason in ("stop", "length")
    assert response.usage is not None and response.usage.output_tokens >= 1
    assert response.provider_request_id and response.transport_bytes > len(response.text)
    assert [output.kind for output in attempt.first_outputs] == [FirstOutputKind.TEXT]


def test_a_cancellation_at_the_first_token_of_a_real_server_keeps_what_had_come(real_model: str) -> None:
    attempt = Attempt(deadline_s=WAIT_S, first_output_timeout_s=WAIT_S)
    attempt.on_first_output = lambda _output: attempt.cancellation.cancel(CancelReason.STOP)
    outcome = once(new_adapter(), real_model, attempt)
    assert isinstance(outcome, Cancelled) and outcome.sent
    assert outcome.partial.text


def test_a_real_server_refuses_what_its_window_does_not_hold_and_says_so_by_its_code(real_model: str) -> None:
    adapter = new_adapter()
    request = request_to(adapter, real_model, "word " * (2 * CONTEXT_TOKENS))
    outcome = adapter.stream_once(request, Attempt(deadline_s=WAIT_S, first_output_timeout_s=WAIT_S).context())
    assert isinstance(outcome, Failed), outcome
    assert (outcome.failure.code, outcome.failure.http_status) == (Code.MODEL_CONTEXT_LENGTH_EXCEEDED, 400)
    assert "exceed_context_size_error" in outcome.failure.message
    assert outcome.failure.external_outcome is Executed.NOT_EXECUTED
    assert outcome.failure.retry_class is None


def told_strictly(base_url: str, protocol: str, profile: str, conversation: Sequence[Message]) -> ModelOutcome:
    """What becomes of a conversation at the server."""
    adapter = adapter_of(protocol, PROFILES[profile])
    body = adapter.frame_body(RequestParameters(MODEL, OUTPUT_TOKENS), view_of(adapter, conversation), b"")
    attempt = Attempt(deadline_s=WAIT_S, first_output_timeout_s=WAIT_S)
    return adapter.stream_once(ModelCall(body, base_url), attempt.context())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("conversation", "words"),
    [
        (CONVERSATION, "user and assistant do not take turns"),
        ((CONVERSATION[0], CONVERSATION[2], note("Stopped.")), "a system message behind the first"),
    ],
    ids=["out of order", "a note"],
)
def test_a_real_server_with_a_strict_template_takes_the_order_that_is_made_for_it_and_no_other(
    strict_model: str, protocol: str, conversation: Sequence[Message], words: str
) -> None:
    taken = told_strictly(strict_model, protocol, "llama-cpp", conversation)
    assert isinstance(taken, Completed), taken
    refused = told_strictly(strict_model, protocol, "generic", conversation)
    assert isinstance(refused, Failed), refused
    assert refused.failure.http_status == 400 and words in refused.failure.message


def test_a_real_server_makes_one_message_of_two_that_the_assistant_says_in_a_row_in_responses_alone(
    strict_model: str,
) -> None:
    said = (*CONVERSATION[:1], *CONVERSATION[2:3], *CONVERSATION[9:])
    assert [message.role.value for message in said] == ["system", "user", "assistant", "assistant", "user"]
    assert isinstance(told_strictly(strict_model, "openai-chat", "generic", said), Failed)
    assert isinstance(told_strictly(strict_model, "openai-responses", "generic", said), Completed)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("profile", "status"), [("llama-cpp", RunStatus.SUCCEEDED), ("generic", RunStatus.FAILED)], ids=str
)
def test_a_session_with_a_stopped_run_goes_on_at_a_real_server_with_a_strict_template_if_the_profile_knows_it(
    clean_sqlite: str, strict_model: str, protocol: str, profile: str, status: RunStatus
) -> None:
    with dispatching(clean_sqlite, threads=2) as dispatcher:
        ports = dispatcher.ports
        endless = release(strict_model, protocol, output_tokens=ENDLESS_TOKENS, profile=profile)
        stopped = ask(ports, endless, "Count from one to ten thousand, in words.")
        assert stop_run(ports, stopped).applied
        wait_for(over(ports, stopped), "the stopped run has ended", WAIT_S)
        assert run_of(ports, stopped).status is RunStatus.CANCELLED
        document = release(strict_model, protocol, profile=profile)
        run_id = ask(ports, document, "Say hello.", session_of=stopped)
        wait_for(over(ports, run_id), "the run is over", WAIT_S)
        assert run_of(ports, run_id).status is status, run_of(ports, run_id)
        assert list(run_audit(ports)) == []
