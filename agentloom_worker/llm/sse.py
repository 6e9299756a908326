"""A byte-level parser of server-sent events (WHATWG HTML, 9.2.6), stricter where money is at stake.

Only CR, LF and CRLF end a line: `str.splitlines` and most line iterators also cut at U+2028, U+0085 or VT
and so break JSON text. Invalid UTF-8 is an error instead of U+FFFD, and sizes are bounded.
"""

import codecs
import io
import re
from collections.abc import Iterable, Iterator
from itertools import islice

from agentloom_worker import limits

_BOM = "\ufeff"
_BOM_BYTES = _BOM.encode()
_LINE_END = re.compile(rb"\r\n?|\n")
# A compressed answer may unpack to one huge chunk: its lines are never held all at once.
_PIECE_BYTES = 65_536


class SseProtocolError(Exception):
    """The bytes are no event stream that we accept: invalid UTF-8, or a bound was passed."""


class SseParser:
    """Turns chunks of bytes, cut anywhere, into the data of whole events. For one thread.

    What comes out, a fault included, depends on the bytes alone and never on where they were cut. Comments,
    fields other than `data` and events without data are dropped; that bytes arrived at all is the caller's
    sign of life. `event_bytes_max` bounds one line, and the data lines of one event together; it is compared
    with decoded characters, never more than bytes.

    Positions count bytes from the beginning of the stream, and are the same wherever the bytes were cut: an event
    ends with the first byte of the line end behind its empty line (a LF that follows a CR there is not part of it);
    a fault stands behind the first byte with which it is certain.
    """

    __slots__ = (
        "_before",
        "_chunk",
        "_data",
        "_data_size",
        "_decoder",
        "_ends",
        "_event_max",
        "_fault",
        "_held",
        "_lines",
        "_skipped",
        "_started",
        "_stream_max",
        "_swallow_lf",
        "_tail",
        "_tail_size",
        "fault_at",
        "total_bytes",
    )

    def __init__(
        self,
        *,
        event_bytes_max: int = limits.SSE_EVENT_BYTES_MAX,
        stream_bytes_max: int = limits.STREAM_BYTES_MAX,
    ) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._event_max = event_bytes_max
        self._stream_max = stream_bytes_max
        # An unfinished line: a buffer, since a list of chunks of one byte would take eighty times their size.
        self._tail = io.StringIO()
        self._tail_size = 0
        self._data: list[str] = []
        self._data_size = 0  # of its lines, with the field's name
        self._started = False
        self._swallow_lf = False
        self._fault: SseProtocolError | None = None
        self.total_bytes = 0
        self.fault_at = 0  # where the fault stands, if there is one
        # Of the chunk that was fed last, with what the decoder held back before it: where events end is found by
        # whoever asks, which is once a stream.
        self._chunk = b""
        self._before = 0
        self._skipped = 0  # of its first bytes: a LF that belongs to a line that has ended, a byte order mark
        self._held = 0  # characters of its first line that came before it
        self._lines = 0
        self._ends: list[int] = []

    def feed(self, chunk: bytes) -> Iterable[str]:
        """Take the next bytes; give the data of each event that they complete, in order.

        Raises SseProtocolError, after the events that stand whole before the fault: at once where there are
        none, else at the end of the iteration. A broken parser gives nothing but that error.
        """
        events: list[str] = []
        if self._fault is not None:
            raise self._fault
        self._begin(chunk)
        try:
            if len(chunk) <= _PIECE_BYTES:
                self._take(chunk, events)
            else:
                for start in range(0, len(chunk), _PIECE_BYTES):
                    self._take(chunk[start : start + _PIECE_BYTES], events)
        except SseProtocolError as fault:
            self._fault = fault
            if not events:
                raise
            return _then_raise(events, fault)
        return events

    def end_of(self, number: int) -> int:
        """The position behind an event, by its number among those that the last feed gave."""
        return self._before + self._line_end(self._ends[number]).start() + 1

    @property
    def pending(self) -> bool:
        """Whether a part of a character, line or event is buffered; at the end of a stream it is incomplete."""
        return bool(self._tail_size or self._data or self._decoder.getstate()[0])

    def _begin(self, chunk: bytes) -> None:
        # Only behind a byte of a longer character may the decoder hold something back.
        held = self._decoder.getstate()[0] if self._chunk and self._chunk[-1] > 0x7F else b""
        self._chunk = held + chunk if held else chunk
        self._before = self.total_bytes - len(held)
        self._skipped = 0
        if self._swallow_lf:
            self._skipped = int(chunk.startswith(b"\n"))
        elif not self._started and self._chunk.startswith(_BOM_BYTES):
            self._skipped = len(_BOM_BYTES)
        self._held = self._tail_size
        self._lines = 0
        self._ends = []

    def _line_end(self, number: int) -> re.Match[bytes]:
        """A line end of this chunk; they are counted from 1."""
        return next(islice(_LINE_END.finditer(self._chunk, self._skipped), number - 1, None))

    def _take(self, chunk: bytes, events: list[str]) -> None:
        before = self.total_bytes
        room = self._stream_max - before
        self.total_bytes += len(chunk)
        fault = None
        if room < len(chunk):
            fault = SseProtocolError(f"the stream is larger than {self._stream_max} bytes")
            chunk = chunk[:room]
            self.fault_at = self._stream_max
        try:
            text = self._decoder.decode(chunk)
        except UnicodeDecodeError as error:
            fault = SseProtocolError(f"invalid UTF-8: {error.reason}")
            self.fault_at = before + len(chunk) - len(error.object) + error.end
            text = error.object[: error.start].decode()
        if text:
            self._take_text(text, events)
        if fault is not None:
            raise fault

    def _take_text(self, text: str, events: list[str]) -> None:
        if not self._started:
            self._started = True
            text = text.removeprefix(_BOM)
        if self._swallow_lf:
            self._swallow_lf = False
            text = text.removeprefix("\n")
        if "\r" in text:
            # A CR at the very end ends its line now; a LF that opens the next chunk belongs to it.
            self._swallow_lf = text.endswith("\r")
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.split("\n")
        rest = lines.pop()
        if lines and self._tail_size:
            self._tail.write(lines[0])
            lines[0] = self._tail.getvalue()
            self._tail = io.StringIO()
            self._tail_size = 0
        self._take_lines(lines, events)
        if rest:
            self._tail.write(rest)
            self._tail_size += len(rest)
            if self._data_size + self._tail_size > self._event_max:
                raise self._too_large(self._lines + 1)

    def _take_lines(self, lines: list[str], events: list[str]) -> None:
        number = self._lines
        self._lines += len(lines)
        for line in lines:
            number += 1
            if self._data_size + len(line) > self._event_max:
                raise self._too_large(number)
            if line.startswith("data:"):
                self._data.append(line[6:] if line.startswith("data: ") else line[5:])
                self._data_size += len(line)
            elif not line:
                # Empty lines of data alone are somebody's keep-alive.
                if any(self._data):
                    events.append("\n".join(self._data))
                    self._ends.append(number)
                self._data.clear()
                self._data_size = 0
            elif line == "data":
                self._data.append("")
                self._data_size += len(line)

    def _too_large(self, number: int) -> SseProtocolError:
        """The fault of a line of this chunk, by its number: it stands behind the first character too many."""
        start, room = self._skipped, self._event_max - self._data_size
        if number > 1:
            start = self._line_end(number - 1).end()
        else:
            room -= self._held
        upto = self._chunk[start : start + 4 * (room + 1)].decode("utf-8", "replace")[: room + 1]
        self.fault_at = self._before + start + len(upto.encode())
        return SseProtocolError(f"an event is larger than {self._event_max} bytes")


def _then_raise(events: list[str], fault: SseProtocolError) -> Iterator[str]:
    yield from events
    raise fault
