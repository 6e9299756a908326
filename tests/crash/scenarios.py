"""The scenarios: a release, a script that is a function of the request and of how often it came, and mischief.

Every script has a turn for a call whose outcome nobody knows: it ends with `UNKNOWN_ANSWER`, or goes on
unmoved where the scenario ends by something else (`steadfast`).
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentloom_worker.domain.model import Category, Executed, Failure, Partial
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.domain.session import OnBusy
from agentloom_worker.errors import Code
from agentloom_worker.llm.adapters.scripted import (
    CallsTurn,
    FailureTurn,
    ScriptedCall,
    ScriptedTurn,
    StallTurn,
    TextTurn,
)
from agentloom_worker.runtime.accept import Sending
from tests.crash.case import Action, ModelProfile, ModelProtocol
from tests.crash.wire import base_url
from tests.factories import python_tool, release_document

UNKNOWN_ANSWER = "Nobody knows whether that was done, so I stop here."
SUPPLEMENT = "The south as well."
RETRY_AFTER_MS = 7000
DEADLINE_S = 1000
ANSWER_SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}
_SERVICE_UNAVAILABLE = Failure(
    Code.MODEL_PROVIDER_ERROR,
    Category.TRANSPORT,
    "the endpoint answered HTTP 503",
    Executed.UNKNOWN,
    RetryClass.TRANSPORT,
    RETRY_AFTER_MS,
    503,
)
_REFUSED = Failure(Code.MODEL_REQUEST_REJECTED, Category.PROTOCOL, "the script refuses", Executed.EXECUTED)
_RESULT_REF = re.compile(r"result:[0-9a-f-]{36}")


class Stage(Protocol):
    """What a script may do besides answering."""

    def stop(self) -> None:
        """Stop the run over a second connection, and let the process hear of it."""
        ...

    def say(self, sending: Sending, text: str) -> None:
        """Send words over a second connection, under the words' own key; the process hears of a stop."""
        ...


@dataclass(frozen=True)
class View:
    """What a script answers to. `arrival` says how often these bytes have come, this time included.

    `run_no` and `at_loop` are looked up where a session has several runs; elsewhere the messages tell the loop.
    """

    messages: Sequence[dict[str, Any]]
    arrival: int
    run_no: int = 1
    at_loop: int | None = None

    @property
    def loop_no(self) -> int:
        """The loop that this request belongs to."""
        if self.at_loop is not None:
            return self.at_loop
        return 1 + sum(message["role"] == "assistant" for message in self.messages)

    @property
    def results(self) -> list[str]:
        """The texts of the newest batch."""
        texts: list[str] = []
        for message in reversed(self.messages):
            if message["role"] != "tool":
                break
            texts.insert(0, message["content"])
        return texts

    @property
    def unknown(self) -> bool:
        """Whether the newest batch holds a call of unknown outcome."""
        return any(Code.TOOL_OUTCOME_UNKNOWN in text for text in self.results)


Turn = Callable[[View, Stage], ScriptedTurn]
# Asked before a pure part: (its step, whether the claimed row has an effect, how often this mischief happened
# to this step in any process, whether an operator has stepped in) → raise here?
Mischief = Callable[[str, bool, int, bool], bool]


@dataclass(frozen=True)
class Scenario:
    """One story. `parks` says that an operator has to step in once.

    `asks`: nothing is there at first, and each process begins as the client, which publishes, opens its session
    and asks under the same key as ever (RULINGS R6).
    `on_busy` says that the user speaks again: `says` in which runs, at which of their loops, and what. Questions come
    in the first run only. `recent_runs` of the earlier runs are shown in full.
    """

    name: str
    turn: Turn
    tools: tuple[str, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)
    steadfast: bool = False
    busy: bool = False
    parks: bool = False
    asks: bool = False
    output_schema: dict[str, Any] | None = None
    mischief: Mischief | None = None
    on_busy: OnBusy | None = None
    says: tuple[tuple[int, int, Sending], ...] = ()
    recent_runs: int = 2

    def answer(self, view: View, stage: Stage) -> ScriptedTurn:
        """The script with its turn for unknown outcomes; a busy endpoint refuses each request once."""
        if self.busy and view.arrival == 1:
            return FailureTurn(_SERVICE_UNAVAILABLE, Partial())
        if view.unknown and not self.steadfast:
            return TextTurn(UNKNOWN_ANSWER)
        return self.turn(view, stage)

    def document(
        self, model_unknown: Action, protocol: ModelProtocol = "scripted", profile: ModelProfile = "generic"
    ) -> dict[str, Any]:
        """The release."""
        retry = {"on_unknown": {"action": model_unknown}}
        model = {"protocol": protocol, "profile": profile, "context_window_tokens": 1_000_000, "retry": retry}
        return release_document(
            base_url="script:main" if protocol == "scripted" else base_url(),
            tools={name: _TOOLS[name] for name in self.tools},
            agent={"limits": self.limits} | ({"output_schema": self.output_schema} if self.output_schema else {}),
            models={"main": model},
            context={"recent_runs": self.recent_runs},
        )


