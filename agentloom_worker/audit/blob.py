"""Blobs: each is what its digest says, and belongs to the owner of whoever refers to it."""

from collections.abc import Iterator

from agentloom_worker.audit.fault import Fault
from agentloom_worker.canonical import sha256
from agentloom_worker.domain.blob import blob_id_of
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.storage.audit_scan import list_blobs, list_foreign_blobs


def check_contents(ports: Ports) -> Iterator[Fault]:
    """Content, size, digest and identity agree."""
    with ports.store.read() as conn:
        for row in list_blobs(conn):
            subject = f"blob {row.blob_id}"
            if row.body is None:
                yield Fault(subject, "its content cannot be decompressed")
                continue
            if len(row.body) != row.size_bytes:
                yield Fault(subject, f"has {len(row.body)} bytes, not {row.size_bytes}")
            if sha256(row.body) != row.sha256:
                yield Fault(subject, "its content does not hash to its digest")
            if blob_id_of(row.owner_id, row.body) != row.blob_id:
                yield Fault(subject, "its id is not that of its owner and content")


def check_owners(ports: Ports) -> Iterator[Fault]:
    """A reference gives no access: what is referred to exists and is the referrer's own."""
    with ports.store.read() as conn:
        for use in list_foreign_blobs(conn):
            state = "of another owner" if use.exists else "which does not exist"
            yield Fault(f"{use.table} {use.key}", f"refers to blob {use.blob_id}, {state}")
