"""Named points at which tests kill a process or raise; no-ops in production.

`hit(point, detail)` is called with the name of the step, or of the client's command, as detail. The crash suite
installs a trigger that counts hits and sends a real SIGKILL to its own process; see `POINTS` for what each point
means.
"""

from collections.abc import Callable

POINTS: dict[str, str] = {
    "claim.after": "the claim is committed, nothing is loaded yet",
    "step.loaded": "the slice is loaded, nothing is decided yet",
    "tail.raise": "before a pure part; tests raise here instead of killing",
    "attempt.before": "before the effect begins, its intent is committed",
    "attempt.sent": "the effect has begun: the request left, or the tool's function was entered",
    "first_output.saved": "the first output was read; its receipt is committed if an input waited for it",
    "effect.done": "the effect has ended, its outcome is in memory only",
    "commit.before": "the write set is built, nothing is sent",
    "commit.after": "the commit is durable, nothing is published",
    "publish.after": "successors are published",
    "late.before": "a voided claim has brought something back, it is in memory only",
    "late.after": "what it brought back is kept on its attempt",
    "command.before": "a client's command is checked and built, nothing is sent",
    "command.between": "the first of a command's two transactions is durable, the second is not begun",
    "command.after": "the command is durable, neither its client nor anybody else has heard of it",
}
# The commands that pass through points of their own; they run in whatever process a client has.
COMMANDS = ("ask", "stop", "publish", "open")

_trigger: Callable[[str, str], None] | None = None


def hit(point: str, detail: str) -> None:
    """Mark that execution has reached a point. `detail` is the step's name, or the command's."""
    if _trigger is not None:
        _trigger(point, detail)


def install(trigger: Callable[[str, str], None] | None) -> None:
    """Set or clear the trigger of this process. For tests only."""
    global _trigger  # noqa: PLW0603 - one trigger per process is the point
    _trigger = trigger
