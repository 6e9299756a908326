"""The official `openai` client, reading a recorded stream through its public interface: no socket, no retries."""

import importlib.util
from collections.abc import Iterator, Sequence
from importlib.metadata import version as version_of
from typing import Any

_QUESTION = "go"


def version() -> str | None:
    """Its version; None where it is not installed."""
    return version_of("openai") if importlib.util.find_spec("openai") is not None else None


class OfficialReader:
    """A client whose every request is answered by the same recorded chunks."""

    def __init__(self, protocol: str, chunks: Sequence[bytes]) -> None:
        import httpx2  # noqa: PLC0415 -- comes with the client, which is of the extra `test`
        import openai  # noqa: PLC0415

        def answer(_request: object) -> Any:
            head = {"content-type": "text/event-stream"}
            return httpx2.Response(200, headers=head, stream=_Recorded(chunks))

        class _Recorded(httpx2.SyncByteStream):
            def __init__(self, recorded: Sequence[bytes]) -> None:
                self._recorded = recorded

            def __iter__(self) -> Iterator[bytes]:
                return iter(self._recorded)

        self._protocol = protocol
        self._client = openai.OpenAI(
            api_key="none",
            base_url="http://127.0.0.1/v1",
            max_retries=0,
            http_client=httpx2.Client(transport=httpx2.MockTransport(answer)),
        )

    def read(self) -> int:
        """Parse all of the stream into the client's own events; how many there were."""
        return sum(1 for _ in self._events())

    def text(self) -> str:
        """The text of the answer, put together."""
        if self._protocol == "openai-chat":
            return "".join(chunk.choices[0].delta.content or "" for chunk in self._events() if chunk.choices)
        return "".join(event.delta for event in self._events() if event.type == "response.output_text.delta")

    def _events(self) -> Any:
        if self._protocol == "openai-chat":
            messages: Any = [{"role": "user", "content": _QUESTION}]
            return self._client.chat.completions.create(model="m", messages=messages, stream=True)
        return self._client.responses.create(model="m", input=_QUESTION, stream=True)
