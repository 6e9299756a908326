"""Who does the sweeps: beat at their own pace, each worker now and then, one process at a time (RUNTIME 4)."""

import logging
from collections.abc import Callable
from functools import partial

from agentloom_worker import limits, telemetry
from agentloom_worker.cleanup.sweeps import REDISPATCH, SWEEPS
from agentloom_worker.errors import AgentloomError
from agentloom_worker.runtime.dispatch import Sweeper
from agentloom_worker.runtime.ports import Ports


class Upkeep:
    """One process's share of the fleet's duties. Used by one thread."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._duties: dict[str, tuple[float, Callable[[], object]]] = {
            REDISPATCH: (ports.settings.sweep_tick_s, Sweeper(ports).sweep),
            **{name: (sweep.every_s, partial(sweep.run, ports)) for name, sweep in SWEEPS.items()},
        }
        self._due_s = dict.fromkeys(self._duties, 0.0)

    def do(self, name: str) -> bool:
        """Do a duty now unless another process is at it; whether it was done. Only ending the process leaves."""
        try:
            with self._ports.store.turn(name) as mine:
                if mine:
                    self._duties[name][1]()
                    telemetry.count("sweeps_done")
                return mine
        except AgentloomError as error:
            telemetry.log(logging.WARNING, "sweep_failed", sweep=name, code=error.code)
        except Exception as error:  # noqa: BLE001 - one duty that fails must not keep the others from being done
            telemetry.count("sweep_crashes")
            telemetry.log(logging.ERROR, "sweep_crashed", sweep=name, traceback=telemetry.frames_of(error))
        return False

    def do_due(self, processes: int) -> None:
        """Do what this process has not done for its share of the time.

        With `processes` of them about two look in each interval, so that one which has died is not missed.
        """
        now_s = self._ports.clock.monotonic_s()
        for name, (every_s, _) in self._duties.items():
            if now_s < self._due_s[name]:
                continue
            share_s = min(every_s * max(1.0, processes / 2), max(every_s, limits.SWEEP_SPREAD_MAX_S))
            self._due_s[name] = now_s + share_s * (0.75 + self._ports.chance.random() / 2)
            self.do(name)
