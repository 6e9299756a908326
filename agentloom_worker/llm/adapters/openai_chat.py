"""The `openai-chat` protocol: POST {base_url}/chat/completions, streamed, read to its legal final frame."""

import ssl

from agentloom_worker.clock import Clock
from agentloom_worker.domain.model import ModelOutcome
from agentloom_worker.llm.adapter import AttemptContext, ModelCall
from agentloom_worker.llm.chat_assembly import ChatAssembly
from agentloom_worker.llm.chat_encoding import ENCODING_VERSION, ChatEncoding
from agentloom_worker.llm.http_attempt import ModelHttp
from agentloom_worker.llm.profiles import Profile


class OpenAIChatAdapter(ChatEncoding):
    """Shared by all threads of a process, with its connections. `ssl_context` None is httpx's default."""

    def __init__(self, clock: Clock, profile: Profile, *, ssl_context: ssl.SSLContext | None = None) -> None:
        super().__init__(profile)
        self._http = ModelHttp(
            clock, "chat/completions", lambda asked: ChatAssembly(profile, asked), profile, ssl_context=ssl_context
        )
        self._version = f"openai-chat@{ENCODING_VERSION}/{profile.name}@{profile.version}"

    @property
    def version(self) -> str:
        """As ModelAdapter says."""
        return self._version

    def stream_once(self, request: ModelCall, attempt: AttemptContext) -> ModelOutcome:
        """As ModelAdapter says. Nothing is retried and no redirect is followed."""
        return self._http.stream_once(request, attempt)

    def close(self) -> None:
        """As ModelAdapter says."""
        self._http.close()
