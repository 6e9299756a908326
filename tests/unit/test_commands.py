"""The Celery tasks of commands: what they leave, and what they say when a command meets what none should."""

import logging
from types import SimpleNamespace

import pytest

from agentloom_worker import telemetry
from tasks import app, commands

WORDS = "the words of a user"


def test_a_command_that_crashes_leaves_nothing_and_its_words_are_in_no_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def crash(_ports: object, _name: str, document: object) -> None:
        raise ValueError(f"cannot store {document}")

    monkeypatch.setattr(commands, "process", lambda: SimpleNamespace(ports=None))
    monkeypatch.setattr(commands, "run_command", crash)
    before = telemetry.counters().get("command_crashes", 0)
    with caplog.at_level(logging.INFO, logger="agentloom"):
        assert app.tasks["agentloom.submit_input"](command={"key": "k", "text": WORDS}) is None
    assert telemetry.counters()["command_crashes"] == before + 1
    (record,) = caplog.records
    assert record.getMessage() == "command_crashed"
    assert "ValueError" in record.fields["traceback"]  # type: ignore[attr-defined]
    assert WORDS not in str(record.__dict__)
