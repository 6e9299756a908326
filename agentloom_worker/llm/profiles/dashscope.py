"""Alibaba Cloud Model Studio, its OpenAI-compatible mode. Other regions have other addresses, by base_url."""

from agentloom_worker.llm.profiles.profile import ErrorClass, Fact, KnownModel, Profile

_ERRORS = "https://help.aliyun.com/en/model-studio/error-code-start"
_KIMI = "https://www.alibabacloud.com/help/en/model-studio/kimi-api"

DASHSCOPE = Profile(
    "dashscope",
    1,
    mid_system=False,
    protocols=("openai-chat",),
    base_url="https://dashscope.aliyuncs.com/compatible-mode/v1",
    # Without preserve_thinking: this profile sends no reasoning back.
    parameters=frozenset(
        {
            "enable_search",
            "enable_thinking",
            "presence_penalty",
            "reasoning_effort",
            "response_format",
            "seed",
            "temperature",
            "thinking_budget",
            "tool_choice",
            "top_p",
        }
    ),
    codes={
        "Arrearage": ErrorClass.QUOTA,
        # Here it is the name of a rate limit on tokens, not of a used-up quota as at OpenAI.
        "Throttling": ErrorClass.RATE_LIMIT,
        "Throttling.AllocationQuota": ErrorClass.RATE_LIMIT,
        "Throttling.RateQuota": ErrorClass.RATE_LIMIT,
        "insufficient_quota": ErrorClass.RATE_LIMIT,
    },
    models=(
        KnownModel("kimi-k2.5", _KIMI, 262_144, 32_768, ("text", "image")),
        KnownModel("kimi-k2-thinking", _KIMI, 262_144, 16_384),
        KnownModel("Moonshot-Kimi-K2-Instruct", _KIMI, 131_072, 8_192),
    ),
    facts=(
        Fact("429 is Throttling.RateQuota or Throttling.AllocationQuota/insufficient_quota: slow down", _ERRORS),
        Fact("overdue payments are Arrearage", _ERRORS),
        Fact(
            "enable_thinking and thinking_budget; usage by stream_options",
            "https://help.aliyun.com/en/model-studio/deep-thinking",
        ),
        Fact("parameters", "https://docs.camel-ai.org/reference/camel.configs.qwen_config"),
        Fact(
            "takes one system message, at the beginning",
            "https://github.com/can1357/oh-my-pi/issues/958",
        ),
    ),
)
