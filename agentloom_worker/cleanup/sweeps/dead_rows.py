"""Dead rows of pending_dispatch, freed before the sweep's scan has to step over them (RULINGS T12)."""

from agentloom_worker import telemetry
from agentloom_worker.runtime.ports import Ports


def free_dead_rows(ports: Ports) -> None:
    """Vacuum the one table that lives on inserts and deletes, and note what keeps its dead rows alive."""
    oldest = ports.store.oldest_snapshot()
    if oldest is not None:
        telemetry.gauge("oldest_xmin_age_xids", oldest.age_xids)
        telemetry.gauge("oldest_xmin_held_s", oldest.held_s)
    ports.store.vacuum()
