"""`rounds@1`: the newest ended runs in full, older ones as their inputs, answer and end (seed 000, 4; seed 004, 3.1).

Every text that this module makes is part of requests that were frozen: golden tests hold its bytes, and a
change of any of them is another version of the protocol.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from agentloom_worker.canonical import canonical_bytes, effective_text
from agentloom_worker.context.message import assistant_message, note, prompt_message, tool_message
from agentloom_worker.context.protocol import (
    BrokenAnswer,
    CallState,
    EndedRun,
    FrozenContext,
    Item,
    ItemKind,
    Place,
    Record,
    SessionInput,
    Source,
)
from agentloom_worker.domain.context import MessageKind
from agentloom_worker.domain.model import Executed, Message, ModelResponse, Role
from agentloom_worker.domain.operation import OperationStatus, call_id_of
from agentloom_worker.errors import InvariantError
from agentloom_worker.ids import OperationId
from agentloom_worker.limits import HISTORY_PARTIAL_CHARS


class Rounds:
    """The protocol; it keeps nothing."""

    about = (
        "The session's newest ended runs in full (`context.recent_runs`), older ones as all of their inputs, their"
        " answer and how they ended."
    )
    options_schema: Mapping[str, object] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }

    def project(self, frozen: FrozenContext) -> Iterator[Item]:
        """As ContextProtocol says: the prompt, the ended runs, then the run's own records."""
        wire_ids = frozen.wire_ids
        for record in frozen.records:
            item = _own(frozen, record, wire_ids)
            wire_ids = wire_ids if item.wire_ids is None else item.wire_ids
            yield item
            if record.kind is MessageKind.PROMPT:
                for run in frozen.ended:
                    yield from _recent(run, frozen.run_no) if run.process is not None else _older(run, frozen.run_no)


def place_of(one: SessionInput, current_run_no: int) -> int:
    """The one run in which an input's words stand, as the run `current_run_no` sees its session.

    The current run where the input is protected there; else the run that delivered it last; else, never
    delivered, the run that took it when it came, or the first that it was given to.
    """
    places = [place for place in one.places if place.run_no <= current_run_no]
    given = {place.run_no for place in places}
    if current_run_no in given:
        return current_run_no
    delivered = [place.run_no for place in places if place.delivered]
    if delivered:
        return max(delivered)
    return one.origin_run_no if one.origin_run_no in given else min(given)


def _own(frozen: FrozenContext, record: Record, wire_ids: tuple[str, ...]) -> Item:
    source = Source(
        frozen.run_id,
        frozen.run_no,
        record.context_seq,
        record.operation_id,
        record.input_id,
        record.input_seq,
        record.origin_run_id,
    )
    if record.kind is MessageKind.PROMPT:
        why = "the system prompt of the release"
        return Item(ItemKind.PROMPT, prompt_message(record.text), source, why, protected=True, raw=record.text)
    if record.kind is MessageKind.USER_REF:
        why = "an input of the current run: protected, verbatim in each of its requests"
        return Item(ItemKind.USER_INPUT, _user(record.text), source, why, protected=True, raw=record.text)
    return _effective(record, source, wire_ids, "of the current run")


def _effective(record: Record, source: Source, wire_ids: tuple[str, ...], whose: str) -> Item:
    """A record that is no input and no prompt."""
    match record.kind:
        case MessageKind.ASSISTANT:
            assert record.response is not None and record.operation_id is not None, "an answer has its operation"
            message, named = _assistant(record.operation_id, record.response)
            return Item(
                ItemKind.EFFECTIVE_RECORD, message, source, f"an accepted message of the model, {whose}", wire_ids=named
            )
        case MessageKind.TOOL_RESULT:
            assert record.ordinal is not None, "a result has its place in its batch"
            message = tool_message(effective_text(record.text)[0], wire_ids[record.ordinal])
            return Item(ItemKind.EFFECTIVE_RECORD, message, source, f"the result of a call, {whose}")
        case MessageKind.FEEDBACK:
            return Item(
                ItemKind.FEEDBACK,
                note(record.text),
                source,
                f"what the runtime told the model, {whose}",
                raw=record.text,
            )
        case _:
            raise InvariantError(f"a record of kind {record.kind} is not shown like this")


def _older(run: EndedRun, current: int) -> Iterator[Item]:
    whose = f"of the older run {run.run_no}"
    for one in run.inputs:
        yield _input(run, one, current, None, whose)
    if run.answer is not None and run.answer_operation_id is not None:
        message, wire_ids = _assistant(run.answer_operation_id, run.answer)
        source = Source(run.run_id, run.run_no, operation_id=run.answer_operation_id)
        yield Item(ItemKind.EFFECTIVE_RECORD, message, source, f"the final answer {whose}", wire_ids=wire_ids)
    yield _end(run)


