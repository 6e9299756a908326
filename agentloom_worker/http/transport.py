"""An httpx transport for long streams: it knows the socket of each call and keeps connections cheaply.

httpx's own transport cannot be interrupted from another thread while it waits for response headers, and
its pool looks at every connection for every request, with one system call for each idle one. This one hands
the newest idle connection of the endpoint to the caller; HTTP/1.1 itself stays with httpcore and h11.
It follows no redirect, keeps no cookie and repeats nothing. Proxies of the environment are not used.
"""

import os
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import httpcore
import httpx

from agentloom_worker import limits
from agentloom_worker.clock import Clock
from agentloom_worker.http.connection import SocketStream, dial
from agentloom_worker.http.watch import CallWatch

WATCH_EXTENSION = "agentloom_watch"


class _Origin(NamedTuple):
    scheme: str
    host: str
    port: int


@dataclass(slots=True)
class _Connection:
    """`leftover` is the body of the last answer where its end was not read yet."""

    origin: _Origin
    stream: SocketStream
    http: httpcore.HTTP11Connection
    leftover: "ResponseBody | None" = None
    idle_until_s: float = 0.0

    def close(self) -> None:
        self.leftover = None
        self.http.close()


class WatchedTransport(httpx.BaseTransport):
    """Sends each request under the CallWatch in its extension `WATCH_EXTENSION`. Shared by all threads.

    Raises httpx.TransportError (also LimitExpired, CallInterrupted) and what the watch's `on_sent` raises.
    """

    def __init__(self, clock: Clock, ssl_context: ssl.SSLContext | None = None) -> None:
        self._clock = clock
        self._ssl_context = ssl_context
        self._ssl_lock = threading.Lock()
        self._idle = _IdleConnections(clock)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        watch: CallWatch = request.extensions[WATCH_EXTENSION]
        url = request.url
        origin = _Origin(url.scheme, url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80))
        connection = self._idle.take(origin) or self._connect(watch, origin)
        try:
            connection.stream.lend(watch)
            watch.before_send()
            with _as_httpx_errors():
                answer = connection.http.handle_request(
                    httpcore.Request(
                        method=request.method,
                        url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                        headers=request.headers.raw,
                        content=request.stream,
                    )
                )
        except BaseException:
            connection.close()
            raise
        body = ResponseBody(connection, answer, self._idle)
        return httpx.Response(answer.status, headers=answer.headers, stream=body)

    def close(self) -> None:
        """Close the idle connections; new ones are made when they are needed."""
        self._idle.clear()

    def _connect(self, watch: CallWatch, origin: _Origin) -> _Connection:
        context = self._tls() if origin.scheme == "https" else None
        stream = dial(watch, origin.host, origin.port, ssl_context=context)
        core_origin = httpcore.Origin(origin.scheme.encode(), origin.host.encode(), origin.port)
        return _Connection(origin, stream, httpcore.HTTP11Connection(core_origin, stream))

    def _tls(self) -> ssl.SSLContext:
        # Made at the first use, since loading the certificates takes tens of milliseconds.
        with self._ssl_lock:
            if self._ssl_context is None:
                self._ssl_context = httpx.create_ssl_context()
            return self._ssl_context


