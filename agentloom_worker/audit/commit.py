"""scope_commit: what makes a repetition return the first receipt."""

from collections.abc import Iterator
from uuid import UUID

from agentloom_worker.audit.fault import Fault
from agentloom_worker.canonical import parse
from agentloom_worker.domain.damage import DAMAGED, describe
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.storage.audit_scan import has_receipt_rows, list_client_commits, list_odd_commits

COMMAND_HASH_BYTES = 16
_CLIENT = b"client:"


def check_hashes(ports: Ports) -> Iterator[Fault]:
    """A key is never empty, and beside it stands the hash of the command that it stood for (A24)."""
    with ports.store.read() as conn:
        for row in list_odd_commits(conn, hash_bytes=COMMAND_HASH_BYTES):
            yield Fault(
                f"commit {row.scope_id}/{row.key.hex()}",
                f"has a key of {len(row.key)} bytes and a command hash of {len(row.command_hash)}",
            )


def check_receipts(ports: Ports) -> Iterator[Fault]:
    """A client's key answers with the input that its command made, and with where it went."""
    with ports.store.read() as conn:
        for row in list(list_client_commits(conn, prefix=_CLIENT)):
            subject = f"commit {row.scope_id}/{row.key.hex()}"
            if row.receipt is None:
                yield Fault(subject, "has no receipt")
                continue
            try:
                document = parse(row.receipt)
                input_id, kind = UUID(document["input"]), str(document["kind"])
                run_id, release_id = (UUID(document[name]) if name in document else None for name in ("run", "release"))
            except DAMAGED as error:
                yield Fault(subject, f"its receipt cannot be read: {describe(error)}")
                continue
            if not has_receipt_rows(
                conn, scope_id=row.scope_id, input_id=input_id, kind=kind, run_id=run_id, release_id=release_id
            ):
                yield Fault(subject, f"its receipt names input {input_id} and run {run_id}, which are not so")
