"""What a person types: lines and Ctrl-C in one wait."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentloom_worker.cli import keyboard
from agentloom_worker.cli.keyboard import TWICE_S, Heard, Interrupts, Keyboard
from agentloom_worker.clock import ManualClock

WAIT_S = 20.0


class Typed:
    """A keyboard on a pipe, and the end at which is typed."""

    def __init__(self) -> None:
        self.fd, self._typing = os.pipe()
        self.clock = ManualClock()
        self.keyboard = Keyboard(self.clock, self.fd)

    def type(self, text: bytes) -> None:
        os.write(self._typing, text)

    def leave(self) -> None:
        os.close(self._typing)


@pytest.fixture
def typed() -> Iterator[Typed]:
    made = Typed()
    with made.keyboard:
        yield made
    os.close(made.fd)


@pytest.mark.parametrize(
    ("second_s", "working", "leaves"),
    [(TWICE_S, True, True), (TWICE_S + 0.01, True, False), (TWICE_S + 0.01, False, True), (0.0, False, True)],
)
def test_a_second_ctrl_c_leaves_within_a_second_or_while_nothing_runs(
    second_s: float, working: bool, leaves: bool
) -> None:
    interrupts = Interrupts()
    assert interrupts.leaves(10.0, working=True) is False
    assert interrupts.leaves(10.0 + second_s, working=working) is leaves


def test_the_first_ctrl_c_leaves_while_nothing_runs() -> None:
    assert Interrupts().leaves(0.0, working=False) is True


def test_lines_come_one_by_one_and_a_last_one_without_an_end_counts(typed: Typed) -> None:
    typed.type(b"one\n\ntwo \xe2\x86\x92 \xff\nthr")
    heard = [typed.keyboard.hear(WAIT_S, reading=True) for _ in range(3)]
    assert heard == [Heard("one"), Heard(""), Heard("two → \udcff")]
    typed.type(b"ee")
    typed.leave()
    rest = [typed.keyboard.hear(WAIT_S, reading=True) for _ in range(5)]
    assert [one.line for one in rest if one.line is not None] == ["three"]
    assert [one.ended for one in rest][-2:] == [True, True]


def test_a_line_that_nobody_wants_stays_where_it_is(typed: Typed) -> None:
    typed.type(b"later\n")
    assert typed.keyboard.hear(0.0, reading=False) == Heard()
    assert os.read(typed.fd, 100) == b"later\n"


def test_ctrl_c_ends_a_wait_and_is_told_with_its_instant(typed: Typed) -> None:
    signal.raise_signal(signal.SIGINT)
    typed.clock.advance(s=2)
    signal.raise_signal(signal.SIGINT)
    heard = typed.keyboard.hear(WAIT_S, reading=True)
    first, second = heard.interrupts
    assert (heard.line, heard.ended, second - first) == (None, False, pytest.approx(2.0))
    typed.type(b"on\n")
    assert typed.keyboard.hear(WAIT_S, reading=True) == Heard("on")


def test_ctrl_c_is_python_s_own_again_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Keyboard(ManualClock(), 0):
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_a_line_that_is_too_long_is_cut_one_byte_above_what_is_taken(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyboard, "INPUT_BYTES_MAX", 10)
    typed.type(b"0123456789abcdef\nnext\n")
    assert [typed.keyboard.hear(WAIT_S, reading=True).line for _ in range(2)] == ["0123456789a", "next"]


def test_a_regular_file_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("a\nb")
    fd = os.open(path, os.O_RDONLY)
    with Keyboard(ManualClock(), fd) as board:
        heard = [board.hear(WAIT_S, reading=True) for _ in range(4)]
    os.close(fd)
    assert [one.line for one in heard if one.line is not None] == ["a", "b"]
    assert heard[-1].ended
