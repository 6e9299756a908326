"""Accepting a model's answer and delivering a batch of results: each once, whatever is repeated or dies."""

import threading
from functools import partial

import pytest

from agentloom_worker.domain.operation import OperationStatus
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.errors import Code
from agentloom_worker.ids import DispatchId, RunId
from agentloom_worker.runtime.ports import Ports
from tests.acceptance import tools
from tests.acceptance.harness import (
    ONE_BY_ONE,
    answer,
    ask,
    assert_paired,
    at_fault,
    dev_model,
    dispatching,
    events,
    execute,
    frozen_bodies,
    frozen_requests,
    http_release,
    kinds,
    model_operations,
    over,
    query,
    rows,
    run_of,
    simulated,
    tool_texts,
    wait_for,
)
from tests.factories import python_tool
from tests.simulator import Worker, make_worker

ECHO = {"echo": python_tool()}
GATED = {"gated": python_tool(handler="tests.acceptance.tools:gated")}


def _echo_calls(*texts: str) -> dict[str, object]:
    return {"tool_calls": [{"name": "echo", "arguments": {"text": text}} for text in texts]}


def _two_turns(*texts: str) -> tuple[dict[str, object], dict[str, object]]:
    return {"when": {"assistant_turns": 0}, "answer": _echo_calls(*texts)}, {"answer": {"text": "done"}}


def _tickets(ports: Ports, run_id: RunId) -> list[tuple[int, str]]:
    found = query(ports, "SELECT loop_no, state FROM loop_ticket WHERE run_id = :run ORDER BY loop_no", run=run_id)
    return [(row[0], row[1]) for row in found]


def _batches(ports: Ports, run_id: RunId) -> list[tuple[int, int, str]]:
    found = query(ports, "SELECT size, settled, state FROM call_batch WHERE run_id = :run", run=run_id)
    return [(row[0], row[1], row[2]) for row in found]


def _assert_one_of_each(ports: Ports, run_id: RunId, requests: int) -> None:
    """A run of two loops, the first with two calls, in which nothing happened twice."""
    run = run_of(ports, run_id)
    assert (run.status, answer(ports, run_id)) == (RunStatus.SUCCEEDED, "done")
    assert kinds(ports, run_id) == ["prompt", "user_ref", "assistant", "tool_result", "tool_result", "assistant"]
    assert _tickets(ports, run_id) == [(1, "consumed"), (2, "consumed")]
    assert (run.loops_used, run.loops_reserved) == (2, 0)
    assert _batches(ports, run_id) == [(2, 2, "delivered")]
    assert events(ports, run_id) == [
        "run.accepted",
        "run.started",
        "model.completed",
        "call.settled",
        "call.settled",
        "model.completed",
        "run.succeeded",
    ]
    assert rows(ports, run_id) == []
    for request in frozen_requests(ports, run_id):
        assert_paired(request)
    assert requests == 2


def _has_settled(ports: Ports, run_id: RunId, count: int) -> bool:
    return _batches(ports, run_id) == [(3, count, "open")]


def test_C10_a_saved_answer_is_no_message_until_it_is_accepted(database_url: str) -> None:
    with dev_model(*_two_turns("a", "b")) as model, simulated(database_url, settings=ONE_BY_ONE) as worker:
        run_id = ask(worker.ports, http_release(model, ECHO))
        worker.drive(until=lambda: bool(rows(worker.ports, run_id, "accept_model")))
        (saved,) = model_operations(worker.ports, run_id)
        assert saved.status is OperationStatus.COMPLETED and saved.raw is not None
        assert kinds(worker.ports, run_id) == ["prompt", "user_ref"]
        assert _tickets(worker.ports, run_id) == [(1, "reserved")]
        assert _batches(worker.ports, run_id) == []
        worker.drive()
        _assert_one_of_each(worker.ports, run_id, len(model.requests))


@pytest.mark.parametrize(
    ("harm", "evidence"),
    [
        (
            "UPDATE loop_ticket SET state = 'consumed' WHERE run_id = :run",
            f"{Code.INVARIANT_BROKEN}: operation {{operation}} has no reserved ticket to consume [",
        ),
        (
            "DELETE FROM loop_ticket WHERE run_id = :run",
            f"{Code.INVARIANT_BROKEN}: operation {{operation}} has no reserved ticket to consume [",
        ),
        (
            "UPDATE operation SET status = 'attempting' WHERE run_id = :run",
            f"{Code.INVARIANT_BROKEN}: node {{node}} has no completed operation to accept [",
        ),
    ],
    ids=["consumed", "no ticket", "not completed"],
)
def test_C10_an_answer_that_is_accepted_already_or_was_never_whole_is_parked_and_not_appended(
    database_url: str, harm: str, evidence: str, tool_calls: list[tuple[str, object]]
) -> None:
    with dev_model(*_two_turns("a", "b")) as model, simulated(database_url, settings=ONE_BY_ONE) as worker:
        ports = worker.ports
        run_id = ask(ports, http_release(model, ECHO))
        worker.drive(until=lambda: bool(rows(ports, run_id, "accept_model")))
        assert execute(ports, harm, run=run_id) == 1
        (row,) = rows(ports, run_id, "accept_model")
        assert worker.runner.run(row.dispatch_id)
        (row,) = rows(ports, run_id, "accept_model")
        (operation,) = model_operations(ports, run_id)
        assert row.parked_at is not None and row.last_error is not None
        assert row.last_error.startswith(evidence.format(operation=operation.operation_id, node=operation.node_id))
        assert kinds(ports, run_id) == ["prompt", "user_ref"]
        assert (_batches(ports, run_id), tool_calls, len(model.requests)) == ([], [], 1)


