"""The script of a dev-model: which request gets which answer.

A document (YAML or JSON) becomes a frozen `Script`, or every one of its problems is listed with its path.
Turns are tried in order and the first that fits a request answers it; a turn with `first: N` fits only the
first N arrivals of the very same request bytes. So an answer depends on the request's bytes and on how often
they have arrived, and on nothing else (RULINGS N10). docs/dev-model.md shows every field.
"""

import base64
import binascii
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from agentloom_worker.devmodel.dialect import Dialect
from agentloom_worker.devmodel.template import problems_of
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.limits import STREAM_BYTES_MAX
from agentloom_worker.wire.release_source import pointer, read_source

DELAY_MS_MAX = 3_600_000
TURNS_MAX = 1_000
CALLS_MAX = 1_000
CHUNK_CHARS = 32

Ending = Literal["hang_up", "reset", "stall"]


class ScriptInvalidError(RequestError):
    """A script has problems; `problems` holds a (path, text) pair for each."""

    def __init__(self, problems: tuple[tuple[str, str], ...]) -> None:
        lines = "\n".join(f"  {path or '(document)'}: {text}" for path, text in problems)
        super().__init__(Code.INPUT_INVALID, f"the script has {len(problems)} problem(s):\n{lines}")
        self.problems = problems


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return text


def _template(text: str) -> str:
    problems = problems_of(text)
    if problems:
        raise ValueError("; ".join(problems))
    return text


def _template_tree(value: dict[str, Any]) -> dict[str, Any]:
    problems = [problem for text in _strings(value) for problem in problems_of(text)]
    if problems:
        raise ValueError("; ".join(problems))
    return value


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.values() for text in _strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in _strings(item)]
    return []


def _header_name(name: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
        raise ValueError("not a header name")
    return name


def _header_value(value: str) -> str:
    if not value.isascii() or any(character in value for character in "\r\n\0"):
        raise ValueError("a header value is ASCII on one line")
    return value


Milliseconds = Annotated[int, Field(ge=0, le=DELAY_MS_MAX)]
Regex = Annotated[str, AfterValidator(_regex)]
Template = Annotated[str, AfterValidator(_template)]
TemplateTree = Annotated[dict[str, Any], AfterValidator(_template_tree)]
Headers = dict[Annotated[str, AfterValidator(_header_name)], Annotated[str, AfterValidator(_header_value)]]


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Span(_Shape):
    """A range of counts, both ends included; an open end has no bound."""

    min: int | None = Field(default=None, ge=0)
    max: int | None = Field(default=None, ge=0)

    def holds(self, count: int) -> bool:
        """Whether the count lies inside."""
        return (self.min is None or count >= self.min) and (self.max is None or count <= self.max)


class When(_Shape):
    """Conditions on one request; all that are given must hold, none given fits every request."""

    assistant_turns: int | Span | None = None
    turns_since_user: int | Span | None = None
    tool_results: int | Span | None = None
    last_role: Literal["system", "developer", "user", "assistant", "tool"] | None = None
    last_text_contains: str | None = None
    last_text_matches: Regex | None = None
    user_text_contains: str | None = None
    user_text_matches: Regex | None = None
    any_text_contains: str | None = None
    model: str | None = None
    tools_offered: tuple[str, ...] = ()
    stream: bool | None = None

    @property
    def fits_all(self) -> bool:
        """Whether there is no condition at all."""
        return not self.model_fields_set


class Delay(_Shape):
    """Pauses in milliseconds: before the status line, the first chunk, each further one, the final frames."""

    headers_ms: Milliseconds = 0
    first_chunk_ms: Milliseconds = 0
    between_chunks_ms: Milliseconds = 0
    end_ms: Milliseconds = 0


class KeepAlive(_Shape):
    """SSE comments before the first chunk, each after `interval_ms`."""

    count: int = Field(ge=1, le=100_000)
    interval_ms: Milliseconds = 0


class Hold(_Shape):
    """Wait for a gate that a test opens: before the status line, or after so many content chunks."""

    gate: str = Field(min_length=1, pattern=r"^[A-Za-z0-9_.-]+$")
    after_chunks: int | None = Field(default=None, ge=0)


class Cut(_Shape):
    """How a completion breaks off. Without `after_chunks`: after all content, before the final frames.

    `end` ends the body cleanly, `error` sends `event` (or a default error object) as one data event, on chat
    completions with `[DONE]` behind it; the others leave the body open: `hang_up` closes, `reset` sends RST,
    `stall` waits for the client to go away.
    """

    then: Literal["hang_up", "reset", "stall", "end", "error"]
    after_chunks: int | None = Field(default=None, ge=0)
    event: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _event_needs_error(self) -> Self:
        if self.event is not None and self.then != "error":
            raise ValueError("`event` belongs to `then: error`")
        return self


class Usage(_Shape):
    """Tokens that the answer claims to have cost."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    cached_tokens: int = Field(default=0, ge=0)
    reasoning_tokens: int = Field(default=0, ge=0)


class ScriptedCall(_Shape):
    """One tool call. Without `id` it gets one of its own, the same each time these request bytes arrive.

    `arguments` is an object, `arguments_text` any text, valid JSON or not. `index` overrides the position
    that the stream claims, so that two calls can share one.
    """

    name: str
    arguments: TemplateTree | None = None
    arguments_text: Template | None = None
    id: str | None = None
    index: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _one_form_of_arguments(self) -> Self:
        if self.arguments is not None and self.arguments_text is not None:
            raise ValueError("give `arguments` or `arguments_text`, not both")
        return self


class HttpError(_Shape):
    """An error status. `body` is a text or JSON; left out, an error object like a provider's."""

    status: int = Field(ge=300, le=599)
    headers: Headers = {}
    body: str | dict[str, Any] | None = None


class _Bytes(_Shape):
    text: str | None = None
    base64: str | None = None
    repeat: int = Field(default=1, ge=1)
    piece_bytes: int | None = Field(default=None, ge=1)

    @field_validator("base64")
    @classmethod
    def _is_base64(cls, value: str | None) -> str | None:
        try:
            base64.b64decode(value or "", validate=True)
        except binascii.Error as error:
            raise ValueError(f"not base64: {error}") from error
        return value

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.text is None) == (self.base64 is None):
            raise ValueError("give `text` or `base64`, one of them")
        if len(self._once()) * self.repeat > STREAM_BYTES_MAX:
            raise ValueError(f"makes more than {STREAM_BYTES_MAX} bytes")
        return self

    def pieces(self) -> list[bytes]:
        """The bytes, `repeat` times, cut into pieces of `piece_bytes` where that is given."""
        whole = self._once() * self.repeat
        size = self.piece_bytes or max(len(whole), 1)
        return [whole[start : start + size] for start in range(0, len(whole), size)]

    def _once(self) -> bytes:
        return self.text.encode() if self.text is not None else base64.b64decode(self.base64 or "")


