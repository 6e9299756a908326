"""A pooler in front of PostgreSQL that lends a server session for one transaction, as PgBouncer's mode of that name.

It speaks just enough of the protocol for simple queries. The session that was given back last is lent first.
"""

import contextlib
import socket
import struct
import threading

from sqlalchemy.engine import make_url

_SSL_REQUEST = 80877103
# What a server asks a client to answer: a password in clear, as MD5, or the first two steps of SASL.
_ANSWERED = {3, 5, 10, 11}


class TransactionPooler:
    """Every client brings one server session along, and afterwards takes whichever is free."""

    def __init__(self, database_url: str) -> None:
        self._server = make_url(database_url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._free: list[socket.socket] = []
        self._sockets: list[socket.socket] = [self._listener]
        self._lock = threading.Lock()
        port = self._listener.getsockname()[1]
        self.url = self._server.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        threading.Thread(target=self._accept, name="pooler", daemon=True).start()

    def close(self) -> None:
        """Close the door and every connection."""
        with self._lock:
            sockets = list(self._sockets)
        for held in sockets:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
            held.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((self._server.host or "127.0.0.1", self._server.port or 5432))
                with self._lock:
                    self._sockets += [client, server]
                threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, own: socket.socket) -> None:
        with contextlib.suppress(OSError):
            _log_in(client, own)
            self._give_back(own)
            lent: socket.socket | None = None
            while (message := _read(client))[:1] != b"X":
                lent = lent or self._lend()
                lent.sendall(message)
                while (answer := _read(lent))[:1] != b"Z":
                    client.sendall(answer)
                if answer[5:] == b"I":
                    self._give_back(lent)
                    lent = None
                client.sendall(answer)

    def _lend(self) -> socket.socket:
        with self._lock:
            return self._free.pop()

    def _give_back(self, server: socket.socket) -> None:
        with self._lock:
            self._free.append(server)


def _log_in(client: socket.socket, server: socket.socket) -> None:
    """Pass everything on until the server is ready for the first query."""
    while True:
        head = _exactly(client, 4)
        body = _exactly(client, struct.unpack("!I", head)[0] - 4)
        if struct.unpack("!I", body[:4])[0] != _SSL_REQUEST:
            break
        client.sendall(b"N")
    server.sendall(head + body)
    while (message := _read(server))[:1] != b"Z":
        client.sendall(message)
        if message[:1] == b"R" and struct.unpack("!I", message[5:9])[0] in _ANSWERED:
            server.sendall(_read(client))
    client.sendall(message)


def _read(peer: socket.socket) -> bytes:
    head = _exactly(peer, 5)
    return head + _exactly(peer, struct.unpack("!I", head[1:])[0] - 4)


def _exactly(peer: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = peer.recv(size - len(found))
        if not part:
            raise OSError("closed")
        found += part
    return found
