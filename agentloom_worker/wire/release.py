"""The release document, version 1: what an author writes, and the form in which it is frozen.

Two families of shapes. The author's (`ReleaseDocument`) has defaults. The frozen one
(`FrozenReleaseDocument`) has none: every resolved value must stand in the bytes (RULINGS A25).

How a later version adds a field without changing the digest of an older document: declare it in both
families as `X | None = None`, where absence means exactly what this version does without the field. A field
that is None is never written into frozen bytes (`_Frozen.written`), so older documents freeze to the same
bytes, and older bytes still parse. A field that every release must have raises `SCHEMA_VERSION` instead.
"""

from collections.abc import Collection
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from agentloom_worker.errors import ReleaseInvalidError
from agentloom_worker.limits import (
    FIRST_OUTPUT_TIMEOUT_MS,
    HTTP_TOOL_BYTES,
    HTTP_TOOL_BYTES_MAX,
    HTTP_TOOL_REDIRECTS_MAX,
    LOOPS_MAX,
    RECENT_RUNS_MAX,
    RUN_DEADLINE_S,
    STEP_FAILURES_MAX,
    TOOL_TIMEOUT_MS,
)
from agentloom_worker.wire import release_check as check
from agentloom_worker.wire.release_source import Path, Problem, pointer, read_source

SCHEMA_VERSION = 1
DEFAULT_PROFILES = ("generic",)

