"""One HTTP/1.1 connection: read requests, play the responses piece by piece.

Written by hand on asyncio's transports, because a benchmark runs the dev-model beside the workers and its CPU
counts: no task a request, one write for all pieces without a pause. Keep-alive; one request at a time.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agentloom_worker.devmodel.framing import JSON_TYPE, encode, whole_response
from agentloom_worker.devmodel.plan import Ending, Piece
from agentloom_worker.devmodel.request_log import Outcome
from agentloom_worker.limits import STREAM_BYTES_MAX

HEAD_BYTES_MAX = 64 * 1024
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_LINGER = struct.pack("ii", 1, 0)

_OUTCOMES = {
    Ending.KEEP: Outcome.COMPLETE,
    Ending.HANG_UP: Outcome.HUNG_UP,
    Ending.RESET: Outcome.RESET,
}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request; header names are in lower case."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str:
        """The last value of a header, empty if there is none."""
        return next((value for key, value in reversed(self.headers) if key == name), "")


@dataclass(frozen=True, slots=True)
class Response:
    """What to send, and whom to tell how it ended."""

    pieces: tuple[Piece, ...]
    ending: Ending = Ending.KEEP
    ended: Callable[[Outcome], None] = lambda outcome: None


class Responder(Protocol):
    """What a connection asks of the server. Called in the loop's thread."""

    def respond(self, request: HttpRequest) -> Response:
        """The response to a request."""
        ...

    def when_open(self, gate: str, resume: Callable[[], None]) -> bool:
        """True if the gate is open; else `resume` is called once when it opens."""
        ...

    def opened(self, connection: "Connection") -> None:
        """A connection came."""
        ...

    def closed(self, connection: "Connection") -> None:
        """It is gone."""
        ...


