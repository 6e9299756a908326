"""What a context protocol is given and what it makes: facts in, ordered items out. Pure; no I/O, no clock.

The same items serve the request, its rebuilding, the audit and the people who ask what a model saw.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from agentloom_worker.domain.context import MessageKind
from agentloom_worker.domain.model import Executed, Message, ModelResponse
from agentloom_worker.domain.operation import OperationStatus
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.ids import InputId, OperationId, RunId


class ItemKind(StrEnum):
    """What an item of a request is (seed 004, 3.1, and what repairs a protocol: seed 000, 6)."""

    PROMPT = "prompt"
    USER_INPUT = "user_input"
    EFFECTIVE_RECORD = "effective_record"
    FEEDBACK = "feedback"
    TERMINAL_MARKER = "terminal_marker"
    TRANSFER_MARKER = "transfer_marker"
    PLACEHOLDER = "placeholder"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class Source:
    """Where an item comes from. `context_seq` is that of a record in the run's own root context.

    `origin_run_id` is the run that took an input when it came, which need not be the one that shows it.
    """

    run_id: RunId
    run_no: int
    context_seq: int | None = None
    operation_id: OperationId | None = None
    input_id: InputId | None = None
    input_seq: int | None = None
    origin_run_id: RunId | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One message of a request. `why` says in one sentence what rule put it there.

    `wire_ids` are set by a message with calls, or without: what its results pair with. `raw` is the text of a
    prompt, an input or a feedback before it was made fit for UTF-8; what a model or a tool said stands with the
    operation that `source` names.
    """

    kind: ItemKind
    message: Message
    source: Source
    why: str
    protected: bool = False
    wire_ids: tuple[str, ...] | None = None
    raw: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a role's context with its effective content.

    `text` is that of the prompt, of the input (raw), of the feedback or of the result as the model sees it;
    an assistant's record has its `response` instead. `ordinal` is a result's place in its batch.
    """

    context_seq: int
    kind: MessageKind
    text: str
    response: ModelResponse | None = None
    operation_id: OperationId | None = None
    input_id: InputId | None = None
    input_seq: int | None = None
    origin_run_id: RunId | None = None
    ordinal: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A run that an input was given to, and whether its model began to answer a request that held it."""

    run_no: int
    delivered: bool


@dataclass(frozen=True, slots=True)
class SessionInput:
    """An input of the session: its words and every run that it was given to."""

    input_id: InputId
    input_seq: int
    text: str
    origin_run_id: RunId | None
    origin_run_no: int | None
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class CallState:
    """A call whose batch was never delivered. `text` is its result as the model would see it; None without one."""

    operation_id: OperationId
    ordinal: int
    text: str | None
    status: OperationStatus
    executed: Executed | None


@dataclass(frozen=True, slots=True)
class BrokenAnswer:
    """The text with which a run's last model operation broke off; it was never accepted."""

    operation_id: OperationId
    text: str


@dataclass(frozen=True, slots=True)
class Process:
    """What a root role did: its records without the prompt, by context_seq, read while they are walked through.

    `open_calls` are those of the last assistant's record, by ordinal, where it has no results.
    """

    records: Iterable[Record]
    open_calls: tuple[CallState, ...] = ()
    broken: BrokenAnswer | None = None


@dataclass(frozen=True, slots=True)
class EndedRun:
    """An ended run of the session. `process` is set where the run is shown in full.

    `inputs` are those that were given to it, by input_seq. `marks` says what is odd about its answer.
    """

    run_id: RunId
    run_no: int
    status: RunStatus
    code: str | None
    marks: str | None
    inputs: tuple[SessionInput, ...]
    answer_operation_id: OperationId | None = None
    answer: ModelResponse | None = None
    process: Process | None = None


@dataclass(frozen=True, slots=True)
class FrozenContext:
    """All that a projection may look at.

    `records` are the own records of the run, by context_seq; a continued view leaves out those that it has, and
    says in `wire_ids` what its newest calls are named. `ended` are the runs before it by their questions; they
    are walked through once, behind the prompt's record.
    """

    run_id: RunId
    run_no: int
    records: Iterable[Record]
    ended: Iterable[EndedRun] = ()
    wire_ids: tuple[str, ...] = ()


class ContextProtocol(Protocol):
    """How facts become messages. Registered in `context/protocols`; its behaviour is frozen by its version.

    `about` is one sentence for authors, `options_schema` the JSON Schema of `context.protocol.options`.
    """

    about: str
    options_schema: Mapping[str, object]

    def project(self, frozen: FrozenContext) -> Iterator[Item]:
        """The items of a request in their order. The same facts give the same bytes, in every process."""
        ...
