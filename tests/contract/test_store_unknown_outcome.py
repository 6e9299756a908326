"""A commit whose answer was lost is applied exactly once (RULINGS T6)."""

import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy.engine import make_url

from agentloom_worker import telemetry
from agentloom_worker.domain.commit import Event, Put, RuntimeCommit
from agentloom_worker.domain.run import Phase, RunStatus
from agentloom_worker.errors import PersistenceUnavailableError
from agentloom_worker.ids import ClaimToken, SessionId
from agentloom_worker.runtime.accept import stop_run
from agentloom_worker.runtime.commit import commit
from agentloom_worker.runtime.parking import retry_parked
from agentloom_worker.storage import postgres
from agentloom_worker.storage.store import open_store
from tests.ground import STEPWISE, Ground, ask, dump, open_session, stand, step_commit
from tests.locks import Running, Session, holding, wait_for_waiters
from tests.proxy import Loss, Proxy

_HOLD_RUN = "SELECT 1 FROM run WHERE run_id = %s FOR NO KEY UPDATE"


@pytest.fixture
def proxy(clean_postgres: str) -> Iterator[Proxy]:
    """A proxy in front of the database."""
    with closing(Proxy(clean_postgres)) as made:
        yield made


def _commit_of(ground: Ground) -> RuntimeCommit:
    node = ground.slice().node
    put = Put(node, replace(node, revision=node.revision + 1))
    return step_commit(ground, ground.claim("attempt_model"), puts=(put,), events=(Event("model.completed"),))


@pytest.mark.parametrize("loss", Loss)
def test_T6_a_commit_is_applied_once_whatever_the_connection_loses(proxy: Proxy, loss: Loss) -> None:
    ground = stand(proxy.url, until=Phase.AWAIT_MODEL)
    todo = _commit_of(ground)
    events = len(ground.store.list_events(ground.run_id))
    proxy.lose(loss, b"EXECUTE dispatch_consume")

    receipt = commit(ground.ports, todo, ground.process_id)
    assert proxy.lost == 1
    assert receipt is not None
    assert (receipt.status, receipt.event_head) == (RunStatus.RUNNING, events + 1)
    assert len(ground.store.list_events(ground.run_id)) == events + 1
    after = dump(ground.store)
    assert commit(ground.ports, todo, ground.process_id) == receipt
    assert dump(ground.store) == after


@pytest.mark.parametrize("loss", Loss)
def test_T6_a_question_is_accepted_once_whatever_the_connection_loses(proxy: Proxy, loss: Loss) -> None:
    ground = stand(proxy.url)
    session_id = open_session(ground.worker)
    proxy.lose(loss, b"EXECUTE run_insert")

    receipt = ask(ground.worker, session_id)
    assert proxy.lost == 1
    assert [run.run_id for run in ground.store.list_runs(session_id=session_id)] == [receipt.run_id]
    assert ask(ground.worker, session_id) == receipt


@pytest.mark.parametrize("loss", Loss)
def test_T6_a_stop_is_applied_once_and_its_receipt_says_so(proxy: Proxy, loss: Loss) -> None:
    ground = stand(proxy.url, until=Phase.AWAIT_MODEL)
    proxy.lose(loss, b"EXECUTE run_stop")

    receipt = stop_run(ground.ports, ground.run_id)
    assert proxy.lost == 1
    assert (receipt.applied, receipt.status) == (True, "stopping")
    assert ground.slice().run.epoch == 2


@pytest.mark.parametrize("loss", Loss)
def test_T7_a_claim_that_was_sent_again_counts_once(proxy: Proxy, loss: Loss) -> None:
    ground = stand(proxy.url)
    proxy.lose(loss, b"EXECUTE dispatch_claim")

    claim = ground.claim("prepare_context")
    assert proxy.lost == 1
    assert (claim.attempts, claim.first) == (1, True)
    assert ground.store.load_tokens([claim.dispatch_id]) == {claim.dispatch_id: ClaimToken(claim.token)}


@pytest.mark.parametrize("loss", Loss)
def test_a_session_is_opened_once_whatever_the_connection_loses(proxy: Proxy, loss: Loss) -> None:
    ground = stand(proxy.url)
    session_id = SessionId(ground.new())
    proxy.lose(loss, b"EXECUTE session_insert")

    ground.store.open_session(session_id, ground.slice().run.owner_id)
    assert proxy.lost == 1
    assert ground.store.load_session(session_id) is not None


