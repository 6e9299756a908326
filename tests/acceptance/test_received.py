"""What an attempt received is kept with it, byte for byte and within bounds, and read by whoever has to explain it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from agentloom_worker.audit import run_audit
from agentloom_worker.cli.app import main
from agentloom_worker.domain.operation import AttemptState
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.domain.transport import Transport
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.frozen import replace
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.accept import stop_run
from agentloom_worker.runtime.ports import US, KeepTransport, Settings
from agentloom_worker.runtime.transport import read_transport
from tests.acceptance.harness import (
    FUSED,
    ONE_BY_ONE,
    answer,
    ask,
    at_fault,
    attempts,
    model_operations,
    query,
    run_of,
    simulated,
)
from tests.factories import release_document
from tests.simulator import Worker
from tests.unit.http.raw_server import STREAM_HEAD, Handler, RawServer, bytes_of, serving
from tests.unit.http.raw_server import answer as http_answer

UNUSUAL = replace(FUSED, keep_transport=KeepTransport.UNUSUAL)


def frame(delta: dict[str, Any] | None = None, finish: str | None = None) -> bytes:
    """One event of a stream of chat completions."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"


def stream(*texts: str, finish: str = "stop") -> bytes:
    """A whole stream, with a comment that means nothing in it."""
    frames = [frame({"content": text}) for text in texts]
    return b": hello\n\n" + b"".join(frames) + frame(finish=finish) + b"data: [DONE]\n\n"


BROKEN = b": hello\n\n" + frame({"content": "half an ans"})
WHOLE = stream("all", " of it")


@contextmanager
def asked(
    url: str, *handlers: Handler, settings: Settings = FUSED, **overrides: Any
) -> Iterator[tuple[Worker, RunId, RawServer]]:
    """A run that has ended, with its model behind these handlers."""
    with serving(*handlers) as server, simulated(url, settings=settings) as worker:
        run_id = ask(worker.ports, release_document(base_url=server.base_url, **overrides))
        worker.drive()
        yield worker, run_id, server


def received(worker: Worker, run_id: RunId, attempt: int | None = None) -> tuple[int, Transport]:
    (operation,) = model_operations(worker.ports, run_id)
    return read_transport(worker.ports, operation.operation_id, attempt)


def refused_as(worker: Worker, run_id: RunId, attempt: int | None = None) -> Code:
    with pytest.raises(RequestError) as caught:
        received(worker, run_id, attempt)
    return caught.value.code


@pytest.mark.parametrize("settings", [FUSED, ONE_BY_ONE], ids=["fused", "one-by-one"])
def test_every_attempt_keeps_its_bytes(database_url: str, settings: Settings) -> None:
    with asked(database_url, bytes_of(STREAM_HEAD + BROKEN), bytes_of(STREAM_HEAD + WHOLE), settings=settings) as (
        worker,
        run_id,
        _,
    ):
        assert answer(worker.ports, run_id) == "all of it"
        assert received(worker, run_id, 1) == (1, Transport(200, "text/event-stream", len(BROKEN), body=BROKEN))
        assert received(worker, run_id) == (2, Transport(200, "text/event-stream", len(WHOLE), body=WHOLE))
        assert run_audit(worker.ports) == ()


@pytest.mark.parametrize("settings", [FUSED, ONE_BY_ONE], ids=["fused", "one-by-one"])
def test_where_the_operator_wants_unusual_ones_an_ordinary_answer_keeps_only_its_response(
    database_url: str, settings: Settings
) -> None:
    settings = replace(settings, keep_transport=KeepTransport.UNUSUAL)
    with asked(database_url, bytes_of(STREAM_HEAD + BROKEN), bytes_of(STREAM_HEAD + WHOLE), settings=settings) as (
        worker,
        run_id,
        _,
    ):
        assert answer(worker.ports, run_id) == "all of it"
        assert received(worker, run_id, 1) == (1, Transport(200, "text/event-stream", len(BROKEN), body=BROKEN))
        assert received(worker, run_id)[0] == 1, "without a number: the newest that kept any"
        assert refused_as(worker, run_id, 2) is Code.TRANSPORT_NOT_KEPT
        assert refused_as(worker, run_id, 3) is Code.ATTEMPT_NOT_FOUND
        assert run_audit(worker.ports) == ()


