"""Make attempts against a server in the least words."""

from collections.abc import Callable
from dataclasses import dataclass, field

from agentloom_worker.cancellation import Cancellation
from agentloom_worker.clock import Clock, SystemClock
from agentloom_worker.context.view import View
from agentloom_worker.domain.model import (
    Completed,
    Failed,
    FirstOutput,
    Message,
    ModelOutcome,
    ModelResponse,
    RequestParameters,
    Role,
)
from agentloom_worker.http.recording import Recording
from agentloom_worker.llm.adapter import AttemptContext, ModelAdapter, ModelCall
from agentloom_worker.llm.adapters.openai_chat import OpenAIChatAdapter
from agentloom_worker.llm.profiles import PROFILES, Profile

GENERIC = PROFILES["generic"]
SECRET = "sk-test-0123456789abcdef"
PARAMETERS = RequestParameters("m", 100)


@dataclass
class Attempt:
    """The context of one attempt, and what its callbacks heard."""

    deadline_s: float | None = 60.0
    first_output_timeout_s: float = 60.0
    idle_timeout_s: float | None = None
    cancellation: Cancellation = field(default_factory=Cancellation)
    on_first_output: Callable[[FirstOutput], None] = lambda output: None
    on_sent: Callable[[], None] = lambda: None
    api_key: str | None = field(default=SECRET, repr=False)
    recording: Recording | None = None
    sent: int = 0
    first_outputs: list[FirstOutput] = field(default_factory=list)

    def context(self) -> AttemptContext:
        return AttemptContext(
            deadline_s=self.deadline_s,
            first_output_timeout_s=self.first_output_timeout_s,
            idle_timeout_s=self.idle_timeout_s,
            cancellation=self.cancellation,
            on_first_output=self._first_output,
            on_sent=self._sent,
            api_key=self.api_key,
            recording=self.recording,
        )

    def _first_output(self, output: FirstOutput) -> None:
        self.first_outputs.append(output)
        self.on_first_output(output)

    def _sent(self) -> None:
        self.sent += 1
        self.on_sent()


def new_adapter(profile: Profile = GENERIC, clock: Clock | None = None) -> OpenAIChatAdapter:
    return OpenAIChatAdapter(clock or SystemClock(), profile)


def request_to(adapter: ModelAdapter, base_url: str, text: str = "hello") -> ModelCall:
    fragment = adapter.encode_message(Message(Role.USER, text))
    body = adapter.frame_body(PARAMETERS, View().extend([fragment]), b"")
    return ModelCall(body, base_url, message_count=1, last_message=fragment, asked=PARAMETERS)


def once(adapter: ModelAdapter, base_url: str, attempt: Attempt | None = None) -> ModelOutcome:
    return adapter.stream_once(request_to(adapter, base_url), (attempt or Attempt()).context())


def completed(outcome: ModelOutcome) -> ModelResponse:
    assert isinstance(outcome, Completed), outcome
    return outcome.response


def failed(outcome: ModelOutcome) -> Failed:
    assert isinstance(outcome, Failed), outcome
    return outcome
