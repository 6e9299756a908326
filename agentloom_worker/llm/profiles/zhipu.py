"""Zhipu's GLM: the open platform in China."""

from agentloom_worker.llm.profiles.profile import (
    Ending,
    ErrorClass,
    Fact,
    KnownModel,
    OtherAddress,
    Profile,
    ReasoningReplay,
)

_CODES = "https://docs.bigmodel.cn/cn/api/api-code"
_CHAT = "https://docs.bigmodel.cn/api-reference/%E6%A8%A1%E5%9E%8B-api/%E5%AF%B9%E8%AF%9D%E8%A1%A5%E5%85%A8"
_HTTP = "https://docs.bigmodel.cn/cn/guide/develop/http/introduction"
_ZAI = "https://docs.z.ai/api-reference/introduction"
_STREAM = "https://github.com/zai-org/z-ai-sdk-python/blob/main/src/zai/core/_streaming.py"
_CHUNK = "https://github.com/zai-org/z-ai-sdk-python/blob/main/src/zai/types/chat/chat_completion_chunk.py"
_THINKING = "https://docs.bigmodel.cn/cn/guide/capabilities/thinking-mode"

ZHIPU = Profile(
    "zhipu",
    1,
    reasoning_replay=ReasoningReplay.IN_TOOL_TURNS,
    protocols=("openai-chat",),
    base_url="https://open.bigmodel.cn/api/paas/v4",
    other_addresses=(
        OtherAddress(
            "https://open.bigmodel.cn/api/coding/paas/v4",
            "GLM Coding Plan, whose allowance is used at this address only; not for general use",
            _HTTP,
        ),
        OtherAddress("https://api.z.ai/api/paas/v4", "outside China", _ZAI),
        OtherAddress(
            "https://api.z.ai/api/coding/paas/v4",
            "GLM Coding Plan outside China; for the tools that it supports, not for general use",
            _ZAI,
        ),
    ),
    parameters=frozenset({"do_sample", "response_format", "stop", "temperature", "thinking", "tool_choice", "top_p"}),
    # Preserved thinking wants every reasoning back, in every turn; this profile sends that of tool turns.
    unsupported=frozenset({"thinking.clear_thinking"}),
    codes={  # all of them from _CODES
        "1113": ErrorClass.QUOTA,
        "1120": ErrorClass.TRANSPORT,
        "1234": ErrorClass.TRANSPORT,
        "1261": ErrorClass.CONTEXT_LENGTH,
        "1301": ErrorClass.CONTENT_FILTER,
        "1302": ErrorClass.RATE_LIMIT,
        "1303": ErrorClass.RATE_LIMIT,
        "1304": ErrorClass.QUOTA,
        "1305": ErrorClass.RATE_LIMIT,
        "1308": ErrorClass.QUOTA,
        "1309": ErrorClass.QUOTA,
        "1310": ErrorClass.QUOTA,
        "1312": ErrorClass.RATE_LIMIT,
        "1313": ErrorClass.QUOTA,
    },
    models=(KnownModel("glm-4.7", "https://docs.z.ai/guides/llm/glm-4.7", 200_000, 128_000),),
    finish_reasons={
        # Its answers name this one: https://github.com/mozilla-ai/any-llm/issues/1200
        "model_context_window_exceeded": ErrorClass.CONTEXT_LENGTH,
        "network_error": ErrorClass.TRANSPORT,
        "sensitive": Ending.CONTENT_FILTER,
    },
    facts=(
        Fact("a stream ends with [DONE]", _STREAM),
        Fact("a fragment of a call has an index always; its id may be absent", _CHUNK),
        Fact("sensitive: content that its audit blocked; network_error: the inference failed", _CHAT),
        Fact(
            "1261 prompt too long; 1301 sensitive content; 1302, 1303, 1305, 1312 too many or too busy; 1120 and 1234"
            " account or network out of reach; 1113 no balance (with status 429); 1304, 1308, 1309, 1310, 1313 an"
            " allowance that is used up, over or restricted",
            _CODES,
        ),
        Fact("reasoning_content must come back with the results of tools", _THINKING),
        Fact("preserved thinking (clear_thinking) wants all of it back and is off by default", _THINKING),
        Fact("parameters", "https://docs.z.ai/guides/overview/concept-param"),
        Fact("the same parameters and both addresses, in its own SDK", "https://github.com/zai-org/z-ai-sdk-python"),
        Fact(
            "the chat template of its models renders a system message wherever it stands",
            "https://github.com/ggml-org/llama.cpp/blob/master/models/templates/GLM-4.6.jinja",
        ),
    ),
)