def _tool(name: str, effect: str, action: Action) -> dict[str, Any]:
    return python_tool(handler=f"tests.crash.tools:{name}", effect=effect, retry={"on_unknown": {"action": action}})


_TOOLS = {
    "look": _tool("look", "read", "retry"),
    "send": _tool("send", "write_external", "fail"),
    "break_down": _tool("break_down", "write_external", "fail"),
    "print_large": _tool("print_large", "none", "retry"),
    "print_huge": _tool("print_huge", "none", "fail"),
}
TOOL_UNKNOWN: dict[str, Action] = {name: tool["retry"]["on_unknown"]["action"] for name, tool in _TOOLS.items()}


def _calls(loop_no: int, *calls: tuple[str, str]) -> CallsTurn:
    made = (ScriptedCall(name, text, f"call-{loop_no}-{ordinal}") for ordinal, (name, text) in enumerate(calls))
    return CallsTurn(tuple(made), text=f"Step {loop_no}.")


def _look(place: str) -> tuple[str, str]:
    return "look", json.dumps({"place": place})


def _send(recipient: str) -> tuple[str, str]:
    return "send", json.dumps({"recipient": recipient})


def _plain(view: View, _stage: Stage) -> ScriptedTurn:
    del view
    return TextTurn("Forty-two.")


def _three_loops(view: View, _stage: Stage) -> ScriptedTurn:
    match view.loop_no:
        case 1:
            return _calls(1, _look("north"), _send("Ada"), _look("south"))
        case 2:
            return _calls(2, _send("Grace"), _look("east"))
        case 3:
            return _calls(3, _look("west"))
    return TextTurn("All looked at, all sent.")


def _two_loops(view: View, _stage: Stage) -> ScriptedTurn:
    match view.loop_no:
        case 1:
            return _calls(1, _look("north"), _send("Ada"))
        case 2:
            return _calls(2, _look("east"))
    return TextTurn("Done all the same.")


def _tool_failure(view: View, _stage: Stage) -> ScriptedTurn:
    if view.loop_no == 1:
        return _calls(1, ("break_down", '{"part": "pump"}'), _look("pump"))
    return TextTurn("The pump is broken.")


def _invalid_call(view: View, _stage: Stage) -> ScriptedTurn:
    match view.loop_no:
        case 1:
            return _calls(1, ("no_such_tool", "{}"), _look("north"), ("look", '{"place": 7'))
        case 2:
            return _calls(2, ("look", '{"where": "north"}'))
    return TextTurn("I called it wrong.")


def _stopped(view: View, stage: Stage) -> ScriptedTurn:
    if view.loop_no == 1:
        return _calls(1, _look("north"), _send("Ada"))
    stage.stop()
    return StallTurn("I was about to say")


def _deadline(view: View, _stage: Stage) -> ScriptedTurn:
    if view.loop_no == 1:
        return _calls(1, _look("north"), _send("Ada"))
    return StallTurn("Let me think")


def _quota(view: View, _stage: Stage) -> ScriptedTurn:
    return _calls(view.loop_no, _send(f"reader {view.loop_no}"))


def _busy(view: View, _stage: Stage) -> ScriptedTurn:
    return _calls(1, _send("Ada")) if view.loop_no == 1 else TextTurn("It was busy.")


def _large(view: View, _stage: Stage) -> ScriptedTurn:
    match view.loop_no:
        case 1:
            return _calls(1, ("print_large", "{}"))
        case 2 | 4:
            found = _RESULT_REF.search(view.results[0])
            assert found is not None, "a preview names its result"
            arguments = json.dumps({"result_ref": found.group(), "offset": 65_536, "limit": 64})
            return _calls(view.loop_no, ("result_read", arguments))
        case 3:
            return _calls(3, ("print_huge", "{}"))
    return TextTurn("Read to the end.")


