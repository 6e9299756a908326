"""A fleet of real Celery workers on real servers: whatever is lost, doubled, killed or drained, runs end right."""

import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentloom_worker.broker.commands import CommandSender
from agentloom_worker.broker.publisher import Message
from agentloom_worker.devmodel import DevModel, Outcome
from agentloom_worker.domain.dispatch import DispatchRow, WakeUp
from agentloom_worker.ids import ClaimToken, ProcessId, RunId
from agentloom_worker.runtime.connection import endpoint_of
from agentloom_worker.wire.command import OpenSession, PublishRelease, StopRun, SubmitInput, WithdrawInput
from tests.acceptance.harness import ask, dev_model, http_release, run_of, wait_for
from tests.brokers import Broker
from tests.databases import connect
from tests.factories import python_tool
from tests.fleet import ROOT, STEPS, Fleet, open_fleet
from tests.servers import PostgresServer, RedisServer

CALL = {"answer": {"tool_calls": [{"name": "echo", "arguments": {"text": "{{last_user_text}}"}}]}}
FINAL = {"answer": {"text": "{{first_user_text}} said {{tool_result:echo}}"}}
ONE_ANSWER = {"when": {"user_text_contains": "one answer"}, "answer": {"text": "done"}}
HELD = {
    "when": {"user_text_contains": "held", "assistant_turns": 1},
    "answer": {"text": "a long answer that is held", "hold": {"gate": "go", "after_chunks": 1}, "chunk_chars": 4},
}


@pytest.fixture(scope="module")
def model() -> Iterator[DevModel]:
    with dev_model(HELD, ONE_ANSWER, {"when": {"assistant_turns": 0}, **CALL}, FINAL) as served:
        yield served


@pytest.fixture
def fleet(
    postgres_server: PostgresServer, postgres_url: str, redis_server: RedisServer, redis_prefix: str, tmp_path: Path
) -> Iterator[Fleet]:
    """A fleet of this test's own; workers import for a second or two, so tests share what they can."""
    with open_fleet(postgres_url, redis_server.url, tmp_path, key_prefix=redis_prefix) as opened:
        yield opened


@pytest.fixture
def any_fleet(postgres_url: str, broker: Broker, tmp_path: Path) -> Iterator[Fleet]:
    """The same on each broker in turn."""
    with open_fleet(
        postgres_url, broker.url, tmp_path, key_prefix=broker.key_prefix, queue_prefix=broker.queue_prefix
    ) as opened:
        yield opened


def question(fleet: Fleet, model: DevModel, text: str) -> RunId:
    return ask(fleet.ports, http_release(model, {"echo": python_tool()}), text)


def wait_for_ends(fleet: Fleet, runs: list[RunId]) -> None:
    def ended() -> bool:
        return all(found.status.terminal for run in runs if (found := fleet.ports.store.load_run(run)))

    wait_for(ended, f"{len(runs)} runs end")
    # The clean-up after the end is a row as well.
    wait_for(lambda: not fleet.ports.store.list_dispatches(), "no row is left")


def assert_right(fleet: Fleet, runs: list[RunId], *, attempts: int | None = 3) -> None:
    """Succeeded, with each effect's attempts and their results once."""
    for run in runs:
        found = fleet.ports.store.load_run(run)
        assert found is not None
        assert found.status == "succeeded", (found.end_code, found.end_detail, fleet.processes[0].tail())
        operations = fleet.ports.store.list_operations(run)
        assert [operation.status for operation in operations] == ["completed"] * 3
        if attempts is not None:
            assert sum(operation.attempts_made for operation in operations) == attempts


