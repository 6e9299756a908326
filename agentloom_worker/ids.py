"""Identities: UUIDv7 for rows (time-ordered, so index inserts stay local), random tokens for claims."""

import base64
import os
import threading
from typing import NewType, Protocol
from uuid import UUID

from agentloom_worker.clock import Clock

OwnerId = NewType("OwnerId", UUID)
ReleaseId = NewType("ReleaseId", UUID)
SessionId = NewType("SessionId", UUID)
InputId = NewType("InputId", UUID)
DeliveryId = NewType("DeliveryId", UUID)
RunId = NewType("RunId", UUID)
GraphId = NewType("GraphId", UUID)
InvocationId = NewType("InvocationId", UUID)
NodeId = NewType("NodeId", UUID)
ContextId = NewType("ContextId", UUID)
RecordId = NewType("RecordId", UUID)
OperationId = NewType("OperationId", UUID)
BatchId = NewType("BatchId", UUID)
CallId = NewType("CallId", UUID)
DispatchId = NewType("DispatchId", UUID)
ProcessId = NewType("ProcessId", UUID)
BlobId = NewType("BlobId", UUID)
ClaimToken = NewType("ClaimToken", UUID)


def short_id(identity: UUID) -> str:
    """An id in 22 characters (base64url) for documents that are written at every loop."""
    return base64.urlsafe_b64encode(identity.bytes)[:22].decode()


def parse_short_id(text: str) -> UUID:
    """The id of `short_id`."""
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def derived_id(digest: bytes) -> UUID:
    """A UUIDv8 of the first 16 bytes of a SHA-256: an identity that follows from content (RFC 9562, 5.8)."""
    value = bytearray(digest[:16])
    value[6] = (value[6] & 0x0F) | 0x80
    value[8] = (value[8] & 0x3F) | 0x80
    return UUID(bytes=bytes(value))


class Ids(Protocol):
    """Makes identities. Safe for use by many threads."""

    def new(self) -> UUID:
        """A fresh UUIDv7; within one process later ids sort after earlier ones."""
        ...

    def token(self) -> UUID:
        """128 random bits (RULINGS T7); never derived from time or from a counter."""
        ...


class SystemIds:
    """The production source: wall-clock milliseconds, a 12-bit sequence, 62 random bits (RFC 9562, 5.7)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0

    def new(self) -> UUID:
        with self._lock:
            stamp = max((self._clock.wall_us() // 1000) << 12, self._last + 1)
            self._last = stamp
        random_bits = int.from_bytes(os.urandom(8)) & ((1 << 62) - 1)
        value = ((stamp >> 12) << 80) | (0x7 << 76) | ((stamp & 0xFFF) << 64) | (0b10 << 62) | random_bits
        return UUID(int=value)

    def token(self) -> UUID:
        return UUID(bytes=os.urandom(16))