def _corrected(view: View, _stage: Stage) -> ScriptedTurn:
    return TextTurn(["", '{"answer": 42}', '{"answer": "Forty-two."}'][view.loop_no - 1])


def _carried(view: View, stage: Stage) -> ScriptedTurn:
    """The supplement comes while the final answer is on its way, and so does the question that takes it along."""
    if view.run_no == 2:
        return _calls(1, _look("north")) if view.loop_no == 1 else TextTurn("All of it.")
    stage.say(Sending.SUPPLEMENT, SUPPLEMENT)
    stage.say(Sending.QUESTION, "What else?")
    return TextTurn("Forty-two.")


def _enqueued(view: View, stage: Stage) -> ScriptedTurn:
    """One question waits while a call is made, another one during the answer."""
    if view.run_no > 1:
        return TextTurn(f"Answer {view.run_no}.")
    if view.loop_no == 1:
        stage.say(Sending.QUESTION, "And then?")
        return _calls(1, _look("north"))
    stage.say(Sending.QUESTION, "And after that?")
    return TextTurn("Answer 1.")


def _three_runs(view: View, stage: Stage) -> ScriptedTurn:
    """The second run fails behind a call, and what was added meanwhile goes to the third."""
    match view.run_no, view.loop_no:
        case 1, 1:
            stage.say(Sending.QUESTION, "And the north?")
            stage.say(Sending.QUESTION, "And all of it?")
            return TextTurn("Forty-two.")
        case ((2 | 3), 1):
            return _calls(1, _look("north" if view.run_no == 2 else "south"))
        case 2, _:
            stage.say(Sending.SUPPLEMENT, SUPPLEMENT)
            return FailureTurn(_REFUSED, Partial())
    return TextTurn("That is all of it.")


def _interrupted(view: View, stage: Stage) -> ScriptedTurn:
    if view.run_no == 2:
        return TextTurn("Something else.")
    if view.loop_no == 1:
        return _calls(1, _look("north"))
    stage.say(Sending.QUESTION, "Something else!")
    return StallTurn("I was about to say")


def _raise_behind_effects(_step: str, effect: bool, before: int, _operator: bool) -> bool:
    """Fused, every tail behind an effect raises; where no tail is fused, each pure step raises once by itself."""
    return effect or before == 0


def _raise_until_operator(step: str, _effect: bool, _before: int, operator: bool) -> bool:
    return step == "deliver_batch" and not operator


_ASKS_AT_1 = (1, 1, Sending.QUESTION)
_ADDS_AT_1 = (1, 1, Sending.SUPPLEMENT)
_ASKS_AT_2 = (1, 2, Sending.QUESTION)

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("plain", _plain),
        Scenario("three_loops", _three_loops, ("look", "send")),
        Scenario("tail_raises", _two_loops, ("look", "send"), mischief=_raise_behind_effects),
        Scenario("tool_failure", _tool_failure, ("break_down", "look")),
        Scenario("invalid_call", _invalid_call, ("look",)),
        Scenario("stopped", _stopped, ("look", "send"), steadfast=True),
        Scenario("deadline", _deadline, ("look", "send"), limits={"deadline_s": DEADLINE_S}, steadfast=True),
        Scenario("quota", _quota, ("send",), limits={"max_loops": 2}, steadfast=True),
        Scenario("busy", _busy, ("send",), busy=True),
        Scenario("parked", _two_loops, ("look", "send"), parks=True, mischief=_raise_until_operator),
        Scenario("asked", _plain, asks=True),
        Scenario("corrected", _corrected, output_schema=ANSWER_SCHEMA),
        Scenario("large", _large, ("print_large", "print_huge")),
        Scenario("carried", _carried, ("look",), on_busy=OnBusy.ENQUEUE, says=(_ADDS_AT_1, _ASKS_AT_1)),
        Scenario(
            "enqueued",
            _enqueued,
            ("look",),
            steadfast=True,
            on_busy=OnBusy.ENQUEUE,
            says=(_ASKS_AT_1, _ASKS_AT_2),
        ),
        Scenario(
            "three_runs",
            _three_runs,
            ("look",),
            steadfast=True,
            on_busy=OnBusy.ENQUEUE,
            says=(_ASKS_AT_1, _ASKS_AT_1, (2, 2, Sending.SUPPLEMENT)),
            recent_runs=1,
        ),
        Scenario("interrupted", _interrupted, ("look",), steadfast=True, on_busy=OnBusy.INTERRUPT, says=(_ASKS_AT_2,)),
    )
}
