"""OpenRouter: one address, many providers behind it, whose own rules are not known in advance."""

from agentloom_worker.llm.profiles.profile import ErrorClass, Fact, Profile

_ERRORS = "https://openrouter.ai/docs/api/reference/errors-and-debugging"

OPENROUTER = Profile(
    "openrouter",
    1,
    mid_system=False,
    protocols=("openai-chat",),
    base_url="https://openrouter.ai/api/v1",
    # Without `models` and `route`, which answer with another model than the release names, and without `transforms`,
    # which drops the middle of a history.
    parameters=frozenset(
        {
            "frequency_penalty",
            "logit_bias",
            "min_p",
            "presence_penalty",
            "provider",
            "reasoning",
            "repetition_penalty",
            "response_format",
            "seed",
            "stop",
            "temperature",
            "top_a",
            "top_k",
            "top_logprobs",
            "top_p",
        }
    ),
    codes={
        "402": ErrorClass.QUOTA,
        "403": ErrorClass.CONTENT_FILTER,
        "408": ErrorClass.TRANSPORT,
    },
    facts=(
        Fact("error.code is the HTTP status as a number; once the model has begun it comes inside of a 200", _ERRORS),
        Fact("402 no credits, 403 flagged by moderation, 408 timed out, 502 and 503 no provider", _ERRORS),
        Fact("parameters", "https://openrouter.ai/docs/api-reference/overview"),
        Fact("reasoning comes in the field reasoning", "https://openrouter.ai/docs/use-cases/reasoning-tokens"),
    ),
)
