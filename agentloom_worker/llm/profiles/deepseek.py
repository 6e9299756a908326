"""DeepSeek's own API."""

from agentloom_worker.llm.profiles.profile import Fact, Profile, ReasoningReplay

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
    facts=(
        Fact(
            "thinking is on by default; reasoning_content of messages with calls must come back, else 400",
            "https://api-docs.deepseek.com/guides/thinking_mode",
        ),
        Fact(
            "the field is wanted with calls also where the model gave no reasoning",
            "https://github.com/deepseek-ai/deepseek-harness/discussions/739",
        ),
        Fact(
            "402 no balance, 422 wrong parameter, 429 too fast, 500 and 503 to be tried again",
            "https://api-docs.deepseek.com/quick_start/error_codes",
        ),
        Fact(
            "waiting streams carry keep-alive comments",
            "https://api-docs.deepseek.com/quick_start/rate_limit",
        ),
        Fact("parameters", "https://docs.rs/deepseek-sdk/latest/deepseek_sdk/chat/request/struct.ChatRequest.html"),
        Fact(
            "takes several system messages, also in the middle",
            "https://github.com/can1357/oh-my-pi/issues/958",
        ),
    ),
)
