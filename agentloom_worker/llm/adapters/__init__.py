"""The table of model protocols: `protocol` of a release's model → how its adapter is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agentloom_worker.clock import Clock
from agentloom_worker.llm.adapter import ModelAdapter
from agentloom_worker.llm.adapters.openai_chat import OpenAIChatAdapter
from agentloom_worker.llm.adapters.openai_responses import OpenAIResponsesAdapter
from agentloom_worker.llm.adapters.scripted import Script, ScriptedAdapter
from agentloom_worker.llm.profiles import Profile


@dataclass(frozen=True, slots=True)
class AdapterPorts:
    """What adapters are made from. One adapter per protocol and profile serves a whole process."""

    clock: Clock
    scripts: Mapping[str, Script] = field(default_factory=dict)


ADAPTERS: dict[str, Callable[[AdapterPorts, Profile], ModelAdapter]] = {
    "openai-chat": lambda ports, profile: OpenAIChatAdapter(ports.clock, profile),
    "openai-responses": lambda ports, profile: OpenAIResponsesAdapter(ports.clock, profile),
    "scripted": lambda ports, profile: ScriptedAdapter(ports.clock, profile, ports.scripts),
}
