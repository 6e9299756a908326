"""From a commit to the broker: publish what became due, and make due again what could not be published.

A failed publish is only a later wake-up (RULINGS T11, T13): the sweep repeats it, and idle workers look at the
table themselves.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

from agentloom_worker import limits, telemetry
from agentloom_worker.domain.dispatch import WakeUp
from agentloom_worker.errors import AgentloomError
from agentloom_worker.storage.store import Store


class WakeUpSender(Protocol):
    """What the relay asks of a broker. Safe for use by many threads."""

    def wake(self, due: list[WakeUp]) -> list[WakeUp]:
        """Publish; the ones that could not be come back."""
        ...

    def backlog(self, queue: str) -> int | None:
        """How many messages wait in a queue; None: unknown."""
        ...


class Relay:
    """`ports.publish` of a fleet. Never raises: the rows are durable before it is called."""

    def __init__(self, store: Store, sender: WakeUpSender) -> None:
        self._store = store
        self._sender = sender
        self._slots: Mapping[str, int] = {}

    def note_slots(self, slots: Mapping[str, int]) -> None:
        """How many slots the fleet's live processes have for each queue (RULINGS U18)."""
        self._slots = slots

    def publish(self, due: list[WakeUp]) -> None:
        """Publish new rows all, repeated ones as far as their queue has room."""
        fresh = [row for row in due if not row.force]
        failed = self._sender.wake(fresh + self._with_room([row for row in due if row.force]))
        # A repeated row is looked at again by itself; made due at once, one sweep would meet it again and again.
        again = [row.dispatch_id for row in failed if not row.force]
        if not again:
            return
        try:
            self._store.wake(again)
        except AgentloomError as error:
            telemetry.log(logging.WARNING, "wake_failed", code=error.code, rows=len(again))

    def _with_room(self, repeated: list[WakeUp]) -> list[WakeUp]:
        """No more than twice its slots wait in a queue: whoever is busy finds the rest in the table later."""
        by_queue: dict[str, list[WakeUp]] = defaultdict(list)
        for row in repeated:
            by_queue[row.queue].append(row)
        taken: list[WakeUp] = []
        for queue, rows in by_queue.items():
            waiting = self._sender.backlog(queue)
            room = limits.BACKLOG_PER_SLOT * self._slots.get(queue, limits.SLOTS_UNKNOWN) - (waiting or 0)
            taken.extend(rows[: max(0, room)])
        return taken
