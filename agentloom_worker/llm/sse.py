"""A byte-level parser of server-sent events (WHATWG HTML, 9.2.6), stricter where money is at stake.

Only CR, LF and CRLF end a line: `str.splitlines` and most line iterators also cut at U+2028, U+0085 or VT
and so break JSON text. Invalid UTF-8 is an error instead of U+FFFD, and sizes are bounded.
"""

import codecs

from agentloom_worker import limits

_BOM = "\ufeff"


class SseProtocolError(Exception):
    """The bytes are no event stream that we accept: invalid UTF-8, or a bound was passed."""


class SseParser:
    """Turns chunks of bytes, cut anywhere, into the data of whole events. For one thread.

    Comments, fields other than `data` and events without data are dropped; that bytes arrived at all is the
    caller's sign of life. `event_bytes_max` is compared with decoded characters, never more than bytes.
    """

    __slots__ = (
        "_data",
        "_data_size",
        "_decode",
        "_event_max",
        "_started",
        "_stream_max",
        "_swallow_lf",
        "_tail",
        "_tail_size",
        "total_bytes",
    )

    def __init__(
        self,
        *,
        event_bytes_max: int = limits.SSE_EVENT_BYTES_MAX,
        stream_bytes_max: int = limits.STREAM_BYTES_MAX,
    ) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("strict").decode
        self._event_max = event_bytes_max
        self._stream_max = stream_bytes_max
        self._tail: list[str] = []
        self._data: list[str] = []
        self._tail_size = 0
        self._data_size = 0
        self._started = False
        self._swallow_lf = False
        self.total_bytes = 0

    def feed(self, chunk: bytes) -> list[str]:
        """Take the next bytes; return the data of each event that they complete, in order.

        Raises SseProtocolError. The parser must not be used after that.
        """
        self.total_bytes += len(chunk)
        if self.total_bytes > self._stream_max:
            raise SseProtocolError(f"the stream is larger than {self._stream_max} bytes")
        try:
            text = self._decode(chunk)
        except UnicodeDecodeError as error:
            raise SseProtocolError(f"invalid UTF-8: {error.reason}") from error
        if not text:
            return []
        if not self._started:
            self._started = True
            text = text.removeprefix(_BOM)
        events = self._lines(self._unify_line_ends(text))
        if self._tail_size + self._data_size > self._event_max:
            raise self._too_large()
        return events

    @property
    def pending(self) -> bool:
        """Whether an unfinished line or event is buffered; at the end of a stream it makes it incomplete."""
        return bool(self._tail or self._data)

    def _unify_line_ends(self, text: str) -> str:
        if self._swallow_lf:
            self._swallow_lf = False
            text = text.removeprefix("\n")
        if "\r" in text:
            # A CR at the very end ends its line now; a LF that opens the next chunk belongs to it.
            self._swallow_lf = text.endswith("\r")
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        return text

    def _lines(self, text: str) -> list[str]:
        first, *rest = text.split("\n")
        if not rest:
            self._keep(first)
            return []
        if self._tail:
            # Parts are joined once, so that a large event in small chunks does not cost its square.
            self._tail.append(first)
            first = "".join(self._tail)
            self._tail.clear()
            self._tail_size = 0
        self._keep(rest.pop())
        events: list[str] = []
        for line in (first, *rest):
            if line.startswith("data:"):
                value = line[6:] if line.startswith("data: ") else line[5:]
                self._data.append(value)
                self._data_size += len(value)
            elif not line:
                self._dispatch(events)
            elif line == "data":
                self._data.append("")
        return events

    def _keep(self, part: str) -> None:
        if part:
            self._tail.append(part)
            self._tail_size += len(part)

    def _dispatch(self, events: list[str]) -> None:
        if self._data_size > self._event_max:
            raise self._too_large()
        if self._data_size:
            events.append(self._data[0] if len(self._data) == 1 else "\n".join(self._data))
        self._data.clear()
        self._data_size = 0

    def _too_large(self) -> SseProtocolError:
        return SseProtocolError(f"an event is larger than {self._event_max} bytes")
