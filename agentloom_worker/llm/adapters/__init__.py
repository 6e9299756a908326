"""The table of model protocols: `protocol` of a release's model → how its adapter is made."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agentloom_worker.clock import Clock
from agentloom_worker.llm.adapter import ModelAdapter
from agentloom_worker.llm.adapters.openai_chat import OpenAIChatAdapter
from agentloom_worker.llm.adapters.openai_responses import OpenAIResponsesAdapter
from agentloom_worker.llm.adapters.scripted import Script, ScriptedAdapter
from agentloom_worker.llm.profiles import Profile, profile_of


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


class Adapters:
    """The adapters of one process, each made when it is first asked for. Shared by all threads."""

    def __init__(self, ports: AdapterPorts) -> None:
        self._ports = ports
        self._lock = threading.Lock()
        self._made: dict[tuple[str, str, str, bool], ModelAdapter] = {}

    def of(
        self, protocol: str, profile: str, dialect: str = "", *, encrypted_reasoning: bool = False
    ) -> ModelAdapter | None:
        """The adapter of a model; `dialect` are the flags of `custom`. None for a protocol or profile unknown here.

        Raises RunError(MODEL_FEATURE_UNSUPPORTED) where the protocol does not implement the profile's flags, or the
        profile does not carry the encrypted reasoning that a release asks for.
        """
        key = (protocol, profile, dialect, encrypted_reasoning)
        adapter = self._made.get(key)
        return adapter if adapter is not None else self._make(key)

    def close(self) -> None:
        """Drop their idle connections."""
        with self._lock:
            made = tuple(self._made.values())
        for adapter in made:
            adapter.close()

    def _make(self, key: tuple[str, str, str, bool]) -> ModelAdapter | None:
        protocol, name, dialect, encrypted_reasoning = key
        make = ADAPTERS.get(protocol)
        profile = None if make is None else profile_of(name, dialect, encrypted_reasoning=encrypted_reasoning)
        if make is None or profile is None:
            return None
        with self._lock:
            if key not in self._made:
                self._made[key] = make(self._ports, profile)
            return self._made[key]
