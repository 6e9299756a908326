"""What the sender checks at the moment of the send (seed 004, 6.1): the frozen hash and the reserved ticket.

A row is changed behind the runtime's back once a request is frozen; another process, which knows only the rows, comes
for the attempt.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from agentloom_worker.audit import run_audit
from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.cli.app import main
from agentloom_worker.cli.diagnosis import Line, State, judge_fleet
from agentloom_worker.domain.operation import AttemptState, OperationStatus
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.errors import Code
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.queues import list_queues
from agentloom_worker.version import __version__
from tests.acceptance.harness import (
    ONE_BY_ONE,
    answer,
    ask,
    attempts,
    dev_model,
    events,
    execute,
    http_release,
    model_operations,
    rows,
    run_of,
    simulated,
)

QUESTION, OTHER_WORDS = "Delete the one file.", "Delete all the files."
FORGED = b"\x07" * 32


def _forge_hash(ports: Ports, run_id: RunId) -> int:
    return execute(ports, "UPDATE operation SET request_hash = :hash WHERE run_id = :run", hash=FORGED, run=run_id)


def _forget_hash(ports: Ports, run_id: RunId) -> int:
    return execute(ports, "UPDATE operation SET request_hash = NULL WHERE run_id = :run", run=run_id)


def _change_words(ports: Ports, run_id: RunId, words: str = OTHER_WORDS) -> int:
    statement = "UPDATE user_input SET body = :body WHERE session_id = :session"
    return execute(ports, statement, body=canonical_bytes(words), session=run_of(ports, run_id).session_id)


def _release_ticket(ports: Ports, run_id: RunId) -> int:
    return execute(ports, "UPDATE loop_ticket SET state = 'released' WHERE run_id = :run", run=run_id)


def _remove_ticket(ports: Ports, run_id: RunId) -> int:
    return execute(ports, "DELETE FROM loop_ticket WHERE run_id = :run", run=run_id)


def _give_ticket_away(ports: Ports, run_id: RunId) -> int:
    statement = "UPDATE loop_ticket SET operation_id = :other WHERE run_id = :run"
    return execute(ports, statement, other=ports.ids.new(), run=run_id)


@dataclass(frozen=True)
class Harm:
    """What is changed, what the parked row says of it, and an invariant that the audit finds broken."""

    do: Callable[[Ports, RunId], int]
    evidence: str
    invariant: str


_HASH = (
    f"{Code.REQUEST_HASH_MISMATCH}: operation {{operation}}: the request hashes to {{built}}, frozen was {{frozen}} ["
)
_TICKET = f"{Code.INVARIANT_BROKEN}: operation {{operation}} has no reserved ticket: nothing is sent ["
HASHES = {
    "another hash": Harm(_forge_hash, _HASH, "request.hashes"),
    "no hash": Harm(_forget_hash, _HASH, "request.hashes"),
    "other words": Harm(_change_words, _HASH, "request.hashes"),
}
TICKETS = {
    "released": Harm(_release_ticket, _TICKET, "run.loops"),
    "removed": Harm(_remove_ticket, _TICKET, "run.tickets"),
    "of another operation": Harm(_give_ticket_away, _TICKET, "run.tickets"),
}


def _assert_nothing_sent(url: str, capsys: pytest.CaptureFixture[str], harm: Harm) -> None:
    """Freeze, harm, let another process go on: no request, and one parked row, which audit and doctor tell of."""
    with dev_model({"answer": {"text": "sent all the same"}}) as model, simulated(url, settings=ONE_BY_ONE) as first:
        run_id = ask(first.ports, http_release(model), QUESTION)
        first.drive(until=lambda: bool(rows(first.ports, run_id, "attempt_model")))
        (operation,) = model_operations(first.ports, run_id)
        assert operation.request_hash is not None
        assert list(run_audit(first.ports)) == []
        assert harm.do(first.ports, run_id) == 1
        with simulated(url, settings=ONE_BY_ONE, clock=first.clock) as second:
            (row,) = rows(second.ports, run_id, "attempt_model")
            assert second.runner.run(row.dispatch_id)
            (row,) = rows(second.ports, run_id, "attempt_model")
            assert row.parked_at is not None and row.last_error is not None
            frozen, built = _hashes(second.ports, run_id, operation.request_hash.hex(), harm)
            evidence = harm.evidence.format(operation=operation.operation_id, built=built, frozen=frozen)
            assert row.last_error.startswith(evidence)
            assert events(second.ports, run_id)[-1] == "step.parked"
            _assert_untouched(second.ports, run_id)
            assert harm.invariant in {one.invariant for one in run_audit(second.ports)}
            assert _parked(second.ports) == [(State.WARN, "1 step(s)")]
        # A parked row is nobody's: only its deadline ends the run.
        assert not first.runner.run(row.dispatch_id)
        _assert_audit_tells(url, capsys, harm.invariant)
        first.drive()
        assert run_of(first.ports, run_id).status is RunStatus.TIMED_OUT
        assert len(model.requests) == 0


def _hashes(ports: Ports, run_id: RunId, good: str, harm: Harm) -> tuple[str, str]:
    """The hash that is frozen now, and the one that the rows make."""
    (operation,) = model_operations(ports, run_id)
    frozen = "nothing" if operation.request_hash is None else operation.request_hash.hex()
    if harm.do is not _change_words:
        return frozen, good
    (row,) = rows(ports, run_id, "attempt_model")
    built = (row.last_error or "").partition("hashes to ")[2].partition(",")[0]
    assert len(built) == len(good) and built != good
    return frozen, built


def _assert_untouched(ports: Ports, run_id: RunId) -> None:
    """The intent still stands; nothing of it may have left."""
    (attempt,) = attempts(ports, run_id)
    assert (attempt.state, attempt.maybe_sent, attempt.code) == (AttemptState.INTENT, False, None)
    (operation,) = model_operations(ports, run_id)
    assert (operation.status, operation.executed) == (OperationStatus.ATTEMPTING, None)
    assert run_of(ports, run_id).status is RunStatus.RUNNING


def _parked(ports: Ports) -> list[tuple[State, str]]:
    """What the doctor says of parked rows."""
    lines: list[Line] = [
        line for line in judge_fleet([], list_queues(ports), __version__) if line.name == "fleet.parked"
    ]
    return [(line.state, line.found) for line in lines]


def _assert_audit_tells(url: str, capsys: pytest.CaptureFixture[str], invariant: str) -> None:
    place = ["--database", url] if url.startswith("postgresql") else ["--embedded", url.removeprefix("sqlite:///")]
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(["audit", *place, "--json"])
    said = json.loads(capsys.readouterr().out)
    assert (left.value.code, said["ok"]) == (1, False)
    assert invariant in {one["invariant"] for one in said["findings"]}


@pytest.mark.parametrize("harm", HASHES)
def test_U1_a_request_of_another_hash_than_the_frozen_one_is_parked_and_not_sent(
    database_url: str, capsys: pytest.CaptureFixture[str], harm: str
) -> None:
    _assert_nothing_sent(database_url, capsys, HASHES[harm])


@pytest.mark.parametrize("harm", TICKETS)
def test_A19_an_operation_without_its_reserved_ticket_is_parked_and_not_sent(
    database_url: str, capsys: pytest.CaptureFixture[str], harm: str
) -> None:
    _assert_nothing_sent(database_url, capsys, TICKETS[harm])


def test_U1_a_parked_attempt_whose_rows_are_mended_is_sent_once_by_an_operators_retry(database_url: str) -> None:
    with dev_model({"answer": {"text": "the one file"}}) as model:
        with simulated(database_url, settings=ONE_BY_ONE) as first:
            run_id = ask(first.ports, http_release(model), QUESTION)
            first.drive(until=lambda: bool(rows(first.ports, run_id, "attempt_model")))
            _change_words(first.ports, run_id)
        with simulated(database_url, settings=ONE_BY_ONE, clock=first.clock) as second:
            (row,) = rows(second.ports, run_id, "attempt_model")
            assert second.runner.run(row.dispatch_id)
            (row,) = rows(second.ports, run_id, "attempt_model")
            assert row.parked_at is not None
            _change_words(second.ports, run_id, QUESTION)
            assert second.ports.store.retry_dispatch(row, row.queue)
        with simulated(database_url, settings=ONE_BY_ONE, clock=first.clock) as third:
            third.drive()
            assert answer(third.ports, run_id) == "the one file"
            # That the first one never left is nowhere in the rows: it counts as unknown, and `on_unknown` repeats it.
            states = [attempt.state for attempt in attempts(third.ports, run_id)]
            assert states == [AttemptState.UNKNOWN, AttemptState.COMPLETE]
            assert list(run_audit(third.ports)) == []
        (request,) = model.requests
        assert [message["content"] for message in json.loads(request.body)["messages"]][-1] == QUESTION