_DAY_MS = 24 * 3600 * 1000
_NO_OTHER_KEYS: dict[str, JsonValue] = {"additionalProperties": False}  # beside pydantic's patternProperties
Slug = Annotated[str, Field(pattern=check.SLUG, max_length=64)]
Key = Annotated[str, Field(pattern=check.KEY, max_length=64)]
ModelName = Annotated[str, Field(pattern=check.MODEL_NAME)]
Handler = Annotated[str, Field(pattern=check.HANDLER, max_length=256)]
Credential = Annotated[str, Field(pattern=check.CREDENTIAL, max_length=1024)]
Ratio = Annotated[str, Field(pattern=check.RATIO, max_length=12)]
Tokens = Annotated[int, Field(ge=1, le=1_000_000_000)]
Milliseconds = Annotated[int, Field(ge=1, le=_DAY_MS)]
Delay = Annotated[int, Field(ge=0, le=_DAY_MS)]
Attempts = Annotated[int, Field(ge=1, le=100)]
Multiplier = Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)]
HeaderName = Annotated[str, Field(pattern=check.HEADER_NAME, max_length=128)]
HeaderText = Annotated[str, Field(pattern=check.HEADER_TEXT, max_length=4096)]
ErrorCode = Annotated[str, Field(pattern=check.ERROR_CODE, max_length=64)]
AllowedHost = Annotated[str, Field(pattern=check.ALLOWED_HOST, max_length=261)]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Protocol = Literal["openai-chat", "openai-responses", "scripted"]
EffectName = Literal["none", "read", "write_external", "write_workspace"]
EstimatorName = Literal["utf8-envelope-v1"]
JitterName = Literal["full", "none"]
Action = Literal["retry", "fail"]
Replay = Literal["never", "in_tool_turns", "always"]
ReasoningField = Literal["reasoning_content", "reasoning"]
OutputLimitField = Literal["max_tokens", "max_completion_tokens"]
ErrorClassName = Literal["context_length", "rate_limit", "quota", "transport", "rejected", "content_filter"]
FinishReason = Annotated[str, Field(pattern=check.ERROR_CODE, max_length=64)]
MeaningName = Literal[
    "stop", "tool_calls", "length", "content_filter", "context_length", "rate_limit", "quota", "transport", "rejected"
]
FinishReasons = Annotated[dict[FinishReason, MeaningName], Field(json_schema_extra=_NO_OTHER_KEYS)]
JsonObject = dict[str, JsonValue]
Version = Annotated[int, Field(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]
Parameters = dict[Annotated[str, Field(pattern=check.KEY, max_length=64)], JsonValue]


class _Document(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class OnUnknownDocument(_Document):
    """What follows an attempt that may have left and has no result."""

    action: Action = Field(description="`retry` states that a second execution does no harm (idempotent).")
    max: int | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Unknown attempts that another attempt may follow; 1 for `retry`.",
    )

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.action == "fail" and self.max:
            raise PydanticCustomError("on_unknown", "says `fail`, so `max` must be 0 or absent")
        if self.action == "retry" and self.max == 0:
            raise PydanticCustomError("on_unknown", "says `retry` with `max` 0: write `action: fail`")
        return self


class RetryDocument(_Document):
    """When and how often a failed attempt is repeated. An absent field takes the next wider value."""

    max_attempts: Attempts | None = Field(default=None, description="Every attempt counts, the first too; 4.")
    initial_ms: Delay | None = Field(default=None, description="The first delay; 1000.")
    multiplier: Multiplier | None = Field(default=None, description="Growth of the delay per attempt; 2.0.")
    max_ms: Delay | None = Field(default=None, description="The longest delay; 60000.")
    jitter: JitterName | None = Field(default=None, description="How a delay is spread; full.")
    on_unknown: OnUnknownDocument | None = Field(
        default=None, description="Replaced as a whole; models retry once, tools fail."
    )


class RetriesDocument(_Document):
    """Retry rules for all models and for all tools; an entry's own rules come first."""

    model: RetryDocument | None = Field(default=None, description="For every model.")
    tools: RetryDocument | None = Field(default=None, description="For every tool.")


class LimitsDocument(_Document):
    """What one run may use."""

    max_loops: int = Field(default=LOOPS_MAX, ge=1, le=1_000_000, description="Model loops of the whole run tree.")
    deadline_s: int = Field(
        default=int(RUN_DEADLINE_S),
        ge=1,
        le=31 * 24 * 3600,
        description="Seconds from the acceptance of the question.",
    )
    max_step_attempts: Attempts = Field(
        default=STEP_FAILURES_MAX,
        description="Failures of one step after which it is parked for an operator.",
    )


class AgentDocument(_Document):
    """The agent that a release publishes: one role that answers in a loop of model and tool calls."""

    id: Slug = Field(description="Names the agent for sessions and owns what its runs store.")
    role: Slug = Field(default="assistant", description="The key of the role.")
    prompt: str = Field(pattern=check.NOT_BLANK, description="The system prompt.")
    model: Key = Field(description="A key of `models`.")
    tools: list[Key] = Field(default_factory=list, description="Keys of `tools`, in any order.")
    limits: LimitsDocument = Field(default=LimitsDocument(), description="What one run may use.")
    output_schema: JsonObject | None = Field(
        default=None,
        description="JSON Schema of the answer, local references only. An answer that does not match is sent back"
        " with what is wrong, in a loop of the run's own quota. Absent: any text is an answer.",
    )


class DialectDocument(_Document):
    """The flags of the profile `custom`; absent ones are those of chat completions as they are written."""

    mid_system: bool = Field(default=True, description="System messages are taken behind the first one too.")
    strict_alternation: bool = Field(
        default=False, description="User and assistant must alternate; with `mid_system: false`."
    )
    first_must_be_user: bool = Field(default=False, description="The user must begin; with `mid_system: false`.")
    stream_options: bool = Field(default=True, description="Ask for usage by `stream_options.include_usage`.")
    done_required: bool = Field(default=True, description="A stream is whole only with `[DONE]` at its end.")
    new_id_opens_call: bool = Field(default=False, description="A new id on a used index of a stream is a new call.")
    reasoning_replay: Replay = Field(default="never", description="When a model's reasoning is sent back to it.")
    reasoning_field: ReasoningField = Field(default="reasoning_content", description="The field that it goes back in.")
    reasoning_if_empty: bool = Field(
        default=False, description="Send the field with calls also where the model gave no reasoning."
    )
    encrypted_reasoning: bool = Field(
        default=False, description="What goes back of a Responses model's reasoning is its `encrypted_content`."
    )
    output_limit_field: OutputLimitField = Field(default="max_tokens", description="What bounds the output.")
    silent_limit: bool = Field(
        default=False, description="A Responses answer that took all of its output limit was cut, whatever it says."
    )
    auth_header: HeaderName = Field(default="Authorization", description="The header that carries the key.")
    auth_prefix: HeaderText = Field(default="Bearer ", description="What stands before the key. Never a secret.")
    parameters: list[Key] | None = Field(
        default=None, description="The parameters that exist; absent: any is passed on, the endpoint refuses."
    )
    codes: dict[ErrorCode, ErrorClassName] = Field(
        default_factory=dict,
        description="What the endpoint's own error codes mean.",
        json_schema_extra=_NO_OTHER_KEYS,
    )
    finish_reasons: FinishReasons | None = Field(
        default=None,
        description="What the endpoint's own finish reasons mean: an ending in the words of chat completions, or the"
        " class of the error that ended the message.",
    )

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if (self.strict_alternation or self.first_must_be_user) and self.mid_system:
            raise PydanticCustomError("dialect", "has a strict order of roles, so it must say `mid_system: false`")
        return self

    @model_serializer(mode="wrap")
    def written(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Leave out what is absent and younger than dialects that are frozen: their digest is in every request."""
        flags: dict[str, object] = handler(self)
        if not self.silent_limit:
            del flags["silent_limit"]
        if self.finish_reasons is None:
            del flags["finish_reasons"]
        return flags


class ModelDocument(_Document):
    """A model, its endpoint and its numbers."""

    protocol: Protocol = Field(description="`scripted` runs in-process, for simulations and benchmarks.")
    profile: Slug = Field(default="generic", description="What is known about the provider's dialect.")
    base_url: str | None = Field(
        default=None,
        min_length=1,
        max_length=2048,
        description="An http(s) URL; `script:NAME` if scripted. Absent: the profile's own address, where it has one.",
    )
    dialect: DialectDocument | None = Field(
        default=None, description="The flags of `profile: custom`; other profiles have their own."
    )
    encrypted_reasoning: bool | None = Field(
        default=None,
        description="Ask a reasoning model for its reasoning sealed, and give it back in later requests: with"
        " `openai-responses` and a profile that documents it. For models that do not reason, leave it out.",
    )
    model: str = Field(min_length=1, max_length=256, description="The provider's id of the model.")
    context_window_tokens: Tokens = Field(description="The model's window W. It is never guessed.")
    max_output_tokens: Tokens | None = Field(
        default=None,
        description="The most that the model can write; a request asks for no more than the output reserve.",
    )
    credential: Credential | None = Field(
        default=None,
        description="Where the secret is found: `env:NAME`, `file:PATH` or `PROVIDER:NAME`. Never the secret itself.",
    )
    first_output_timeout_ms: Milliseconds = Field(
        default=FIRST_OUTPUT_TIMEOUT_MS,
        description="From the actual start of an attempt to its first output.",
    )
    idle_timeout_ms: Milliseconds | None = Field(
        default=None, description="The longest silence inside a stream; absent: only the deadline ends it."
    )
    parameters: Parameters = Field(
        default_factory=dict,
        description="Sent to the provider as they are, such as temperature.",
        json_schema_extra=_NO_OTHER_KEYS,
    )
    retry: RetryDocument | None = Field(default=None, description="Retry rules of this model.")


class _AnyToolDocument(_Document):
    """What tools of every kind have."""

    name: ModelName | None = Field(default=None, description="The name that the model sees; the key if absent.")
    output_schema: JsonObject | None = Field(default=None, description="JSON Schema of the result.")
    effect: EffectName = Field(description="What a call may change outside.")
    timeout_ms: Milliseconds = Field(default=TOOL_TIMEOUT_MS, description="The longest run of one call.")
    retry: RetryDocument | None = Field(default=None, description="Retry rules of this tool.")


class PythonToolDocument(_AnyToolDocument):
    """A Python function. Absent words and schemas are taken from the function itself."""

    kind: Literal["python"] = Field(description="Who answers the call.")
    handler: Handler = Field(description="`package.module:function` or the name of an entry point.")
    description: str | None = Field(default=None, description="What the model is told; else the handler's words.")
    input_schema: JsonObject | None = Field(default=None, description="JSON Schema of the arguments.")


class HttpHeaderDocument(_Document):
    """A header of an http tool: a text that may be read by anybody, or a secret by reference."""

    value: HeaderText | None = Field(default=None, description="The value. Never a secret.")
    credential: Credential | None = Field(
        default=None,
        description="Where the secret is found: `env:NAME`, `file:PATH` or `PROVIDER:NAME`. Read at each attempt.",
    )
    prefix: HeaderText | None = Field(default=None, description="Stands before the secret, such as `Bearer `.")

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if (self.value is None) == (self.credential is None):
            raise PydanticCustomError("http_header", "must say one of `value` and `credential`")
        if self.prefix is not None and self.credential is None:
            raise PydanticCustomError("http_header", "must have a `credential` behind its `prefix`")
        return self


class HttpToolDocument(_AnyToolDocument):
    """A call to a foreign server. Placeholders `{argument}` take the arguments of the call."""

    kind: Literal["http"] = Field(description="Who answers the call.")
    method: Method = Field(description="Of these, POST, PUT and PATCH carry a body.")
    url: str = Field(
        min_length=1,
        max_length=2048,
        description="An http(s) URL; placeholders in its path or in values of its query. A value of the query "
        "without its argument is left out.",
    )
    allow: list[AllowedHost] = Field(
        min_length=1, max_length=32, description="Hosts that may be called: `host`, or `host:port` for another port."
    )
    description: str = Field(pattern=check.NOT_BLANK, description="What the model is told.")
    input_schema: JsonObject = Field(description="JSON Schema of the arguments.")
    headers: dict[HeaderName, HttpHeaderDocument] = Field(
        default_factory=dict, description="Headers by name.", json_schema_extra=_NO_OTHER_KEYS
    )
    body: JsonValue = Field(
        default=None,
        description="A JSON template: a text that is just `{argument}` becomes its value, inside a longer text its "
        "words; `{{` and `}}` are braces. Absent: the arguments that the URL does not take, as one object.",
    )
    idempotency_header: HeaderName = Field(
        default="Idempotency-Key", description="Carries the id of the call, the same on every attempt."
    )
    max_bytes: int = Field(
        default=HTTP_TOOL_BYTES, ge=1, le=HTTP_TOOL_BYTES_MAX, description="The longest answer that is taken."
    )
    max_redirects: int = Field(
        default=0, ge=0, le=HTTP_TOOL_REDIRECTS_MAX, description="For GET, to allowed hosts only; 0 follows none."
    )


ToolDocument = PythonToolDocument | HttpToolDocument
AnyTool = Annotated[ToolDocument, Field(discriminator="kind")]


class ProtocolDocument(_Document):
    """The context protocol: how a session's facts become the messages of a request."""

    id: Literal["rounds"] = Field(description="Names the protocol.")
    version: Literal[1] = Field(description="Its behaviour is frozen by its version.")
    options: Annotated[JsonObject, Field(max_length=0)] = Field(
        default_factory=dict, description="Of the protocol; `rounds` has none."
    )


class ContextDocument(_Document):
    """What of a session a request shows, and how the window is divided.

    Input budget = window - output reserve - safety margin.
    """

    output_reserve_tokens: Tokens | None = Field(
        default=None, description="Kept for the answer; min(maximum output or 4096, window / 4) if absent."
    )
    safety_margin_tokens: int | None = Field(
        default=None, ge=0, le=1_000_000_000, description="Kept free; max(256, 1 % of the window) if absent."
    )
    trigger_ratio: Ratio = Field(default="0.80", description="Share of the input budget, as decimal text in quotes.")
    estimator: EstimatorName = Field(default="utf8-envelope-v1", description="How tokens are counted.")
    recent_runs: int | None = Field(
        default=None,
        ge=0,
        le=RECENT_RUNS_MAX,
        description="How many of the session's ended runs are shown in full, 2 if absent; older ones are shown as "
        "their inputs, their answer and how they ended.",
    )
    protocol: ProtocolDocument | None = Field(
        default=None, description="How earlier runs are shown; `rounds`, version 1, if absent."
    )


class ReleaseDocument(_Document):
    """A release as its author writes it."""

    schema_version: Version = Field(description="The version of this format.")
    agent: AgentDocument
    models: dict[Key, ModelDocument] = Field(
        min_length=1, description="Models by key.", json_schema_extra=_NO_OTHER_KEYS
    )
    tools: dict[Key, AnyTool] = Field(
        default_factory=dict, description="Tools by key.", json_schema_extra=_NO_OTHER_KEYS
    )
    context: ContextDocument = Field(default=ContextDocument(), description="Numbers of the window.")
    retry: RetriesDocument = Field(default=RetriesDocument(), description="Retry rules for all.")


class _Frozen(_Document):
    @model_serializer(mode="wrap")
    def written(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Leave out fields that are None, of this shape alone: a null inside free JSON stays."""
        return {name: value for name, value in handler(self).items() if value is not None}


class FrozenOnUnknown(_Frozen):
    """As `OnUnknownDocument`, resolved."""

    action: Action
    max: int = Field(ge=0)


class FrozenRetry(_Frozen):
    """As `RetryDocument`, resolved."""

    max_attempts: Attempts
    initial_ms: Delay
    multiplier: Multiplier
    max_ms: Delay
    jitter: JitterName
    on_unknown: FrozenOnUnknown


class FrozenLimits(_Frozen):
    """As `LimitsDocument`, resolved."""

    max_loops: int
    deadline_s: int
    max_step_attempts: int


class FrozenAgent(_Frozen):
    """The agent; `tools` holds the keys of its catalog in catalog order, built-ins included."""

    id: Slug
    role: Slug
    prompt: str
    model: Key
    tools: list[Key]
    limits: FrozenLimits
    output_schema: JsonObject | None = None


class FrozenModel(_Frozen):
    """A model that the agent is bound to."""

    protocol: Protocol
    profile: Slug
    base_url: str
    dialect: DialectDocument | None = None
    encrypted_reasoning: Literal[True] | None = None
    model: str
    context_window_tokens: Tokens
    max_output_tokens: Tokens | None = None
    credential: Credential | None = None
    first_output_timeout_ms: Milliseconds
    idle_timeout_ms: Milliseconds | None = None
    parameters: JsonObject
    retry: FrozenRetry


class FrozenHttpHeader(_Frozen):
    """As `HttpHeaderDocument`."""

    value: HeaderText | None = None
    credential: Credential | None = None
    prefix: HeaderText | None = None


class FrozenHttp(_Frozen):
    """How an http tool calls, resolved."""

    method: Method
    url: str
    allow: list[AllowedHost]
    headers: dict[HeaderName, FrozenHttpHeader]
    body: JsonValue = None
    idempotency_header: HeaderName
    max_bytes: int
    max_redirects: int


class FrozenTool(_Frozen):
    """One entry of the catalog, with what its handler declared at the time of publishing."""

    kind: Literal["python", "http", "builtin"]
    model_name: ModelName
    description: str
    input_schema: JsonObject
    output_schema: JsonObject | None = None
    schema_fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    schema_derived: bool
    handler_ref: str
    effect: EffectName
    timeout_ms: Milliseconds
    retry: FrozenRetry
    http: FrozenHttp | None = None


class FrozenProtocol(_Frozen):
    """As `ProtocolDocument`."""

    id: Literal["rounds"]
    version: Literal[1]
    options: JsonObject


class FrozenContext(_Frozen):
    """The numbers of the window, computed once (seed 000, section 7), and what of a session a request shows."""

    window_tokens: Tokens
    output_reserve_tokens: Tokens
    safety_margin_tokens: int = Field(ge=0)
    input_budget_tokens: Tokens
    trigger_ratio: Ratio
    trigger_tokens: int = Field(ge=0)
    request_output_tokens: Tokens
    estimator: EstimatorName
    recent_runs: int | None = Field(default=None, ge=0)
    protocol: FrozenProtocol | None = None


class FrozenReleaseDocument(_Frozen):
    """The frozen document: only what its agent can reach, every default written out."""

    schema_version: Version
    agent: FrozenAgent
    models: dict[Key, FrozenModel]
    tools: dict[Key, FrozenTool]
    context: FrozenContext


MODEL_RETRY = FrozenRetry(
    max_attempts=4,
    initial_ms=1000,
    multiplier=2.0,
    max_ms=60_000,
    jitter="full",
    on_unknown=FrozenOnUnknown(action="retry", max=1),
)
TOOL_RETRY = MODEL_RETRY.model_copy(update={"on_unknown": FrozenOnUnknown(action="fail", max=0)})


def parse_release(
    source: bytes | str | dict[str, object],
    *,
    known_profiles: Collection[str] = DEFAULT_PROFILES,
    check_model: check.ModelCheck = check.require_address,
) -> ReleaseDocument:
    """Read and check a release document, given as YAML, as JSON or as a mapping.

    `check_model` is what is known of profiles: it finds what is wrong with an entry of `models`.

    Raises ReleaseInvalidError with every problem found, each with its path as a JSON pointer (RFC 6901; an
    empty one is the document itself). No message and no exception in its chain holds a value of the document.
    """
    read = read_source(source)
    problems = list(read.problems)
    document: ReleaseDocument | None = None
    if read.readable and isinstance(read.tree, dict):
        known = {problem.path for problem in problems}
        document, shape = _checked_shape(read.tree)
        cross = check.cross_problems(
            read.tree, known_profiles, check_model, (MODEL_RETRY.initial_ms, MODEL_RETRY.max_ms)
        )
        problems += [problem for problem in (*shape, *cross) if problem.path not in known]
    if document is None or problems:
        listed = sorted({(problem.path, problem.text) for problem in problems}, key=_reading_order)
        raise ReleaseInvalidError(tuple((pointer(path), text) for path, text in listed))
    return document


def _checked_shape(tree: dict[str, object]) -> tuple[ReleaseDocument | None, list[Problem]]:
    try:
        return ReleaseDocument.model_validate(tree), []
    except ValidationError as error:
        return None, check.shape_problems(error, ReleaseDocument)


def _reading_order(problem: tuple[Path, str]) -> tuple[list[tuple[int, int | str]], str]:
    path, text = problem
    return [(0, part) if isinstance(part, int) else (1, part) for part in path], text


def release_schema() -> dict[str, object]:
    """The JSON Schema (2020-12) of the author's document; checks across fields are not expressible in it."""
    schema = ReleaseDocument.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def resolve_retry(default: FrozenRetry, *layers: RetryDocument | None) -> FrozenRetry:
    """Fill retry rules in, field by field; the first layer is the most particular one."""
    chosen: dict[str, object] = {}
    for layer in layers:
        for name in RetryDocument.model_fields:
            value = getattr(layer, name, None)
            if value is not None:
                chosen.setdefault(name, value)
    unknown = chosen.get("on_unknown")
    if isinstance(unknown, OnUnknownDocument):
        allowed = 0 if unknown.action == "fail" else unknown.max or 1
        chosen["on_unknown"] = FrozenOnUnknown(action=unknown.action, max=allowed)
    return default.model_copy(update=chosen)
