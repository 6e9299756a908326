"""NUL characters and lone surrogates in whatever a provider sends: kept exactly, or refused by a stable code."""

import json
from typing import Any

import pytest

from agentloom_worker.audit import run_audit
from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.cli.output import print_json
from agentloom_worker.domain.operation import AttemptState, OperationStatus
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.errors import Code
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.inspect import list_steps, read_result
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.slice import load_response
from agentloom_worker.runtime.transport import read_transport
from tests.acceptance.harness import (
    ask,
    attempts,
    dev_model,
    events,
    frozen_bodies,
    http_release,
    model_operations,
    operations,
    rows,
    run_of,
    simulated,
)
from tests.contract.model_adapters import raw, stream_of
from tests.factories import python_tool

pytestmark = pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses"])

ODD = "a\0b\ud83dc\udc00\x01"
SHOWN = "a\0b�c�\x01"  # what stands on the wire of the next request
ECHO = {"echo": python_tool()}


def odd_stream(protocol: str, answer: dict[str, Any], **parts: str) -> bytes:
    """The stream of an answer in which each of these markers is spelt as another text."""
    body = stream_of(protocol, {**answer, "chunk_chars": 500})
    for marker, text in parts.items():
        assert marker.encode() in body, marker
        body = body.replace(marker.encode(), json.dumps(text)[1:-1].encode())
    return body


def release(model: Any, protocol: str, **retry: Any) -> dict[str, Any]:
    main = {"protocol": protocol, "retry": {"max_attempts": 1, **retry}}
    return http_release(model, ECHO, models={"main": main})


def assert_sound(ports: Ports, run_id: RunId) -> None:
    """Nothing is left over, nothing was tried again in vain, and people and programs can read it."""
    assert rows(ports, run_id) == [] and "step.parked" not in events(ports, run_id)
    assert run_audit(ports) == ()
    print_json([list_steps(ports, run_id), read_result(ports, run_id), ports.store.list_events(run_id)])
    frozen_bodies(ports, run_id)


def test_a_whole_answer_is_kept_exactly_and_its_calls_are_answered(
    database_url: str, protocol: str, tool_calls: list[tuple[str, object]]
) -> None:
    said = odd_stream(
        protocol,
        {
            "text": "TTT",
            "reasoning": "RRR",
            "tool_calls": [
                {"name": "echo", "id": "III", "arguments_text": "AAA"},
                {"name": "NNN", "id": "JJJ", "arguments_text": "BBB"},
            ],
        },
        TTT=ODD,
        RRR=ODD + "r",
        III=ODD + "i",
        AAA=json.dumps({"text": ODD}),
        NNN=ODD + "n",
        JJJ=ODD + "j",
        BBB=ODD + "{",
    )
    done = odd_stream(protocol, {"text": "TTT"}, TTT=ODD + ".")
    turns = [{"when": {"tool_results": 0}, "answer": raw(said)}, {"answer": raw(done)}]
    with dev_model(*turns) as model, simulated(database_url) as worker:
        ports = worker.ports
        run_id = ask(ports, release(model, protocol))
        worker.drive()
        run = run_of(ports, run_id)
        assert run.status is RunStatus.SUCCEEDED, (run.end_code, run.end_detail)
        first, second = model_operations(ports, run_id)
        response = load_response(ports, run, first)
        assert (response.text, response.reasoning) == (ODD, ODD + "r")
        assert [(call.provider_call_id, call.name, call.arguments_text) for call in response.calls] == [
            (ODD + "i", "echo", json.dumps({"text": ODD})),
            (ODD + "j", ODD + "n", ODD + "{"),
        ]
        assert load_response(ports, run, second).text == ODD + "."
        assert tool_calls == [("echo", ODD)]
        members = {one.ordinal: (one.status, one.code) for one in operations(ports, run_id) if one.ordinal is not None}
        assert members == {
            0: (OperationStatus.COMPLETED, None),
            1: (OperationStatus.FAILED, Code.CAPABILITY_NOT_FOUND),
        }
        # What goes back is text that every server takes.
        body = frozen_bodies(ports, run_id)[1]
        assert canonical_bytes(SHOWN) in body and canonical_bytes(SHOWN + "i") in body
        for operation, sent in ((first, said), (second, done)):
            assert sent.startswith(read_transport(ports, operation.operation_id, None)[1].body)
        assert_sound(ports, run_id)


ERRORS = {
    "openai-chat": {"error": {"message": "MMM", "code": "CCC"}},
    "openai-responses": {"type": "error", "message": "MMM", "code": "CCC", "param": None},
}


