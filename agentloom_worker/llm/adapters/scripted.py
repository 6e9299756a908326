"""The in-process `scripted` model: turns from Python callables, the bytes of `openai-chat`, no network.

For the engine's benchmark and the simulator. A base URL `script:NAME` names the callable.
"""

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from agentloom_worker import limits
from agentloom_worker.cancellation import CancelReason
from agentloom_worker.clock import Clock
from agentloom_worker.domain.model import (
    Cancelled,
    Category,
    Completed,
    Executed,
    Failed,
    Failure,
    FirstOutput,
    FirstOutputKind,
    ModelOutcome,
    ModelResponse,
    Partial,
    ResponseCall,
    Usage,
)
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.errors import Code, RunError
from agentloom_worker.llm.adapter import AttemptContext, DeliveryStoppedError, ModelCall
from agentloom_worker.llm.chat_encoding import ENCODING_VERSION, ChatEncoding
from agentloom_worker.llm.profiles import Profile

SCRIPT_SCHEME = "script:"


@dataclass(frozen=True)
class ScriptedRequest:
    """What a script sees. `last_message` and `body` are parsed when they are asked for, and only then."""

    call: ModelCall

    @property
    def message_count(self) -> int:
        """How many messages the request holds, as the caller says."""
        return self.call.message_count

    @functools.cached_property
    def last_message(self) -> dict[str, Any]:
        """The last message as it stands on the wire."""
        if self.call.last_message:
            message: dict[str, Any] = json.loads(self.call.last_message)
            return message
        messages: list[dict[str, Any]] = self.body["messages"]
        return messages[-1]

    @functools.cached_property
    def body(self) -> dict[str, Any]:
        """The whole request; costs time in proportion to its size."""
        document: dict[str, Any] = json.loads(self.call.body.join())
        return document


@dataclass(frozen=True, slots=True)
class TextTurn:
    """A complete answer without calls."""

    text: str
    reasoning: str = ""
    refusal: str = ""
    finish_reason: str = "stop"
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """One call of a turn; `provider_call_id` None lets the runtime name it."""

    name: str
    arguments_text: str
    provider_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class CallsTurn:
    """A complete answer with calls, and perhaps text beside them."""

    calls: tuple[ScriptedCall, ...]
    text: str = ""
    finish_reason: str = "tool_calls"
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class FailureTurn:
    """A classified failure, with what had arrived before it."""

    failure: Failure
    partial: Partial = field(default_factory=Partial)


@dataclass(frozen=True, slots=True)
class StallTurn:
    """A first output, if `text` is not empty, and then silence until the attempt is ended."""

    text: str = ""


ScriptedTurn = TextTurn | CallsTurn | FailureTurn | StallTurn
Script = Callable[[ScriptedRequest], ScriptedTurn]


class ScriptedAdapter(ChatEncoding):
    """Answers from `scripts`, by the name after `script:`. Scripts are called from many threads."""

    def __init__(self, clock: Clock, profile: Profile, scripts: Mapping[str, Script]) -> None:
        super().__init__(profile)
        self._clock = clock
        self._scripts = scripts
        self._version = f"scripted@{ENCODING_VERSION}/{profile.name}@{profile.version}"

    @property
    def version(self) -> str:
        """As ModelAdapter says."""
        return self._version

    def stream_once(self, request: ModelCall, attempt: AttemptContext) -> ModelOutcome:
        """As ModelAdapter says; what a script raises leaves unchanged as well.

        Raises RunError(MODEL_REQUEST_REJECTED) for a name that has no script.
        """
        name = request.base_url.removeprefix(SCRIPT_SCHEME)
        script = self._scripts.get(name)
        if script is None or not request.base_url.startswith(SCRIPT_SCHEME):
            raise RunError(Code.MODEL_REQUEST_REJECTED, f"no script answers {request.base_url}")
        if attempt.cancellation.cancelled:
            return Cancelled(Partial(), sent=False)
        attempt.on_sent()
        turn = script(ScriptedRequest(request))
        try:
            return self._take(turn, attempt)
        except DeliveryStoppedError:
            return Cancelled(_partial_of(turn), sent=True)

    def close(self) -> None:
        """As ModelAdapter says; there is nothing to drop."""

    def _take(self, turn: ScriptedTurn, attempt: AttemptContext) -> ModelOutcome:
        match turn:
            case TextTurn():
                return _complete(
                    attempt,
                    ModelResponse(
                        text=turn.text,
                        calls=(),
                        finish_reason=turn.finish_reason,
                        reasoning=turn.reasoning,
                        refusal=turn.refusal,
                        usage=turn.usage,
                    ),
                )
            case CallsTurn():
                calls = tuple(
                    ResponseCall(ordinal, call.provider_call_id, call.name, call.arguments_text)
                    for ordinal, call in enumerate(turn.calls)
                )
                return _complete(
                    attempt,
                    ModelResponse(text=turn.text, calls=calls, finish_reason=turn.finish_reason, usage=turn.usage),
                )
            case FailureTurn():
                if not turn.partial.empty:
                    attempt.on_first_output(FirstOutput(_first_kind(turn.partial), True))
                return Failed(turn.failure, turn.partial)
            case StallTurn():
                return self._stall(turn, attempt)
            case _:
                assert_never(turn)

    def _stall(self, turn: StallTurn, attempt: AttemptContext) -> ModelOutcome:
        partial = Partial(text=turn.text)
        deadline_s = limits.RUN_DEADLINE_S if attempt.deadline_s is None else attempt.deadline_s
        limit_s, code = attempt.idle_timeout_s, Code.MODEL_TRANSPORT_FAILED
        if turn.text:
            attempt.on_first_output(FirstOutput(FirstOutputKind.TEXT, True))
        else:
            limit_s, code = attempt.first_output_timeout_s, Code.MODEL_FIRST_OUTPUT_TIMEOUT
        wait_s = deadline_s if limit_s is None else min(limit_s, deadline_s)
        if self._clock.wait(attempt.cancellation.event, wait_s):
            return Cancelled(partial, sent=True)
        if wait_s == deadline_s:
            attempt.cancellation.cancel(CancelReason.DEADLINE)
            return Cancelled(partial, sent=True)
        failure = Failure(code, Category.TIMEOUT, "the script stalled", Executed.UNKNOWN, RetryClass.TRANSPORT)
        return Failed(failure, partial)


def _complete(attempt: AttemptContext, response: ModelResponse) -> Completed:
    kind = _first_kind(Partial(response.text or response.refusal, response.reasoning, response.calls))
    attempt.on_first_output(FirstOutput(kind, kind is not FirstOutputKind.COMPLETE_FRAME))
    return Completed(response)


def _partial_of(turn: ScriptedTurn) -> Partial:
    """What has come with a turn's first output: a script knows no smaller pieces."""
    match turn:
        case FailureTurn():
            return turn.partial
        case CallsTurn():
            calls = tuple(
                ResponseCall(ordinal, call.provider_call_id, call.name, call.arguments_text)
                for ordinal, call in enumerate(turn.calls)
            )
            return Partial(text=turn.text, calls=calls)
        case TextTurn():
            return Partial(text=turn.text, reasoning=turn.reasoning, refusal=turn.refusal)
        case StallTurn():
            return Partial(text=turn.text)
        case _:
            assert_never(turn)


def _first_kind(partial: Partial) -> FirstOutputKind:
    if partial.reasoning:
        return FirstOutputKind.REASONING
    if partial.text:
        return FirstOutputKind.TEXT
    return FirstOutputKind.TOOL_NAME if partial.calls else FirstOutputKind.COMPLETE_FRAME
