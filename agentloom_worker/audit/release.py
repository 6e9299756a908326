"""Releases: the frozen bytes are those of the digest, and can be read."""

from collections.abc import Iterator

from agentloom_worker.audit.fault import Fault
from agentloom_worker.domain.damage import DAMAGED, describe
from agentloom_worker.domain.release import load_release
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.storage.audit_scan import list_releases


def check_digests(ports: Ports) -> Iterator[Fault]:
    """A release is the document that its digest names, of the agent that owns it (A25)."""
    with ports.store.read() as conn:
        rows = list(list_releases(conn))
    for row in rows:
        subject = f"release {row.release_id}"
        try:
            stored = ports.store.load_release(row.release_id)
            assert stored is not None, "a release is never deleted"
            release = load_release(stored.body)
        except DAMAGED as error:
            yield Fault(subject, f"cannot be read: {describe(error)}")
            continue
        if release.digest != row.digest:
            yield Fault(subject, f"hashes to {release.digest.hex()[:16]}…, its digest is {row.digest.hex()[:16]}…")
        if (release.agent_id, release.schema_version) != (row.slug, row.schema_version):
            yield Fault(subject, f"is of agent {release.agent_id} v{release.schema_version}, stored as {row.slug}")
