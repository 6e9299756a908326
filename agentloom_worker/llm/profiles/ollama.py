"""Ollama's OpenAI-compatible API."""

from agentloom_worker.llm.profiles.profile import Fact, Profile, ReasoningReplay

_PAGE = "https://docs.ollama.com/api/openai-compatibility"

OLLAMA = Profile(
    "ollama",
    1,
    mid_system=False,  # the template of the model decides
    protocols=("openai-chat", "openai-responses"),
    base_url="http://localhost:11434/v1",
    encrypted_replay=ReasoningReplay.ALWAYS,
    parameters=frozenset(
        {
            "frequency_penalty",
            "presence_penalty",
            "reasoning",
            "reasoning_effort",
            "response_format",
            "seed",
            "stop",
            "temperature",
            "top_p",
        }
    ),
    responses_parameters=frozenset({"temperature", "top_p"}),
    facts=(
        Fact(
            "a reasoning item has its thinking in encrypted_content (as plain text: it seals nothing), and in the input"
            " it becomes the thinking of the message or call behind it",
            "https://github.com/ollama/ollama/blob/main/openai/responses.go",
        ),
        Fact("fields of a request; the key is ignored by a local server", _PAGE),
        Fact("the window is set with the model (num_ctx), no request can change it", _PAGE),
        Fact("responses without state since 0.13.3", _PAGE),
    ),
)
