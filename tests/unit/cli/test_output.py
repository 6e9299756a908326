"""What is printed cannot command a terminal, and JSON has one form."""

import io
import json
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

import pytest

from agentloom_worker.cli.output import document, duration, note, print_table, print_text, printable


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Thing:
    thing_id: UUID
    colour: Colour
    made_at: int
    gone_at: int | None
    parts: tuple[int, ...]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_values_become_json_with_instants_in_utc() -> None:
    thing = Thing(UUID(int=1), Colour.RED, 1_800_000_000_000_001, None, (1, 2))
    assert json.loads(json.dumps(document(thing))) == {
        "thing_id": "00000000-0000-0000-0000-000000000001",
        "colour": "red",
        "made_at": "2027-01-15T08:00:00.000001Z",
        "gone_at": None,
        "parts": [1, 2],
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[2J gone", "\N{REPLACEMENT CHARACTER}[2J gone"),
        ("\x9b31m\x07", "\N{REPLACEMENT CHARACTER}31m\N{REPLACEMENT CHARACTER}"),
        ("right\u202eleft", "right\N{REPLACEMENT CHARACTER}left"),
        ("naïve 日本", "naïve 日本"),
    ],
)
def test_control_characters_do_not_reach_a_terminal(text: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert printable(text) == expected
    for stream, say in (("sys.stdout", print_text), ("sys.stderr", note)):
        terminal = Terminal()
        monkeypatch.setattr(stream, terminal)
        say(text)
        assert terminal.getvalue() == f"{expected}\n"


def test_a_pipe_gets_the_text_verbatim(capsys: pytest.CaptureFixture[str]) -> None:
    print_text("\x1b[31mred")
    assert capsys.readouterr().out == "\x1b[31mred\n"


def test_a_table_shows_values_and_never_reads_them_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("id", "value"), [("[bold]x[/bold]", None), ("y", "\x1b[2J")])
    shown = capsys.readouterr().out
    assert "[bold]x[/bold]" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(("milliseconds", "words"), [(None, None), (0, "0 ms"), (9_999, "9999 ms"), (10_000, "10.0 s")])
def test_durations_are_read_easily(milliseconds: int | None, words: str | None) -> None:
    assert duration(milliseconds) == words
