"""llama.cpp's server. What it takes depends on the chat template inside of the model: the strictest is assumed."""

from agentloom_worker.llm.profiles.profile import ErrorClass, Fact, Profile

LLAMA_CPP = Profile(
    "llama-cpp",
    1,
    mid_system=False,
    strict_alternation=True,
    first_must_be_user=True,
    protocols=("openai-chat", "openai-responses"),
    parameters=frozenset(
        {
            "cache_prompt",
            "chat_template_kwargs",
            "frequency_penalty",
            "grammar",
            "json_schema",
            "logit_bias",
            "min_p",
            "presence_penalty",
            "repeat_penalty",
            "response_format",
            "seed",
            "stop",
            "temperature",
            "tool_choice",
            "top_k",
            "top_p",
        }
    ),
    responses_parameters=frozenset({"temperature", "top_p"}),
    codes={"exceed_context_size_error": ErrorClass.CONTEXT_LENGTH},
    props_path="/props",
    facts=(
        Fact(
            "a request that does not fit is an exceed_context_size_error, whatever its status",
            "https://github.com/ggml-org/llama.cpp/pull/15780",
        ),
        Fact(
            "one system message, at the beginning, where the template says so",
            "https://github.com/ggml-org/llama.cpp/issues/20733",
        ),
        Fact("/props tells the window that is served", "https://mvysny.github.io/llama-server-endpoints/"),
        Fact(
            "parameters; the port that it listens on differs between versions (8080, 9931), so there is no default",
            "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
        ),
    ),
)
