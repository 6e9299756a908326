"""Commands over the broker: receipts, repetitions and refusals."""

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from agentloom_worker.bootstrap import migrate_database
from agentloom_worker.errors import PersistenceUnavailableError, RequestError
from agentloom_worker.runtime.command import run_command
from tests.factories import release_document
from tests.simulator import Worker, make_worker

SESSION = str(UUID(int=7))


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    url = f"sqlite:///{tmp_path}/store.sqlite"
    migrate_database(url)
    made = make_worker(url)
    yield made
    made.close()


def run(worker: Worker, name: str, **fields: object):
    reply, _ = run_command(worker.ports, name, {"v": 1, "key": "k", **fields})
    return reply


def ready(worker: Worker) -> None:
    assert run(worker, "publish_release", document=release_document()).ok
    assert run(worker, "open_session", agent_id="assistant", session_id=SESSION).ok


def test_R6_a_repeated_command_gives_the_first_receipt(worker: Worker) -> None:
    ready(worker)
    for name, fields in (
        ("publish_release", {"document": release_document()}),
        ("open_session", {"agent_id": "assistant", "session_id": SESSION}),
        ("submit_input", {"session_id": SESSION, "text": "hello"}),
        ("submit_input", {"session_id": SESSION, "text": "more", "kind": "supplement", "key": "s"}),
        ("submit_input", {"session_id": SESSION, "text": "and more", "kind": "send", "key": "t"}),
    ):
        first, second = run(worker, name, **fields), run(worker, name, **fields)
        assert first.ok and first == second, name
    assert len(worker.ports.store.list_runs()) == 1


def test_the_reply_queue_comes_back_with_the_reply(worker: Worker) -> None:
    document = {"key": "k", "reply_to": "mine", "document": release_document()}
    reply, reply_to = run_command(worker.ports, "publish_release", document)
    assert reply.ok and reply_to == "mine"
    refused, reply_to = run_command(worker.ports, "publish_release", {"key": "k", "reply_to": "mine", "later": 1})
    assert (refused.ok, refused.code, reply_to) == (False, "INPUT_INVALID", "mine")
    assert "/document" in (refused.message or "") and "/later" in (refused.message or "")


def test_what_is_wrong_with_a_command_is_its_reply(worker: Worker) -> None:
    ready(worker)
    unknown = str(UUID(int=9))
    for name, fields, code in (
        ("open_session", {"agent_id": "nobody", "session_id": unknown}, "AGENT_NOT_FOUND"),
        ("submit_input", {"session_id": unknown, "text": "hello"}, "SESSION_NOT_FOUND"),
        ("submit_input", {"session_id": SESSION, "text": "hello", "release_id": unknown}, "RELEASE_NOT_FOUND"),
        ("stop_run", {"run_id": unknown}, "RUN_NOT_FOUND"),
        ("publish_release", {"document": {"schema_version": 1}}, "RELEASE_INVALID"),
        ("open_session", {"agent_id": "no\0body", "session_id": unknown}, "INPUT_INVALID"),
        ("open_session", {"agent_id": "\ud800", "session_id": unknown}, "INPUT_INVALID"),
        ("submit_input", {"session_id": "no id", "text": "hello"}, "INPUT_INVALID"),
        ("submit_input", {"session_id": SESSION, "text": "hello", "v": 2}, "INPUT_INVALID"),
    ):
        reply = run(worker, name, **fields)
        assert (reply.ok, reply.code) == (False, code), name


def test_a_session_of_another_agent_is_not_given_away(worker: Worker) -> None:
    ready(worker)
    assert run(worker, "publish_release", document=release_document(agent={"id": "other"})).ok
    assert run(worker, "open_session", agent_id="other", session_id=SESSION).code == "IDEMPOTENCY_CONFLICT"


@pytest.mark.parametrize("document", [None, [], "words", {}, {"key": ""}, {"key": 5}])
def test_a_command_without_a_key_cannot_be_answered(worker: Worker, document: object) -> None:
    with pytest.raises(RequestError):
        run_command(worker.ports, "submit_input", document)


def test_a_reply_queue_that_is_no_name_is_not_used(worker: Worker) -> None:
    reply, reply_to = run_command(worker.ports, "stop_run", {"key": "k", "reply_to": "a queue; of mine"})
    assert (reply.ok, reply_to) == (False, None)


def test_a_store_that_is_away_leaves_no_reply_so_the_sender_repeats(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_args: object) -> None:
        raise PersistenceUnavailableError("away")

    monkeypatch.setattr(worker.ports.store, "find_owner", away)
    with pytest.raises(PersistenceUnavailableError):
        run(worker, "open_session", agent_id="assistant", session_id=SESSION)


def test_R6_inputs_go_where_the_session_lets_them(worker: Worker) -> None:
    assert run(worker, "publish_release", document=release_document()).ok
    opened = {"agent_id": "assistant", "session_id": SESSION, "on_busy": "enqueue"}
    assert run(worker, "open_session", **opened).receipt == opened
    assert run(worker, "open_session", **(opened | {"on_busy": "reject"})).code == "IDEMPOTENCY_CONFLICT"
    waiting = run(worker, "submit_input", session_id=SESSION, text="early", kind="supplement", key="1")
    asked = run(worker, "submit_input", session_id=SESSION, text="first", key="2")
    taken = run(worker, "submit_input", session_id=SESSION, text="more", kind="send", key="3")
    queued = run(worker, "submit_input", session_id=SESSION, text="second", key="4")
    told = [
        (reply.receipt["kind"], reply.receipt["state"], reply.receipt["run_id"])
        for reply in (waiting, asked, taken, queued)
    ]
    run_id = asked.receipt["run_id"]
    assert told == [
        ("supplement", "pending_next_run", None),
        ("question", "pending", run_id),
        ("supplement", "pending", run_id),
        ("question", "queued", None),
    ]
    again = run(worker, "submit_input", session_id=SESSION, text="early", kind="supplement", key="1")
    assert (again.receipt["state"], again.receipt["run_id"]) == ("pending", run_id), "it was bound meanwhile"

    back = {"session_id": SESSION, "input_id": queued.receipt["input_id"]}
    first, second = run(worker, "withdraw_input", **back, key="5"), run(worker, "withdraw_input", **back, key="6")
    assert first.receipt == second.receipt
    assert first.receipt["state"] == "withdrawn"
    refused = run(worker, "withdraw_input", session_id=SESSION, input_id=asked.receipt["input_id"])
    assert refused.code == "INPUT_NOT_QUEUED"
    assert run(worker, "withdraw_input", session_id=SESSION, input_id=str(UUID(int=9))).code == "INPUT_NOT_FOUND"
    named = run(worker, "submit_input", session_id=SESSION, text="x", kind="supplement", release_id=SESSION, key="7")
    assert named.code == "INPUT_INVALID"
