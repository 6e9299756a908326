"""Durable runs of LLM agents: every step is a row, every commit is fenced, nothing happens twice."""

from typing import TYPE_CHECKING

from agentloom_worker.version import __version__

if TYPE_CHECKING:
    from agentloom_worker.client import Agentloom

__all__ = ["Agentloom", "__version__"]


def __getattr__(name: str) -> object:
    # PEP 562: importing a submodule must not load the client and with it the whole library.
    if name == "Agentloom":
        from agentloom_worker.client import Agentloom

        return Agentloom
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
