"""The table of profiles: `profile` of a release's model → how the provider's dialect differs.

Each file states what a provider documents, with the page that says so; what is not known is absent. Nothing here is
asked of an endpoint at run time, and a profile never changes its behaviour without a new version. A frozen release
names no version, which means 1: the first profile that gets another one adds the field, and keeps the old one here.
"""

from agentloom_worker.llm.profiles.azure_openai import AZURE_OPENAI
from agentloom_worker.llm.profiles.custom import CUSTOM, custom_profile
from agentloom_worker.llm.profiles.dashscope import DASHSCOPE
from agentloom_worker.llm.profiles.deepseek import DEEPSEEK
from agentloom_worker.llm.profiles.generic import GENERIC
from agentloom_worker.llm.profiles.litellm_proxy import LITELLM_PROXY
from agentloom_worker.llm.profiles.llama_cpp import LLAMA_CPP
from agentloom_worker.llm.profiles.minimax import MINIMAX
from agentloom_worker.llm.profiles.moonshot import MOONSHOT
from agentloom_worker.llm.profiles.ollama import OLLAMA
from agentloom_worker.llm.profiles.openai import OPENAI
from agentloom_worker.llm.profiles.openrouter import OPENROUTER
from agentloom_worker.llm.profiles.profile import (
    Ending,
    ErrorClass,
    Fact,
    KnownModel,
    OtherAddress,
    Profile,
    ReasoningReplay,
)
from agentloom_worker.llm.profiles.vllm import VLLM
from agentloom_worker.llm.profiles.zhipu import ZHIPU

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        GENERIC,
        OPENAI,
        AZURE_OPENAI,
        OPENROUTER,
        DEEPSEEK,
        ZHIPU,
        DASHSCOPE,
        MINIMAX,
        MOONSHOT,
        VLLM,
        LLAMA_CPP,
        OLLAMA,
        LITELLM_PROXY,
        CUSTOM,
    )
}


def profile_of(name: str, dialect: str = "", *, encrypted_reasoning: bool = False) -> Profile | None:
    """The profile that a release's model is spoken to with; `dialect` are the flags of `custom`. None: unknown here.

    Raises RunError(MODEL_FEATURE_UNSUPPORTED) where it does not carry the encrypted reasoning that is asked for.
    """
    profile = custom_profile(dialect) if dialect else PROFILES.get(name)
    return profile.encrypting() if profile is not None and encrypted_reasoning else profile


__all__ = [
    "PROFILES",
    "Ending",
    "ErrorClass",
    "Fact",
    "KnownModel",
    "OtherAddress",
    "Profile",
    "ReasoningReplay",
    "custom_profile",
    "profile_of",
]