class RawBody(_Bytes):
    """A whole response body as given, in pieces of `piece_bytes`; the head is ours."""

    status: int = Field(default=200, ge=200, le=599)
    headers: Headers = {"content-type": "text/event-stream"}
    then: Literal["end", "hang_up", "reset", "stall"] = "end"


class RawHttp(_Bytes):
    """A whole HTTP response as given, status line and headers included."""

    then: Ending = "hang_up"


class Answer(_Shape):
    """One answer: a completion, or one of `http_error`, `raw`, `raw_http`, `no_answer`."""

    text: Template | None = None
    reasoning: Template | None = None
    refusal: Template | None = None
    tool_calls: tuple[ScriptedCall, ...] = Field(default=(), max_length=CALLS_MAX)
    finish_reason: str | None = None
    usage: Usage | Literal["none"] | None = None
    chunk_chars: int | None = Field(default=None, ge=1)
    omit: tuple[Literal["role", "finish", "usage", "done"], ...] = ()
    keep_alive: KeepAlive | None = None
    cut: Cut | None = None
    http_error: HttpError | None = None
    raw: RawBody | None = None
    raw_http: RawHttp | None = None
    no_answer: Ending | None = None
    delay: Delay | None = None
    hold: Hold | None = None

    @property
    def kind(self) -> str:
        """What the log calls it."""
        for name in _ALTERNATIVES:
            if getattr(self, name) is not None:
                return name
        return "tool_calls" if self.tool_calls else "text"

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        others = [name for name in _ALTERNATIVES if getattr(self, name) is not None]
        completion = sorted(self.model_fields_set - {*_ALTERNATIVES, "delay", "hold"})
        if len(others) > 1 or (others and completion):
            raise ValueError(f"these exclude each other: {', '.join([*completion, *others])}")
        if not others and not self.model_fields_set & _CONTENT:
            raise ValueError(f"needs one of {', '.join(sorted(_CONTENT))}, {', '.join(_ALTERNATIVES)}")
        return self


_ALTERNATIVES = ("http_error", "raw", "raw_http", "no_answer")
_CONTENT = {"text", "reasoning", "refusal", "tool_calls", "finish_reason"}


class Turn(_Shape):
    """An answer and the requests that it is for."""

    name: str = ""
    when: When = When()
    first: int | None = Field(default=None, ge=1)
    answer: Answer


class ModelEntry(BaseModel):
    """An entry of the list of models, with whatever else a provider says there."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    id: str


class Script(_Shape):
    """A whole script. `check_requests` refuses, with status 400, what strict providers refuse."""

    schema_version: Literal[1]
    models: tuple[str | ModelEntry, ...] = Field(default=("dev-model",), min_length=1)
    props: dict[str, Any] | None = None
    check_requests: bool = True
    dialect: Dialect = Dialect()
    chunk_chars: int = Field(default=CHUNK_CHARS, ge=1)
    delay: Delay = Delay()
    turns: tuple[Turn, ...] = Field(max_length=TURNS_MAX)

    @field_validator("turns")
    @classmethod
    def _has_turns(cls, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
        # Not `min_length`: that counts only the turns without a problem, and would report none twice.
        if not turns:
            raise ValueError("needs at least one turn")
        return turns

    @model_validator(mode="after")
    def _all_reachable(self) -> Self:
        for number, turn in enumerate(self.turns[:-1]):
            if turn.when.fits_all and turn.first is None:
                raise ValueError(f"turns[{number}] fits every request, so turns[{number + 1}] is never reached")
        return self


def load_script(path: Path) -> Script:
    """Read a script from a file. Raises ScriptInvalidError, OSError."""
    return parse_script(path.read_bytes())


def parse_script(source: bytes | str | dict[str, Any]) -> Script:
    """Read a script given as YAML, as JSON or as a mapping.

    Raises ScriptInvalidError with every problem, each with its path as a JSON pointer (RFC 6901).
    """
    read = read_source(source)
    problems = [(pointer(problem.path), problem.text) for problem in read.problems]
    script: Script | None = None
    if read.readable:
        try:
            # Validation of JSON is strict about types, yet takes a list for a tuple, as a document must.
            script = Script.model_validate_json(json.dumps(read.tree))
        except ValidationError as error:
            problems += [
                (pointer(detail["loc"]), detail["msg"].removeprefix("Value error, "))
                for detail in error.errors(include_url=False)
            ]
    if script is None or problems:
        raise ScriptInvalidError(tuple(problems))
    return script
