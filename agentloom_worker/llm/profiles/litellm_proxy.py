"""LiteLLM's proxy: what is behind it is its operator's choice."""

from agentloom_worker.llm.profiles.profile import Fact, Profile

LITELLM_PROXY = Profile(
    "litellm-proxy",
    1,
    mid_system=False,  # strict templates behind it refuse more than one
    protocols=("openai-chat", "openai-responses"),
    facts=(
        Fact(
            "it refuses a parameter that the provider behind it does not take, unless its operator lets it drop them",
            "https://docs.litellm.ai/docs/completion/drop_params",
        ),
        Fact(
            "finish reasons are those of chat completions, whatever the provider said: an error and a network_error"
            " become stop, and nobody can tell them apart behind it",
            "https://github.com/BerriAI/litellm/blob/main/litellm/litellm_core_utils/core_helpers.py",
        ),
        Fact(
            "responses for every provider that it supports; its address is the operator's",
            "https://docs.litellm.ai/docs/response_api",
        ),
        Fact(
            "models with strict templates behind it refuse system messages in the middle",
            "https://github.com/BerriAI/litellm/pull/39852",
        ),
    ),
)
