"""Who asks a fleet from outside: the example platform over the broker, the client, the command line."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from agentloom_worker import Agentloom
from agentloom_worker.cli.app import main
from agentloom_worker.client import RunStatus
from agentloom_worker.devmodel import DevModel, Outcome
from agentloom_worker.errors import RequestError
from agentloom_worker.settings import FleetSettings
from examples.platform.main import main as example
from tests.acceptance.harness import dev_model, http_release, wait_for
from tests.brokers import Broker
from tests.fleet import QUICK, ROOT, STEPS, Fleet, open_fleet
from tests.servers import RedisServer

WAIT_S = 60.0
HELD = {
    "when": {"user_text_contains": "held"},
    "answer": {"text": "a long answer that is held", "hold": {"gate": "go", "after_chunks": 1}, "chunk_chars": 4},
}
FINAL = {"answer": {"text": "you said {{first_user_text}}"}}
# Nobody looks at the table for a stop: what is heard in time was pushed.
DEAF = {"CONTROL_POLL_S": "600", "CLAIM_TTL_S": "600", "CLAIM_RENEW_S": "100"}


@pytest.mark.parametrize(
    ("broker", "content", "words"),
    [
        ("redis://127.0.0.1:1/0", None, "cannot read {path}: [Errno 2] No such file or directory"),
        ("redis://127.0.0.1:1/0", b"\xff", "cannot read {path}: 'utf-8' codec"),
        ("redis://127.0.0.1:1/0", b"a: [", "cannot read {path}: while parsing"),
        ("redis://127.0.0.1:1/0", b"- a", "cannot read {path}: a release is a mapping"),
        ("127.0.0.1", b"a: b", "AGENTLOOM_BROKER: begin it with one of redis://"),
    ],
)
def test_the_example_refuses_what_it_cannot_send_before_it_keeps_anything(
    tmp_path: Path, broker: str, content: bytes | None, words: str
) -> None:
    path = tmp_path / "release.yaml"
    if content is not None:
        path.write_bytes(content)
    outbox = tmp_path / "outbox"
    with pytest.raises(SystemExit) as left:
        example(["--broker", broker, "--outbox", str(outbox), "ask", str(path), "hello"])
    assert str(left.value.code).startswith(words.format(path=path))
    assert not outbox.exists()


@pytest.fixture
def model() -> Iterator[DevModel]:
    with dev_model(HELD, FINAL) as served:
        yield served


@pytest.fixture
def fleet(postgres_url: str, broker: Broker, redis_server: RedisServer, tmp_path: Path) -> Iterator[Fleet]:
    """On RabbitMQ with a Redis of the leases beside it: that is what pushes a stop."""
    leases = {} if broker.address.is_redis else {"REDIS": redis_server.url}
    with open_fleet(
        postgres_url,
        broker.url,
        tmp_path,
        key_prefix=broker.key_prefix,
        queue_prefix=broker.queue_prefix,
        settings_of={**QUICK, **leases},
    ) as opened:
        yield opened


def settings_of(fleet: Fleet, **changes: str) -> FleetSettings:
    variables = {name.removeprefix("AGENTLOOM_").lower(): value for name, value in fleet.environment.items()}
    known = {name: value for name, value in variables.items() if name in FleetSettings.model_fields}
    return FleetSettings(**{**known, **changes})


def platform(fleet: Fleet, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The example, with the broker's address as all that it knows of the fleet."""
    settings = settings_of(fleet)
    command = [
        *(sys.executable, "-m", "examples.platform.main", "--broker", settings.broker.get_secret_value()),
        *(
            "--key-prefix",
            settings.key_prefix,
            "--queue-prefix",
            settings.queue_prefix,
            "--outbox",
            str(folder / "outbox"),
            "--every",
            "1",
        ),
        *arguments,
    ]
    kept = {name: value for name, value in fleet.environment.items() if not name.startswith("AGENTLOOM_")}
    return subprocess.Popen(command, cwd=ROOT, env=kept, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(child: subprocess.Popen[str]) -> str:
    try:
        out, err = child.communicate(timeout=WAIT_S)
    finally:
        child.kill()
    assert child.returncode == 0, err
    return out


def wait_for_stream(model: DevModel) -> None:
    """Until the one answer that is held has begun."""
    assert model.wait_until(lambda seen: any(request.outcome is Outcome.OPEN for request in seen), WAIT_S)


def test_R6_a_platform_that_shares_the_broker_alone_asks_once_although_its_messages_are_lost(
    fleet: Fleet, broker: Broker, model: DevModel, tmp_path: Path
) -> None:
    release = tmp_path / "release.yaml"
    release.write_text(yaml.safe_dump(http_release(model, {})))
    asking = platform(fleet, tmp_path, "ask", str(release), "held for the platform")
    try:
        wait_for(lambda: bool(fleet.made.publisher.backlog("commands")), "the first command waits")
        assert broker.empty("commands") >= 1
        fleet.worker(f"{STEPS},commands", **DEAF)
    except BaseException:
        asking.kill()
        asking.communicate()
        raise
    *receipts, last = finish(asking).splitlines()
    assert [json.loads(line)["command"] for line in receipts] == ["publish_release", "open_session", "submit_input"]
    run_id = last.removeprefix("run ")
    assert list((tmp_path / "outbox").iterdir()) == []
    with Agentloom.fleet(settings_of(fleet)) as loom:
        wait_for_stream(model)
        session_id = json.loads(receipts[-1])["receipt"]["session_id"]
        (added,) = finish(platform(fleet, tmp_path, "add", session_id, "only in Berlin")).splitlines()
        receipt = json.loads(added)["receipt"]
        assert (receipt["kind"], receipt["state"], receipt["run_id"]) == ("supplement", "pending", run_id)
        assert [one.text for one in loom.inputs(session_id)] == ["held for the platform", "only in Berlin"]
        (stopped,) = finish(platform(fleet, tmp_path, "stop", run_id)).splitlines()
        assert json.loads(stopped)["receipt"]["applied"] is True
        assert loom.wait(run_id, WAIT_S).status is RunStatus.CANCELLED
        assert len(loom.runs()) == 1


def test_a_client_wakes_the_fleet_and_pushes_its_stops(
    fleet: Fleet, model: DevModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    settings = settings_of(fleet)
    with Agentloom.fleet(settings) as loom:
        release = loom.publish(http_release(model, {}))
        session = loom.open_session(release)
        receipt = loom.ask(session, "hello", idempotency_key="one")
        wait_for(lambda: fleet.made.publisher.backlog("control") == 1, "the wake-up is in its queue")
        assert loom.receipt(session, "one") == receipt
        fleet.worker(**DEAF)
        assert loom.wait(receipt, WAIT_S).answer == "you said hello"
        held = loom.ask(loom.open_session(release), "held for the client")
        wait_for_stream(model)
        loom.stop(held)
        assert loom.wait(held, WAIT_S).status is RunStatus.CANCELLED
        assert [queue.slots for queue in loom.queues() if queue.queue == "model"] == [8]
    # The command line leaves the steps to the same worker.
    monkeypatch.setenv("AGENTLOOM_KEY_PREFIX", settings.key_prefix)
    monkeypatch.setenv("AGENTLOOM_QUEUE_PREFIX", settings.queue_prefix)
    document = tmp_path / "release.yaml"
    document.write_text(yaml.safe_dump(http_release(model, {})))
    database, broker = settings.database.get_secret_value(), settings.broker.get_secret_value()
    with pytest.raises(SystemExit) as left:
        main(["run", str(document), "--ask", "good day", "--database", database, "--broker", broker])
    assert (left.value.code or 0, capsys.readouterr().out) == (0, "you said good day\n")
    assert len(fleet.ports.store.list_workers()) == 1


def test_a_client_whose_broker_and_redis_are_away_asks_and_stops_all_the_same(fleet: Fleet, model: DevModel) -> None:
    away = settings_of(fleet, broker="redis://127.0.0.1:1/0", redis="redis://127.0.0.1:1/0")
    fleet.worker()
    with Agentloom.fleet(away) as loom:
        release = loom.publish(http_release(model, {}))
        assert loom.wait(loom.ask(loom.open_session(release), "hello"), WAIT_S).answer == "you said hello"
        held = loom.ask(loom.open_session(release), "held without a broker")
        wait_for_stream(model)
        loom.stop(held)
        assert loom.wait(held, WAIT_S).status is RunStatus.CANCELLED


@pytest.mark.parametrize(
    "options",
    [{"broker": "redis://b/0", "run_workers": True}, {"redis": "redis://r/0"}, {"broker": "http://b"}],
)
def test_a_fleet_that_makes_no_sense_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        Agentloom.connect("postgresql://127.0.0.1:1/x", **options)
