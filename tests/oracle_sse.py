"""What a stream of bytes says, the slow and obvious way: all of it at once, by the standard's own steps.

WHATWG HTML 9.2.6, with the differences that agentloom_worker/llm/sse.py names: strict UTF-8, bounds, and no event
without data.
"""

import re
from dataclasses import dataclass

_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Reading:
    """The data of each whole event before the first fault; `pending` says nothing behind one.

    `ends` are the positions behind them, and behind the fault where there is one.
    """

    events: tuple[str, ...]
    faulty: bool
    pending: bool
    ends: tuple[int, ...] = ()


def read(body: bytes, *, event_max: int, stream_max: int) -> Reading:
    """The meaning of a whole body."""
    text, broken, cut = _decode(body[:stream_max])
    broken_at = _broken_at(body[:stream_max]) if broken else stream_max
    broken = broken or len(body) > stream_max
    events: list[str] = []
    ends: list[int] = []
    data: list[str] = []
    size = 0
    start = len("\ufeff") if text.startswith("\ufeff") else 0
    while (found := _LINE_END.search(text, start)) is not None:
        line, line_start, start = text[start : found.start()], start, found.end()
        if size + len(line) > event_max:
            ends.append(len(text[: line_start + event_max - size + 1].encode()))
            return Reading(tuple(events), True, False, tuple(ends))
        field, _, value = line.partition(":")
        if not line:
            if "".join(data):
                events.append("\n".join(data))
                ends.append(len(text[: found.start() + 1].encode()))
            data, size = [], 0
        elif field == "data":
            data.append(value.removeprefix(" "))
            size += len(line)
    rest = text[start:]
    too_large = size + len(rest) > event_max
    if too_large:
        ends.append(len(text[: start + event_max - size + 1].encode()))
    elif broken:
        ends.append(broken_at)
    faulty = broken or too_large
    return Reading(tuple(events), faulty, not faulty and (cut or bool(data or rest)), tuple(ends))


def _broken_at(body: bytes) -> int:
    """Behind the bytes that no character begins with."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return error.end
    raise AssertionError("these bytes are a text")


def _decode(body: bytes) -> tuple[str, bool, bool]:
    """The longest text that the bytes begin with, whether what follows is invalid, whether it is only cut."""
    try:
        return body.decode(), False, False
    except UnicodeDecodeError as error:
        cut = _may_go_on(body[error.start :])
        return body[: error.start].decode(), not cut, cut


def _may_go_on(start: bytes) -> bool:
    """Whether some bytes after these would make one whole character of them.

    Python's decoder takes the first two bytes of a surrogate for such a start as well: the third one is the fault.
    """
    tails = (b"\x80", b"\x90", b"\xa0", b"\x80\x80", b"\x90\x80", b"\xa0\x80", b"\x80\x80\x80", b"\x90\x80\x80")
    surrogate = len(start) == 2 and start[0] == 0xED and 0xA0 <= start[1] <= 0xBF
    return surrogate or any(_is_character(start + tail) for tail in tails)


def _is_character(body: bytes) -> bool:
    try:
        return len(body.decode()) == 1
    except UnicodeDecodeError:
        return False
