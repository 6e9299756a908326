"""Bodies on their way into a commit: inline up to 4 KiB, else a blob of the run's owner (RUNTIME 2)."""

from agentloom_worker.domain.blob import blob_id_of
from agentloom_worker.domain.commit import BlobPut
from agentloom_worker.domain.operation import Payload
from agentloom_worker.ids import OwnerId
from agentloom_worker.limits import BLOB_IN_COMMIT_BYTES, INLINE_BODY_BYTES
from agentloom_worker.runtime.ports import Ports


def make_payload(ports: Ports, owner_id: OwnerId, body: bytes) -> tuple[Payload, tuple[BlobPut, ...]]:
    """The payload and the blobs that the commit must carry.

    A body above 256 KiB is put at once, in a transaction of its own, so that no commit is held up by it; a
    commit that never comes leaves it to the collection (RULINGS T14).
    """
    if len(body) <= INLINE_BODY_BYTES:
        return Payload(inline=body), ()
    put = BlobPut(blob_id_of(owner_id, body), owner_id, body)
    if len(body) > BLOB_IN_COMMIT_BYTES:
        ports.store.put_blob(put)
        return Payload(blob_id=put.blob_id), ()
    return Payload(blob_id=put.blob_id), (put,)
