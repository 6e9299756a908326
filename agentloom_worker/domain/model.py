"""What goes to a model and what comes back, independent of any provider's JSON."""

from dataclasses import dataclass
from enum import StrEnum

from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.frozen import quick_init


class Role(StrEnum):
    """The roles of the message protocol (seed 000, section 2)."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class MessageCall:
    """A call inside an assistant message, as the wire will show it.

    `wire_id` is the provider's own id where it gave one, else our call id; `arguments_text` is what the
    model wrote, valid JSON or not: the adapter puts valid JSON on the wire (CASES W05).
    """

    wire_id: str
    name: str
    arguments_text: str


@dataclass(frozen=True, slots=True)
class ReasoningItem:
    """A reasoning item that a provider wants back in front of what it led to (openai-responses, CASES S07).

    `before_call` is the ordinal of the call that followed it; None: the text. `encrypted` is opaque to us.
    """

    item_id: str = ""
    summary: tuple[str, ...] = ()
    content: tuple[str, ...] = ()
    encrypted: str = ""
    before_call: int | None = None


@quick_init
@dataclass(frozen=True, slots=True)
class Message:
    """One message of a request. `wire_id` pairs a tool message with its call.

    `reasoning` is what the model thought before it said this, `reasoning_items` the same as Responses gives it; an
    adapter sends back what its profile says (CASES S07). `note` marks what the runtime itself has to say in the
    middle of a conversation: an adapter shows it as the provider takes it, never as the model's words (RULINGS A12).
    """

    role: Role
    text: str
    calls: tuple[MessageCall, ...] = ()
    wire_id: str | None = None
    note: bool = False
    reasoning: str = ""
    reasoning_items: tuple[ReasoningItem, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as the model sees it. `input_schema` is a JSON Schema object."""

    name: str
    description: str
    input_schema: dict[str, object]


@dataclass(frozen=True, slots=True)
class RequestParameters:
    """All of a request that is neither a message nor a tool. Frozen; the same on every attempt."""

    model: str
    max_output_tokens: int
    extra: tuple[tuple[str, object], ...] = ()  # provider parameters of the release, sorted by name


@quick_init
@dataclass(frozen=True, slots=True)
class ResponseCall:
    """A call as the model gave it, in order of appearance."""

    ordinal: int
    provider_call_id: str | None
    name: str
    arguments_text: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider reports them; stored beside the estimate, never a correction of it.

    There is none where it does not tell both counts. `cached_tokens` are some of the input's, `reasoning_tokens` some
    of the output's, as far as it tells.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@quick_init
@dataclass(frozen=True, slots=True)
class ModelResponse:
    """A complete response; only a legal final frame makes one (seed 004, 6.2).

    `reasoning_items` is empty unless the profile sends them back. `served_model` is the name of the model that the
    provider says it served, if it is another than the one it was asked for: often a dated snapshot of an alias.
    """

    text: str
    calls: tuple[ResponseCall, ...]
    finish_reason: str | None
    reasoning: str = ""
    refusal: str = ""
    usage: Usage | None = None
    provider_request_id: str | None = None
    transport_sha256: str = ""
    transport_bytes: int = 0
    reasoning_items: tuple[ReasoningItem, ...] = ()
    served_model: str | None = None


class FirstOutputKind(StrEnum):
    """What the first effective output was; a refusal counts as text."""

    TEXT = "text"
    REASONING = "reasoning"
    TOOL_NAME = "tool_name"
    TOOL_ARGUMENTS = "tool_arguments"
    COMPLETE_FRAME = "complete_frame"


@dataclass(frozen=True, slots=True)
class FirstOutput:
    """Evidence that the model began to answer. `has_display_content` is False for an empty complete frame."""

    kind: FirstOutputKind
    has_display_content: bool


class Category(StrEnum):
    """DomainFailure categories (seed 004, section 1)."""

    VALIDATION = "validation"
    PERMISSION = "permission"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    BUSINESS = "business"
    PROTOCOL = "protocol"
    TRANSPORT = "transport"
    RATE_LIMIT = "rate_limit"
    TIMEOUT = "timeout"
    LIMIT = "limit"
    DENIED = "denied"
    ENVIRONMENT = "environment"
    PERSISTENCE = "persistence"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class Executed(StrEnum):
    """Whether the outside effect happened, as far as anybody knows (DomainFailure.external_outcome)."""

    NOT_EXECUTED = "not_executed"
    EXECUTED = "executed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Failure:
    """A DomainFailure. `retry_class` is set from exception types and code tables only.

    `message` holds no secret and no body. `retry_after_ms` is the provider's wish, if it gave one.
    """

    code: str
    category: Category
    message: str
    external_outcome: Executed
    retry_class: RetryClass | None = None
    retry_after_ms: int | None = None
    http_status: int | None = None


@dataclass(frozen=True, slots=True)
class Partial:
    """What had arrived when a stream broke; for audit only, never joined to another attempt."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ResponseCall, ...] = ()
    refusal: str = ""

    @property
    def empty(self) -> bool:
        """Nothing had arrived."""
        return not (self.text or self.reasoning or self.calls or self.refusal)


@dataclass(frozen=True, slots=True)
class Completed:
    """The attempt ended with a complete response."""

    response: ModelResponse


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt ended with an error that a living process saw and classified."""

    failure: Failure
    partial: Partial


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The attempt was ended by our own signal; `sent` says whether the request may have left."""

    partial: Partial
    sent: bool


ModelOutcome = Completed | Failed | Cancelled
