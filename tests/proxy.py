"""A TCP proxy in front of a server: it loses a message to PostgreSQL or its answer on command, or cuts what stands."""

import contextlib
import socket
import threading
from enum import StrEnum

from sqlalchemy.engine import make_url

_READY = b"Z\x00\x00\x00\x05I"  # ReadyForQuery, idle: the server has committed and has nothing more to say


class Loss(StrEnum):
    """What gets lost."""

    QUERY = "the message never arrives"
    ANSWER = "the server has committed, its answer never arrives"


class Proxy:
    """Forwards every connection; `lose` breaks the next connections on which `marker` is sent."""

    def __init__(self, database_url: str) -> None:
        self._server = make_url(database_url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._marker = b""
        self._loss: Loss | None = None
        self._times = 0
        self._sockets: list[socket.socket] = []
        self.lost = 0
        port = self._listener.getsockname()[1]
        self.url = self._server.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def lose(self, loss: Loss, marker: bytes, *, times: int = 1) -> None:
        """Break one connection at each of the next `times` messages that hold `marker`."""
        with self._lock:
            self._loss, self._marker, self._times = loss, marker, times

    def cut(self) -> None:
        """Break every connection that stands, of a database or of HTTP; new ones are taken."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for held in sockets:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
            held.close()

    def close(self) -> None:
        """Close the door and every connection."""
        with self._lock:
            sockets = [self._listener, *self._sockets]
        for held in sockets:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
            held.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((self._server.host or "127.0.0.1", self._server.port or 5432))
            with self._lock:
                self._sockets += [client, server]
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        mute = threading.Event()
        threading.Thread(target=self._answer, args=(client, server, mute), daemon=True).start()
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                loss = self._take(data)
                if loss is Loss.QUERY:
                    break
                if loss is Loss.ANSWER:
                    mute.set()
                server.sendall(data)
        for held in (server, client) if not mute.is_set() else ():
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)

    def _take(self, data: bytes) -> Loss | None:
        with self._lock:
            if self._loss is None or self._marker not in data:
                return None
            loss = self._loss
            self._times -= 1
            if not self._times:
                self._loss = None
            self.lost += 1
            return loss

    @staticmethod
    def _answer(client: socket.socket, server: socket.socket, mute: threading.Event) -> None:
        swallowed = b""
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if not mute.is_set():
                    client.sendall(data)
                    continue
                swallowed += data
                if swallowed.endswith(_READY):
                    break
        for held in (client, server):
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
