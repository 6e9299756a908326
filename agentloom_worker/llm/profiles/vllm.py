"""vLLM's server. What it takes depends on the chat template of the model that it serves: the strictest is assumed."""

from agentloom_worker.llm.profiles.profile import ErrorClass, Fact, Profile, ReasoningReplay

_SERVING = "https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/openai/chat_completion/serving.py"
_PROTOCOL = "https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/openai/chat_completion/protocol.py"

VLLM = Profile(
    "vllm",
    1,
    mid_system=False,
    strict_alternation=True,
    first_must_be_user=True,
    reasoning_replay=ReasoningReplay.IN_TOOL_TURNS,
    reasoning_field="reasoning",
    protocols=("openai-chat", "openai-responses"),
    base_url="http://localhost:8000/v1",
    # It ignores what it does not know, so what is not listed here would be dropped silently. Without `user`, which it
    # ignores too, and `truncate_prompt_tokens`, which drops the beginning of a history.
    parameters=frozenset(
        {
            "allowed_token_ids",
            "bad_words",
            "cache_salt",
            "chat_template",
            "chat_template_kwargs",
            "documents",
            "frequency_penalty",
            "ignore_eos",
            "include_reasoning",
            "include_stop_str_in_output",
            "length_penalty",
            "logit_bias",
            "logprobs",
            "min_p",
            "min_tokens",
            "parallel_tool_calls",
            "presence_penalty",
            "priority",
            "prompt_logprobs",
            "reasoning_effort",
            "repetition_penalty",
            "response_format",
            "seed",
            "session_id",
            "skip_special_tokens",
            "spaces_between_special_tokens",
            "stop",
            "stop_token_ids",
            "structured_outputs",
            "temperature",
            "thinking_token_budget",
            "tool_choice",
            "top_k",
            "top_logprobs",
            "top_p",
            "use_beam_search",
            "vllm_xargs",
        }
    ),
    # Without those that it takes and does nothing with (metadata, prompt_cache_key, service_tier, user), and without
    # the further ways to hand it a history.
    responses_parameters=frozenset(
        {
            "cache_salt",
            "ignore_eos",
            "include_stop_str_in_output",
            "logit_bias",
            "priority",
            "reasoning",
            "repetition_penalty",
            "seed",
            "skip_special_tokens",
            "stop",
            "structured_outputs",
            "temperature",
            "text",
            "tool_choice",
            "top_k",
            "top_p",
            "vllm_xargs",
        }
    ),
    finish_reasons={"abort": ErrorClass.TRANSPORT, "error": ErrorClass.TRANSPORT},
    facts=(
        Fact(
            "finish reasons are part of its API: abort is a request that was aborted, error an internal error of a"
            " request, to be tried again",
            "https://github.com/vllm-project/vllm/blob/main/vllm/v1/engine/__init__.py",
        ),
        Fact(
            "one system message, at the beginning, where the template says so",
            "https://github.com/vllm-project/vllm/issues/41114",
        ),
        Fact(
            "user and assistant must alternate, the user first, where the template says so",
            "https://github.com/vllm-project/vllm/blob/main/examples/tool_chat_template_gemma3_pythonic.jinja",
        ),
        Fact(
            "a stream of chat completions ends with [DONE], one that failed too: its error stands before it", _SERVING
        ),
        Fact("reasoning comes in the field reasoning", _PROTOCOL),
        Fact(
            "models that think between calls get their reasoning back",
            "https://docs.vllm.ai/en/v0.17.1/features/interleaved_thinking/",
        ),
        Fact(
            "of a reasoning item in responses its first text is read, and a second item in front of one message begins"
            " another message",
            "https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/openai/responses/utils.py",
        ),
        Fact(
            "parameters of chat completions; user is ignored",
            _PROTOCOL,
        ),
        Fact(
            "parameters of responses; that it takes reasoning.encrypted_content in include is no word of what it gives",
            "https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/openai/responses/protocol.py",
        ),
        Fact(
            "listens on port 8000",
            "https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html",
        ),
    ),
)