class ResponseBody(httpx.SyncByteStream):
    """The body of one answer. Closing it gives the connection back, or ends it before the answer's end."""

    def __init__(self, connection: _Connection, answer: httpcore.Response, idle: "_IdleConnections") -> None:
        self._connection = connection
        self._answer = answer
        self._idle = idle
        assert isinstance(answer.stream, Iterable)
        self._chunks = iter(answer.stream)
        self._read_to_end = False
        self._complete = False
        self._closed = False

    def __iter__(self) -> Iterator[bytes]:
        with _as_httpx_errors():
            # `yield from` would close the chunks together with this generator.
            for chunk in self._chunks:  # noqa: UP028
                yield chunk
        self._read_to_end = True

    @property
    def ends_by_framing(self) -> bool:
        """Whether its headers tell its end, so that one that was read to its end is whole (RFC 9112, 6.3 and 8).

        Where the connection's end is the body's, a body that was cut looks like a whole one.
        """
        return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self._answer.headers)

    def mark_complete(self) -> None:
        """Nothing that follows matters: the connection is kept, the rest is read before its next use."""
        self._complete = True

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        connection = self._connection
        connection.stream.take_back()
        if self._complete and not self._read_to_end:
            connection.leftover = self
            self._idle.put(connection)
            return
        self._answer.close()
        if connection.http.is_idle():
            self._idle.put(connection)

    def drain(self) -> None:
        """Read the rest without waiting for any of it; the connection is idle afterwards or closed."""
        size = 0
        try:
            for chunk in self._chunks:
                size += len(chunk)
                if size > limits.DRAIN_BYTES_MAX:
                    break
        except (httpx.TransportError, httpcore.ProtocolError):
            pass  # httpcore has closed the connection.
        self._answer.close()


@dataclass(slots=True)
class _IdleConnections:
    """Idle connections by endpoint, the newest last. A forked child begins with none."""

    clock: Clock
    lock: threading.Lock = field(default_factory=threading.Lock)
    by_origin: dict[_Origin, list[_Connection]] = field(default_factory=dict)
    pid: int = field(default_factory=os.getpid)

    def take(self, origin: _Origin) -> _Connection | None:
        """The newest connection that still stands."""
        self._forget_after_fork()
        while True:
            with self.lock:
                idle = self.by_origin.get(origin)
                if not idle:
                    return None
                connection = idle.pop()
            if connection.idle_until_s > self.clock.monotonic_s() and _stands(connection):
                return connection
            connection.close()

    def put(self, connection: _Connection) -> None:
        """Keep a connection; drop those that have been idle for too long, and the oldest above the bound."""
        self._forget_after_fork()
        now_s = self.clock.monotonic_s()
        connection.idle_until_s = now_s + limits.CONNECTION_IDLE_S
        dropped = []
        with self.lock:
            idle = self.by_origin.setdefault(connection.origin, [])
            idle.append(connection)
            while idle[0].idle_until_s <= now_s or len(idle) > limits.CONNECTIONS_IDLE_MAX:
                dropped.append(idle.pop(0))
        for old in dropped:
            old.close()

    def clear(self) -> None:
        """Close all."""
        self._forget_after_fork()
        with self.lock:
            dropped = [connection for idle in self.by_origin.values() for connection in idle]
            self.by_origin.clear()
        for connection in dropped:
            connection.close()

    def __del__(self) -> None:
        # Nobody can use them any more; a connection that is lent out still warns when it is lost.
        for idle in self.by_origin.values():
            for connection in idle:
                connection.close()

    def _forget_after_fork(self) -> None:
        if self.pid == os.getpid():
            return
        # The parent goes on to use these sockets, and its lock may have been held at the fork. Closing our
        # descriptors sends nothing.
        inherited, self.by_origin = self.by_origin, {}
        self.lock = threading.Lock()
        self.pid = os.getpid()
        for idle in inherited.values():
            for connection in idle:
                connection.close()


def _stands(connection: _Connection) -> bool:
    if connection.leftover is not None:
        connection.leftover.drain()
        connection.leftover = None
    # What can be read on an idle connection is its end.
    return connection.http.is_idle() and not connection.stream.readable()


@contextmanager
def _as_httpx_errors() -> Iterator[None]:
    """httpcore's own errors as httpx's; those of our stream are httpx's already."""
    try:
        yield
    except httpcore.RemoteProtocolError as error:
        raise httpx.RemoteProtocolError(str(error)) from error
    except httpcore.LocalProtocolError:
        # Its text may quote a header, the key among them.
        raise httpx.LocalProtocolError("the request cannot be written as HTTP/1.1") from None
