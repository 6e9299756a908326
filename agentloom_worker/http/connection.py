"""Sockets whose every wait is bounded by the call that owns them and can be ended by another thread."""

import contextlib
import errno
import ipaddress
import select
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

import httpcore
import httpx

from agentloom_worker import limits
from agentloom_worker.http.watch import CallInterrupted, CallWatch, Limit

_AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
Resolver = Callable[[str, int], list[_AddressInfo]]


def resolve(host: str, port: int) -> list[_AddressInfo]:
    """Ask the system's resolver. Blocks for as long as that likes."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(int(family), int(kind), protocol, name, address) for family, kind, protocol, name, address in found]


def dial(
    watch: CallWatch,
    host: str,
    port: int,
    *,
    ssl_context: ssl.SSLContext | None = None,
    resolver: Resolver = resolve,
) -> "SocketStream":
    """Connect, with TLS if a context is given, within CONNECT_TIMEOUT_S for all addresses together.

    The stream is lent to `watch`. Raises httpx.ConnectError, LimitExpired, CallInterrupted.
    """
    watch.limit(Limit.CONNECT, limits.CONNECT_TIMEOUT_S)
    addresses = _look_up(watch, host, port, resolver)[: limits.CONNECT_ADDRESSES_MAX]
    stream = _connect_any(watch, host, addresses)
    try:
        if ssl_context is not None:
            stream = stream.start_tls(ssl_context, server_hostname=host)
    except BaseException:
        stream.close()
        raise
    watch.lift(Limit.CONNECT)
    return stream


class SocketStream(httpcore.NetworkStream):
    """A connected socket whose every wait is bounded and watched by the call that now owns it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._watch: CallWatch | None = None

    def lend(self, watch: CallWatch) -> None:
        """Give the stream to a call. Raises CallInterrupted."""
        watch.attach(self._shut_down)
        self._watch = watch

    def take_back(self) -> None:
        """Take the stream from its call: from now on it blocks for nothing."""
        if self._watch is not None:
            self._watch.detach()
            self._watch = None

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read what is there, waiting as long as the call's limits allow; `timeout` is theirs to say."""
        watch = self._watch
        try:
            self._sock.settimeout(0.0 if watch is None else watch.block_s())
            data = self._sock.recv(max_bytes)
        except OSError as error:
            if watch is not None and _is_our_timeout(error):
                raise watch.timed_out() from error
            raise httpx.ReadError(_reason(error)) from error
        if watch is not None:
            if not data and watch.interrupted:
                # The end is ours: it ends no body.
                raise CallInterrupted()
            watch.bytes_arrived()
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write all of the buffer under the call's limits."""
        watch = self._watch
        assert watch is not None, "only a call writes"
        rest = memoryview(buffer)
        try:
            while rest:
                self._sock.settimeout(watch.block_s())
                rest = rest[self._sock.send(rest) :]
        except OSError as error:
            if _is_our_timeout(error):
                raise watch.timed_out() from error
            # httpcore goes on to read after this one: a server may refuse a large body half-way and say why.
            raise httpcore.WriteError(_reason(error)) from error

    def close(self) -> None:
        self.take_back()
        self._sock.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> "SocketStream":
        """Wrap the socket; the handshake is watched like any other wait."""
        watch = self._watch
        assert watch is not None, "only a call connects"
        self.take_back()
        secured = SocketStream(
            ssl_context.wrap_socket(self._sock, server_hostname=server_hostname, do_handshake_on_connect=False)
        )
        try:
            secured.lend(watch)
            secured._handshake(watch)
        except BaseException:
            secured.close()
            raise
        return secured

    def get_extra_info(self, info: str) -> Any:
        match info:
            case "socket":
                return self._sock
            case "ssl_object":
                return self._sock if isinstance(self._sock, ssl.SSLSocket) else None
            case "is_readable":
                return self.readable()
        return None

    def readable(self) -> bool:
        """Whether something waits to be read; on an idle connection that is its end."""
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _handshake(self, watch: CallWatch) -> None:
        assert isinstance(self._sock, ssl.SSLSocket)
        try:
            self._sock.settimeout(watch.block_s())
            self._sock.do_handshake()
        except OSError as error:
            if _is_our_timeout(error):
                raise watch.timed_out() from error
            raise httpx.ConnectError(f"TLS handshake failed: {_reason(error)}") from error

    def _shut_down(self) -> None:
        # An error means that it is not connected any more: there is nothing to wake.
        with contextlib.suppress(OSError):
            # Not SSLSocket.shutdown, which drops the TLS state under the reading thread.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)


def _look_up(watch: CallWatch, host: str, port: int, resolver: Resolver) -> list[_AddressInfo]:
    """Resolve a name on a thread of its own, since a blocked resolver cannot be interrupted.

    Only a new connection to a host that is no literal address pays for the thread.
    """
    if _is_address(host):
        return resolver(host, port)
    done = threading.Event()
    found: list[_AddressInfo] = []
    errors: list[OSError] = []

    def look_up() -> None:
        try:
            found.extend(resolver(host, port))
        except OSError as error:
            errors.append(error)
        except UnicodeError:
            errors.append(OSError(errno.EINVAL, "the host name is not valid"))
        done.set()

    watch.attach(done.set)
    block_s = watch.block_s()
    threading.Thread(target=look_up, name="agentloom-resolve", daemon=True).start()
    in_time = done.wait(block_s)
    watch.detach()
    if errors:
        raise httpx.ConnectError(f"cannot resolve {host}: {_reason(errors[0])}") from errors[0]
    watch.block_s()  # An interruption sets the event as well.
    if not in_time:
        raise watch.timed_out()
    return list(found)


def _connect_any(watch: CallWatch, host: str, addresses: list[_AddressInfo]) -> "SocketStream":
    reason = "no address"
    for position, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = socket.socket(family, kind, protocol)
        stream = SocketStream(sock)
        try:
            stream.lend(watch)
            # An address that swallows packets leaves its share of the time to the others.
            sock.settimeout(watch.block_s() / (len(addresses) - position))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return stream
        except OSError as error:
            stream.close()
            reason = "timed out" if _is_our_timeout(error) else _reason(error)
        except BaseException:
            stream.close()
            raise
    raise httpx.ConnectError(f"cannot connect to {host}: {reason}")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_our_timeout(error: OSError) -> bool:
    # The kernel's ETIMEDOUT is a TimeoutError as well, but carries its number.
    return isinstance(error, TimeoutError) and error.errno is None


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
