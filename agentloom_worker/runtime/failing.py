"""What becomes of a claimed row whose step did not commit: handed back, backed off, or parked (RULINGS A1, U2)."""

import logging
import traceback

from agentloom_worker import limits, telemetry
from agentloom_worker.domain.dispatch import WakeUp
from agentloom_worker.errors import AgentloomError, ContentionError, InvariantError, SupersededError
from agentloom_worker.runtime.lease import Keeper
from agentloom_worker.runtime.live import Live
from agentloom_worker.runtime.ports import US, Ports
from agentloom_worker.runtime.slice import load_owned_release
from agentloom_worker.runtime.table import STEPS, PureStep
from agentloom_worker.secrecy import conceal_known


class Failing:
    """Gives rows of one process up. Safe for use by many threads."""

    def __init__(self, ports: Ports, keeper: Keeper) -> None:
        self._ports = ports
        self._keeper = keeper

    def hand_back(self, live: Live, *, delay_us: int, error: str | None) -> None:
        """Give the row back before the effect began; it does not count as an attempt (RULINGS A1)."""
        self._ports.store.hand_back(live.claim, delay_us=delay_us, failed=False, failures_max=1, error=error)
        self._release(live)
        telemetry.count("hand_backs")
        if delay_us == 0:
            entry = STEPS.get(live.claim.step)
            if entry is not None:
                row = WakeUp(live.claim.dispatch_id, live.claim.step, entry.queue.value, entry.version)
                self._ports.publish([row])

    def _release(self, live: Live) -> None:
        """The row lives on and is free: nobody may be told that it is held."""
        self._ports.fast.drop_claim(live.claim.dispatch_id, live.claim.token)

    def superseded(self, live: Live, error: SupersededError) -> None:
        """Another has it or did it; before the effect a live claim is only handed back."""
        telemetry.count("superseded")
        telemetry.log(logging.INFO, "superseded", dispatch_id=live.claim.dispatch_id, error=error.message)
        if live.effect_began:
            return
        try:
            if isinstance(STEPS.get(live.claim.step), PureStep):
                # Its commit was refused. A row that is still ours then belongs to a run that does not take it:
                # it must not come back at once, again and again.
                self._back_off(live, error.message)
            else:
                self.hand_back(live, delay_us=0, error=None)
        except AgentloomError as failed:
            self._leave(live, failed)

    def contended(self, live: Live, error: ContentionError) -> None:
        """Others were quicker at every try: wait a little and go on. It is no failure, so it never parks (T3)."""
        if live.effect_began:
            self.failed(live, error)
            return
        telemetry.count("steps_contended")
        telemetry.log(
            logging.INFO,
            "step_contended",
            dispatch_id=live.claim.dispatch_id,
            step=live.claim.step,
            error=error.message,
        )
        try:
            self.hand_back(live, delay_us=self._jittered_us(limits.STEP_BACKOFF_INITIAL_S), error=error.message)
        except AgentloomError as failed:
            self._leave(live, failed)

    def failed(self, live: Live, error: Exception) -> None:
        """An exception that is nobody's answer: back off while nothing began, else park with the evidence."""
        described = describe_error(error)
        telemetry.count("step_failures")
        telemetry.log(
            logging.ERROR,
            "step_failed",
            dispatch_id=live.claim.dispatch_id,
            step=live.claim.step,
            error=described,
            traceback=telemetry.frames_of(error),
        )
        try:
            if live.effect_began or _parks(error):
                parked = self._ports.store.park(live.claim, described)
                self._release(live)
            else:
                parked = self._back_off(live, described)
            if parked:
                telemetry.count("steps_parked")
                if live.claim.run_id is not None:
                    key = f"parked:{live.claim.token}"
                    self._ports.store.note_event(live.claim.run_id, key, "step.parked", {"step": live.claim.step})
        except AgentloomError as failed:
            self._leave(live, failed)

    def _back_off(self, live: Live, error: str) -> bool:
        """Hand back a row whose step failed before its effect; True if that parked it (RULINGS U2)."""
        delay_s = min(limits.STEP_BACKOFF_INITIAL_S * 2.0**live.claim.failures, limits.STEP_BACKOFF_MAX_S)
        parked = self._ports.store.hand_back(
            live.claim,
            delay_us=self._jittered_us(delay_s),
            failed=True,
            failures_max=self._failures_max(live),
            error=error,
        )
        self._release(live)
        return parked

    def _jittered_us(self, delay_s: float) -> int:
        return int(US * delay_s * (0.5 + self._ports.chance.random() / 2))

    def _failures_max(self, live: Live) -> int:
        """The release's `max_step_attempts`; the default where even the release cannot be read."""
        try:
            run = self._ports.store.load_run(live.claim.scope_id)
            if run is not None:
                return load_owned_release(self._ports, run.release_id).release.limits.max_step_attempts
        except AgentloomError as error:
            telemetry.log(logging.WARNING, "release_unreadable", code=error.code)
        return limits.STEP_FAILURES_MAX

    def _leave(self, live: Live, error: AgentloomError) -> None:
        """The row could not be handed back or parked now: the keeper gives it up later."""
        telemetry.log(logging.WARNING, "hand_back_failed", code=error.code)
        self._keeper.leave(live.claim.dispatch_id, live.claim.token, began=live.effect_began)


def _parks(error: Exception) -> bool:
    """A broken invariant will not mend by repetition."""
    return isinstance(error, InvariantError)


def describe_error(error: Exception) -> str:
    """The error, by its code if it is one of ours, with where it was raised; no values of variables, so no secrets."""
    message = f"{error.code}: {error.message}" if isinstance(error, AgentloomError) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    return f"{conceal_known(message)[:600]} [{places}]"
