"""What the server was asked and how each answer ended, for tests to read. Bounded; safe for many threads."""

import base64
import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TextIO

from agentloom_worker.clock import Clock, to_text
from agentloom_worker.devmodel.plan import Plan

ENTRIES_MAX = 20_000
BODIES_BYTES_MAX = 64 * 1024 * 1024
DIGESTS_MAX = 1_000_000  # beyond that the count of the bytes longest unseen starts again
SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "api-key", "x-api-key", "cookie"})
HIDDEN = "(hidden)"


class Outcome(StrEnum):
    """How a response ended. `client_gone`: the client went away before its last byte was handed over."""

    OPEN = "open"
    COMPLETE = "complete"
    HUNG_UP = "hung_up"
    RESET = "reset"
    CLIENT_GONE = "client_gone"
    SERVER_STOPPED = "server_stopped"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. `number` counts all requests, `arrival` those with these very bytes, both from 1.

    `body` is None when bodies are not kept or the oldest ones had to make room.
    """

    number: int
    sha256: str
    arrival: int
    body: bytes | None
    headers: tuple[tuple[str, str], ...]
    received_us: int
    turn: str
    kind: str
    status: int | None
    outcome: Outcome = Outcome.OPEN

    @property
    def client_gone(self) -> bool:
        """Whether the client went away before the end."""
        return self.outcome is Outcome.CLIENT_GONE

    def document(self) -> dict[str, object]:
        """As JSON: the body as text, or as `body_base64` where it is not UTF-8."""
        body: dict[str, object] = {}
        if self.body is not None:
            try:
                body["body"] = self.body.decode("utf-8")
            except UnicodeDecodeError:
                body["body_base64"] = base64.b64encode(self.body).decode("ascii")
        return {
            "number": self.number,
            "sha256": self.sha256,
            "arrival": self.arrival,
            "received_at": to_text(self.received_us),
            "turn": self.turn,
            "kind": self.kind,
            "status": self.status,
            "outcome": self.outcome,
            "client_gone": self.client_gone,
            "headers": dict(self.headers),
            **body,
        }


class RequestLog:
    """The newest requests in memory and, with a path, every ended one as a line of JSON."""

    def __init__(
        self,
        clock: Clock,
        path: Path | None = None,
        *,
        entries_max: int = ENTRIES_MAX,
        bodies_bytes_max: int = BODIES_BYTES_MAX,
    ) -> None:
        self._clock = clock
        self._entries_max = entries_max
        self._bodies_bytes_max = bodies_bytes_max
        self._changed = threading.Condition()
        self._records: OrderedDict[int, RequestRecord] = OrderedDict()
        self._with_body: OrderedDict[int, int] = OrderedDict()
        self._bodies_bytes = 0
        self._arrivals: OrderedDict[str, int] = OrderedDict()
        self._number = 0
        self._file: TextIO | None = path.open("a", encoding="utf-8", buffering=1) if path else None

    def count(self, sha256: str) -> int:
        """Count an arrival of the bytes with this digest; how many there were with it."""
        with self._changed:
            arrival = self._arrivals.pop(sha256, 0) + 1
            self._arrivals[sha256] = arrival
            if len(self._arrivals) > DIGESTS_MAX:
                self._arrivals.popitem(last=False)
        return arrival

    def begin(self, sha256: str, arrival: int, headers: tuple[tuple[str, str], ...], body: bytes, plan: Plan) -> int:
        """Note a request and the answer that it will get; returns its number."""
        received_us = self._clock.wall_us()
        shown = tuple((name, HIDDEN if name in SECRET_HEADERS else value) for name, value in headers)
        kept = body if len(body) <= self._bodies_bytes_max else None
        with self._changed:
            self._number = number = self._number + 1
            self._records[number] = RequestRecord(
                number, sha256, arrival, kept, shown, received_us, plan.turn, plan.kind, plan.status
            )
            if kept is not None:
                self._with_body[number] = len(kept)
                self._bodies_bytes += len(kept)
            self._make_room()
            self._changed.notify_all()
        return number

    def _make_room(self) -> None:
        while self._bodies_bytes > self._bodies_bytes_max:
            number, size = self._with_body.popitem(last=False)
            self._bodies_bytes -= size
            self._records[number] = replace(self._records[number], body=None)
        while len(self._records) > self._entries_max:
            number, _ = self._records.popitem(last=False)
            self._bodies_bytes -= self._with_body.pop(number, 0)

    def end(self, number: int, outcome: Outcome) -> None:
        """Note how the response ended. A record that had to make room meanwhile is not brought back."""
        with self._changed:
            record = self._records.get(number)
            if record is None:
                return
            record = self._records[number] = replace(record, outcome=outcome)
            if self._file is not None:
                self._file.write(json.dumps(record.document(), ensure_ascii=False) + "\n")
            self._changed.notify_all()

    def records(self) -> tuple[RequestRecord, ...]:
        """The requests still held, in order of arrival."""
        with self._changed:
            return tuple(self._records.values())

    def document(self, after: int, entries_max: int) -> dict[str, object]:
        """The requests after a number as JSON, oldest first; `total` counts all that ever came."""
        with self._changed:
            records = [record for record in self._records.values() if record.number > after]
            total = self._number
        return {"total": total, "requests": [record.document() for record in records[:entries_max]]}

    def wait_until(self, holds: Callable[[tuple[RequestRecord, ...]], bool], timeout_s: float) -> bool:
        """Wait until the requests satisfy a condition, at most so long; whether they do."""
        with self._changed:
            return self._changed.wait_for(lambda: holds(tuple(self._records.values())), timeout_s)

    def clear(self) -> None:
        """Forget the ended requests and every arrival count; open requests stay, numbers go on."""
        with self._changed:
            self._arrivals.clear()
            for number in [n for n, r in self._records.items() if r.outcome is not Outcome.OPEN]:
                del self._records[number]
                self._bodies_bytes -= self._with_body.pop(number, 0)

    def close(self) -> None:
        """Close the file."""
        with self._changed:
            if self._file is not None:
                self._file.close()
                self._file = None
