"""How often a step may raise before it is parked is the release's to say."""

from pathlib import Path
from typing import Any

import pytest

from agentloom_worker import faults
from agentloom_worker.domain.run import Continuation
from agentloom_worker.errors import InvariantError
from agentloom_worker.ids import SessionId
from agentloom_worker.llm.adapters.scripted import TextTurn
from agentloom_worker.runtime.accept import accept_question
from agentloom_worker.runtime.publish import publish_release
from agentloom_worker.storage.schema import migrate
from tests.factories import release_document
from tests.simulator import make_worker


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_step_that_raises_is_parked_after_the_attempts_of_its_release(tmp_path: Path, attempts: int) -> None:
    url = f"sqlite:///{tmp_path / 'store.sqlite'}"
    migrate(url)
    worker = make_worker(url, scripts={"main": lambda _request: TextTurn("done")})
    publish_release(worker.ports, release_document(agent={"limits": {"max_step_attempts": attempts}}))
    owner = worker.ports.store.find_owner("assistant")
    assert owner is not None
    session_id = SessionId(worker.ports.ids.new())
    worker.ports.store.open_session(session_id, owner)
    session: Any = worker.ports.store.load_session(session_id)
    run_id = accept_question(worker.ports, session, "hello?", None, "key").run_id
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


def test_a_continuation_of_another_version_is_refused() -> None:
    with pytest.raises(InvariantError, match="version 2"):
        Continuation.from_bytes(b'{"v":2,"loop":1,"cutoff":1}')