def silent(fleet: Fleet) -> Fleet:
    """The same database for an asker whose wake-ups nobody hears."""
    fleet.made.relay.publish = lambda due: None  # type: ignore[method-assign]
    return fleet


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_tools_beside_the_deployment_are_found_by_its_workers(
    fleet: Fleet, model: DevModel, pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.deployment = tmp_path / "deployment"
    for name in ("config", "tasks"):
        shutil.copytree(ROOT / name, fleet.deployment / name, ignore=shutil.ignore_patterns("__pycache__"))
    module = f"beside_{pool}"
    (fleet.deployment / f"{module}.py").write_text('def echo(text: str) -> str:\n    return f"beside {text}"\n')
    monkeypatch.syspath_prepend(fleet.deployment)
    release = http_release(model, {"echo": {**python_tool(), "handler": f"{module}:echo"}})
    fleet.worker(pool=pool, slots=2)
    runs = [ask(fleet.ports, release, "who")]
    wait_for_ends(fleet, runs)
    assert_right(fleet, runs)


def test_D06_duplicate_and_foreign_messages_change_nothing_and_all_runs_end_right(
    fleet: Fleet, model: DevModel, redis_server: RedisServer
) -> None:
    everything = fleet.worker(f"{STEPS},commands")
    fleet.worker("control", slots=2)
    runs = [question(fleet, model, f"question {number}") for number in range(20)]
    send = fleet.made.publisher.send
    rows = fleet.ports.store.list_dispatches()
    for _ in range(10):
        fleet.made.publisher.wake([WakeUp(row.dispatch_id, row.step, row.queue, 1) for row in rows])
    never = {"dispatch_id": str(fleet.ports.ids.new()), "v": 1}
    odd = [
        Message("agentloom.unheard_of", "control", never),
        Message("agentloom.prepare_context", "control", {"dispatch_id": "no id", "v": 1}),
        Message("agentloom.prepare_context", "control", {**never, "later": True}),
        Message("agentloom.submit_input", "commands", {"command": "no command"}),
        *[Message("agentloom.prepare_context", "control", never)] * 500,
    ]
    assert send(odd) == []
    wait_for_ends(fleet, runs)
    assert_right(fleet, runs)
    # Every message was taken, none came back.
    wait_for(lambda: not any(fleet.made.publisher.backlog(queue) for queue in ("control", "commands")), "queues empty")
    assert len(everything.lines("task_unknown")) + len(fleet.processes[1].lines("task_unknown")) == 1
    assert [handle.end() for handle in fleet.processes] == [0, 0]
    assert fleet.ports.store.list_workers() == []


# Headers and bodies of strangers: (body, headers), sent as JSON.
WORDS = "the words of a user"
COMMAND = {"command": {"key": "k", "text": WORDS}}
TASK = {"lang": "py", "task": "agentloom.submit_input", "id": "1", "root_id": "1", "parent_id": None}
STRANGE: list[tuple[object, dict[str, Any]]] = [
    ([[], COMMAND, {}], {**TASK, "task": "agentloom.submit_inputs"}),
    ([[], COMMAND, {}], {**TASK, "task": ["agentloom.submit_input"]}),
    ([[], COMMAND, {}], {"task": "agentloom.submit_input"}),
    ([[], COMMAND, {}], {**TASK, "eta": "never"}),
    ([[], COMMAND, {}], {**TASK, "timelimit": "short"}),
    (WORDS, TASK),
    ({"text": WORDS}, {}),
    ({"task": "agentloom.submit_input", "id": "1", "args": 5, "kwargs": WORDS}, {}),
    ({"task": [WORDS], "id": "1", "args": [], "kwargs": {}}, {}),
]


def test_D06_a_message_of_no_known_form_is_dropped_without_its_words_and_ends_no_worker(
    any_fleet: Fleet, model: DevModel
) -> None:
    fleet = any_fleet
    worker = fleet.worker(f"{STEPS},commands")
    address = fleet.made.publisher.address
    with address.publish_connection(5) as connection:
        # RabbitMQ drops what comes before the queue is there.
        address.queue("commands")(connection.default_channel).declare()
        producer = connection.Producer(auto_declare=False)
        for body, headers in STRANGE:
            producer.publish(
                body, exchange="", routing_key=address.name("commands"), serializer="json", headers=headers
            )
        producer.publish(
            WORDS, exchange="", routing_key=address.name("commands"), content_type="application/x-yaml", headers=TASK
        )
    wait_for(lambda: len(worker.lines("message_rejected")) == len(STRANGE), "all but the unknown task are rejected")
    wait_for(lambda: len(worker.lines("task_unknown")) == 1, "the unknown task is named")
    assert fleet.made.publisher.backlog("commands") == 0
    run = question(fleet, model, "after all that")
    wait_for_ends(fleet, [run])
    assert_right(fleet, [run])
    assert worker.end() == 0
    assert WORDS not in worker.log.read_text()


def test_D10_a_row_of_another_version_is_put_back_and_runs_when_somebody_knows_it(
    fleet: Fleet, model: DevModel
) -> None:
    run = question(silent(fleet), model, "newer")
    (row,) = [row for row in fleet.ports.store.list_dispatches() if row.step == "prepare_context"]
    with closing(connect(fleet.ports.store.url)) as conn, conn.cursor() as cursor:
        cursor.execute("UPDATE pending_dispatch SET step_version = 2 WHERE dispatch_id = %s", (str(row.dispatch_id),))
        conn.commit()
    fleet.worker()

    def put_back() -> bool:
        (found,) = [found for found in fleet.ports.store.list_dispatches() if found.dispatch_id == row.dispatch_id]
        assert found.parked_at is None and found.failures == 0 and found.losses == 0
        return found.last_error == "unknown step prepare_context v2" and found.attempts == 0

    wait_for(put_back, "the older worker puts the row back")
    with closing(connect(fleet.ports.store.url)) as conn, conn.cursor() as cursor:
        cursor.execute("UPDATE pending_dispatch SET step_version = 1 WHERE dispatch_id = %s", (str(row.dispatch_id),))
        conn.commit()
    wait_for_ends(fleet, [run])
    assert_right(fleet, [run])


def test_D19_no_beat_one_and_two_recover_a_dead_process_row_the_same(fleet: Fleet, model: DevModel) -> None:
    outcomes = []
    worker = fleet.worker()
    for beats in range(3):
        if beats:
            fleet.beat()
        # Nobody may be quicker than the process that dies.
        worker.send(signal.SIGSTOP)
        run = question(silent(fleet), model, f"under {beats} beats")
        row = next(row for row in fleet.ports.store.list_dispatches(run_id=run) if row.step == "prepare_context")
        # A claim that nobody renews is all that a killed process leaves behind.
        claim = fleet.ports.store.claim(
            row.dispatch_id,
            ClaimToken(fleet.ports.ids.token()),
            ProcessId(fleet.ports.ids.new()),
            ttl_us=fleet.ports.settings.claim_ttl_us,
            grace_us=fleet.ports.settings.grace_us,
            solitary=False,
        )
        assert claim is not None
        worker.send(signal.SIGCONT)
        wait_for_ends(fleet, [run])
        assert_right(fleet, [run])
        operations = fleet.ports.store.list_operations(run)
        outcomes.append([(operation.kind, operation.attempts_made) for operation in operations])
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert [handle.end() for handle in fleet.processes] == [0, 0, 0]


def test_D20_with_a_dead_broker_every_step_still_runs(
    postgres_url: str, redis_prefix: str, tmp_path: Path, model: DevModel
) -> None:
    with socket.socket() as closed:
        # Bound and not listening: every connection is refused for as long as the test runs.
        closed.bind(("127.0.0.1", 0))
        broker = f"redis://127.0.0.1:{closed.getsockname()[1]}/0"
        with open_fleet(postgres_url, broker, tmp_path, key_prefix=redis_prefix) as fleet:
            worker = fleet.worker()
            runs = [question(fleet, model, f"unheard {number}") for number in range(5)]
            wait_for_ends(fleet, runs)
            assert_right(fleet, runs)
            assert worker.end() == 0


def test_D08_a_worker_that_is_ended_as_soon_as_it_has_begun_says_farewell_like_any_other(fleet: Fleet) -> None:
    # It serves before Celery listens to signals: the moment between is met with some luck only, hence three.
    for _ in range(3):
        worker = fleet.worker(ready="")
        wait_for(lambda: bool(fleet.ports.store.list_workers()), "it has said that it is there")
        assert worker.end(signal.SIGTERM) == 0, worker.tail()
        assert worker.lines("process_left")
        assert fleet.ports.store.list_workers() == []


def test_prefork_children_serve_and_drain_and_a_solitary_worker_takes_what_others_must_not(
    fleet: Fleet, model: DevModel
) -> None:
    model.clear()
    fleet.worker(pool="prefork", slots=2)
    solitary = fleet.worker("solitary", pool="prefork", slots=1)
    runs = [question(fleet, model, f"forked {number}") for number in range(4)]
    alone = question(silent(fleet), model, "alone")
    with closing(connect(fleet.ports.store.url)) as conn, conn.cursor() as cursor:
        cursor.execute(
            "UPDATE pending_dispatch SET queue = 'solitary' WHERE run_id = %s AND step = 'prepare_context'"
            " AND claim_token IS NULL",
            (str(alone),),
        )
        moved = cursor.rowcount
        conn.commit()
    wait_for_ends(fleet, [*runs, alone])
    assert_right(fleet, [*runs, alone])
    if moved:
        assert [line["run_id"] for line in solitary.lines("step_committed")] == [str(alone)]
    held = question(fleet, model, "held in a child")
    # Its first turn is open for a moment too; the second one, which shows a result, is held.
    assert model.wait_until(
        lambda seen: any(r.outcome is Outcome.OPEN and b'"tool"' in (r.body or b"") for r in seen), 60
    )
    assert [handle.end() for handle in fleet.processes] == [0, 0]
    assert not any(handle.lines("drain_overdue") for handle in fleet.processes)
    left = [row for row in fleet.ports.store.list_dispatches(run_id=held) if row.step == "attempt_model"]
    assert [(row.claimed_by, row.losses) for row in left] == [(None, 0)]
    assert fleet.ports.store.list_workers() == []


def test_a_platform_that_shares_the_broker_only_asks_and_reads_receipts(any_fleet: Fleet, model: DevModel) -> None:
    fleet = any_fleet
    fleet.worker(f"{STEPS},commands")
    with closing(CommandSender(fleet.made.publisher.address)) as platform:
        replies = f"replies-{fleet.ports.ids.new()}"
        document = http_release(model, {"echo": python_tool()})
        published = platform.ask(PublishRelease(key="p", reply_to=replies, document=document), timeout_s=60)
        assert published is not None and published.ok, published
        session = fleet.ports.ids.new()
        opening = OpenSession(key="o", reply_to=replies, agent_id="assistant", session_id=session)
        submitting = SubmitInput(key="s", reply_to=replies, session_id=session, text="over the broker")
        for command in (opening, opening, submitting):
            reply = platform.ask(command, timeout_s=60)
            assert reply is not None and reply.ok, reply
        first, second = reply, platform.ask(submitting, timeout_s=60)
        assert second is not None and first.receipt is not None and second.receipt is not None
        # Everything but where the question is by now.
        assert first.receipt | {"state": None} == second.receipt | {"state": None}
        other = SubmitInput(key="s", reply_to=replies, session_id=session, text="another question")
        refused = platform.ask(other, timeout_s=60)
        assert refused is not None and (refused.ok, refused.code) == (False, "IDEMPOTENCY_CONFLICT")
        asked = first.receipt["input_id"]
        withdrawing = WithdrawInput(key="w", reply_to=replies, session_id=session, input_id=asked)
        kept = platform.ask(withdrawing, timeout_s=60)
        assert kept is not None and (kept.ok, kept.code) == (False, "INPUT_NOT_QUEUED")
        run = RunId(first.receipt["run_id"])
        wait_for_ends(fleet, [run])
        assert_right(fleet, [run])
        stopped = platform.ask(StopRun(key="x", reply_to=replies, run_id=run), timeout_s=60)
        assert stopped is not None and stopped.ok and stopped.receipt["applied"] is False


def test_D16_a_worker_refuses_a_database_that_is_not_ready_and_says_why(
    postgres_server: PostgresServer, redis_server: RedisServer, redis_prefix: str, tmp_path: Path
) -> None:
    empty = postgres_server.create_database()
    with open_fleet(empty, redis_server.url, tmp_path, key_prefix=redis_prefix) as fleet:
        worker = fleet.worker(ready="")
        assert worker.exit_code() == 69
        assert [line["code"] for line in worker.lines("not_ready")] == ["SCHEMA_BEHIND"]


def test_N8_on_rabbitmq_with_quorum_queues_runs_end_right(
    postgres_url: str, rabbitmq: Broker, tmp_path: Path, model: DevModel
) -> None:
    with open_fleet(
        postgres_url, rabbitmq.url, tmp_path, key_prefix=rabbitmq.key_prefix, queue_prefix=rabbitmq.queue_prefix
    ) as fleet:
        worker = fleet.worker()
        runs = [question(fleet, model, f"question {number}") for number in range(10)]
        wait_for_ends(fleet, runs)
        assert_right(fleet, runs)
        assert worker.end() == 0


def test_requests_per_minute_are_counted_over_the_workers_of_a_fleet(fleet: Fleet, model: DevModel) -> None:
    """Two workers, three allowed, five asked: two rows wait in the table for the minute, and hold nothing."""
    allowed = {"MODEL_REQUESTS_PER_MINUTE": f"{endpoint_of(model.base_url)}=3"}
    fleet.workers(2, **allowed)
    sent = len(model.requests)
    runs = [ask(fleet.ports, http_release(model), "one answer") for _ in range(5)]
    store = fleet.ports.store

    def waiting() -> list[DispatchRow]:
        rows = [row for run in runs for row in store.list_dispatches(run_id=run) if row.step == "attempt_model"]
        return [row for row in rows if row.last_error and "window" in row.last_error]

    wait_for(lambda: len(waiting()) == 2, "two rows wait")
    wait_for(lambda: sum(run_of(fleet.ports, run).status.terminal for run in runs) == 3, "three runs end")
    assert len(model.requests) == sent + 3
    now = store.now_us()
    for row in waiting():
        assert (row.attempts, row.failures, row.claimed_by) == (0, 0, None)
        assert row.not_before > now + 10_000_000
