"""llama.cpp's server. What it takes depends on the chat template inside of the model: the strictest is assumed."""

from agentloom_worker.llm.profiles.profile import ErrorClass, Fact, Profile

_READER = "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/tests/utils.py"
_README = "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md"

LLAMA_CPP = Profile(
    "llama-cpp",
    1,
    mid_system=False,
    strict_alternation=True,
    first_must_be_user=True,
    protocols=("openai-chat", "openai-responses"),
    # Without those that change what an answer is made of (n_predict, n_cmpl, response_fields, parse_tool_calls), that
    # cut it without a word (t_max_predict_ms), or that drop a part of a history (n_keep).
    parameters=frozenset(
        {
            "cache_prompt",
            "chat_template_kwargs",
            "dry_allowed_length",
            "dry_base",
            "dry_multiplier",
            "dry_penalty_last_n",
            "dry_sequence_breakers",
            "dynatemp_exponent",
            "dynatemp_range",
            "frequency_penalty",
            "grammar",
            "id_slot",
            "ignore_eos",
            "json_schema",
            "logit_bias",
            "lora",
            "min_keep",
            "min_p",
            "mirostat",
            "mirostat_eta",
            "mirostat_tau",
            "parallel_tool_calls",
            "presence_penalty",
            "reasoning_format",
            "repeat_last_n",
            "repeat_penalty",
            "response_format",
            "samplers",
            "seed",
            "stop",
            "temperature",
            "tool_choice",
            "top_k",
            "top_p",
            "typical_p",
            "xtc_probability",
            "xtc_threshold",
        }
    ),
    responses_parameters=frozenset({"temperature", "top_p"}),
    silent_limit=True,
    codes={"exceed_context_size_error": ErrorClass.CONTEXT_LENGTH},
    props_path="/props",
    facts=(
        Fact(
            "a request that does not fit is an error of type exceed_context_size_error, whatever its status",
            "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/server-common.cpp",
        ),
        Fact(
            "one system message, at the beginning, where the template says so",
            "https://github.com/ggml-org/llama.cpp/issues/20733",
        ),
        Fact(
            "user and assistant must alternate, the user first, where the template says so",
            "https://github.com/ggml-org/llama.cpp/blob/master/models/templates/"
            "mistralai-Mistral-Small-3.1-24B-Instruct-2503.jinja",
        ),
        Fact("a stream of chat completions ends with [DONE]", _READER),
        Fact("calls are numbered; the first fragment of an index has its id and name", _READER),
        Fact(
            "a Responses answer ends as completed, its items too, whatever ended it; that the output limit did shows in"
            " usage.output_tokens alone, a window that ran full in nothing (to_json_oaicompat_resp_stream)",
            "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/server-task.cpp",
        ),
        Fact("/props tells the window that is served: default_generation_settings.n_ctx", _README),
        Fact(
            "parameters: chat completions take those of /completion too; /v1/responses is turned into chat completions;"
            " the ports of its examples differ, so there is no default address",
            _README,
        ),
    ),
)
