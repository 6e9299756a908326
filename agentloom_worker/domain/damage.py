"""What reading a damaged row may raise. A store that is down is no damage.

An audit reports it and reads on; the end of a run names it and does without.
"""

import zlib

from agentloom_worker.errors import AgentloomError, InvariantError, RunError

DAMAGED = (
    InvariantError,
    RunError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    zlib.error,
)


def describe(error: Exception) -> str:
    """What was wrong: our own messages hold no bodies, those of others may, so of them only the type is told."""
    return error.message if isinstance(error, AgentloomError) else type(error).__name__
