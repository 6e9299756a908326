"""OpenRouter: one address, many providers behind it, whose own rules are not known in advance."""

from agentloom_worker.llm.profiles.profile import ErrorClass, Fact, Profile

_ERRORS = "https://openrouter.ai/docs/api/reference/errors-and-debugging"
# The provider's own description of its API, from which its SDK is made.
_OPENAPI = "https://github.com/OpenRouterTeam/typescript-sdk/blob/main/.speakeasy/in.openapi.yaml"

OPENROUTER = Profile(
    "openrouter",
    1,
    mid_system=False,  # what is behind it decides, and that is not known
    protocols=("openai-chat", "openai-responses"),
    base_url="https://openrouter.ai/api/v1",
    # Without `models` and `route`, which answer with another model than the release names, and without `transforms`
    # and `plugins`, which change or drop parts of a history.
    parameters=frozenset(
        {
            "frequency_penalty",
            "logit_bias",
            "logprobs",
            "min_p",
            "parallel_tool_calls",
            "presence_penalty",
            "provider",
            "reasoning",
            "reasoning_effort",
            "repetition_penalty",
            "response_format",
            "seed",
            "stop",
            "temperature",
            "tool_choice",
            "top_a",
            "top_k",
            "top_logprobs",
            "top_p",
            "user",
        }
    ),
    # Without encrypted reasoning: its items carry a `signature` and a `format` beside what the protocol knows, and
    # which of the providers behind it answers may change from one request to the next.
    responses_parameters=frozenset(
        {
            "frequency_penalty",
            "parallel_tool_calls",
            "presence_penalty",
            "provider",
            "reasoning",
            "safety_identifier",
            "temperature",
            "text",
            "tool_choice",
            "top_k",
            "top_logprobs",
            "top_p",
            "user",
        }
    ),
    # Of _ERRORS and _OPENAPI. 403 is not among them: it means a flagged input, a guardrail, or a missing permission.
    codes={
        "402": ErrorClass.QUOTA,
        "408": ErrorClass.TRANSPORT,
        "content_policy_violation": ErrorClass.CONTENT_FILTER,
        "payment_required": ErrorClass.QUOTA,
        "provider_overloaded": ErrorClass.TRANSPORT,
        "provider_unavailable": ErrorClass.TRANSPORT,
        "server": ErrorClass.TRANSPORT,
    },
    finish_reasons={"error": ErrorClass.TRANSPORT},
    facts=(
        Fact("error.code is the HTTP status as a number; once the model has begun it comes inside of a 200", _ERRORS),
        Fact("error.metadata.error_type names the kind of an error in every API format", _OPENAPI),
        Fact(
            "an error behind the first token comes as a frame with the error and a choice with the finish reason error",
            _ERRORS,
        ),
        Fact("402 no credits, 408 timed out, 502 and 503 no provider, 429 too fast", _ERRORS),
        Fact("524 timed out at the edge, 529 the provider is overloaded", _OPENAPI),
        Fact("a stream of either protocol ends with [DONE], a response's behind its final event", _OPENAPI),
        Fact("a fragment of a call has an index always, an id where it begins", _OPENAPI),
        Fact("finish reasons are tool_calls, stop, length, content_filter and error", _OPENAPI),
        Fact("403 is a missing permission, or a guardrail that blocked the request", _OPENAPI),
        Fact("parameters of both protocols; no response is stored, `store` is false and nothing else", _OPENAPI),
        Fact("provider.allow_fallbacks is about the hosts of one model; without it another host may answer", _OPENAPI),
        Fact("reasoning comes in the field reasoning", "https://openrouter.ai/docs/use-cases/reasoning-tokens"),
    ),
)
