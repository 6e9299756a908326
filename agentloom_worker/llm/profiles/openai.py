"""OpenAI's own API."""

from agentloom_worker.llm.profiles.profile import Fact, Profile, ReasoningReplay

_RESPONSES = "https://github.com/openai/openai-python/tree/main/src/openai/types/responses"
_STREAM = "https://github.com/openai/openai-python/blob/main/src/openai/_streaming.py"
_CHUNK = "https://github.com/openai/openai-python/blob/main/src/openai/types/chat/chat_completion_chunk.py"
_CHAT = "https://github.com/openai/openai-python/blob/main/src/openai/types/chat/completion_create_params.py"

# Without what this runtime owns or cannot carry: n, tools, functions, audio, modalities.
CHAT_PARAMETERS = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "temperature",
        "tool_choice",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
        "web_search_options",
    }
)
# Without history kept by the server (store, conversation, previous_response_id, background) and without
# `truncation`, which would drop history silently.
RESPONSES_PARAMETERS = frozenset(
    {
        "max_tool_calls",
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "temperature",
        "text",
        "tool_choice",
        "top_logprobs",
        "top_p",
        "user",
    }
)

OPENAI = Profile(
    "openai",
    1,
    protocols=("openai-chat", "openai-responses"),
    base_url="https://api.openai.com/v1",
    output_limit_field="max_completion_tokens",
    encrypted_replay=ReasoningReplay.ALWAYS,
    parameters=CHAT_PARAMETERS,
    responses_parameters=RESPONSES_PARAMETERS,
    facts=(
        Fact(
            "with store: false, include: [reasoning.encrypted_content] puts the reasoning into its items sealed"
            " (encrypted_content); the items of output_item.done go back in the input of later requests",
            _RESPONSES,
        ),
        Fact(
            "parameters of chat completions; max_completion_tokens bounds the output, max_tokens is deprecated and not"
            " taken by o-series models",
            _CHAT,
        ),
        Fact("a stream of chat completions ends with [DONE]", _STREAM),
        Fact(
            "a fragment of a call has an index always, its id and name where they begin; nothing is said of reuse",
            _CHUNK,
        ),
        Fact(
            "the Responses stream ends with response.completed, .incomplete or .failed; items have an index", _RESPONSES
        ),
        Fact("parameters of responses, store and include among them", _RESPONSES),
        Fact(
            "429 is a rate limit, or a used-up quota with the code insufficient_quota",
            "https://developers.openai.com/docs/guides/error-codes",
        ),
        Fact("messages are a list of messages of any role; no order of roles is demanded", _CHAT),
    ),
)
