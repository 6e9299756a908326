"""Words are the bytes that came, whatever the locale says."""

import io
import os
import sys

import pytest

from agentloom_worker.cli.words import read_words
from agentloom_worker.limits import INPUT_BYTES_MAX


def stdin_of(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii", errors="surrogateescape"))


def test_stdin_is_utf8_with_its_line_ends_in_any_locale(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin_of(monkeypatch, "Grüße\r\nzwei\n".encode())
    assert read_words("-") == "Grüße\r\nzwei\n"
    assert capsys.readouterr().err == ""


def test_an_argument_is_utf8_in_any_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    # What Python makes of the argument where the locale is plain ASCII.
    given = "Grüße".encode().decode("ascii", "surrogateescape")
    monkeypatch.setattr(os, "fsencode", lambda text: text.encode("ascii", "surrogateescape"))
    assert read_words(given) == "Grüße"


def test_a_byte_that_is_not_utf8_is_kept_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin_of(monkeypatch, b"Gr\xfc\xdfe")
    text = read_words("-")
    assert text.encode("utf-8", "surrogateescape") == b"Gr\xfc\xdfe"
    assert capsys.readouterr().err == "note: 2 byte(s) are not UTF-8: the model is shown U+FFFD for each\n"


def test_more_than_an_input_may_hold_is_read_by_one_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin_of(monkeypatch, b"x" * (INPUT_BYTES_MAX + 2))
    assert len(read_words("-")) == INPUT_BYTES_MAX + 1
