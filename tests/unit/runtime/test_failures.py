"""What goes wrong around a run, and how it ends all the same."""

from pathlib import Path

import pytest

from agentloom_worker import faults
from agentloom_worker.domain.run import Continuation, RunStatus
from agentloom_worker.domain.session import Session
from agentloom_worker.errors import InvariantError, RequestError
from agentloom_worker.ids import RunId, SessionId
from agentloom_worker.llm.adapters.scripted import TextTurn
from agentloom_worker.runtime.accept import accept_question, stop_run
from agentloom_worker.runtime.publish import publish_release
from agentloom_worker.storage.schema import migrate
from tests.factories import release_document, run_of_receipt
from tests.simulator import Worker, make_worker


def _asked(tmp_path: Path, limits: dict[str, int]) -> tuple[Worker, Session, RunId]:
    url = f"sqlite:///{tmp_path / 'store.sqlite'}"
    migrate(url)
    worker = make_worker(url, scripts={"main": lambda _request: TextTurn("done")})
    publish_release(worker.ports, release_document(agent={"limits": limits}))
    owner = worker.ports.store.find_owner("assistant")
    assert owner is not None
    session_id = SessionId(worker.ports.ids.new())
    worker.ports.store.open_session(session_id, owner)
    session = worker.ports.store.load_session(session_id)
    assert session is not None
    return worker, session, run_of_receipt(accept_question(worker.ports, session, "hello?", None, "key"))


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_step_that_raises_is_parked_after_the_attempts_of_its_release(tmp_path: Path, attempts: int) -> None:
    worker, _, run_id = _asked(tmp_path, {"max_step_attempts": attempts})
    raised: list[str] = []

    def trigger(point: str, step: str) -> None:
        if (point, step) == ("step.loaded", "prepare_context"):
            raised.append(point)
            raise ValueError("a bug of ours")

    faults.install(trigger)
    try:
        worker.drive(until=lambda: bool(worker.ports.store.list_dispatches(run_id=run_id, parked_only=True)))
    finally:
        faults.install(None)
        worker.close()
    assert len(raised) == attempts


def test_a_run_whose_rows_cannot_be_read_is_stopped_all_the_same(tmp_path: Path) -> None:
    worker, _, run_id = _asked(tmp_path, {})
    with worker.ports.store.driver.engine.begin() as conn:
        conn.exec_driver_sql("UPDATE node_task SET continuation = x'7b'")
    receipt = stop_run(worker.ports, run_id)
    assert (receipt.applied, receipt.status, receipt.end_cause) == (True, "stopping", "stop")
    assert [row.step for row in worker.ports.store.list_dispatches(run_id=run_id)] == ["finalize_run"]
    worker.drive()
    run = worker.ports.store.load_run(run_id)
    assert run is not None
    assert (run.status, worker.ports.store.list_dispatches()) == (RunStatus.CANCELLED, [])
    worker.close()


@pytest.mark.parametrize("text", ["", " \n\t", "\u3000"])
def test_a_blank_question_is_refused_and_leaves_the_session_free(tmp_path: Path, text: str) -> None:
    worker, session, run_id = _asked(tmp_path, {})
    worker.drive()
    with pytest.raises(RequestError, match="INPUT_INVALID"):
        accept_question(worker.ports, session, text, None, "blank")
    assert accept_question(worker.ports, session, "and now?", None, "blank").run_id != run_id
    worker.close()


def test_a_continuation_of_another_version_is_refused() -> None:
    with pytest.raises(InvariantError, match="version 2"):
        Continuation.from_bytes(b'{"v":2,"loop":1,"cutoff":1}')
