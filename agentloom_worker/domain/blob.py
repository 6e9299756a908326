"""The identity of a body above the inline limit."""

from uuid import UUID

from agentloom_worker.canonical import sha256
from agentloom_worker.ids import BlobId, OwnerId


def blob_id_of(owner_id: OwnerId, body: bytes) -> BlobId:
    """A UUIDv8 of the owner and the content: the same body of one owner is one row, whoever stores it first.

    It names, it does not permit: every read names the owner as well.
    """
    digest = bytearray(sha256(owner_id.bytes + sha256(body))[:16])
    digest[6] = (digest[6] & 0x0F) | 0x80
    digest[8] = (digest[8] & 0x3F) | 0x80
    return BlobId(UUID(bytes=bytes(digest)))
