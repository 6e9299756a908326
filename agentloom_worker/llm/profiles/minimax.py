"""MiniMax, its OpenAI-compatible API."""

from agentloom_worker.llm.profiles.profile import ErrorClass, Fact, KnownModel, OtherAddress, Profile

_API = "https://platform.minimax.io/docs/api-reference/text-openai-api"
_CHINA = "https://platform.minimaxi.com/docs/api-reference/text-openai-api"
_MODELS = "https://platform.minimaxi.com/docs/guides/text-generation"
_CHAT = "https://platform.minimax.io/docs/api-reference/text-chat-openai"
_RESPONSES = "https://platform.minimax.io/docs/api-reference/responses-create"
_CODES = "https://platform.minimax.io/docs/api-reference/errorcode"
# What MiniMax itself asks of everybody who serves its models.
_VERIFIER = "https://github.com/MiniMax-AI/MiniMax-Provider-Verifier/blob/main/m3_format_check/docs/m3_text_cases_en.md"

MINIMAX = Profile(
    "minimax",
    1,
    mid_system=False,
    done_required=False,
    protocols=("openai-chat", "openai-responses"),
    base_url="https://api.minimax.io/v1",
    other_addresses=(OtherAddress("https://api.minimaxi.com/v1", "in China", _CHINA),),
    output_limit_field="max_completion_tokens",
    # Without reasoning_split: what it splits off would have to come back in a form that is not kept. Left alone, the
    # reasoning stands inside of the text, and so it does come back.
    parameters=frozenset({"seed", "temperature", "thinking", "tool_choice", "top_p"}),
    responses_parameters=frozenset({"reasoning", "temperature"}),
    codes={  # all of them from _CODES, or from the same page of the platform in China
        "1000": ErrorClass.TRANSPORT,
        "1001": ErrorClass.TRANSPORT,
        "1002": ErrorClass.RATE_LIMIT,
        "1004": ErrorClass.REJECTED,
        "1008": ErrorClass.QUOTA,
        "1024": ErrorClass.TRANSPORT,
        "1026": ErrorClass.CONTENT_FILTER,
        "1027": ErrorClass.CONTENT_FILTER,
        "1033": ErrorClass.TRANSPORT,
    },
    base_resp_errors=True,
    models=(
        KnownModel("MiniMax-M3", _API, 1_000_000, None, ("text", "image", "video")),
        KnownModel("MiniMax-M2.7", _MODELS, 204_800),
        KnownModel("MiniMax-M2.7-highspeed", _MODELS, 204_800),
        KnownModel("MiniMax-M2.5", _MODELS, 204_800),
        KnownModel("MiniMax-M2.5-highspeed", _MODELS, 204_800),
        KnownModel("MiniMax-M2.1", _MODELS, 204_800),
        KnownModel("MiniMax-M2.1-highspeed", _MODELS, 204_800),
        KnownModel("MiniMax-M2", _MODELS, 204_800),
    ),
    facts=(
        Fact("the assistant message must come back whole, the thinking in its text included", _API),
        Fact(
            "1000 unknown, 1001 timeout, 1002 rate limit, 1024 internal error: to be tried again; 1004 not authorized,"
            " 1008 no balance",
            _CODES,
        ),
        Fact(
            "1026 sensitive input, 1027 sensitive output, 1033 an error of its system or behind it: to be tried again",
            "https://platform.minimaxi.com/docs/api-reference/errorcode",
        ),
        Fact(
            "its Token Plan has keys of its own, not those of pay-as-you-go",
            "https://platform.minimax.io/docs/token-plan/quickstart",
        ),
        Fact("temperature, top_p", "https://platform.minimax.io/docs/api-reference/text-chat"),
        Fact("thinking", _CHAT),
        Fact(
            "base_resp with its status_code stands in an answer; max_completion_tokens replaces max_tokens",
            "https://platform.minimax.io/docs/api-reference/text-post",
        ),
        Fact("max_completion_tokens wins over max_tokens; seed; tool_choice none, auto, required", _VERIFIER),
        Fact("no response_format yet; that a stream ends without [DONE] is known and tolerated", _VERIFIER),
        Fact("several system messages at the beginning are taken; of others nothing is said", _VERIFIER),
        Fact(
            "the chat template of its models renders a system message at the beginning and leaves out any other",
            "https://github.com/ggml-org/llama.cpp/blob/master/models/templates/unsloth-MiniMax-M2.jinja",
        ),
        Fact("responses: input, max_output_tokens, temperature, reasoning", _RESPONSES),
    ),
)
