"""The tools of the benchmarks' releases."""

from agentloom_worker.capabilities.context import ToolContext


def echo(text: str) -> str:
    """Give the text back."""
    return text


def hold(context: ToolContext) -> str:
    """Return when told to end."""
    context.cancelled.wait(context.deadline_s())
    return "over"
