"""What a profile has to say about a release's model entry, before anything is published.

A setting that the profile does not carry is refused here with its path; it is never dropped silently (seed 004, 6.1).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Final

from agentloom_worker.llm.profiles import PROFILES
from agentloom_worker.llm.profiles.custom import CUSTOM
from agentloom_worker.llm.profiles.profile import Profile
from agentloom_worker.wire.release_check import OWNED_PARAMETERS
from agentloom_worker.wire.release_source import Path

# Simulations answer in the form of chat completions, for any profile.
SIMULATED: Final = "scripted"

_UNSUPPORTED = "MODEL_FEATURE_UNSUPPORTED: "

# What lets another model answer than the one that a request names, refused for every profile, since nobody knows what
# stands behind an address. Dotted paths into the parameters.
_NAMED_FALLBACKS: Final = (
    # https://docs.litellm.ai/docs/proxy/client_side_fallbacks and docs/proxy/reliability
    "fallbacks",
    "context_window_fallbacks",
    "content_policy_fallbacks",
    # https://openrouter.ai/docs/guides/routing/model-fallbacks and OpenRouter's package @openrouter/schemas
    "models",
    "route",
    # https://vercel.com/docs/ai-gateway/models-and-providers/model-fallbacks
    "providerOptions.gateway.models",
)
# What LiteLLM's proxy puts over the body that it sends on, `model` included:
# https://github.com/BerriAI/litellm/blob/main/litellm/llms/openrouter/chat/transformation.py
_OVERLAY: Final = "extra_body"
_FALLBACKS: Final = (
    *_NAMED_FALLBACKS,
    *(f"{_OVERLAY}.{dotted}" for dotted in ("model", *_NAMED_FALLBACKS)),
)
_NO_FALLBACK = f"{_UNSUPPORTED}lets another model answer than `model` names, and no run falls back to one: leave it out"


def model_problems(model: Mapping[str, object]) -> Iterator[tuple[Path, str]]:
    """What is wrong with one entry of `models` in the eyes of its profile: paths inside of it and texts.

    Steps over what has the wrong type and over unknown profiles: others report those.
    """
    profile = PROFILES.get(str(model.get("profile", "generic")))
    if profile is None:
        return
    yield from _address_problems(model, profile)
    yield from _dialect_problems(model, profile)
    yield from _encryption_problems(model, profile)
    protocol = model.get("protocol")
    if not isinstance(protocol, str):
        return
    offered = profile.protocols
    if offered is not None and protocol not in offered and protocol != SIMULATED:
        listed = " or ".join(offered)
        yield ("protocol",), f"{_UNSUPPORTED}profile {profile.name} offers {listed}, not {protocol}"
        return
    yield from _parameter_problems(model, profile, protocol)


def model_warnings(profile_name: str, model: str, window_tokens: int, output_tokens: int | None) -> Iterator[str]:
    """What the documented facts say against a release's numbers. Documentation ages, so nothing is refused."""
    profile = PROFILES.get(profile_name)
    known = None if profile is None else profile.known_model(model)
    if known is None:
        return
    for what, said, documented in (
        ("context_window_tokens", window_tokens, known.context_window_tokens),
        ("max_output_tokens", output_tokens, known.max_output_tokens),
    ):
        if said is not None and documented is not None and said > documented:
            yield f"{what} {said} of model {model} is more than the documented {documented} ({known.source})"


def _address_problems(model: Mapping[str, object], profile: Profile) -> Iterator[tuple[Path, str]]:
    if model.get("base_url") is not None:
        return
    if profile.base_url is None:
        yield ("base_url",), f"is required: profile {profile.name} has no address of its own"
    elif model.get("protocol") == SIMULATED:
        yield ("base_url",), "is required: `script:NAME`"


def _dialect_problems(model: Mapping[str, object], profile: Profile) -> Iterator[tuple[Path, str]]:
    if profile is not CUSTOM and model.get("dialect") is not None:
        yield ("dialect",), f"belongs to `profile: custom`; the flags of {profile.name} are its own"


def _parameter_problems(model: Mapping[str, object], profile: Profile, protocol: str) -> Iterator[tuple[Path, str]]:
    written = model.get("parameters")
    parameters = written if isinstance(written, dict) else {}
    allowed, owned = profile.parameters_of(protocol), OWNED_PARAMETERS.get(protocol, frozenset())
    dialect = model.get("dialect")
    if profile is CUSTOM and isinstance(dialect, dict) and isinstance(dialect.get("parameters"), list):
        allowed = frozenset(name for name in dialect["parameters"] if isinstance(name, str))
        for index, name in enumerate(dialect["parameters"]):
            if name in _FALLBACKS:
                yield ("dialect", "parameters", index), _NO_FALLBACK
    yield from _fallback_problems(parameters, profile)
    for name in parameters:
        if allowed is not None and name not in allowed and name not in owned and name not in _FALLBACKS:
            text = f"{_UNSUPPORTED}profile {profile.name} carries no such parameter; it carries {_listed(allowed)}"
            yield ("parameters", name), text
    for dotted in sorted(profile.unsupported):
        path = tuple(dotted.split("."))
        if _holds(parameters, path):
            yield ("parameters", *path), f"{_UNSUPPORTED}profile {profile.name} does not do what it needs"


def _fallback_problems(parameters: Mapping[str, object], profile: Profile) -> Iterator[tuple[Path, str]]:
    for dotted in _FALLBACKS:
        path = tuple(dotted.split("."))
        if _holds(parameters, path):
            yield ("parameters", *path), _NO_FALLBACK
    for name, value in profile.settled.items():
        if parameters.get(name, value) != value:
            text = f"{_UNSUPPORTED}profile {profile.name} always sends {json.dumps(value)}: leave it out"
            yield ("parameters", name), text


def _encryption_problems(model: Mapping[str, object], profile: Profile) -> Iterator[tuple[Path, str]]:
    if model.get("encrypted_reasoning") is not True:
        return
    path = ("encrypted_reasoning",)
    if profile is CUSTOM:
        yield path, "of `profile: custom` stands in its `dialect`, with `reasoning_replay`"
    elif profile.encrypted_replay is None:
        yield path, f"{_UNSUPPORTED}profile {profile.name} knows of no encrypted reasoning that its provider takes back"
    elif model.get("protocol") != "openai-responses":
        yield path, f"{_UNSUPPORTED}there is encrypted reasoning in openai-responses alone"


def _holds(value: object, path: tuple[str, ...]) -> bool:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    return True


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"
