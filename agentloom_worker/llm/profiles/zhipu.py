"""Zhipu's GLM: the open platform in China. https://api.z.ai/api/paas/v4 is the same outside, by base_url."""

from agentloom_worker.llm.profiles.profile import ErrorClass, Fact, Profile, ReasoningReplay

_CODES = "https://docs.bigmodel.cn/cn/api/api-code"
_THINKING = "https://docs.bigmodel.cn/cn/guide/capabilities/thinking-mode"

ZHIPU = Profile(
    "zhipu",
    1,
    reasoning_replay=ReasoningReplay.IN_TOOL_TURNS,
    protocols=("openai-chat",),
    base_url="https://open.bigmodel.cn/api/paas/v4",
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
    facts=(
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
