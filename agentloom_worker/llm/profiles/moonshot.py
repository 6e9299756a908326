"""Moonshot's Kimi."""

from agentloom_worker.llm.profiles.profile import ErrorClass, Fact, KnownModel, OtherAddress, Profile, ReasoningReplay

_ERRORS = "https://platform.kimi.ai/docs/api/errors"
_CHAT = "https://platform.kimi.ai/docs/api/chat"
_STREAMING = "https://platform.moonshot.ai/docs/guide/utilize-the-streaming-output-feature-of-kimi-api"
_CONFIGURATION = "https://github.com/MoonshotAI/kimi-cli/blob/main/docs/en/configuration/config-files.md"
# Its own client of this API.
_CLIENT = "https://github.com/MoonshotAI/kimi-cli/blob/main/packages/kosong/src/kosong/chat_provider/kimi.py"

MOONSHOT = Profile(
    "moonshot",
    1,
    mid_system=False,  # no page of its own says that more than one is taken
    reasoning_replay=ReasoningReplay.ALWAYS,
    protocols=("openai-chat",),
    base_url="https://api.moonshot.ai/v1",
    other_addresses=(
        OtherAddress("https://api.moonshot.cn/v1", "in China", _CONFIGURATION),
        OtherAddress(
            "https://api.kimi.com/coding/v1",
            "Kimi Code, with keys of its own",
            "https://github.com/MoonshotAI/kimi-cli/blob/main/docs/en/configuration/providers.md",
        ),
    ),
    output_limit_field="max_completion_tokens",
    parameters=frozenset(
        {
            "frequency_penalty",
            "presence_penalty",
            "reasoning_effort",
            "response_format",
            "stop",
            "temperature",
            "thinking",
            "top_p",
        }
    ),
    codes={  # all of them from _ERRORS
        "content_filter": ErrorClass.CONTENT_FILTER,
        "engine_overloaded_error": ErrorClass.RATE_LIMIT,
        "exceeded_current_quota_error": ErrorClass.QUOTA,
        "rate_limit_reached_error": ErrorClass.RATE_LIMIT,
    },
    models=(
        KnownModel(
            "kimi-k2.6",
            "https://platform.kimi.ai/docs/guide/kimi-k2-6-quickstart",
            262_144,
            None,
            ("text", "image", "video"),
        ),
        KnownModel("kimi-for-coding", _CONFIGURATION, 262_144),
    ),
    facts=(
        Fact("a stream ends with [DONE]", _STREAMING),
        Fact("its windows of 256K are 256 * 1024 tokens", "https://platform.moonshot.cn/docs/guide/faq"),
        Fact("errors by type; a context that is too long is an invalid_request_error like others", _ERRORS),
        Fact(
            "with thinking, a message with calls and without reasoning_content is refused",
            "https://www.kimi.com/code/docs/kimi-code/error-reference.html",
        ),
        Fact("max_completion_tokens bounds the output, max_tokens is deprecated", _CHAT),
        Fact("response_format", "https://platform.moonshot.ai/docs/guide/use-json-mode-feature-of-kimi-api"),
        Fact("roles are system, user and assistant, and content is never empty", _CHAT),
        Fact(
            "temperature, top_p, both penalties, stop, thinking, and reasoning_effort as of old; every message with"
            " reasoning goes back with its reasoning_content",
            _CLIENT,
        ),
    ),
)
