"""A response laid out in time: bytes, pauses, gates and how it ends."""

from dataclasses import dataclass
from enum import StrEnum

from agentloom_worker.devmodel.framing import chunk


class Ending(StrEnum):
    """What becomes of the connection when the last byte is out."""

    KEEP = "keep"
    HANG_UP = "hang_up"
    RESET = "reset"
    STALL = "stall"


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes to send at once, after its gate (if one is named) has opened and then a pause."""

    payload: bytes
    delay_s: float = 0.0
    gate: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One whole response, and what the log says of it."""

    turn: str
    kind: str
    status: int | None
    pieces: tuple[Piece, ...]
    ending: Ending = Ending.KEEP


class Layout:
    """Collects the bytes of a response; a new piece begins only where something has to be waited for."""

    def __init__(self, delay_s: float = 0.0, gate: str | None = None) -> None:
        self._pieces: list[Piece] = []
        self._parts: list[bytes] = []
        self._delay_s = delay_s
        self._gate = gate

    def wait(self, delay_s: float, gate: str | None = None) -> None:
        """Whatever is added next waits so long, and for the gate before."""
        if delay_s or gate:
            self._pieces.append(self._piece())
            self._parts = []
            self._delay_s, self._gate = delay_s, gate

    def add(self, payload: bytes) -> None:
        """Add bytes as they stand."""
        self._parts.append(payload)

    def add_chunk(self, payload: bytes) -> None:
        """Add bytes as one chunk of a chunked body."""
        self._parts.append(chunk(payload))

    def pieces(self) -> tuple[Piece, ...]:
        """All that was laid out."""
        return (*self._pieces, self._piece())

    def _piece(self) -> Piece:
        return Piece(b"".join(self._parts), self._delay_s, self._gate)
