"""An OpenAI-compatible server that answers from a script, for demos, tests and benchmarks."""

from agentloom_worker.devmodel.request_log import Outcome, RequestRecord
from agentloom_worker.devmodel.script import (
    Script,
    ScriptInvalidError,
    load_script,
    parse_script,
)
from agentloom_worker.devmodel.server import DevModel, serve

__all__ = [
    "DevModel",
    "Outcome",
    "RequestRecord",
    "Script",
    "ScriptInvalidError",
    "load_script",
    "parse_script",
    "serve",
]
