"""LiteLLM's proxy: what is behind it is its operator's choice."""

from agentloom_worker.llm.profiles.profile import Fact, Profile

LITELLM_PROXY = Profile(
    "litellm-proxy",
    1,
    mid_system=False,  # strict templates behind it refuse more than one
    protocols=("openai-chat", "openai-responses"),
    # Whatever its operator configured, a run's request is answered by the model that it names, or not at all.
    settled={"disable_fallbacks": True},
    facts=(
        Fact(
            "disable_fallbacks: true in a request turns the fallbacks off that its operator configured",
            "https://docs.litellm.ai/docs/proxy/reliability",
        ),
        Fact(
            "what the metadata of a virtual key says of disable_fallbacks stands above the request",
            "https://github.com/BerriAI/litellm/blob/main/litellm/proxy/litellm_pre_call_utils.py",
        ),
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
