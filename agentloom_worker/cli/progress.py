"""What a run does, as it happens: one line an event on stderr. Steps, counts and times; never a model's text."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status

from agentloom_worker.cli.output import console, note
from agentloom_worker.client import TERMINAL_EVENTS, Agentloom, RunEvent, RunResult
from agentloom_worker.errors import RequestError
from agentloom_worker.runtime.named import RunLike

STOP_WAIT_S = 15.0
DEADLINE_SLACK_S = 60.0
US = 1_000_000


class Progress:
    """Prints events. `shown` False keeps quiet. A terminal also gets a line that says what is waited for."""

    def __init__(self, *, shown: bool = True) -> None:
        self._console: Console | None = console(stderr=True) if shown else None
        self._status: Status | None = None
        self._started_us: int | None = None
        self.events: list[RunEvent] = []

    def __enter__(self) -> Self:
        if self._console is not None and self._console.is_terminal:
            self._status = self._console.status("working")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, event: RunEvent) -> None:
        """Print one event with its time since the first one."""
        self.events.append(event)
        if self._started_us is None:
            self._started_us = event.created_at
        if self._console is not None:
            elapsed_s = (event.created_at - self._started_us) / US
            self._console.print(f"{elapsed_s:8.2f} s  {describe(event)}")


def describe(event: RunEvent) -> str:
    """One event in words."""
    fields = dict(event.fields)
    loop = (
        f"loop {fields.pop('loop')}: "
        if event.kind in ("model.completed", "call.settled", "output.rejected") and "loop" in fields
        else ""
    )
    match event.kind:
        case "run.accepted":
            return "question accepted"
        case "model.completed":
            calls = fields.get("calls", 0)
            asked = f"asked for {calls} call(s)" if calls else "answered"
            tokens = ""
            if "input_tokens" in fields:
                tokens = f", {fields['input_tokens']} tokens in, {fields.get('output_tokens', 0)} out"
            return f"{loop}model {asked}{tokens}"
        case "call.settled":
            name = fields.get("capability") or f"call {fields.get('ordinal')}"
            code = f" ({fields['code']})" if "code" in fields else ""
            return f"{loop}{name} {fields.get('status')}{code}"
        case "output.rejected":
            return f"{loop}answer does not match the output schema ({fields.get('issues')} issue(s)), sent back"
        case "attempt.retrying":
            return f"attempt {fields.get('attempt')} in {fields.get('delay_ms')} ms, after {fields.get('code')}"
        case "step.parked":
            return f"step {fields.get('step')} is parked and waits for an operator: agentloom dispatches parked"
        case kind if kind in TERMINAL_EVENTS:
            code = f" ({fields['code']})" if "code" in fields else ""
            return f"{kind.removeprefix('run.')}{code}, {fields.get('loops')} loop(s)"
        case kind:
            rest = " ".join(f"{name}={value}" for name, value in fields.items())
            return f"{kind.removeprefix('run.')} {rest}".rstrip()


def follow(
    loom: Agentloom, run: RunLike, progress: Progress, *, option: str, timeout_s: float | None = None
) -> RunResult:
    """Show a run until it has ended. Ctrl-C stops it, and then again leaves at once.

    Without a timeout the run's own deadline and a minute bound the wait: with workers it has ended by then.
    """
    found = loom.run(run)
    if timeout_s is None:
        timeout_s = max(0.0, (found.deadline_at - loom.ports.store.now_us()) / US) + DEADLINE_SLACK_S
    try:
        with progress:
            for event in loom.events(found, timeout_s=timeout_s):
                progress.show(event)
    except KeyboardInterrupt:
        _stop(loom, found, option)
        raise
    except SystemExit:
        when = "goes on at the next start" if loom.runs_steps else "goes on with those who run its steps; to watch it"
        note(f"run {found.run_id} {when}: agentloom run --resume {found.run_id} {option}")
        raise
    return loom.run(found)


def _stop(loom: Agentloom, run: RunResult, option: str) -> None:
    note(f"stopping run {run.run_id}")
    loom.stop(run)
    try:
        state = loom.wait(run, STOP_WAIT_S).state
    except RequestError:
        # Nobody runs steps right now: the stop is durable, and whoever comes next ends the run.
        state = loom.run(run).state
    note(f"run {run.run_id} is {state}: agentloom runs show {run.run_id} {option}")
