"""The session's ended runs as a context protocol takes them, read in pages while they are walked through.

A page costs a fixed number of queries, whatever it holds: its runs, their inputs, their answers; the large bodies of
its runs come a few at a time.
Runs that are shown in full are few; their records are read in pages as well.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from agentloom_worker.canonical import parse
from agentloom_worker.capabilities.result import decode_result, model_text
from agentloom_worker.context.protocol import (
    BrokenAnswer,
    CallState,
    EndedRun,
    Place,
    Process,
    Record,
    SessionInput,
)
from agentloom_worker.domain.context import MessageKind, RoleContext
from agentloom_worker.domain.model import ModelResponse
from agentloom_worker.domain.operation import AttemptState, Operation, Payload
from agentloom_worker.domain.release import ModelBinding
from agentloom_worker.domain.response import decode_response
from agentloom_worker.domain.run import EndCause, Run
from agentloom_worker.domain.session import DeliveryState
from agentloom_worker.errors import InvariantError
from agentloom_worker.frozen import replace
from agentloom_worker.ids import OperationId, OwnerId, RunId, SessionId
from agentloom_worker.limits import HISTORY_BLOBS, HISTORY_RECORDS_PAGE, HISTORY_RUNS_PAGE
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.release import load_owned_release
from agentloom_worker.storage.context import ViewRow
from agentloom_worker.storage.history import GivenInput, InputPlace


def read_ended(
    ports: Ports, session_id: SessionId, *, run_no_max: int, recent: int, model: ModelBinding
) -> Iterator[EndedRun]:
    """Every ended run up to a run_no by its question, the last `recent` of them with their process.

    All end states count, failures too; nothing is skipped and nothing filled up (seed 000, 4). What `model` could not
    open is left out: reasoning that another model, endpoint or account sealed.
    """
    newest = list_recent(ports, session_id, run_no_max=run_no_max, recent=recent)
    before = newest[0].question_seq if newest else None
    for _, ended in read_older(ports, session_id, run_no_max=run_no_max, before_seq=before, model=model):
        yield ended
    yield from read_recent(ports, newest, model=model)


def list_recent(ports: Ports, session_id: SessionId, *, run_no_max: int, recent: int) -> list[Run]:
    """The last `recent` of the runs up to a run_no, by their questions: those that are shown in full."""
    if run_no_max <= 0 or not recent:
        return []
    return ports.store.list_ended_runs(session_id, run_no_max=run_no_max, newest=True, limit=recent)


def read_older(
    ports: Ports,
    session_id: SessionId,
    *,
    run_no_max: int,
    after_seq: int = 0,
    before_seq: int | None,
    model: ModelBinding,
) -> Iterator[tuple[Run, EndedRun]]:
    """The runs up to a run_no whose questions stand between two, without their process."""
    while run_no_max > 0:
        page = ports.store.list_ended_runs(
            session_id, run_no_max=run_no_max, after_seq=after_seq, before_seq=before_seq, limit=HISTORY_RUNS_PAGE
        )
        for run, ended in zip(page, read_runs(ports, page), strict=True):
            answer = _for_model(ports, run, model, ended.answer)
            yield run, ended if answer is ended.answer else replace(ended, answer=answer)
        if len(page) < HISTORY_RUNS_PAGE:
            return
        after_seq = page[-1].question_seq


def read_recent(ports: Ports, runs: Sequence[Run], *, model: ModelBinding) -> Iterator[EndedRun]:
    """Runs of one session with their process, in pages."""
    for start in range(0, len(runs), HISTORY_RUNS_PAGE):
        page = runs[start : start + HISTORY_RUNS_PAGE]
        for run, ended in zip(page, read_runs(ports, page), strict=True):
            answer, process = _for_model(ports, run, model, ended.answer), _process(ports, run)
            records = _records_for_model(ports, run, model, process.records)
            yield replace(ended, answer=answer, process=replace(process, records=records))


def read_runs(ports: Ports, runs: Sequence[Run]) -> Iterator[EndedRun]:
    """Runs of one session with their inputs and answers, without their process.

    Their rows are read at once, their bodies with few of those in blobs at a time.
    """
    if not runs:
        return
    store, run_ids = ports.store, [run.run_id for run in runs]
    rows, places = store.list_given_inputs(run_ids)
    given: dict[RunId, list[GivenInput]] = {run_id: [] for run_id in run_ids}
    for row in rows:
        given[row.run_id].append(row)
    answers = store.load_operations([run.answer_operation_id for run in runs if run.answer_operation_id is not None])
    told = [
        _Told(run, given[run.run_id], answers[run.answer_operation_id] if run.answer_operation_id is not None else None)
        for run in runs
    ]
    for group in _groups(told):
        bodies = iter(store.load_bodies(runs[0].owner_id, [body for one in group for body in one.bodies]))
        for one in group:
            inputs = tuple(_input(row, next(bodies), places.get(row.input_id, ())) for row in one.given)
            yield _ended(one, inputs, decode_response(next(bodies)) if one.answer is not None else None)


@dataclass(frozen=True, slots=True)
class _Told:
    """A run with the rows of what it was told and of what it answered."""

    run: Run
    given: list[GivenInput]
    answer: Operation | None

    @property
    def bodies(self) -> list[Payload]:
        """Those of its inputs, then that of its answer."""
        answer = [] if self.answer is None else [_result_of(self.answer)]
        return [*(one.body for one in self.given), *answer]


def _groups(told: Iterable[_Told]) -> Iterator[list[_Told]]:
    """Runs whose bodies are read together: few of them stand in blobs, whose sizes nobody knows yet."""
    group: list[_Told] = []
    held = 0
    for one in told:
        blobs = sum(body.inline is None for body in one.bodies)
        if group and held + blobs > HISTORY_BLOBS:
            yield group
            group, held = [], 0
        group.append(one)
        held += blobs
    if group:
        yield group


def _ended(told: _Told, inputs: tuple[SessionInput, ...], answer: ModelResponse | None) -> EndedRun:
    run = told.run
    return EndedRun(
        run_id=run.run_id,
        run_no=run.run_no,
        status=run.status,
        code=run.end_code,
        # Of an answer, the detail is our own list of what is odd about it; of a failure it may be anything.
        marks=run.end_detail if run.end_cause is EndCause.ANSWER else None,
        inputs=inputs,
        answer_operation_id=run.answer_operation_id,
        answer=answer,
    )


def _input(row: GivenInput, body: bytes, places: Iterable[InputPlace]) -> SessionInput:
    return SessionInput(
        row.input_id,
        row.input_seq,
        parse(body),
        row.origin_run_id,
        row.origin_run_no,
        tuple(Place(place.run_no, place.state is DeliveryState.DELIVERED) for place in places),
    )


def read_records(
    ports: Ports, owner_id: OwnerId, context: RoleContext, *, prompt: str | None, after_seq: int = 0
) -> Iterator[Record]:
    """The records of a context behind one, as of its revision, in pages. Without a prompt, that record is left out.

    Raises InvariantError where records are missing.
    """
    after = after_seq
    while after < context.record_head:
        rows = ports.store.load_view_rows(
            context.context_id,
            after_seq=after,
            revision=context.effective_revision,
            limit=min(HISTORY_RECORDS_PAGE, context.record_head - after),
        )
        if not rows:
            raise InvariantError(f"context {context.context_id} lacks records after {after}")
        sources = [row.source for row in rows if row.message_kind is not MessageKind.PROMPT]
        bodies = iter(ports.store.load_bodies(owner_id, sources))
        for row in rows:
            if row.message_kind is not MessageKind.PROMPT:
                yield _record(row, next(bodies))
            elif prompt is not None:
                yield Record(row.context_seq, row.message_kind, prompt)
        after = rows[-1].context_seq


def _for_model(ports: Ports, run: Run, model: ModelBinding, response: ModelResponse | None) -> ModelResponse | None:
    """A response of an ended run as a model may see it: sealed reasoning goes back to whoever sealed it, and nowhere
    else. The run's release says who that was; it is asked for only where something is sealed.
    """
    if response is None or not any(item.encrypted for item in response.reasoning_items):
        return response
    if load_owned_release(ports, run.release_id).release.model.connection == model.connection:
        return response
    return replace(response, reasoning_items=tuple(item for item in response.reasoning_items if not item.encrypted))


def _records_for_model(ports: Ports, run: Run, model: ModelBinding, records: Iterable[Record]) -> Iterator[Record]:
    for record in records:
        response = _for_model(ports, run, model, record.response)
        yield record if response is record.response else replace(record, response=response)


def _record(row: ViewRow, body: bytes) -> Record:
    text, response = "", None
    match row.message_kind:
        case MessageKind.ASSISTANT:
            response = decode_response(body)
        case MessageKind.TOOL_RESULT:
            text = model_text(decode_result(body)).text
        case _:
            text = parse(body)
    return Record(
        row.context_seq,
        row.message_kind,
        text,
        response,
        row.operation_id,
        row.input_id,
        row.input_seq,
        row.origin_run_id,
        row.ordinal,
    )


def _result_of(operation: Operation) -> Payload:
    payload = operation.effective or operation.raw
    if payload is None:
        raise InvariantError(f"operation {operation.operation_id} is an answer without a result")
    return payload


def _process(ports: Ports, run: Run) -> Process:
    context = ports.store.load_root_context(run.run_id)
    if context is None:
        raise InvariantError(f"run {run.run_id} has no root context")
    records = read_records(ports, run.owner_id, context, prompt=None)
    last = _last_row(ports, context)
    answered = last is not None and last.message_kind is MessageKind.ASSISTANT
    calls = _open_calls(ports, run, last.operation_id) if last is not None and answered else ()
    return Process(records, calls, _broken(ports, context))


def _last_row(ports: Ports, context: RoleContext) -> ViewRow | None:
    rows = ports.store.load_view_rows(
        context.context_id, after_seq=context.record_head - 1, revision=context.effective_revision, limit=1
    )
    return rows[0] if rows else None


def _open_calls(ports: Ports, run: Run, operation_id: OperationId | None) -> tuple[CallState, ...]:
    """The calls of a message behind which no result stands; none where it made none."""
    if operation_id is None:
        return ()
    calls = ports.store.load_calls(run.run_id, operation_id)
    held = [call for call in calls if call.effective or call.raw]
    bodies = ports.store.load_bodies(run.owner_id, [_result_of(call) for call in held])
    texts = {call.operation_id: model_text(decode_result(body)).text for call, body in zip(held, bodies, strict=True)}
    return tuple(
        CallState(call.operation_id, call.ordinal or 0, texts.get(call.operation_id), call.status, call.executed)
        for call in calls
    )


def _broken(ports: Ports, context: RoleContext) -> BrokenAnswer | None:
    """The text that had arrived when the last model operation's newest attempt ended, if it never completed.

    Only what the run's own commits wrote: a late fact changes nothing that a reader sees (RULINGS A3).
    """
    if context.last_model_operation_id is None:
        return None
    attempts = ports.store.list_attempts([context.last_model_operation_id])
    last = attempts[-1] if attempts else None
    if last is None or last.partial is None or last.state is AttemptState.COMPLETE:
        return None
    text = parse(last.partial).get("text", "")
    return BrokenAnswer(context.last_model_operation_id, text) if text else None