def failed_once(ports: Ports, run_id: RunId, code: Code, received: bytes) -> None:
    """One attempt that failed by this code, with its bytes, and a run that says the same."""
    run = run_of(ports, run_id)
    assert (run.status, run.end_code) == (RunStatus.FAILED, code)
    (attempt,) = attempts(ports, run_id)
    (operation,) = model_operations(ports, run_id)
    assert (attempt.state, attempt.code, operation.code) == (AttemptState.FAILED, code, code)
    assert read_transport(ports, attempt.operation_id, 1)[1].body == received
    assert attempt.detail is not None and run.end_detail is not None
    for text in (attempt.detail, run.end_detail):
        assert "\0" not in text and text.encode().decode() == text
    assert_sound(ports, run_id)


@pytest.mark.parametrize("inside", [False, True], ids=["refused", "inside of a 200"])
def test_an_error_fails_by_a_stable_code_and_its_bytes_can_be_read(
    database_url: str, protocol: str, *, inside: bool
) -> None:
    text = json.dumps(ERRORS[protocol] if inside else ERRORS["openai-chat"])
    body = text.replace("MMM", json.dumps(f"no {ODD}")[1:-1]).replace("CCC", json.dumps(ODD)[1:-1]).encode()
    sent = b"data: " + body + b"\n\n" if inside else body
    answer = raw(sent) if inside else raw(sent, status=400, headers={"content-type": "application/json"})
    with dev_model({"answer": answer}) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, release(model, protocol))
        worker.drive()
        code = Code.MODEL_PROVIDER_ERROR if inside else Code.MODEL_REQUEST_REJECTED
        failed_once(worker.ports, run_id, code, sent)
        (attempt,) = attempts(worker.ports, run_id)
        assert attempt.detail is not None and attempt.detail.endswith(": no a�b?c?\x01")


@pytest.mark.parametrize("spoilt", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80"], ids=["no start", "surrogate", "long NUL"])
def test_bytes_that_are_no_utf8_fail_by_a_stable_code_and_can_be_read(
    database_url: str, protocol: str, spoilt: bytes
) -> None:
    whole = stream_of(protocol, {"text": "TTT"})
    sent = whole.replace(b"TTT", b"T" + spoilt + b"T")
    with dev_model({"answer": raw(sent)}) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, release(model, protocol))
        worker.drive()
        upto = sent.index(spoilt) + 1
        failed_once(worker.ports, run_id, Code.MODEL_PROTOCOL_ERROR, sent[:upto])


@pytest.mark.parametrize("status", [400, 503])
def test_a_refusal_that_is_no_text_at_all_fails_by_its_status(database_url: str, protocol: str, status: int) -> None:
    sent = b'{"error": {"message": "\xff\x00"}}\x00'
    answer = raw(sent, status=status, headers={"content-type": "application/json"})
    with dev_model({"answer": answer}) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, release(model, protocol))
        worker.drive()
        code = Code.MODEL_REQUEST_REJECTED if status == 400 else Code.MODEL_PROVIDER_ERROR
        failed_once(worker.ports, run_id, code, sent)


def test_what_came_before_a_break_is_kept_exactly(database_url: str, protocol: str) -> None:
    said = odd_stream(
        protocol,
        {
            "text": "TTT",
            "reasoning": "RRR",
            "tool_calls": [{"name": "NNN", "id": "III", "arguments_text": "AAA"}, {"name": "x", "arguments": {}}],
        },
        TTT=ODD,
        RRR=ODD + "r",
        NNN=ODD + "n",
        III=ODD + "i",
        AAA=ODD + "{",
    )
    # Behind the arguments of the first call, before anything of the second.
    cut = said.index(b"\n\n", said.index(json.dumps(ODD + "{")[1:-1].encode())) + 2
    with dev_model({"answer": raw(said[:cut])}) as model, simulated(database_url) as worker:
        ports = worker.ports
        run_id = ask(ports, release(model, protocol))
        worker.drive()
        failed_once(ports, run_id, Code.MODEL_TRANSPORT_FAILED, said[:cut])
        (attempt,) = attempts(ports, run_id)
        assert attempt.partial is not None
        partial = json.loads(attempt.partial)
        assert (partial["text"], partial["reasoning"]) == (ODD, ODD + "r")
        assert partial["calls"] == [{"id": ODD + "i", "name": ODD + "n", "arguments": ODD + "{"}]
