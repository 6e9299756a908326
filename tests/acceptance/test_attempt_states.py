"""Every way out of every state of a model attempt (seed 004, 6.2), over HTTP, for both protocols.

The clock is the test's, and the server decides what has been read when something happens: nothing here waits for time.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest

from agentloom_worker.audit import run_audit
from agentloom_worker.domain.model import Executed
from agentloom_worker.domain.operation import Attempt, AttemptState, OperationStatus
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.errors import Code
from agentloom_worker.ids import RunId
from agentloom_worker.limits import DRAIN_INTERRUPTS_MAX
from agentloom_worker.runtime.accept import stop_run
from tests.acceptance.harness import answer, ask, at_fault, attempts, model_operations, run_of, simulated
from tests.contract.model_adapters import stream_of
from tests.factories import release_document
from tests.simulator import Worker
from tests.unit.http.raw_server import STREAM_HEAD, WAIT_S, Exchange, bytes_of, serving

PROTOCOLS = ("openai-chat", "openai-responses")
STORY = {"text": "half and half", "chunk_chars": 4}
FIRST_OUTPUT_S, IDLE_S, DEADLINE_S = 60, 45, 600


class At(StrEnum):
    """How far an attempt has come."""

    SENT = "sent"  # no byte of a status line
    STATUS = "status"  # headers, comments, roles, empty deltas
    RECEIVING = "receiving"  # the first output is saved


def pieces(protocol: str) -> dict[At, bytes]:
    """What has been sent at each state."""
    whole = stream_of(protocol, STORY)
    delta = whole.index(b'"half"')
    start, end = whole.rindex(b"\n\n", 0, delta) + 2, whole.index(b"\n\n", delta) + 2
    empty = whole[start:end].replace(b'"half"', b'""')
    status = STREAM_HEAD + b": ping\n\n" + whole[:start] + empty + b": ping\n\n"
    return {At.SENT: b"", At.STATUS: status, At.RECEIVING: status + whole[start:end]}


def rest_of(protocol: str, at: At) -> bytes:
    """What is left of the answer."""
    whole = stream_of(protocol, STORY)
    sent = pieces(protocol)
    behind = whole[whole.index(b"\n\n", whole.index(b'"half"')) + 2 :]
    return sent[At.RECEIVING][len(sent[at]) :] + behind


@dataclass
class Scene:
    """A run whose first attempt has come to a state, where something happens to it."""

    worker: Worker
    protocol: str
    at: At
    run_ids: list[RunId] = field(default_factory=list)

    @property
    def run_id(self) -> RunId:
        return self.run_ids[0]

    def pass_s(self, seconds: float) -> Callable[[Exchange], None]:
        """Let time pass; then a sign of life arrives, and the stream goes on as far as anybody reads it."""

        def act(exchange: Exchange) -> None:
            self.worker.clock.advance(s=seconds)
            life = b": ping\n\n" if self.at is not At.SENT else STREAM_HEAD[:12]
            exchange.send(life)
            rest = rest_of(self.protocol, self.at)
            exchange.send(rest if self.at is not At.SENT else rest[12:])

        return act

    def stall_s(self, seconds: float) -> Callable[[Exchange], None]:
        """Let time pass, with a sign of life and nothing behind it."""

        def act(exchange: Exchange) -> None:
            self.worker.clock.advance(s=seconds)
            exchange.send(b": ping\n\n" if self.at is not At.SENT else STREAM_HEAD[:12])
            exchange.wait_for_end()

        return act

    def stop(self, exchange: Exchange) -> None:
        stop_run(self.worker.ports, self.run_id)
        self.worker.keeper.poll_control()
        exchange.wait_for_end()

    def drain(self, exchange: Exchange) -> None:
        self.worker.keeper.drain()
        self.worker.keeper.draining = False  # its successor goes on
        exchange.wait_for_end()

    def end(self, exchange: Exchange) -> None:
        """The connection ends."""


def play(
    url: str, protocol: str, at: At, happens: Callable[[Scene], Callable[[Exchange], None]], **model: Any
) -> tuple[list[Attempt], int, str]:
    """Run it to its end: its attempts, how many requests came, and how it ended with what answer."""
    saved = threading.Event()
    with simulated(url) as worker, at_fault("first_output.saved", "attempt_model", saved.set):
        scene = Scene(worker, protocol, at)

        def handle(exchange: Exchange) -> None:
            exchange.send(pieces(protocol)[at])
            if at is At.RECEIVING:
                assert saved.wait(WAIT_S)
            happens(scene)(exchange)

        fresh = bytes_of(STREAM_HEAD + stream_of(protocol, {"text": "fresh"}))
        with serving(handle, fresh) as server:
            binding = {
                "protocol": protocol,
                "first_output_timeout_ms": 1000 * FIRST_OUTPUT_S,
                "retry": {"max_attempts": 3, "jitter": "none"},
                **model,
            }
            document = release_document(
                base_url=server.base_url,
                models={"main": binding},
                agent={"limits": {"deadline_s": DEADLINE_S}},
            )
            scene.run_ids.append(ask(worker.ports, document))
            worker.drive()
            requests = server.served
        run = run_of(worker.ports, scene.run_id)
        said = answer(worker.ports, scene.run_id) if run.answer_operation_id is not None else None
        made = attempts(worker.ports, scene.run_id)
        assert run_audit(worker.ports) == ()
        assert made[0].first_output is None or at is At.RECEIVING or said == "half and half"
        return made, requests, f"{run.status}: {said}"


def partial_text(body: bytes | None) -> str | None:
    return None if body is None else str(json.loads(body)["text"])


ANY = pytest.mark.parametrize("at", list(At))
BOTH = pytest.mark.parametrize("protocol", PROTOCOLS)


@BOTH
@ANY
def test_an_attempt_whose_answer_comes_in_time_is_complete(clean_sqlite: str, protocol: str, at: At) -> None:
    """Also where the whole takes longer than the limits of its parts."""
    made, requests, end = play(clean_sqlite, protocol, at, lambda scene: scene.pass_s(IDLE_S - 1))
    assert [attempt.state for attempt in made] == [AttemptState.COMPLETE]
    assert (requests, end) == (1, f"{RunStatus.SUCCEEDED}: half and half")


@BOTH
@ANY
def test_C07_only_a_first_output_ends_its_limit(clean_sqlite: str, protocol: str, at: At) -> None:
    """Headers, comments, roles and empty deltas do not; behind it the limit is no more."""
    made, requests, end = play(clean_sqlite, protocol, at, lambda scene: scene.pass_s(FIRST_OUTPUT_S + 1))
    if at is At.RECEIVING:
        assert [attempt.state for attempt in made] == [AttemptState.COMPLETE]
        assert (requests, end) == (1, f"{RunStatus.SUCCEEDED}: half and half")
        return
    first, second = made
    assert (first.state, first.code) == (AttemptState.FAILED, Code.MODEL_FIRST_OUTPUT_TIMEOUT)
    assert (first.first_output, first.partial, second.state) == (None, None, AttemptState.COMPLETE)
    assert (requests, end) == (2, f"{RunStatus.SUCCEEDED}: fresh")


@BOTH
@ANY
def test_S10_the_idle_limit_begins_with_the_first_output(clean_sqlite: str, protocol: str, at: At) -> None:
    """Before it the limit is none. Behind it whoever sends nothing is given up, and sent to again."""
    if at is not At.RECEIVING:
        limit = {"idle_timeout_ms": 1000 * IDLE_S}
        made, requests, end = play(clean_sqlite, protocol, at, lambda scene: scene.pass_s(IDLE_S + 1), **limit)
        assert ([attempt.state for attempt in made], requests) == ([AttemptState.COMPLETE], 1)
        assert end == f"{RunStatus.SUCCEEDED}: half and half"
        return
    # Here the socket itself has to wait; that nothing comes any more is certain.
    silent = play(clean_sqlite, protocol, at, lambda scene: Exchange.wait_for_end, idle_timeout_ms=20)
    (first, second), requests, end = silent
    assert (first.state, first.code) == (AttemptState.FAILED, Code.MODEL_TRANSPORT_FAILED)
    assert first.category == "timeout" and partial_text(first.partial) == "half"
    assert (second.state, requests, end) == (AttemptState.COMPLETE, 2, f"{RunStatus.SUCCEEDED}: fresh")


@BOTH
@ANY
def test_S10_the_deadline_ends_an_attempt_in_every_state(clean_sqlite: str, protocol: str, at: At) -> None:
    long = {"first_output_timeout_ms": 2000 * DEADLINE_S, "idle_timeout_ms": 2000 * DEADLINE_S}
    made, requests, end = play(clean_sqlite, protocol, at, lambda scene: scene.stall_s(DEADLINE_S + 1), **long)
    (attempt,) = made
    assert (attempt.state, attempt.reason) == (AttemptState.CANCELLED, "deadline")
    assert partial_text(attempt.partial) == ("half" if at is At.RECEIVING else None)
    assert (requests, end) == (1, f"{RunStatus.TIMED_OUT}: None")


@BOTH
@ANY
def test_D17_a_stop_ends_an_attempt_in_every_state(clean_sqlite: str, protocol: str, at: At) -> None:
    made, requests, end = play(clean_sqlite, protocol, at, lambda scene: scene.stop)
    (attempt,) = made
    assert attempt.state is AttemptState.UNKNOWN and attempt.late is not None
    late = json.loads(attempt.late)
    assert (late["cancelled"], late["sent"]) == ("stop", True)
    assert (partial_text(late["partial"] or None)) == ("half" if at is At.RECEIVING else None)
    assert (requests, end) == (1, f"{RunStatus.CANCELLED}: None")


@BOTH
@ANY
def test_R10_a_drain_ends_an_attempt_in_every_state_and_another_goes_on(
    clean_sqlite: str, protocol: str, at: At
) -> None:
    (first, second), requests, end = play(clean_sqlite, protocol, at, lambda scene: scene.drain)
    assert (first.state, first.reason) == (AttemptState.CANCELLED, "drain")
    assert partial_text(first.partial) == ("half" if at is At.RECEIVING else None)
    assert (second.state, requests, end) == (AttemptState.COMPLETE, 2, f"{RunStatus.SUCCEEDED}: fresh")


@BOTH
@ANY
def test_S02_an_end_of_the_connection_fails_an_attempt_in_every_state(clean_sqlite: str, protocol: str, at: At) -> None:
    (first, second), requests, end = play(clean_sqlite, protocol, at, lambda scene: scene.end)
    assert (first.state, first.code) == (AttemptState.FAILED, Code.MODEL_TRANSPORT_FAILED)
    assert partial_text(first.partial) == ("half" if at is At.RECEIVING else None)
    assert (second.state, requests, end) == (AttemptState.COMPLETE, 2, f"{RunStatus.SUCCEEDED}: fresh")


@BOTH
@pytest.mark.parametrize("cause", ["stop", "drain", "deadline"])
def test_D17_what_is_ended_before_its_send_sends_nothing(clean_sqlite: str, protocol: str, cause: str) -> None:
    fresh = bytes_of(STREAM_HEAD + stream_of(protocol, {"text": "fresh"}))
    run_ids: list[RunId] = []
    with serving(fresh) as server, simulated(clean_sqlite) as worker:

        def act() -> None:
            match cause:
                case "stop":
                    stop_run(worker.ports, run_ids[0])
                    worker.keeper.poll_control()
                case "drain":
                    worker.keeper.drain()
                    worker.keeper.draining = False
                case _:
                    worker.clock.advance(s=DEADLINE_S + 1)
            assert server.served == 0

        with at_fault("attempt.before", "attempt_model", act):
            document = release_document(
                base_url=server.base_url,
                models={"main": {"protocol": protocol}},
                agent={"limits": {"deadline_s": DEADLINE_S}},
            )
            run_ids.append(ask(worker.ports, document))
            worker.drive()
        run = run_of(worker.ports, run_ids[0])
        statuses = {"stop": RunStatus.CANCELLED, "drain": RunStatus.SUCCEEDED, "deadline": RunStatus.TIMED_OUT}
        assert run.status is statuses[cause]
        (attempt,) = attempts(worker.ports, run_ids[0])
        # A drain hands the row back: the same attempt is made by whoever takes it.
        assert server.served == (1 if cause == "drain" else 0)
        assert (attempt.state is AttemptState.COMPLETE) is (cause == "drain")
        assert run_audit(worker.ports) == ()


@BOTH
@pytest.mark.parametrize("drains", [DRAIN_INTERRUPTS_MAX, DRAIN_INTERRUPTS_MAX + 1])
def test_R10_drains_cost_no_attempt_of_the_policy_and_end_the_role_when_they_are_too_many(
    clean_sqlite: str, protocol: str, drains: int
) -> None:
    whole = STREAM_HEAD + stream_of(protocol, {"text": "fresh"})
    with simulated(clean_sqlite) as worker:

        def handle(exchange: Exchange) -> None:
            if server.served > drains:
                exchange.send(whole)
                return
            worker.keeper.drain()
            worker.keeper.draining = False  # its successor goes on
            exchange.wait_for_end()

        with serving(handle) as server:
            binding = {"protocol": protocol, "retry": {"max_attempts": 1}}
            run_id = ask(worker.ports, release_document(base_url=server.base_url, models={"main": binding}))
            worker.drive()
            requests = server.served
        run, made = run_of(worker.ports, run_id), attempts(worker.ports, run_id)
        ended = [(one.state, one.reason) for one in made]
        (operation,) = model_operations(worker.ports, run_id)
        cancelled = [(AttemptState.CANCELLED, "drain")]
        if drains > DRAIN_INTERRUPTS_MAX:
            assert (run.status, run.end_code) == (RunStatus.FAILED, Code.MODEL_INTERRUPTED)
            assert (ended, requests) == (cancelled * drains, drains)
            assert (operation.status, operation.executed) == (OperationStatus.FAILED, Executed.UNKNOWN)
        else:
            assert answer(worker.ports, run_id) == "fresh"
            assert (ended, requests) == (cancelled * drains + [(AttemptState.COMPLETE, None)], drains + 1)
        assert run.loops_used == 1
        assert run_audit(worker.ports) == ()
