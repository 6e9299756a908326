"""What a stream of bytes says, the slow and obvious way: all of it at once, by the standard's own steps.

WHATWG HTML 9.2.6, with the differences that agentloom_worker/llm/sse.py names: strict UTF-8, bounds, and no event
without data.
"""

import re
from dataclasses import dataclass

_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Reading:
    """The data of each whole event before the first fault; `pending` says nothing behind one."""

    events: tuple[str, ...]
    faulty: bool
    pending: bool


def read(body: bytes, *, event_max: int, stream_max: int) -> Reading:
    """The meaning of a whole body."""
    text, broken, cut = _decode(body[:stream_max])
    broken = broken or len(body) > stream_max
    *lines, rest = _LINE_END.split(text.removeprefix("\ufeff"))
    events: list[str] = []
    data: list[str] = []
    size = 0
    for line in lines:
        if size + len(line) > event_max:
            return Reading(tuple(events), True, False)
        field, _, value = line.partition(":")
        if not line:
            if "".join(data):
                events.append("\n".join(data))
            data, size = [], 0
        elif field == "data":
            data.append(value.removeprefix(" "))
            size += len(line)
    faulty = broken or size + len(rest) > event_max
    return Reading(tuple(events), faulty, not faulty and (cut or bool(data or rest)))


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
