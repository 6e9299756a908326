"""Ollama's OpenAI-compatible API."""

from agentloom_worker.llm.profiles.profile import Fact, Profile, ReasoningReplay

_RESPONSES = "https://github.com/ollama/ollama/blob/main/openai/responses.go"
_MIDDLEWARE = "https://github.com/ollama/ollama/blob/main/middleware/openai.go"
_CHUNKS = "https://github.com/ollama/ollama/blob/main/openai/openai.go"
_PAGE = "https://docs.ollama.com/api/openai-compatibility"

OLLAMA = Profile(
    "ollama",
    1,
    mid_system=False,
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
    responses_parameters=frozenset({"reasoning", "temperature", "text", "top_p"}),
    silent_limit=True,
    facts=(
        Fact(
            "a reasoning item has its thinking in encrypted_content (as plain text: it seals nothing), and in the input"
            " it becomes the thinking of the message or call behind it",
            _RESPONSES,
        ),
        Fact(
            "a Responses answer ends as completed, its items too, whatever ended it; that the output limit did shows in"
            " usage.output_tokens alone, a window that ran full in nothing",
            _RESPONSES,
        ),
        Fact("a stream of chat completions ends with [DONE]", _MIDDLEWARE),
        Fact("a call comes whole, with an id and an index", _CHUNKS),
        Fact(
            "a reason that is none of its own becomes stop; load and unload answer requests without messages",
            _CHUNKS,
        ),
        Fact("responses read reasoning.effort and text.format beside what the page lists", _RESPONSES),
        Fact("fields of a request; the key is ignored by a local server", _PAGE),
        Fact("the window is set with the model (num_ctx), no request can change it", _PAGE),
        Fact("responses without state since 0.13.3", _PAGE),
        Fact("a local server listens on port 11434", _PAGE),
        Fact(
            "system messages are gathered into the template's System, and stand among its Messages too: the template of"
            " the model decides what becomes of one in the middle",
            "https://github.com/ollama/ollama/blob/main/template/template.go",
        ),
    ),
)
