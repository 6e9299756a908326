"""The bytes of `rounds@1`: they are in frozen requests, so no change of the code may change them."""

from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from agentloom_worker.context.protocol import (
    BrokenAnswer,
    CallState,
    EndedRun,
    FrozenContext,
    Place,
    Process,
    Record,
    SessionInput,
)
from agentloom_worker.context.protocols import PROTOCOLS
from agentloom_worker.domain.context import MessageKind
from agentloom_worker.domain.model import Executed, ModelResponse, ResponseCall
from agentloom_worker.domain.operation import OperationStatus
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.ids import InputId, OperationId, RunId
from agentloom_worker.llm.chat_encoding import ChatEncoding
from agentloom_worker.llm.profiles import Profile

HERE = Path(__file__).parent


def _id(number: int) -> UUID:
    return UUID(int=number)


def _input(seq: int, text: str, *places: tuple[int, bool], origin: int | None = 1) -> SessionInput:
    run_id = None if origin is None else RunId(_id(origin))
    return SessionInput(InputId(_id(100 + seq)), seq, text, run_id, origin, tuple(Place(*place) for place in places))


def _calls(*names: str) -> ModelResponse:
    made = tuple(ResponseCall(ordinal, f"call_{ordinal}", name, "{}") for ordinal, name in enumerate(names))
    return ModelResponse("", made, "tool_calls")


def _ended() -> Iterable[EndedRun]:
    operation = OperationId(_id(50))
    yield EndedRun(
        RunId(_id(1)),
        1,
        RunStatus.SUCCEEDED,
        None,
        "truncated",
        (_input(1, "Q1", (1, True)), _input(2, "from before", (1, False), (2, True), origin=None)),
        operation,
        ModelResponse("A1", (), "length"),
    )
    records = (
        Record(2, MessageKind.USER_REF, "Q2", input_id=InputId(_id(103))),
        Record(3, MessageKind.ASSISTANT, "", _calls("a", "b", "c", "d"), OperationId(_id(51))),
    )
    calls = (
        CallState(OperationId(_id(52)), 0, "result of a", OperationStatus.COMPLETED, Executed.EXECUTED),
        CallState(OperationId(_id(53)), 1, None, OperationStatus.CANCELLED, Executed.NOT_EXECUTED),
        CallState(OperationId(_id(54)), 2, None, OperationStatus.UNKNOWN, Executed.UNKNOWN),
        CallState(OperationId(_id(55)), 3, None, OperationStatus.FAILED, Executed.EXECUTED),
    )
    yield EndedRun(
        RunId(_id(2)),
        2,
        RunStatus.TIMED_OUT,
        "RUN_DEADLINE_EXCEEDED",
        None,
        (_input(3, "Q2", (2, True)), _input(4, "late", (2, False), (4, False))),
        process=Process(records, calls, BrokenAnswer(OperationId(_id(56)), "half of an answer")),
    )
    yield EndedRun(
        RunId(_id(3)),
        3,
        RunStatus.CANCELLED,
        "RUN_STOPPED",
        None,
        (_input(5, "Q3", (3, False)),),
        process=Process((), (), BrokenAnswer(OperationId(_id(57)), "x" * 16_390)),
    )


def _lines(profile: Profile) -> str:
    own = (
        Record(1, MessageKind.PROMPT, "Be brief."),
        Record(2, MessageKind.USER_REF, "late", input_id=InputId(_id(104)), input_seq=4),
        Record(3, MessageKind.USER_REF, "Q4", input_id=InputId(_id(106)), input_seq=6),
        Record(4, MessageKind.FEEDBACK, "that was no JSON"),
    )
    items = PROTOCOLS["rounds@1"].project(FrozenContext(RunId(_id(4)), 4, own, _ended()))
    encoding = ChatEncoding(profile)
    return "".join(encoding.encode_message(item.message).decode() + "\n" for item in items)


def test_L07_W04_items_of_rounds_1_encode_to_the_recorded_bytes() -> None:
    assert _lines(Profile("generic", 1)) == (HERE / "rounds_v1.jsonl").read_text()


def test_notes_are_labelled_texts_of_the_user_where_a_profile_takes_no_system_message_in_the_middle() -> None:
    recorded = (HERE / "rounds_v1_labelled.jsonl").read_text()
    assert _lines(Profile("strict", 1, mid_system=False)) == recorded
    assert recorded.count('"role":"system"') == 1
    assert recorded.count("[agentloom] ") == (HERE / "rounds_v1.jsonl").read_text().count('"role":"system"') - 1
