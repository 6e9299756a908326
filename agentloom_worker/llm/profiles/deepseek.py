"""DeepSeek's own API."""

from agentloom_worker.llm.profiles.profile import ErrorClass, Fact, KnownModel, Profile, ReasoningReplay

_REFERENCE = "https://api-docs.deepseek.com/zh-cn/api/create-chat-completion"
_PRICING = "https://api-docs.deepseek.com/zh-cn/quick_start/pricing"
_THINKING = "https://api-docs.deepseek.com/guides/thinking_mode"

DEEPSEEK = Profile(
    "deepseek",
    1,
    reasoning_replay=ReasoningReplay.IN_TOOL_TURNS,
    reasoning_if_empty=True,
    protocols=("openai-chat",),
    base_url="https://api.deepseek.com",
    parameters=frozenset(
        {
            "frequency_penalty",
            "logprobs",
            "presence_penalty",
            "reasoning_effort",
            "response_format",
            "stop",
            "temperature",
            "thinking",
            "tool_choice",
            "top_logprobs",
            "top_p",
            "user_id",
        }
    ),
    models=(
        KnownModel("deepseek-flash", _PRICING, 1_000_000, 384_000, ("text", "image")),
        KnownModel("deepseek-v4-pro", _PRICING, 1_000_000, 384_000),
    ),
    finish_reasons={"insufficient_system_resource": ErrorClass.TRANSPORT},
    facts=(
        Fact(
            "insufficient_system_resource: the generation was interrupted since resources ran short; length is a limit"
            " of the context as well",
            _REFERENCE,
        ),
        Fact(
            "thinking is on by default; between two messages of the user with calls among them, reasoning_content must"
            " come back in all later requests, else 400; without calls it is ignored",
            _THINKING,
        ),
        Fact(
            "no exception is made for calls before which the model gave no reasoning: there the field goes back empty",
            _THINKING,
        ),
        Fact(
            "402 no balance, 422 wrong parameter, 429 too fast, 500 and 503 to be tried again",
            "https://api-docs.deepseek.com/quick_start/error_codes",
        ),
        Fact(
            "waiting streams carry keep-alive comments",
            "https://api-docs.deepseek.com/quick_start/rate_limit",
        ),
        Fact("parameters; a stream ends with [DONE]", _REFERENCE),
        Fact("thinking, reasoning_effort", _THINKING),
        Fact("user_id", "https://api-docs.deepseek.com/quick_start/rate_limit"),
        Fact("messages of the roles system, user, assistant and tool; no order of them is demanded", _REFERENCE),
        Fact(
            "its own encoding of a conversation renders a system message wherever it stands",
            "https://huggingface.co/deepseek-ai/DeepSeek-V3.2/blob/main/encoding/encoding_dsv32.py",
        ),
    ),
)
