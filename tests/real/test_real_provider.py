"""A real server as a provider: its strict order of roles, its refusals, its account of tokens, its death mid-stream."""

import json
from contextlib import closing

import pytest

from agentloom_worker.audit import run_audit
from agentloom_worker.cli.app import main
from agentloom_worker.domain.model import Executed
from agentloom_worker.domain.operation import AttemptState, OperationStatus
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.errors import Code
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.accept import stop_run
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.slice import load_response
from tests.acceptance.harness import (
    ask,
    attempts,
    dispatching,
    events,
    frozen_bodies,
    model_operations,
    over,
    run_of,
    wait_for,
)
from tests.proxy import Proxy
from tests.real.conftest import RealModel
from tests.real.runs import ENDLESS_TOKENS, PROTOCOLS, WAIT_S, counted, release, slot, wait_for_output
from tests.real.server import CONTEXT_TOKENS, MODEL

pytestmark = pytest.mark.realmodel

SOON = {"initial_ms": 10, "jitter": "none"}
in_every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
in_both_profiles = pytest.mark.parametrize("profile", ["generic", "llama-cpp"])


def is_free(base_url: str) -> bool:
    return not slot(base_url)["is_processing"]


def asked(ports: Ports, document: dict, question: str, *, session_of: RunId | None = None) -> RunId:
    """A question whose run is over."""
    run_id = ask(ports, document, question, session_of=session_of)
    wait_for(over(ports, run_id), "the run is over", WAIT_S)
    return run_id


