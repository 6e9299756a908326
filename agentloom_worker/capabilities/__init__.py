"""What a step can call: declaring tools, checking arguments, running functions, shaping results."""

from agentloom_worker.capabilities.context import ToolContext

__all__ = ["ToolContext"]
