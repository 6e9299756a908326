"""What a protocol makes of the events of one answer, and the words in which it says that they are wrong."""

import json
from typing import Any, Protocol

from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.domain.model import FirstOutputKind, ModelResponse, Partial, RequestParameters, Usage
from agentloom_worker.llm.profiles import ErrorClass, Profile

_COUNT_MAX = 2**53 - 1  # what any reader of JSON takes without loss


class ModelProtocolError(Exception):
    """The frames break the protocol: no response can be made of them. The message quotes no content."""


class IncompleteAnswerError(Exception):
    """The answer ended before its legal final frame (CASES S02)."""


class ProviderReportedError(Exception):
    """The provider reported an error inside a 200 answer (CASES S03).

    `error` is its JSON value; `known` its class, where it is known otherwise than by the codes of the value.
    """

    def __init__(self, error: object, known: ErrorClass | None = None) -> None:
        super().__init__("the provider reported an error inside the stream")
        self.error = error
        self.known = known


class Assembly(Protocol):
    """The state of one attempt: what has arrived of its answer. For one thread.

    What it reads may raise ModelProtocolError, IncompleteAnswerError and ProviderReportedError.
    """

    @property
    def complete(self) -> bool:
        """Whether the legal final frame has been read: nothing that follows matters."""
        ...

    @property
    def may_end(self) -> bool:
        """Whether a whole body that ends here is complete without a further frame."""
        ...

    def apply_payload(self, payload: str) -> FirstOutputKind | None:
        """Take the data of one event; say what its first effective output is, if it has any (seed 004, 6.2)."""
        ...

    def apply_document(self, document: object) -> FirstOutputKind | None:
        """Take a whole JSON answer, as servers send that do not stream (CASES S10)."""
        ...

    def response(self, *, request_id: str | None, transport_sha256: str, transport_bytes: int) -> ModelResponse:
        """The complete response. The caller has seen the legal final frame. Raises ModelProtocolError."""
        ...

    def partial(self) -> Partial:
        """What has arrived so far, for audit only."""
        ...


def parse_payload(payload: str) -> object:
    """The JSON value of an event's data; blank data is an empty object. Raises ModelProtocolError."""
    if not payload.strip():
        return {}
    try:
        frame: object = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ModelProtocolError("an event is not JSON") from error
    return frame


def refuse_error(frame: dict[str, Any], profile: Profile) -> None:
    """Raises ProviderReportedError for a JSON value that is an error in place of an answer, or holds one."""
    error = frame.get("error")
    if error:
        raise ProviderReportedError(error)
    if frame.get("object") == "error":
        raise ProviderReportedError(frame)
    if profile.base_resp_errors:
        status = frame.get("base_resp")
        if isinstance(status, dict) and status.get("status_code"):
            raise ProviderReportedError({"code": status["status_code"], "message": status.get("status_msg")})


def refuse_bare_error(body: bytes, profile: Profile) -> None:
    """Raises ProviderReportedError for a body that is an error as one JSON document, where events were announced."""
    document = first_object(body)
    if document is not None:
        refuse_error(document, profile)


def first_object(body: bytes) -> dict[str, Any] | None:
    """The JSON object that a body is, or the first of the list that it is, as Gemini sends errors; None for others."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if isinstance(document, list) and document:
        document = document[0]
    return document if isinstance(document, dict) else None


def text_of(fields: dict[str, object], name: str) -> str:
    """A text field; absent and null are empty. Raises ModelProtocolError."""
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ModelProtocolError(f"{name} is not a text")
    return value


def arguments_text(arguments: dict[str, Any]) -> str:
    """The text of a call's arguments that came as an object. Raises ModelProtocolError."""
    try:
        return canonical_bytes(arguments).decode()
    except (ValueError, RecursionError) as error:
        # Python reads NaN and deeper nests than it writes.
        raise ModelProtocolError("a tool call's arguments are not JSON") from error


def join_deltas(parts: list[str]) -> str:
    """Join deltas; a surrogate pair that was cut between two of them becomes its character again."""
    text = "".join(parts)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def usage_of(inputs: object, outputs: object, cached: object, reasoning: object) -> Usage | None:
    """What a provider counted. None unless it tells both of input and output: what it does not tell is not zero.

    The two details are zero where they are not told, since they only say of which kind some of these tokens were.
    """
    input_tokens, output_tokens = _count(inputs), _count(outputs)
    if input_tokens is None or output_tokens is None:
        return None
    return Usage(input_tokens, output_tokens, _count(cached) or 0, _count(reasoning) or 0)


def _count(value: object) -> int | None:
    """A count of tokens as a provider reports it; None for what is no count."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _COUNT_MAX else None


def other_model(said: str, asked: RequestParameters | None) -> str | None:
    """The model that a provider says it served, where that is another name than the one it was asked for."""
    return said if said and (asked is None or said != asked.model) else None