@in_every_protocol
def test_a_session_under_a_strict_template_goes_on_behind_a_stopped_run_with_the_servers_profile(
    clean_sqlite: str, strict_model: str, protocol: str
) -> None:
    with dispatching(clean_sqlite, threads=2) as dispatcher:
        ports = dispatcher.ports
        document = release(strict_model, protocol, profile="llama-cpp")
        first = asked(ports, document, "Say hello.")
        # Long, and what stands before it still fits into the window by the estimate.
        long = release(strict_model, protocol, profile="llama-cpp", output_tokens=ENDLESS_TOKENS // 2)
        stopped = ask(ports, long, "Count from one to ten thousand, in words.", session_of=first)
        wait_for_output(ports, stopped)
        assert stop_run(ports, stopped).applied, run_of(ports, stopped)
        wait_for(over(ports, stopped), "the stopped run has ended", WAIT_S)
        # What was stopped stands in the history with a note of ours, and two texts of the user meet.
        last = asked(ports, document, "Say hello again.", session_of=first)
        states = [run_of(ports, run_id).status for run_id in (first, stopped, last)]
        assert states == [RunStatus.SUCCEEDED, RunStatus.CANCELLED, RunStatus.SUCCEEDED], run_of(ports, last)
        (sent,) = frozen_bodies(ports, last)
        assert b"Count from one" in sent and b"[agentloom] " in sent
        assert list(run_audit(ports)) == []


@in_every_protocol
@in_both_profiles
def test_a_request_beyond_the_servers_window_ends_the_role_at_once_and_is_not_sent_again(
    clean_sqlite: str, real_model: str, protocol: str, profile: str
) -> None:
    with dispatching(clean_sqlite, threads=2) as dispatcher:
        ports = dispatcher.ports
        # A release may promise more than the server holds; only the server can know.
        document = release(real_model, protocol, profile=profile, context_window_tokens=128_000, retry=SOON)
        run_id = asked(ports, document, "word " * (CONTEXT_TOKENS + 1))
        run = run_of(ports, run_id)
        assert (run.status, run.end_code) == (RunStatus.FAILED, Code.MODEL_CONTEXT_LENGTH_EXCEEDED)
        (attempt,) = attempts(ports, run_id)
        assert (attempt.state, attempt.code) == (AttemptState.FAILED, Code.MODEL_CONTEXT_LENGTH_EXCEEDED)
        assert (attempt.http_status, attempt.first_output) == (400, None)
        (operation,) = model_operations(ports, run_id)
        assert (operation.status, operation.executed) == (OperationStatus.FAILED, Executed.NOT_EXECUTED)
        assert "attempt.retrying" not in events(ports, run_id)


@in_every_protocol
def test_the_tokens_of_a_run_are_those_that_the_server_counted(
    clean_sqlite: str, real_model: str, protocol: str
) -> None:
    wait_for(lambda: is_free(real_model), "nothing else is being answered", WAIT_S)
    before = counted(real_model)
    with dispatching(clean_sqlite, threads=2) as dispatcher:
        ports = dispatcher.ports
        run_id = asked(ports, release(real_model, protocol), f"Say hello in {protocol}.")
        (operation,) = model_operations(ports, run_id)
        usage = load_response(ports, run_of(ports, run_id), operation).usage
        (done,) = [event for event in ports.store.list_events(run_id) if event.kind == "model.completed"]
    assert usage is not None and usage.output_tokens > 0
    expected = {
        "read": usage.input_tokens - usage.cached_tokens,
        "cached": usage.cached_tokens,
        "written": usage.output_tokens,
    }

    def spent() -> dict[str, int]:
        return {name: count - before[name] for name, count in counted(real_model).items()}

    wait_for(lambda: is_free(real_model), "the server has written its account", WAIT_S)
    assert spent() == expected
    assert (done.fields["input_tokens"], done.fields["output_tokens"]) == (usage.input_tokens, usage.output_tokens)


@in_every_protocol
def test_a_server_that_dies_in_a_stream_leaves_what_came_with_an_outcome_that_nobody_knows(
    clean_sqlite: str, mortal_model: RealModel, protocol: str
) -> None:
    with dispatching(clean_sqlite, threads=2) as dispatcher:
        ports = dispatcher.ports
        document = release(mortal_model.base_url, protocol, output_tokens=ENDLESS_TOKENS, retry=SOON)
        run_id = ask(ports, document, "Count from one to ten thousand, in words.")
        wait_for_output(ports, run_id)
        assert not over(ports, run_id)()
        mortal_model.process.kill()
        wait_for(over(ports, run_id), "the run is over", WAIT_S)
        run = run_of(ports, run_id)
        assert (run.status, run.end_code) == (RunStatus.FAILED, Code.MODEL_TRANSPORT_FAILED)
        broken, *later = attempts(ports, run_id)
        assert (broken.state, broken.code) == (AttemptState.FAILED, Code.MODEL_TRANSPORT_FAILED)
        assert broken.first_output is not None
        assert json.loads(broken.partial or b"{}")["text"].strip()
        # Nobody listens any more: these were never sent, and make the first one no less unknown.
        assert [attempt.state for attempt in later] == [AttemptState.FAILED] * 3
        assert all(attempt.first_output is None and attempt.partial is None for attempt in later)
        (operation,) = model_operations(ports, run_id)
        assert (operation.status, operation.executed) == (OperationStatus.FAILED, Executed.UNKNOWN)
        assert run.answer_operation_id is None


@in_every_protocol
def test_a_stream_that_is_cut_is_asked_for_again_with_the_same_bytes_and_never_joined(
    clean_sqlite: str, real_model: str, protocol: str
) -> None:
    with closing(Proxy(real_model)) as proxy, dispatching(clean_sqlite, threads=2) as dispatcher:
        ports = dispatcher.ports
        document = release(proxy.url, protocol, output_tokens=400, parameters={"ignore_eos": True}, retry=SOON)
        run_id = ask(ports, document, "Count from one to ten thousand, in words.")
        wait_for_output(ports, run_id)
        proxy.cut()
        wait_for(over(ports, run_id), "the run is over", WAIT_S)
        assert run_of(ports, run_id).status is RunStatus.SUCCEEDED, run_of(ports, run_id)
        broken, complete = attempts(ports, run_id)
        assert (broken.state, broken.code) == (AttemptState.FAILED, Code.MODEL_TRANSPORT_FAILED)
        assert json.loads(broken.partial or b"{}")["text"].strip()
        assert (complete.state, complete.partial) == (AttemptState.COMPLETE, None)
        (operation,) = model_operations(ports, run_id)
        usage = load_response(ports, run_of(ports, run_id), operation).usage
        assert usage is not None and usage.output_tokens == 400
        assert len(frozen_bodies(ports, run_id)) == 1
        assert list(run_audit(ports)) == []


def cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    with pytest.raises(SystemExit) as left:
        main(["models", *arguments, "--json"])
    return int(left.value.code or 0), json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("profile", "window", "source"), [("llama-cpp", CONTEXT_TOKENS, "provider"), ("generic", None, "unknown")]
)
def test_discover_shows_the_window_that_a_real_server_serves_where_the_profile_knows_the_place(
    capsys: pytest.CaptureFixture[str], real_model: str, profile: str, window: int | None, source: str
) -> None:
    code, document = cli(capsys, "discover", "--base-url", real_model, "--profile", profile)
    (one,) = document["models"]
    assert (code, one["provider_model_id"]) == (0, MODEL)
    assert (one["context_window_tokens"], one["metadata_source"]) == (window, source)


@in_every_protocol
@in_both_profiles
def test_probe_reads_a_real_server_in_either_protocol_and_finds_no_contradiction(
    capsys: pytest.CaptureFixture[str], real_model: str, protocol: str, profile: str
) -> None:
    asked = ("probe", "--base-url", real_model, "--profile", profile, "--protocol", protocol, "--model", MODEL)
    code, document = cli(capsys, *asked, "--timeout", str(WAIT_S), "--first-output", str(WAIT_S))
    assert (code, document["protocol"], document["contradictions"]) == (0, protocol, [])
    found = {one["about"]: (one["found"], one["detail"]) for one in document["findings"]}
    assert {about: found[about][0] for about in ("streaming", "protocol", "end of stream", "usage")} == {
        "streaming": "yes",
        "protocol": "yes",
        "end of stream": "yes",
        "usage": "yes",
    }
    # The model is too small to call a tool whenever it is asked to.
    assert found["tools"][0] in ("yes", "unknown")
    ended = {"openai-chat": "[DONE]", "openai-responses": "final event response.completed"}[protocol]
    assert ended in found["end of stream"][1]
