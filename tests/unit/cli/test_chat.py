"""The loop of the chat in this process, where a test decides what fails."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentloom_worker import Agentloom, faults
from agentloom_worker.cli.chat import Chat
from agentloom_worker.cli.keyboard import Keyboard
from agentloom_worker.client import InputKind, OnBusy, RunStatus, Session
from agentloom_worker.errors import PersistenceUnavailableError
from agentloom_worker.llm.adapters.scripted import ScriptedRequest, TextTurn
from tests.factories import release_document
from tests.programs import QUICK

HELD = threading.Event()


def script(request: ScriptedRequest) -> TextTurn:
    if "held" in request.body["messages"][-1]["content"]:
        assert HELD.wait(20)
    return TextTurn(f"answer to {request.body['messages'][-1]['content']}")


@pytest.fixture
def loom(tmp_path: Path) -> Iterator[Agentloom]:
    with Agentloom.embedded(tmp_path, settings=QUICK, threads=2, scripts={"main": script}) as opened:
        opened.publish(release_document())
        yield opened


@pytest.fixture
def trigger() -> Iterator[Callable[[Callable[[str, str], None]], None]]:
    yield faults.install
    faults.install(None)


def talk(loom: Agentloom, session: Session, lines: bytes, begin: Callable[[], None] = lambda: None) -> int:
    """What a chat does with lines that are all there is."""
    fd, typing = os.pipe()
    os.write(typing, lines)
    os.close(typing)
    try:
        with Keyboard(loom.ports.clock, fd) as keyboard:
            made = Chat(loom, keyboard, session, None, option="--embedded DIR")
            begin()
            return made.talk()
    finally:
        os.close(fd)


@pytest.mark.parametrize("point", ["command.before", "command.after"])
def test_words_whose_receipt_was_lost_are_sent_again_and_stored_once(
    loom: Agentloom,
    trigger: Callable[[Callable[[str, str], None]], None],
    capsys: pytest.CaptureFixture[str],
    point: str,
) -> None:
    lost: list[str] = []

    def lose(where: str, _detail: str) -> None:
        if where == point and not lost:
            lost.append(where)
            raise PersistenceUnavailableError("the store does not answer")

    session = loom.open_session("assistant")
    trigger(lose)
    assert talk(loom, session, b"hello\n") == 0
    shown = capsys.readouterr()
    assert lost == [point]
    assert shown.out == "answer to hello\n"
    assert shown.err.count("waiting for the store: the store does not answer") == 1
    assert [(one.kind, one.text) for one in loom.inputs(session)] == [(InputKind.QUESTION, "hello")]
    assert [run.status for run in loom.runs()] == [RunStatus.SUCCEEDED]


def test_words_that_are_refused_are_named_by_their_code_and_the_next_line_is_taken(
    loom: Agentloom, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agentloom_worker.runtime.accept.INPUT_BYTES_MAX", 20)
    session = loom.open_session("assistant")
    assert talk(loom, session, b"x" * 30 + b"\nhello\n") == 1
    shown = capsys.readouterr()
    assert "error INPUT_INVALID: the input has 32 bytes" in shown.err
    assert shown.out == "answer to hello\n"


def test_a_run_that_begins_by_itself_is_shown_and_what_had_ended_before_is_not(
    loom: Agentloom, capsys: pytest.CaptureFixture[str]
) -> None:
    session = loom.open_session("assistant", on_busy=OnBusy.ENQUEUE)
    loom.wait(loom.ask(session, "long ago"), 20)
    HELD.clear()
    loom.ask(session, "held question")
    loom.ask(session, "queued question")
    # The input has ended already: the chat still stays until nothing runs.
    assert talk(loom, session, b"", begin=HELD.set) == 0
    shown = capsys.readouterr()
    assert shown.out == "answer to held question\nanswer to queued question\n"
