"""Collection of blobs that nothing refers to any more (RULINGS T14)."""

from uuid import UUID

from agentloom_worker.limits import BLOB_GRACE_S, BLOBS_PAGE, BLOBS_PAGES_MAX
from agentloom_worker.runtime.ports import US, Ports

_BEFORE_ALL = UUID(int=0)


def collect_blobs(
    ports: Ports, *, grace_s: float = BLOB_GRACE_S, page: int = BLOBS_PAGE, pages_max: int = BLOBS_PAGES_MAX
) -> int:
    """Delete unreferenced blobs that nobody touched within the grace time; how many went.

    Looks at `page` blobs a statement and at most `pages_max` pages, round from a place that is drawn anew each time:
    ids are digests, so that every blob has its turn, whichever process looks and however many blobs stay for ever.
    Nothing of a living owner has a time to live: a referenced blob stays, whatever its age.
    """
    begin = UUID(int=int(ports.chance.random() * 2**128))
    after, round_, gone = begin, False, 0
    for _ in range(pages_max):
        ids = ports.store.list_blob_ids(after=after, limit=page)
        if ids:
            gone += ports.store.collect_blobs(after=after, last=ids[-1], grace_us=int(grace_s * US))
            after = ids[-1]
        if len(ids) < page:
            if round_:
                break
            after, round_ = _BEFORE_ALL, True
        elif round_ and after >= begin:
            break
    return gone
