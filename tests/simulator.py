"""A deterministic driver: one thread, a manual clock, rows run in order until nothing is left to wait for.

It uses the same store, steps and sweep as every deployment; only time is ours.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from agentloom_worker.bootstrap import invoke_inline, make_ports
from agentloom_worker.clock import ManualClock
from agentloom_worker.domain.dispatch import WakeUp
from agentloom_worker.ids import DispatchId, ProcessId
from agentloom_worker.leases import FastPath
from agentloom_worker.runtime.dispatch import Sweeper
from agentloom_worker.runtime.lease import Keeper
from agentloom_worker.runtime.ports import ALL_QUEUES, Chance, Ports, Settings
from agentloom_worker.runtime.step import StepRunner

ROUNDS_MAX = 5000


@dataclass
class Worker:
    """One simulated process on a database."""

    ports: Ports
    runner: StepRunner
    keeper: Keeper
    sweeper: Sweeper
    clock: ManualClock

    def drive(self, *, until: Callable[[], bool] = lambda: False, rounds: int = ROUNDS_MAX) -> int:
        """Run due rows, sweep, and move the clock to the next wake-up, until no row can move any more.

        Returns how many rows were claimed. Rows of the solitary queue are claimed too, like the embedded
        dispatcher's child process does.
        """
        claimed = 0
        queues = (*ALL_QUEUES, "solitary")
        for _ in range(rounds):
            if until():
                return claimed
            due: list[DispatchId] = self.ports.store.list_due(tuple(queues), 100)
            moved = 0
            for dispatch_id in due:
                moved += self.runner.run(dispatch_id)
                if until():
                    return claimed + moved
            claimed += moved
            if moved:
                continue
            wake_at = self.ports.store.next_wake()
            if wake_at is None:
                return claimed
            self.clock.advance_to(wake_at + 1)
            self.published.clear()
            self.sweeper.sweep()
            for row in list(self.published):
                claimed += self.runner.run(row.dispatch_id)
        raise AssertionError(f"the rows did not come to rest within {rounds} rounds")

    published: list[WakeUp] = None  # type: ignore[assignment]

    def close(self) -> None:
        self.ports.store.close()


def make_worker(
    url: str,
    *,
    clock: ManualClock | None = None,
    scripts: dict[str, Any] | None = None,
    settings: Settings | None = None,
    solitary: bool = True,
    seed: int = 7,
    fast: FastPath | None = None,
    chance: Chance | None = None,
) -> Worker:
    """A worker whose tools run in the calling thread and whose clock stands until it is moved.

    `chance` takes the place of the dice that `seed` makes.
    """
    clock = clock or ManualClock()
    published: list[WakeUp] = []
    ports = make_ports(
        url,
        clock=clock,
        scripts=scripts or {},
        settings=settings,
        tools=invoke_inline,
        publish=published.extend,
        seed=seed,
        fast=fast,
    )
    if chance is not None:
        ports = replace(ports, chance=chance)
    keeper = Keeper(ports)
    runner = StepRunner(ports, ProcessId(ports.ids.new()), keeper, solitary=solitary)
    return Worker(ports, runner, keeper, Sweeper(ports), clock, published)
