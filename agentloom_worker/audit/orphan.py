"""Rows whose parent is gone, where a foreign key was left out for the sake of speed."""

from collections.abc import Callable, Iterator

from agentloom_worker.audit.fault import Fault
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.storage.audit_scan import Reference, list_orphans


def check_reference(reference: Reference) -> Callable[[Ports], Iterator[Fault]]:
    """The check of one reference."""

    def check(ports: Ports) -> Iterator[Fault]:
        with ports.store.read() as conn:
            for key, named in list_orphans(conn, reference):
                yield Fault(f"{reference.table} {key}", f"its {reference.column} {named} is nowhere")

    return check
