"""LiteLLM's proxy: what is behind it is its operator's choice."""

from agentloom_worker.llm.profiles.profile import Fact, Profile

LITELLM_PROXY = Profile(
    "litellm-proxy",
    1,
    mid_system=False,  # strict templates behind it refuse more than one
    protocols=("openai-chat", "openai-responses"),
    facts=(
        Fact(
            "its address is the operator's; parameters are checked by it for the provider behind it",
            "https://docs.litellm.ai",
        ),
        Fact(
            "models with strict templates behind it refuse system messages in the middle",
            "https://github.com/BerriAI/litellm/pull/39852",
        ),
    ),
)