def _recent(run: EndedRun, current: int) -> Iterator[Item]:
    process = run.process
    assert process is not None, "a recent run is read with its process"
    whose = f"of the recent run {run.run_no}"
    inputs = {one.input_id: one for one in run.inputs}
    wire_ids: tuple[str, ...] = ()
    for record in process.records:
        if record.kind is MessageKind.USER_REF:
            if record.input_id is None or record.input_id not in inputs:
                raise InvariantError(f"run {run.run_id} shows an input at {record.context_seq} that it was never given")
            yield _input(run, inputs.pop(record.input_id), current, record.context_seq, whose)
        else:
            source = Source(run.run_id, run.run_no, record.context_seq, record.operation_id)
            item = _effective(record, source, wire_ids, whose)
            wire_ids = wire_ids if item.wire_ids is None else item.wire_ids
            yield item
    yield from _repair(run, process.open_calls, wire_ids)
    if process.broken is not None:
        yield _broken(run, process.broken)
    for one in inputs.values():
        yield _input(run, one, current, None, f"{whose}, which came after its last request was prepared")
    yield _end(run)


def _input(run: EndedRun, one: SessionInput, current: int, context_seq: int | None, whose: str) -> Item:
    source = Source(
        run.run_id,
        run.run_no,
        context_seq,
        input_id=one.input_id,
        input_seq=one.input_seq,
        origin_run_id=one.origin_run_id,
    )
    place = place_of(one, current)
    if place == run.run_no:
        return Item(ItemKind.USER_INPUT, _user(one.text), source, f"an input {whose}", raw=one.text)
    where = "the current run, below" if place == current else f"run {place}"
    text = f"[run {run.run_no}: input {one.input_seq} of this session was passed on; its words stand in {where}]"
    why = f"an input {whose} whose words stand once, in run {place}"
    return Item(ItemKind.TRANSFER_MARKER, note(text), source, why)


def _repair(run: EndedRun, calls: Iterable[CallState], wire_ids: tuple[str, ...]) -> Iterator[Item]:
    """Each call gets its result, or a placeholder; the operations stay what they are (seed 000, 6)."""
    for call in calls:
        source = Source(run.run_id, run.run_no, operation_id=call.operation_id)
        if call.text is not None:
            message = tool_message(effective_text(call.text)[0], wire_ids[call.ordinal])
            why = f"the result of a call of run {run.run_no}, which ended before the batch was delivered"
            yield Item(ItemKind.EFFECTIVE_RECORD, message, source, why)
        else:
            message = tool_message(_placeholder(call), wire_ids[call.ordinal])
            why = f"a call of run {run.run_no} without a result: the exchange is closed, nothing is made up"
            yield Item(ItemKind.PLACEHOLDER, message, source, why)


_EXPLANATIONS = {
    Executed.NOT_EXECUTED: "the run ended before this call was executed",
    Executed.EXECUTED: "this call was executed, but the run ended before its result was kept",
    Executed.UNKNOWN: "the run ended while this call was under way; whether it was executed is not known",
}
_EXECUTED: dict[Executed, bool | str] = {
    Executed.NOT_EXECUTED: False,
    Executed.EXECUTED: True,
    Executed.UNKNOWN: "unknown",
}
_STATUS = {OperationStatus.CANCELLED: "cancelled", OperationStatus.UNKNOWN: "unknown"}


def _placeholder(call: CallState) -> str:
    executed = call.executed or Executed.UNKNOWN
    document = {
        "executed": _EXECUTED[executed],
        "status": _STATUS.get(call.status, "blocked"),
        "explanation": _EXPLANATIONS[executed],
    }
    return canonical_bytes(document).decode()


# How the runtime's own lines begin, wherever such a beginning stands: what breaks lines is not for us to say.
_IMITATED = re.compile(r"\[(?=\s*(?:run|end of|agentloom)\b)", re.IGNORECASE)


def _broken(run: EndedRun, broken: BrokenAnswer) -> Item:
    """A note of the system with words of the model in it, which must not pass for words of the system."""
    shown = _IMITATED.sub("(", broken.text[:HISTORY_PARTIAL_CHARS])
    cut = f"; its first {len(shown)} of {len(broken.text)} characters" if len(shown) < len(broken.text) else ""
    text = (
        f"[run {run.run_no}: an answer of the model that broke off follows{cut}; it is not a complete answer,"
        f" and nothing of it was carried out]\n{shown}\n[end of the answer that broke off]"
    )
    source = Source(run.run_id, run.run_no, operation_id=broken.operation_id)
    why = f"what had arrived when the last model call of run {run.run_no} broke off: marked, never a decision"
    return Item(ItemKind.INCOMPLETE, note(text), source, why)


def _end(run: EndedRun) -> Item:
    marks = "".join(f", {mark}" for mark in (run.code, run.marks) if mark)
    result = "" if run.answer is not None else "; no final result was formed"
    text = f"[run {run.run_no} ended: {run.status.value}{marks}{result}]"
    source = Source(run.run_id, run.run_no)
    return Item(ItemKind.TERMINAL_MARKER, note(text), source, f"how run {run.run_no} really ended")


def _user(text: str) -> Message:
    return Message(Role.USER, effective_text(text)[0])


def _assistant(operation_id: OperationId, response: ModelResponse) -> tuple[Message, tuple[str, ...]]:
    return assistant_message(response, tuple(call_id_of(operation_id, call.ordinal) for call in response.calls))


__all__ = ["Place", "Rounds", "place_of"]
