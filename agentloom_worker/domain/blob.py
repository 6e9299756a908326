"""The identity of a body above the inline limit."""

from agentloom_worker.canonical import sha256
from agentloom_worker.ids import BlobId, OwnerId, derived_id


def blob_id_of(owner_id: OwnerId, body: bytes) -> BlobId:
    """A UUIDv8 of the owner and the content: the same body of one owner is one row, whoever stores it first.

    It names, it does not permit: every read names the owner as well.
    """
    return BlobId(derived_id(sha256(owner_id.bytes + sha256(body))))
