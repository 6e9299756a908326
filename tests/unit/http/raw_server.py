"""A server of raw bytes on loopback: a test says, byte by byte, what each request is answered with."""

import queue
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

WAIT_S = 10.0  # the bound of every wait in these tests; nothing is measured against it

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNKED_HEAD = CHUNKED_HEAD[:-2] + b"Connection: close\r\n\r\n"

Handler = Callable[["Exchange"], None]


class Exchange:
    """One request as it arrived, and the socket that it is answered on."""

    def __init__(self, server: "RawServer", sock: socket.socket, head: bytes, body: bytes) -> None:
        self.server = server
        self.sock = sock
        self.head = head
        self.body = body
        self.keep = False

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def wait_for_end(self) -> None:
        """Block until the client has closed its side, and tell the test."""
        self.sock.settimeout(WAIT_S)
        try:
            while self.sock.recv(4096):
                pass
        except ConnectionError:
            pass
        self.server.ended.set()


class RawServer:
    """Answers its requests, in order of arrival, with `handlers`; the last one serves all that follow."""

    def __init__(self, handlers: list[Handler], context: ssl.SSLContext | None = None) -> None:
        self._handlers = handlers
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self.requests: queue.Queue[Exchange] = queue.Queue()
        self.served = 0
        self.connections = 0
        self.ended = threading.Event()
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    @property
    def base_url(self) -> str:
        scheme = "http" if self._context is None else "https"
        return f"{scheme}://127.0.0.1:{self.port}/v1"

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(WAIT_S)
        self._listener.close()
        with self._lock:
            for sock in self._sockets:
                with suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(WAIT_S)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            with self._lock:
                self.connections += 1
                self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_side=True)
            with self._lock:
                self._sockets.append(sock)
            while self._serve_request(sock):
                pass
        except OSError:
            pass  # The client went away: that is what many of these tests are about.
        finally:
            sock.close()

    def _serve_request(self, sock: socket.socket) -> bool:
        received = b""
        while b"\r\n\r\n" not in received:
            data = sock.recv(65536)
            if not data:
                return False
            received += data
        head, _, body = received.partition(b"\r\n\r\n")
        size = next(
            (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0
        )
        while len(body) < size:
            body += sock.recv(65536)
        exchange = Exchange(self, sock, head, body)
        with self._lock:
            handler = self._handlers[min(self.served, len(self._handlers) - 1)]
            self.served += 1
        self.requests.put(exchange)
        handler(exchange)
        return exchange.keep


@contextmanager
def serving(*handlers: Handler, context: ssl.SSLContext | None = None) -> Iterator[RawServer]:
    server = RawServer(list(handlers), context)
    try:
        yield server
    finally:
        server.close()


def bytes_of(data: bytes) -> Handler:
    """A handler that sends these bytes and closes."""
    return lambda exchange: exchange.send(data)


def chunked(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n" % len(data) + data + b"\r\n"


def answer(status: str, body: bytes = b"", headers: str = "Content-Type: application/json") -> Handler:
    """A handler that answers with a status and a whole body."""
    head = f"HTTP/1.1 {status}\r\n{headers}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return bytes_of(head.encode() + body)
