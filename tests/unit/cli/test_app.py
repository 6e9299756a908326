"""Commands in this process: what they print, and with which exit code they leave."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from jsonschema import Draft202012Validator

from agentloom_worker import Agentloom
from agentloom_worker.cli.app import main
from agentloom_worker.cli.settings import settings_page
from agentloom_worker.client import InputReceipt
from agentloom_worker.context.protocols import PROTOCOLS
from agentloom_worker.devmodel import DevModel, parse_script
from agentloom_worker.errors import ReleaseInvalidError
from agentloom_worker.examples import incident
from agentloom_worker.llm.adapters.scripted import CallsTurn, ScriptedCall, ScriptedRequest, TextTurn
from agentloom_worker.runtime.publish import resolve_release
from agentloom_worker.version import __version__
from tests.factories import python_tool, release_document
from tests.programs import QUICK

TEXT = "three \x1b[31mred\x1b[0m"
RUN_KEYS = {
    "run_id",
    "session_id",
    "release_id",
    "agent_id",
    "status",
    "blocked",
    "end_cause",
    "code",
    "detail",
    "loops",
    "max_loops",
    "created_at",
    "started_at",
    "ended_at",
    "deadline_at",
}
RECEIPT_KEYS = {"session_id", "run_id", "input_id", "input_seq", "release_id", "kind", "state", "code"}
SESSION_KEYS = {
    "session_id",
    "agent_id",
    "on_busy",
    "inputs",
    "runs",
    "waiting",
    "queued",
    "live_run_id",
    "live_status",
    "created_at",
}
INPUT_KEYS = {
    "input_id",
    "session_id",
    "input_seq",
    "kind",
    "text",
    "received_at",
    "state",
    "origin_run_id",
    "run_id",
    "run_ids",
    "code",
}
ROUND_KEYS = {
    "run_id",
    "run_no",
    "question_seq",
    "status",
    "code",
    "created_at",
    "ended_at",
    "inputs",
    "answer",
}
ITEM_KEYS = {"number", "kind", "role", "raw", "effective", "tokens", "protected", "source", "why", "sent"}


class Result:
    """What a command left: its exit code and streams."""

    def __init__(self, code: object, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """Runs command lines as the program would."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Result:
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        streams = self._capsys.readouterr()
        return Result(left.value.code or 0, streams.out, streams.err)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    for name in ("EMBEDDED", "DATABASE", "BROKER", "REDIS"):
        monkeypatch.delenv(f"AGENTLOOM_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    return Cli(capsys)


def script(request: ScriptedRequest) -> TextTurn | CallsTurn:
    if request.message_count == 2:
        return CallsTurn((ScriptedCall("add", '{"left":1,"right":2}', "1"),))
    return TextTurn(TEXT)


class Made:
    """A store with a run that succeeded and one that nobody has begun."""

    def __init__(self, folder: Path, done: InputReceipt, queued: InputReceipt) -> None:
        self.folder, self.done, self.queued = folder, done.run_id, queued.run_id
        self.session = str(done.session_id)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("store")
    with Agentloom.embedded(folder, settings=QUICK, threads=1, scripts={"main": script}) as loom:
        release = loom.publish(release_document(tools={"add": python_tool(handler="tests.tools:add")}))
        done = loom.ask(loom.open_session(release), "what is 1 + 2?")
        loom.wait(done, 20)
    with Agentloom.connect(f"sqlite:///{folder}/agentloom.sqlite") as loom:
        queued = loom.ask(loom.open_session("assistant"), "and then?")
    return Made(folder, done, queued)


@pytest.fixture
def store(made: Made, tmp_path: Path) -> Iterator[Made]:
    """A copy of the store, for commands that write."""
    copied = Made.__new__(Made)
    copied.folder, copied.done, copied.queued = tmp_path / "copy", made.done, made.queued
    copied.session = made.session
    shutil.copytree(made.folder, copied.folder)
    yield copied


def park(store: Made) -> str:
    """Park the row of the queued run's first step; its id."""
    with closing(sqlite3.connect(store.folder / "agentloom.sqlite")) as connection:
        (dispatch,) = connection.execute(
            "UPDATE pending_dispatch SET parked_at = 1, last_error = 'broken' WHERE step = 'prepare_context'"
            " RETURNING dispatch_id"
        ).fetchone()
        connection.commit()
    return str(dispatch)


def test_version_is_printed(cli: Cli) -> None:
    assert cli("version").out == f"{__version__}\n"
    assert cli("--version").out == f"{__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing-of-the-kind"],
        ["run"],
        ["run", "release.yaml"],
        ["run", "--ask", "hello"],
        ["run", "release.yaml", "--ask", "hello", "--resume", "x"],
        ["runs", "list", "--embedded", "a", "--database", "b"],
        ["runs", "list", "--limit", "0"],
        ["runs", "show"],
        ["demo", "--model", "m"],
        ["demo", "--api-key-env", "NAME"],
        ["demo", "--model-url", "http://127.0.0.1:1/v1", "--model", "m", "--api-key-env", "AGENTLOOM_NO_SUCH_KEY"],
        ["--log-level", "loud", "version"],
        ["chat"],
        ["chat", "release.yaml", "--broker", "redis://b/0"],
        ["session"],
        ["session", "open"],
        ["session", "open", "assistant", "--on-busy", "wait"],
        ["session", "send", "x"],
        ["session", "history", "x", "--limit", "0"],
        ["context", "show", "x"],
    ],
)
def test_a_command_line_without_sense_leaves_with_2(cli: Cli, arguments: list[str]) -> None:
    result = cli(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert result.err


def test_an_error_is_printed_with_its_code_and_leaves_with_1(cli: Cli, made: Made) -> None:
    result = cli("runs", "show", made.queued.hex[::-1], "--embedded", made.folder)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error RUN_NOT_FOUND: ")


def test_a_store_that_is_not_there_is_not_made_by_looking(cli: Cli, tmp_path: Path) -> None:
    result = cli("runs", "list", "--embedded", tmp_path / "nowhere")
    assert result.code == 1
    assert "INPUT_INVALID" in result.err
    assert not (tmp_path / "nowhere").exists()


def test_a_database_url_is_never_shown_with_its_password(cli: Cli) -> None:
    result = cli("runs", "list", "--database", "postgresql://me:hunter2@127.0.0.1:1/x")
    assert result.code == 1
    assert "error PERSISTENCE_UNAVAILABLE: " in result.err
    assert "hunter2" not in result.out + result.err


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/x", "connection refused"),
        ("postgresql://me:hunter2@no.such.host.invalid/x", "the host's name is unknown"),
    ],
)
def test_a_database_that_cannot_be_asked_says_why(cli: Cli, url: str, reason: str) -> None:
    result = cli("runs", "list", "--database", url)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error PERSISTENCE_UNAVAILABLE: postgresql://me:***@") and f"({reason})" in result.err