@pytest.mark.parametrize("loss", Loss)
def test_T6_an_event_that_no_step_carries_is_written_once_whatever_the_connection_loses(
    proxy: Proxy, loss: Loss
) -> None:
    ground = stand(proxy.url, until=Phase.AWAIT_MODEL)
    before = len(ground.store.list_events(ground.run_id))
    key = f"parked:{ground.new()}"
    proxy.lose(loss, b"EXECUTE event_insert")

    ground.store.note_event(ground.run_id, key, "step.parked", {"step": "attempt_model"})
    assert proxy.lost == 1
    events = ground.store.list_events(ground.run_id)
    assert [event.kind for event in events[before:]] == ["step.parked"]
    assert ground.slice().run.event_head == before + 1
    ground.store.note_event(ground.run_id, key, "step.parked", {"step": "attempt_model"})
    assert ground.store.list_events(ground.run_id) == events


@pytest.mark.parametrize("loss", Loss)
def test_U13_a_retry_says_that_it_was_done_whatever_the_connection_loses(proxy: Proxy, loss: Loss) -> None:
    ground = stand(proxy.url)
    claim = ground.claim("prepare_context")
    ground.store.park(claim, "why")
    proxy.lose(loss, b"EXECUTE dispatch_retry")

    assert retry_parked(ground.ports, claim.dispatch_id).last_error == "why"
    assert proxy.lost == 1
    (found,) = [row for row in ground.store.list_dispatches() if row.dispatch_id == claim.dispatch_id]
    assert (found.parked_at, found.attempts) == (None, 0)


def test_T6_a_backend_that_is_killed_in_the_middle_of_a_commit_is_replaced(clean_postgres: str) -> None:
    ground = stand(clean_postgres, until=Phase.AWAIT_MODEL)
    todo = _commit_of(ground)
    resent = telemetry.counters().get("commit_resent", 0)
    with holding(clean_postgres, _HOLD_RUN, ground.run_id) as lock:
        running = Running(commit, ground.ports, todo, ground.process_id)
        (backend,) = wait_for_waiters(clean_postgres)
        with closing(Session(clean_postgres)) as killer:
            assert killer.run("SELECT pg_terminate_backend(%s::int, 5000)", backend) == [(True,)]
        (again,) = wait_for_waiters(clean_postgres)
        assert again != backend
        lock.rollback()
        receipt = running.result()

    assert receipt is not None
    assert telemetry.counters()["commit_resent"] > resent
    assert len(ground.store.list_events(ground.run_id)) == receipt.event_head
    assert commit(ground.ports, todo, ground.process_id) == receipt


def test_T6_a_lock_that_is_held_too_long_is_waited_for_again_with_the_same_bytes(clean_postgres: str) -> None:
    ground = stand(clean_postgres, until=Phase.AWAIT_MODEL)
    todo = _commit_of(ground)
    resent = telemetry.counters().get("commit_resent", 0)
    with holding(clean_postgres, _HOLD_RUN, ground.run_id) as lock:
        running = Running(commit, ground.ports, todo, ground.process_id)
        (backend,) = wait_for_waiters(clean_postgres)
        with closing(Session(clean_postgres)) as other:
            # As statement_timeout and lock_timeout do: rolled back, the connection lives on.
            assert other.run("SELECT pg_cancel_backend(%s::int)", backend) == [(True,)]
        lock.rollback()
        assert running.result() is not None
    assert telemetry.counters()["commit_resent"] > resent


def test_a_database_that_is_away_is_unavailable_in_every_way_of_asking_it(
    clean_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = stand(clean_postgres, until=Phase.AWAIT_MODEL)
    todo = _commit_of(ground)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    away = make_url(clean_postgres).set(port=port).render_as_string(hide_password=False)
    monkeypatch.setattr(postgres, "COMMIT_RESENDS_MAX", 2)
    with closing(open_store(away, ground.clock)) as store:
        with pytest.raises(PersistenceUnavailableError):
            store.commit(todo, ground.process_id, STEPWISE.claim_ttl_us)
        with pytest.raises(PersistenceUnavailableError):
            store.load_run(ground.run_id)
        with pytest.raises(PersistenceUnavailableError):
            store.sweep(low_us=0, batch=1, grace_us=1, ttl_us=1, again_us=1, again_max_us=1, losses_before_solitary=2)
        with pytest.raises(PersistenceUnavailableError):
            store.check_schema()