def test_bytes_and_the_end_of_their_attempt_are_one_commit(database_url: str) -> None:
    """As many commits as without them: nothing is written before or after the commit that ends the attempt."""
    counts = []
    with serving(bytes_of(STREAM_HEAD + WHOLE)) as server:
        for settings in (UNUSUAL, FUSED):
            with simulated(database_url, settings=settings) as worker:
                run_id = ask(worker.ports, release_document(base_url=server.base_url))
                worker.drive()
            assert run_of(worker.ports, run_id).status is RunStatus.SUCCEEDED
            found = query(worker.ports, "SELECT count(*) FROM scope_commit WHERE scope_id = :run", run=run_id)
            counts.append(found[0][0])
            kept = attempts(worker.ports, run_id)[0].transport is not None
            assert kept == (settings is FUSED)
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (stream("cut", finish="length"), True),
        (stream(finish="stop"), True),
        (stream("no", finish="content_filter"), True),
        (b": hello\n\n" + frame({"refusal": "I will not."}) + frame(finish="stop") + b"data: [DONE]\n\n", True),
        (stream("fine"), False),
    ],
)
def test_an_odd_answer_is_unusual(clean_sqlite: str, body: bytes, kept: bool) -> None:
    with asked(clean_sqlite, bytes_of(STREAM_HEAD + body), settings=UNUSUAL) as (worker, run_id, _):
        (attempt,) = attempts(worker.ports, run_id)
        assert attempt.state is AttemptState.COMPLETE
        assert (attempt.transport is not None) == kept
        if kept:
            assert received(worker, run_id)[1].body == body


def test_the_body_of_a_refusal_is_kept(database_url: str) -> None:
    refusal = json.dumps({"error": {"message": "no such model", "code": "model_not_found"}}).encode()
    with asked(database_url, http_answer("404 Not Found", refusal)) as (worker, run_id, _):
        assert run_of(worker.ports, run_id).end_code == Code.MODEL_REQUEST_REJECTED
        assert received(worker, run_id)[1] == Transport(404, "application/json", len(refusal), body=refusal)


def test_a_call_that_was_never_answered_keeps_none(database_url: str) -> None:
    with serving(lambda exchange: None) as server, simulated(database_url) as worker:
        run_id = ask(worker.ports, release_document(base_url=server.base_url))
        worker.drive()
        assert run_of(worker.ports, run_id).end_code == Code.MODEL_TRANSPORT_FAILED
        assert refused_as(worker, run_id) is Code.TRANSPORT_NOT_KEPT


@pytest.mark.parametrize("size", [20_000, 1_500_000])
def test_large_bytes_are_a_blob_of_the_owner_that_is_kept_as_long_as_its_attempt(database_url: str, size: int) -> None:
    # Words that do not compress to nothing: above the inline limit, and above what a commit carries.
    words = "".join(f"{n * 7919 % 104729:x}-" for n in range(size // 6))
    body = b": hello\n\n" + b"".join(frame({"content": words[at : at + 200]}) for at in range(0, len(words), 200))
    with asked(database_url, bytes_of(STREAM_HEAD + body), models={"main": {"retry": {"max_attempts": 1}}}) as (
        worker,
        run_id,
        _,
    ):
        (attempt,) = attempts(worker.ports, run_id)
        assert attempt.transport is not None and attempt.transport.blob_id is not None
        found = received(worker, run_id)[1]
        assert found.size_bytes == len(body)
        assert found.body == body if size < 100_000 else found.omitted_bytes > 0
        assert run_audit(worker.ports) == ()
        worker.clock.advance(s=10 * 24 * 3600)
        worker.ports.store.collect_blobs(after=UUID(int=0), last=UUID(int=2**128 - 1), grace_us=24 * 3600 * US)
        assert received(worker, run_id)[1] == found


def test_what_a_stopped_attempt_had_received_is_kept_with_its_late_fact(database_url: str) -> None:
    with serving(bytes_of(STREAM_HEAD + BROKEN)) as server, simulated(database_url) as worker:
        run_id = ask(worker.ports, release_document(base_url=server.base_url))
        with at_fault("effect.done", "attempt_model", lambda: stop(worker, run_id)):
            worker.drive()
        assert run_of(worker.ports, run_id).status is RunStatus.CANCELLED
        (attempt,) = attempts(worker.ports, run_id)
        assert attempt.late is not None
        assert received(worker, run_id)[1].body == BROKEN


def stop(worker: Worker, run_id: RunId) -> None:
    stop_run(worker.ports, run_id)


def test_the_program_prints_the_bytes_and_says_on_stderr_what_they_are(
    tmp_path: Any, clean_sqlite: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    handlers = (bytes_of(STREAM_HEAD + BROKEN), bytes_of(STREAM_HEAD + WHOLE))
    with asked(clean_sqlite, *handlers, settings=UNUSUAL) as (worker, run_id, _):
        (operation,) = model_operations(worker.ports, run_id)
    where = ("--database", clean_sqlite)

    def run(*words: str) -> tuple[int, bytes, bytes]:
        with pytest.raises(SystemExit) as ended:
            main(["request", str(operation.operation_id), *words, *where])
        printed = capfdbinary.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    code, out, err = run("--raw", "--attempt", "1")
    assert (code, out) == (0, BROKEN)
    assert b"attempt 1: HTTP 200 text/event-stream" in err
    assert run("--raw")[1] == BROKEN
    code, out, err = run("--raw", "--attempt", "2")
    assert code != 0 and out == b"" and b"TRANSPORT_NOT_KEPT" in err
    assert run("--attempt", "1")[0] != 0