class MalformedRequestError(ValueError):
    """Not a request that this server reads; `status` goes into the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Connection(asyncio.Protocol):
    """Reads, plays, and says how each response ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop, responder: Responder) -> None:
        self._loop = loop
        self._responder = responder
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._head: tuple[HttpRequest, int] | None = None
        self._response: Response | None = None
        self._position = 0
        self._passed = False  # the pause or gate of the piece at `_position` lies behind
        self._timer: asyncio.TimerHandle | None = None
        self._full = False
        self._close_after = False
        self._stopping = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        # A mark of zero means: the loop tells when the last byte has left for the kernel.
        transport.set_write_buffer_limits(high=0)
        self._transport = transport
        self._responder.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        response, self._response = self._response, None
        if response is not None:
            response.ended(Outcome.SERVER_STOPPED if self._stopping else Outcome.CLIENT_GONE)
        self._responder.closed(self)

    def stop(self) -> None:
        """Close at once, whatever is going on."""
        self._stopping = True
        if self._transport is not None:
            self._hang_up(self._transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._response is None:
            self._next_request()
        elif len(self._received) > HEAD_BYTES_MAX and self._transport is not None:
            self._transport.pause_reading()  # a client that sends ahead waits for its answer

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._response is not None:
            self._play()

    def _next_request(self) -> None:
        try:
            request = self._read_request()
        except MalformedRequestError as error:
            body = encode({"error": {"message": str(error), "type": "invalid_request_error", "code": None}})
            self._close_after = True
            self._start(Response((Piece(whole_response(error.status, JSON_TYPE, body)),)))
            return
        if request is not None:
            self._close_after = request.header("connection").lower() == "close"
            self._start(self._responder.respond(request))

    def _read_request(self) -> HttpRequest | None:
        """The next whole request, or None while parts of it are missing."""
        if self._head is None:
            end = self._received.find(b"\r\n\r\n")
            if end > HEAD_BYTES_MAX or (end < 0 and len(self._received) > HEAD_BYTES_MAX):
                raise MalformedRequestError(431, f"the head is larger than {HEAD_BYTES_MAX} bytes")
            if end < 0:
                return None
            request = parse_head(bytes(self._received[:end]))
            del self._received[: end + 4]
            self._head = (request, body_length(request))
            if request.header("expect").lower() == "100-continue" and self._transport is not None:
                self._transport.write(CONTINUE)
        request, length = self._head
        if length < 0:
            chunked = decode_chunked(self._received)
            if chunked is None:
                return None
            body, length = chunked
        elif len(self._received) < length:
            return None
        else:
            body = bytes(self._received[:length])
        del self._received[:length]
        self._head = None
        return HttpRequest(request.method, request.target, request.headers, body)

    def _start(self, response: Response) -> None:
        self._response = response
        self._position = 0
        self._passed = False
        self._play()

    def _play(self) -> None:
        """Send pieces up to the next pause, closed gate or full buffer, whose end calls again."""
        response, transport = self._response, self._transport
        if response is None or transport is None or self._timer is not None:
            return
        ready: list[bytes] = []
        waits = False
        while self._position < len(response.pieces) and not waits:
            piece = response.pieces[self._position]
            if not self._passed and (piece.delay_s or piece.gate):
                waits = self._wait(piece)
            if not waits:
                ready.append(piece.payload)
                self._position += 1
                self._passed = False
        if any(ready):
            transport.write(b"".join(ready))
        if not waits and not self._full and self._position >= len(response.pieces):
            self._finish(response, transport)

    def _wait(self, piece: Piece) -> bool:
        """Whether the piece has to wait; arranges to be called when it no longer has to."""
        if piece.gate is not None and not self._responder.when_open(piece.gate, self._gate_opened):
            return True
        if piece.delay_s:
            self._timer = self._loop.call_later(piece.delay_s, self._time_over)
            return True
        return False

    def _gate_opened(self) -> None:
        self._play()

    def _time_over(self) -> None:
        self._timer = None
        self._passed = True
        self._play()

    def _finish(self, response: Response, transport: asyncio.Transport) -> None:
        if response.ending is Ending.STALL:
            return  # connection_lost ends it
        self._response = None
        response.ended(_OUTCOMES[response.ending])
        if response.ending is Ending.RESET:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            transport.abort()
        elif response.ending is Ending.HANG_UP or self._close_after:
            self._hang_up(transport)
        elif self._received:
            transport.resume_reading()
            # By way of the loop: a client that sends ahead must not deepen the stack.
            self._loop.call_soon(self._next_request_if_idle)

    def _next_request_if_idle(self) -> None:
        if self._response is None and self._transport is not None:
            self._next_request()

    def _hang_up(self, transport: asyncio.Transport) -> None:
        # A process forked while this socket was open holds a copy of it: close() alone would send nothing.
        with contextlib.suppress(OSError):
            transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        transport.abort()


def parse_head(head: bytes) -> HttpRequest:
    """Read the request line and the headers. Raises MalformedRequestError."""
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3:
        raise MalformedRequestError(400, "not an HTTP request line")
    if parts[2] != "HTTP/1.1":
        raise MalformedRequestError(505, "this server speaks HTTP/1.1")
    headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise MalformedRequestError(400, "a header without a colon")
        headers.append((name.lower(), value.strip()))
    return HttpRequest(parts[0], parts[1], tuple(headers), b"")


def body_length(request: HttpRequest) -> int:
    """Bytes of the body, or -1 for a chunked one. Raises MalformedRequestError."""
    if request.header("transfer-encoding").lower() == "chunked":
        return -1
    text = request.header("content-length") or "0"
    if not text.isdecimal():
        raise MalformedRequestError(400, "content-length is not a number")
    if int(text) > STREAM_BYTES_MAX:
        raise MalformedRequestError(413, f"the body is larger than {STREAM_BYTES_MAX} bytes")
    return int(text)


def decode_chunked(received: bytearray) -> tuple[bytes, int] | None:
    """A chunked body and the bytes it took, or None while it is not whole. Raises MalformedRequestError."""
    parts: list[bytes] = []
    position = 0
    while True:
        line_end = received.find(b"\r\n", position)
        if line_end < 0:
            return None
        size_text = bytes(received[position:line_end]).split(b";")[0].strip()
        try:
            size = int(size_text, 16)
        except ValueError as error:
            raise MalformedRequestError(400, "a chunk without a size") from error
        position = line_end + 2
        if position + size > STREAM_BYTES_MAX:
            raise MalformedRequestError(413, f"the body is larger than {STREAM_BYTES_MAX} bytes")
        if len(received) < position + size + 2:
            return None
        parts.append(bytes(received[position : position + size]))
        position += size + 2
        if size == 0:
            return b"".join(parts), position
