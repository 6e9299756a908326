"""Collection of blobs that nothing refers to any more (RULINGS T14)."""

from agentloom_worker.limits import BLOB_GRACE_S
from agentloom_worker.runtime.ports import US, Ports


def collect_blobs(ports: Ports, *, grace_s: float = BLOB_GRACE_S, limit: int = 500) -> int:
    """Delete unreferenced blobs that nobody touched within the grace time; how many went.

    Nothing of a living owner has a time to live: a referenced blob stays for ever, whatever its age.
    """
    return ports.store.collect_blobs(grace_us=int(grace_s * US), limit=limit)
