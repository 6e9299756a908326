"""`agentloom workers` and `agentloom queues`: who serves a database, and what waits in it."""

from agentloom_worker.cli.output import document, duration, print_json, print_table
from agentloom_worker.cli.place import AsJson, Database, Embedded, locate, open_to_look
from agentloom_worker.client import QueueState, WorkerProcess
from agentloom_worker.runtime.queues import is_present


def workers(embedded: Embedded = None, database: Database = None, as_json: AsJson = False) -> None:
    """List the processes that serve a store: host, queues, slots, version, whether they drain or have fallen silent."""
    with open_to_look(locate(embedded, database)) as loom:
        found = loom.workers()
    if as_json:
        print_json([_worker_document(worker) for worker in found])
        return
    rows = [
        (
            worker.process_id,
            state_of(worker),
            worker.host,
            worker.pid,
            ",".join(worker.queues),
            worker.slots,
            worker.version,
            duration(worker.silent_us // 1000),
        )
        for worker in found
    ]
    print_table(("id", "state", "host", "pid", "queues", "slots", "version", "seen before"), rows)


def queues(embedded: Embedded = None, database: Database = None, as_json: AsJson = False) -> None:
    """List the queues: rows that are due, wait for their time, are claimed or parked, and who serves them."""
    with open_to_look(locate(embedded, database)) as loom:
        found = loom.queues()
    if as_json:
        print_json(found)
        return
    print_table(
        ("queue", "due", "oldest due", "waiting", "claimed", "suspect", "parked", "processes", "slots"),
        [_queue_row(queue) for queue in found],
    )


def state_of(worker: WorkerProcess) -> str:
    """`silent` is a process that died, or cannot reach the database any more."""
    if not is_present(worker):
        return "silent"
    return "draining" if worker.draining else "here"


def _worker_document(worker: WorkerProcess) -> dict[str, object]:
    values = document(worker)
    assert isinstance(values, dict), "a dataclass becomes an object"
    silent_us = values.pop("silent_us")
    return {**values, "silent_ms": silent_us // 1000, "state": state_of(worker)}


def _queue_row(queue: QueueState) -> tuple[object, ...]:
    return (
        queue.queue,
        queue.due,
        duration(queue.oldest_due_ms) if queue.due else None,
        queue.waiting,
        queue.claimed,
        queue.suspect,
        queue.parked,
        queue.processes,
        queue.slots,
    )