def test_C10_repeated_wake_ups_of_an_accept_append_once_and_cost_one_ticket(
    database_url: str, tool_calls: list[tuple[str, object]]
) -> None:
    with dev_model(*_two_turns("a", "b")) as model, simulated(database_url, settings=ONE_BY_ONE) as worker:
        run_id = ask(worker.ports, http_release(model, ECHO))
        worker.drive(until=lambda: bool(rows(worker.ports, run_id, "accept_model")))
        (row,) = rows(worker.ports, run_id, "accept_model")
        assert sorted(_at_once(worker, row.dispatch_id, 8)) == [False] * 7 + [True]
        assert not any(_at_once(worker, row.dispatch_id, 8))
        assert kinds(worker.ports, run_id) == ["prompt", "user_ref", "assistant"]
        assert _tickets(worker.ports, run_id) == [(1, "consumed")]
        worker.drive()
        _assert_one_of_each(worker.ports, run_id, len(model.requests))
        assert sorted(tool_calls) == [("echo", "a"), ("echo", "b")]


def _at_once(worker: Worker, dispatch_id: DispatchId, count: int) -> list[bool]:
    """Wake so many threads up for one row at the same moment; which of them had it."""
    barrier = threading.Barrier(count)
    results: list[bool] = []

    def wake() -> None:
        barrier.wait(10)
        results.append(worker.runner.run(dispatch_id))

    threads = [threading.Thread(target=wake) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == count
    return results


def test_C10_an_accept_that_was_taken_over_meanwhile_writes_nothing(database_url: str) -> None:
    with dev_model(*_two_turns("a", "b")) as model, simulated(database_url, settings=ONE_BY_ONE) as slow:
        run_id = ask(slow.ports, http_release(model, ECHO))
        slow.drive(until=lambda: bool(rows(slow.ports, run_id, "accept_model")))
        other = make_worker(database_url, clock=slow.clock, settings=ONE_BY_ONE)

        def take_over() -> None:
            other.drive()
            assert run_of(other.ports, run_id).status is RunStatus.SUCCEEDED

        with at_fault("commit.before", "accept_model", take_over) as hits:
            slow.drive()
        other.close()
        # The slow one, its successor's two, and no more: what it had built was refused, not built again.
        assert len(hits) == 3
        _assert_one_of_each(slow.ports, run_id, len(model.requests))


def test_C11_results_in_reverse_order_stand_in_the_order_of_the_calls(database_url: str) -> None:
    tools.forget()
    calls = [{"name": "gated", "arguments": {"name": name}} for name in ("first", "second")]
    turns = {"when": {"assistant_turns": 0}, "answer": {"tool_calls": calls}}, {"answer": {"text": "done"}}
    with dev_model(*turns) as model, dispatching(database_url) as dispatcher:
        ports = dispatcher.ports
        run_id = ask(ports, http_release(model, GATED))
        assert tools.entered("first").wait(30) and tools.entered("second").wait(30)
        tools.gate("second").set()
        wait_for(lambda: _batches(ports, run_id) == [(2, 1, "open")], "the second call has settled alone")
        assert len(model.requests) == 1
        assert kinds(ports, run_id) == ["prompt", "user_ref", "assistant"]
        assert rows(ports, run_id, "deliver_batch") == []
        tools.gate("first").set()
        wait_for(over(ports, run_id), "the run is over")
        settled = [event.fields["ordinal"] for event in ports.store.list_events(run_id) if event.kind == "call.settled"]
        assert settled == [1, 0]
        assert tool_texts(frozen_requests(ports, run_id)[-1]) == ["passed first", "passed second"]
        _assert_one_of_each(ports, run_id, len(model.requests))


def test_C11_a_repeated_delivery_adds_nothing(database_url: str) -> None:
    with dev_model(*_two_turns("a", "b")) as model, simulated(database_url, settings=ONE_BY_ONE) as worker:
        run_id = ask(worker.ports, http_release(model, ECHO))
        worker.drive(until=lambda: bool(rows(worker.ports, run_id, "deliver_batch")))
        (row,) = rows(worker.ports, run_id, "deliver_batch")
        assert sorted(_at_once(worker, row.dispatch_id, 4)) == [False] * 3 + [True]
        delivered = kinds(worker.ports, run_id)
        assert delivered == ["prompt", "user_ref", "assistant", "tool_result", "tool_result"]
        assert not any(_at_once(worker, row.dispatch_id, 4))
        assert kinds(worker.ports, run_id) == delivered
        worker.drive()
        _assert_one_of_each(worker.ports, run_id, len(model.requests))


def test_W02_three_results_that_end_in_reverse_are_adjacent_in_order_and_the_same_bytes_again(
    database_url: str,
) -> None:
    tools.forget()
    names = ["A", "B", "C"]
    calls = [{"name": "gated", "arguments": {"name": name}} for name in names]
    turns = {"when": {"assistant_turns": 0}, "answer": {"tool_calls": calls}}, {"answer": {"text": "done"}}
    with dev_model(*turns) as model, dispatching(database_url) as dispatcher:
        ports = dispatcher.ports
        run_id = ask(ports, http_release(model, GATED))
        for left, name in zip((2, 1, 0), reversed(names), strict=True):
            assert tools.entered(name).wait(30)
            tools.gate(name).set()
            if left:
                wait_for(partial(_has_settled, ports, run_id, 3 - left), f"{name} has settled")
        wait_for(over(ports, run_id), "the run is over")
        first, second = frozen_requests(ports, run_id)
        assert tool_texts(second) == ["passed A", "passed B", "passed C"]
        assert [message["role"] for message in second["messages"][-4:]] == ["assistant", "tool", "tool", "tool"]
        assert_paired(second)
        assert frozen_requests(ports, run_id) == [first, second]
        sent = [request.body for request in model.requests]
        assert sent == frozen_bodies(ports, run_id)