def test_a_file_that_is_no_store_says_so(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "agentloom.sqlite").write_text("certainly not a database, and longer than the header of one is\n" * 40)
    result = cli("runs", "list", "--embedded", tmp_path)
    assert (result.code, result.out) == (1, "")
    assert "(file is not a database): check that the file is a store of this program" in result.err


def test_the_store_is_taken_from_the_environment_unless_an_option_names_one(
    cli: Cli, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTLOOM_EMBEDDED", str(made.folder))
    assert len(cli("runs", "list", "--json").json) == 2
    monkeypatch.setenv("AGENTLOOM_DATABASE", "sqlite:////nowhere/x.sqlite")
    assert cli("runs", "list").code == 2
    assert cli("runs", "list", "--embedded", made.folder).code == 0


def test_runs_are_listed_newest_first_with_stable_keys(cli: Cli, made: Made) -> None:
    found = cli("runs", "list", "--embedded", made.folder, "--json").json
    assert [run["run_id"] for run in found] == [str(made.queued), str(made.done)]
    assert {frozenset(run) for run in found} == {frozenset(RUN_KEYS)}
    assert found[1]["created_at"].endswith("Z")
    live = cli("runs", "list", "--embedded", made.folder, "--live").out
    assert str(made.queued) in live
    assert str(made.done) not in live


def test_a_run_is_shown_with_its_answer_only_after_its_end(cli: Cli, made: Made) -> None:
    done = cli("runs", "show", made.done, "--embedded", made.folder, "--json").json
    assert set(done) == RUN_KEYS | {"answer", "truncated", "filtered", "refused", "empty"}
    assert (done["status"], done["answer"]) == ("succeeded", TEXT)
    queued = cli("runs", "show", made.queued, "--embedded", made.folder, "--json").json
    assert (queued["status"], queued["answer"]) == ("queued", None)
    assert TEXT in cli("runs", "show", made.done, "--embedded", made.folder).out


def test_events_are_printed_after_a_number_and_followed_to_the_end(cli: Cli, made: Made) -> None:
    every = cli("runs", "events", made.done, "--embedded", made.folder, "--json").json
    assert [event["run_seq"] for event in every] == list(range(1, len(every) + 1))
    lines = cli("runs", "events", made.done, "--embedded", made.folder, "--after", 2, "--follow").out.splitlines()
    assert len(lines) == len(every) - 2
    assert "succeeded, 2 loop(s)" in lines[-1]


def test_steps_show_attempts_and_durations_and_no_text(cli: Cli, made: Made) -> None:
    steps = cli("steps", made.done, "--embedded", made.folder, "--json").json
    assert [(step["loop_no"], step["kind"], step["capability"]) for step in steps] == [
        (1, "model", "main"),
        (1, "tool", "add"),
        (2, "model", "main"),
    ]
    assert all(len(step["attempts"]) == 1 and step["duration_ms"] >= 0 for step in steps)
    table = cli("steps", made.done, "--embedded", made.folder).out
    assert "add" in table
    assert "three" not in table
    assert all((step["request_tokens"] is None) == (step["kind"] != "model") for step in steps)
    assert steps[0]["repeated_tokens"] == 0
    assert "of the requests' tokens (estimated) repeat the request before" in table


def test_a_request_is_shown_with_the_model_that_the_provider_says_it_served(cli: Cli, tmp_path: Path) -> None:
    choice = {"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}
    body = f"data: {json.dumps({'choices': [choice], 'model': 'm-2026-01-01'})}\n\ndata: [DONE]\n\n"
    turns = [{"answer": {"raw": {"text": body}}}]
    place = ("--embedded", tmp_path)
    with (
        DevModel(parse_script({"schema_version": 1, "turns": turns})) as model,
        Agentloom.embedded(tmp_path, settings=QUICK, threads=1) as loom,
    ):
        release = loom.publish(release_document(base_url=model.base_url))
        asked = loom.ask(loom.open_session(release), "hello")
        loom.wait(asked, 20)
        operation = str(loom.steps(asked)[0].operation_id)
    assert cli("request", operation, *place).err == "hash ok\nthe provider says that it served m-2026-01-01\n"
    shown = cli("request", operation, *place, "--json").json
    assert (shown["served_model"], shown["request"]["model"]) == ("m-2026-01-01", "dev-model")
    lines = cli("context", "show", str(asked.session_id), operation, *place).out.splitlines()
    assert lines[0].endswith("hash ok; served by m-2026-01-01")


def test_a_request_is_shown_though_its_answer_cannot_be_read(cli: Cli, store: Made) -> None:
    operation = cli("steps", store.done, "--embedded", store.folder, "--json").json[-1]["operation_id"]
    with closing(sqlite3.connect(store.folder / "agentloom.sqlite")) as connection:
        query = "UPDATE operation SET raw = x'ff' WHERE replace(operation_id, '-', '') = ?"
        assert connection.execute(query, (operation.replace("-", ""),)).rowcount == 1
        connection.commit()
    shown = cli("request", operation, "--embedded", store.folder, "--json").json
    assert (shown["hash_ok"], shown["served_model"]) == (True, None)


def test_a_request_is_printed_byte_for_byte_and_its_hash_proven(cli: Cli, made: Made) -> None:
    operation = cli("steps", made.done, "--embedded", made.folder, "--json").json[0]["operation_id"]
    result = cli("request", operation, "--embedded", made.folder)
    with Agentloom.connect(f"sqlite:///{made.folder}/agentloom.sqlite") as loom:
        assert result.out == loom.request(operation).decode() + "\n"
    assert result.err == "hash ok\n"
    pretty = cli("request", operation, "--embedded", made.folder, "--pretty")
    assert pretty.json == result.json
    assert pretty.out != result.out


def test_a_stop_is_durable_and_says_who_ends_the_run(cli: Cli, store: Made) -> None:
    result = cli("runs", "stop", store.queued, "--embedded", store.folder)
    assert (result.code, "stopping" in result.out) == (0, True)
    assert f"--resume {store.queued}" in result.err
    assert cli("runs", "show", store.queued, "--embedded", store.folder, "--json").json["status"] == "stopping"
    again = cli("runs", "stop", store.queued, "--embedded", store.folder, "--json").json
    assert (again["applied"], again["end_cause"]) == (False, "stop")


def test_a_parked_row_is_listed_and_retried(cli: Cli, store: Made) -> None:
    dispatch = park(store)
    parked = cli("dispatches", "parked", "--embedded", store.folder, "--json").json
    assert [(row["step"], row["last_error"]) for row in parked] == [("prepare_context", "broken")]
    assert "blocked" in cli("runs", "list", "--embedded", store.folder).out
    assert "prepare_context" in cli("dispatches", "retry", dispatch, "--embedded", store.folder).out
    assert cli("dispatches", "parked", "--embedded", store.folder, "--json").json == []
    rows = cli("dispatches", "list", "--run", store.queued, "--embedded", store.folder, "--json").json
    assert {row["step"] for row in rows} == {"prepare_context", "expire_run"}
    again = cli("dispatches", "retry", dispatch, "--embedded", store.folder)
    assert (again.code, "is not parked" in again.err) == (1, True)


@pytest.mark.parametrize("by_run", [True, False])
def test_every_parked_row_is_retried_at_once(cli: Cli, store: Made, by_run: bool) -> None:
    dispatch = park(store)
    which = ("--run", str(store.queued)) if by_run else ("--all",)
    place = ("--embedded", store.folder, "--json")
    assert cli("dispatches", "retry", "--run", store.done, *place).json == []
    assert cli("dispatches", "retry", *which, *place).json == [
        {"dispatch_id": str(UUID(dispatch)), "run_id": str(store.queued), "step": "prepare_context", "retried": True}
    ]
    assert cli("dispatches", "parked", *place).json == []
    assert cli("dispatches", "retry", *which, "--embedded", store.folder).out == "nothing is parked\n"


def test_a_row_of_an_unknown_step_stays_parked_and_is_named(cli: Cli, store: Made) -> None:
    park(store)
    with closing(sqlite3.connect(f"{store.folder}/agentloom.sqlite")) as conn, conn:
        conn.execute("UPDATE pending_dispatch SET step = 'of_tomorrow' WHERE parked_at IS NOT NULL")
    refused = cli("dispatches", "retry", "--all", "--embedded", store.folder)
    assert refused.code == 1
    assert "INPUT_INVALID: this version knows no step 'of_tomorrow'" in refused.err
    assert len(cli("dispatches", "parked", "--embedded", store.folder, "--json").json) == 1


@pytest.mark.parametrize("words", [(), ("0195a3a0-0000-7000-8000-000000000000", "--all"), ("--all", "--run", "x")])
def test_what_to_retry_is_said_in_one_way(cli: Cli, words: tuple[str, ...]) -> None:
    refused = cli("dispatches", "retry", *words)
    assert refused.code == 2 and "give DISPATCH, --run RUN or --all" in refused.err


def test_failing_a_parked_row_stops_its_run_for_that_cause(cli: Cli, store: Made) -> None:
    dispatch = park(store)
    receipt = cli("dispatches", "fail", dispatch, "--embedded", store.folder, "--json").json
    assert (receipt["status"], receipt["end_cause"]) == ("stopping", "failure")
    run = cli("runs", "show", store.queued, "--embedded", store.folder, "--json").json
    assert run["code"] == "STEP_FAILED_BY_OPERATOR"


def test_a_session_is_opened_sent_to_read_and_listed(cli: Cli, store: Made) -> None:
    place = ("--embedded", store.folder)
    opened = cli("session", "open", "assistant", "--on-busy", "enqueue", *place, "--json").json
    assert set(opened) == {"session_id", "agent_id", "on_busy"}
    assert (opened["agent_id"], opened["on_busy"]) == ("assistant", "enqueue")
    session = opened["session_id"]
    waits = cli("session", "send", session, "early", "--supplement", "--key", "k", *place, "--json").json
    assert set(waits) == RECEIPT_KEYS
    assert (waits["state"], waits["kind"], waits["run_id"]) == ("pending_next_run", "supplement", None)
    assert cli("session", "send", session, "early", "--supplement", "--key", "k", *place, "--json").json == waits
    asked = cli("session", "send", session, "what?", *place)
    assert asked.out.endswith("\n") and "question: pending, run " in asked.out
    assert "agentloom run --resume " in asked.err
    assert "supplement: pending" in cli("session", "send", session, "and that", *place).out
    queued = cli("session", "send", session, "next?", "--question", *place, "--json").json
    assert queued["state"] == "queued"
    listed = cli("session", "list", *place, "--json").json
    assert set(listed[0]) == SESSION_KEYS
    assert (listed[0]["session_id"], listed[0]["inputs"], listed[0]["queued"]) == (session, 4, 1)
    assert session in cli("session", "list", *place).out
    inputs = cli("session", "inputs", session, *place, "--json").json
    assert {frozenset(one) for one in inputs} == {frozenset(INPUT_KEYS)}
    assert [(one["text"], one["state"]) for one in inputs] == [
        ("early", "pending"),
        ("what?", "pending"),
        ("and that", "pending"),
        ("next?", "queued"),
    ]
    page = cli("session", "inputs", session, "--after", 1, "--limit", 2, *place)
    assert "what?" in page.out and "next?" not in page.out and page.err == "for more: --after 3\n"
    withdrawn = cli("session", "withdraw", session, queued["input_id"], *place, "--json").json
    assert (set(withdrawn), withdrawn["state"]) == (RECEIPT_KEYS, "withdrawn")
    refused = cli("session", "withdraw", session, inputs[0]["input_id"], *place)
    assert (refused.code, refused.err.startswith("error INPUT_NOT_QUEUED: ")) == (1, True)
    assert cli("session", "send", session, "x", "--question", "--supplement", *place).code == 2


def test_a_release_document_is_published_by_opening_a_session_of_it(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "release.yaml"
    file.write_text(yaml.safe_dump(release_document()))
    opened = cli("session", "open", file, "--embedded", tmp_path / "fresh")
    assert opened.code == 0
    (listed,) = cli("session", "list", "--embedded", tmp_path / "fresh", "--json").json
    assert opened.out == f"{listed['session_id']}\n"
    nobody = cli("session", "open", "nobody", "--embedded", tmp_path / "fresh")
    assert (nobody.code, nobody.err.startswith("error AGENT_NOT_FOUND: ")) == (1, True)


def test_the_history_of_a_session_is_shown_with_stable_keys(cli: Cli, made: Made) -> None:
    (round_,) = cli("session", "history", made.session, "--embedded", made.folder, "--json").json
    assert set(round_) == ROUND_KEYS
    assert (round_["run_id"], round_["answer"]) == (str(made.done), TEXT)
    assert [(said["text"], said["state"]) for said in round_["inputs"]] == [("what is 1 + 2?", "delivered")]
    shown = cli("session", "history", made.session, "--embedded", made.folder).out
    assert f"run 1 ({made.done}) succeeded" in shown and "1. question, delivered: what is 1 + 2?" in shown
    assert cli("session", "history", made.session, "--embedded", made.folder, "--after", 1, "--json").json == []


def test_a_request_is_shown_item_by_item(cli: Cli, made: Made) -> None:
    place = ("--embedded", made.folder)
    operation = cli("steps", made.done, *place, "--json").json[-1]["operation_id"]
    found = cli("context", "show", made.session, operation, *place, "--json").json
    assert set(found) == {
        *("operation_id", "run_id", "request_hash", "hash_ok", "tokens", "budget_tokens", "served_model", "items")
    }
    assert {frozenset(item) for item in found["items"]} == {frozenset(ITEM_KEYS)}
    assert [item["role"] for item in found["items"]] == ["system", "user", "assistant", "tool"]
    request = cli("request", operation, *place, "--json").json
    assert set(request) == {"operation_id", "hash_ok", "served_model", "request"}
    assert [item["sent"] for item in found["items"]] == request["request"]["messages"]
    question = found["items"][1]
    assert (question["raw"], question["effective"], question["protected"]) == ("what is 1 + 2?", "what is 1 + 2?", True)
    shown = cli("context", "show", made.session, operation, *place).out
    for words in ("2. user_input, user, ", "   why: an input of the current run", "   raw: as effective", "   sent: {"):
        assert words in shown
    brief = cli("context", "show", made.session, operation, *place, "--brief").out
    assert "what is 1 + 2?" not in brief and "record 2, input 1" in brief
    (one,) = cli("context", "show", made.session, operation, *place, "--item", 2, "--json").json["items"]
    assert one == question
    assert cli("context", "show", made.session, operation, *place, "--item", 99).code == 2


def test_C03_L25_a_foreign_session_is_refused_by_the_command_line_without_id_or_text(cli: Cli, store: Made) -> None:
    place = ("--embedded", store.folder)
    foreign = cli("session", "open", "assistant", *place).out.strip()
    operation = cli("steps", store.done, *place, "--json").json[0]["operation_id"]
    nothing = "0195a3a0-0000-7000-8000-000000000000"
    heard = [
        cli("context", "show", foreign, operation, *place),
        cli("context", "show", foreign, nothing, *place, "--json"),
        cli("context", "show", store.session, operation, "--role", "planner", *place),
        cli("session", "history", nothing, *place),
        cli("session", "history", store.session, "--role", "planner", *place, "--json"),
        cli("session", "inputs", nothing, *place),
    ]
    assert {(one.code, one.out) for one in heard} == {(1, "")}
    (said,) = {one.err for one in heard}
    assert said.startswith("error CONTEXT_FORBIDDEN: ")
    assert not any(one in said for one in (foreign, operation, nothing, str(store.done), "planner", "1 + 2"))


def test_protocols_are_listed_with_a_schema_that_says_what_a_release_may_hold(cli: Cli) -> None:
    found = cli("protocols", "--json").json
    assert [set(one) for one in found] == [{"id", "version", "default", "about", "options_schema"}] * len(PROTOCOLS)
    assert [(one["id"], one["version"]) for one in found if one["default"]] == [("rounds", 1)]
    for one in found:
        named = {"id": one["id"], "version": one["version"]}
        for options in ({}, {"nonsense": 1}):
            allowed = Draft202012Validator(one["options_schema"]).is_valid(options)
            assert allowed is (options == {})
            document = release_document(context={"protocol": {**named, "options": options}})
            if allowed:
                resolve_release(document)
            else:
                with pytest.raises(ReleaseInvalidError):
                    resolve_release(document)
    assert "rounds, version 1 (where a release names none): " in cli("protocols").out


def test_what_is_no_document_is_printed_as_one_on_demand(cli: Cli, tmp_path: Path) -> None:
    assert cli("version", "--json").json == {"version": __version__}
    assert cli("migrate", "--embedded", tmp_path / "fresh", "--json").json == {"up_to_date": True}


def test_migrate_makes_a_store_that_can_be_looked_at(cli: Cli, tmp_path: Path) -> None:
    for _ in range(2):
        assert cli("migrate", "--embedded", tmp_path / "fresh").code == 0
    assert cli("runs", "list", "--embedded", tmp_path / "fresh", "--json").json == []


def test_the_schema_of_a_release_is_printed(cli: Cli) -> None:
    schema = cli("schema", "release").json
    assert schema["$schema"].endswith("2020-12/schema")
    assert "agent" in schema["properties"]


def test_validate_accepts_a_right_document(cli: Cli) -> None:
    result = cli("validate", incident.RELEASE)
    assert result.code == 0
    assert "incident-analyst" in result.out
    assert cli("validate", incident.RELEASE, "--json").json["ok"] is True


def test_validate_lists_every_problem_with_its_path(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "release.yaml"
    tools = {"gone": python_tool(handler="tests.tools:gone"), "lost": python_tool(handler="tests.tools:lost")}
    file.write_text(yaml.safe_dump(release_document(tools=tools)))
    result = cli("validate", file)
    assert result.code == 1
    assert [line.split(":")[0].split("/")[2] for line in result.out.splitlines()] == ["gone", "lost"]
    document = cli("validate", file, "--json").json
    assert document["ok"] is False
    assert len(document["problems"]) == 2


def test_validate_says_that_a_file_cannot_be_read(cli: Cli, tmp_path: Path) -> None:
    result = cli("validate", tmp_path / "nothing.yaml")
    assert result.code == 1
    assert "error INPUT_INVALID: cannot read" in result.err


def test_a_dev_model_script_that_is_wrong_or_not_there_leaves_with_1_as_every_refusal(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "script.yaml"
    file.write_text("turns: 7\n")
    result = cli("dev-model", file)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error INPUT_INVALID: the script has")
    result = cli("dev-model", tmp_path / "none.yaml")
    assert (result.code, result.out) == (1, "")
    assert result.err == f"error INPUT_INVALID: cannot serve: {tmp_path / 'none.yaml'}: No such file or directory\n"


@pytest.mark.parametrize("seconds", ["-1", "nan"])
def test_a_wait_of_no_length_is_refused(cli: Cli, seconds: str) -> None:
    refused = cli("run", "--resume", "0195a3a0-0000-7000-8000-000000000000", "--timeout", seconds)
    assert refused.code == 2 and "--timeout" in refused.err


def test_the_page_of_settings_is_current() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "settings.md"
    assert page.read_text() == settings_page(), "make it anew: agentloom settings --markdown > docs/settings.md"


def test_settings_are_shown_with_what_the_environment_says_and_no_password(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTLOOM_BROKER", "redis://:secret@cache/1")
    shown = cli("settings", "--json")
    assert shown.code == 0
    lines = {line["name"]: line for line in shown.json["settings"]}
    assert set(lines["broker"]) == {"name", "env", "default", "description", "value"}
    assert (lines["broker"]["value"], lines["broker"]["env"]) == ("redis://…@cache/1", "AGENTLOOM_BROKER")
    assert "secret" not in shown.out + cli("settings").out
    assert shown.json["unread"] == {}
    monkeypatch.setenv("AGENTLOOM_DRAIN", "9")
    assert cli("settings").err == "warning: nothing reads AGENTLOOM_DRAIN: is AGENTLOOM_DRAIN_S meant?\n"
    assert cli("settings", "--json").json["unread"] == {"AGENTLOOM_DRAIN": "AGENTLOOM_DRAIN_S"}
    monkeypatch.setenv("AGENTLOOM_DRAIN_S", "long")
    refused = cli("settings")
    assert refused.code == 1
    assert "AGENTLOOM_DRAIN_S" in refused.err and "AGENTLOOM_CLAIM_TTL_S" in refused.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--broker", "redis://cache/0"),
        ("--database", "postgresql://db/x", "--redis", "redis://cache/0"),
        ("--database", "postgresql://db/x", "--broker", "redis://cache/0", "--workers"),
        ("--embedded", "state", "--broker", "redis://cache/0"),
    ],
)
def test_a_fleet_that_is_named_by_half_is_refused(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli("run", "--resume", "0195a3a0-0000-7000-8000-000000000000", *arguments).code == 2
