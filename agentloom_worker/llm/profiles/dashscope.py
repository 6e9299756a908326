"""Alibaba Cloud Model Studio, its OpenAI-compatible mode."""

from agentloom_worker.llm.profiles.profile import ErrorClass, Fact, KnownModel, OtherAddress, Profile

_ERRORS = "https://help.aliyun.com/en/model-studio/error-code-start"
_STATUS = "https://www.alibabacloud.com/help/en/model-studio/developer-reference/error-code"
_CHAT = "https://docs.qwencloud.com/api-reference/chat/openai-chat"
_SDK = (
    "https://github.com/dashscope/dashscope-sdk-java/blob/main/src/main/java/com/alibaba/dashscope/aigc/generation/"
    "GenerationParam.java"
)
_ADDRESSES = "https://www.alibabacloud.com/help/zh/model-studio/more-tools"
_CODING_TOOLS_ONLY = "for coding tools that people use, not for scripts and backends"
_KIMI = "https://www.alibabacloud.com/help/en/model-studio/kimi-api"

DASHSCOPE = Profile(
    "dashscope",
    1,
    mid_system=False,
    protocols=("openai-chat",),
    base_url="https://dashscope.aliyuncs.com/compatible-mode/v1",
    other_addresses=(
        OtherAddress("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "Singapore", _ADDRESSES),
        OtherAddress("https://dashscope-us.aliyuncs.com/compatible-mode/v1", "Virginia", _ADDRESSES),
        OtherAddress(
            "https://coding.dashscope.aliyuncs.com/v1",
            f"Coding Plan, with keys of its own; {_CODING_TOOLS_ONLY}",
            "https://help.aliyun.com/zh/model-studio/other-tools-coding-plan",
        ),
        OtherAddress(
            "https://coding-intl.dashscope.aliyuncs.com/v1",
            f"Coding Plan outside China, with keys of its own; {_CODING_TOOLS_ONLY}",
            "https://www.alibabacloud.com/help/zh/model-studio/other-tools-coding-plan",
        ),
        OtherAddress(
            "https://token-plan.cn-beijing.maas.aliyuncs.com/compatible-mode/v1",
            f"Token Plan, with keys of its own; {_CODING_TOOLS_ONLY}",
            "https://help.aliyun.com/zh/model-studio/other-tools-coding-plan",
        ),
        OtherAddress(
            "https://token-plan.ap-southeast-1.maas.aliyuncs.com/compatible-mode/v1",
            f"Token Plan in Singapore, with keys of its own; {_CODING_TOOLS_ONLY}",
            _ADDRESSES,
        ),
    ),
    # Without preserve_thinking: this profile sends no reasoning back.
    parameters=frozenset(
        {
            "enable_search",
            "enable_thinking",
            "presence_penalty",
            "response_format",
            "seed",
            "temperature",
            "thinking_budget",
            "tool_choice",
            "top_p",
        }
    ),
    codes={
        "Arrearage": ErrorClass.QUOTA,  # _STATUS
        "DataInspectionFailed": ErrorClass.CONTENT_FILTER,  # _STATUS
        # _ERRORS. Here insufficient_quota is the name of a rate limit on tokens, not of a used-up quota as at OpenAI.
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
        Fact("overdue payments are Arrearage, content that its moderation blocked is DataInspectionFailed", _STATUS),
        Fact(
            "enable_thinking and thinking_budget; usage by stream_options",
            "https://help.aliyun.com/en/model-studio/deep-thinking",
        ),
        Fact("every parameter, as its own SDK sends it to the same models", _SDK),
        Fact(
            "a signal of its own ends a stream; which one, no page that was read says",
            "https://www.alibabacloud.com/help/en/model-studio/stream",
        ),
        Fact("temperature and top_p of this mode", _CHAT),
        Fact(
            "response_format of this mode",
            "https://www.alibabacloud.com/help/en/model-studio/qwen-structured-output",
        ),
        Fact("enable_search of this mode", "https://www.alibabacloud.com/help/en/model-studio/web-search"),
        Fact("the system message is to be placed at the beginning of the messages", _CHAT),
        Fact(
            "https://dashscope.aliyuncs.com/compatible-mode/v1 is the address in Beijing that every workspace shares",
            "https://www.alibabacloud.com/help/en/model-studio/base-url",
        ),
    ),
)
