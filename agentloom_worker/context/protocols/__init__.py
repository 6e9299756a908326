"""The context protocols by name and version; a release chooses one (`context.protocol`)."""

from agentloom_worker.context.protocol import ContextProtocol
from agentloom_worker.context.protocols.rounds import Rounds

PROTOCOLS: dict[str, ContextProtocol] = {"rounds@1": Rounds()}
