"""Sessions: the user's inputs in order, the chain of deliveries of each, and the questions that wait."""

from collections.abc import Iterator

from agentloom_worker.audit.facts import RunFacts
from agentloom_worker.audit.fault import Fault
from agentloom_worker.audit.sequence import broken_sequence
from agentloom_worker.domain.context import MessageKind
from agentloom_worker.domain.damage import DAMAGED, describe
from agentloom_worker.domain.recipe import Recipe
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.domain.session import DeliveryState, InputKind, QueueState
from agentloom_worker.ids import DeliveryId, InputId, OperationId
from agentloom_worker.limits import QUEUED_QUESTIONS_MAX
from agentloom_worker.storage.audit_rows import DeliveryRow, SessionRows


def _subject(row: DeliveryRow) -> str:
    return f"delivery {row.delivery_id}"


def check_input_sequence(rows: SessionRows) -> Iterator[Fault]:
    """The order of the user's words is that of their input_seq."""
    broken = broken_sequence("input_seq", [row.input_seq for row in rows.inputs], rows.input_head)
    if broken is not None:
        yield Fault(f"session {rows.session_id}", broken)


def check_delivery_heads(rows: SessionRows) -> Iterator[Fault]:
    """Carrying an input makes a new delivery that names the one before it; exactly one is the newest.

    A question that waits in the queue, or was withdrawn from it, has none yet.
    """
    homeless = {one.input_id for one in rows.queue if one.state is not QueueState.STARTED}
    heads: dict[InputId, int] = {row.input_id: 0 for row in rows.inputs}
    followed = {row.previous_delivery_id for row in rows.deliveries}
    for row in rows.deliveries:
        if row.delivery_id not in followed:
            heads[row.input_id] = heads.get(row.input_id, 0) + 1
        if row.session_id != rows.session_id:
            yield Fault(_subject(row), f"is of session {row.session_id}, its input of {rows.session_id}")
    for input_id, count in heads.items():
        if count != (0 if input_id in homeless else 1):
            yield Fault(f"input {input_id}", f"has {count} newest deliveries")


def check_carried(rows: SessionRows) -> Iterator[Fault]:
    """A delivery is carried on exactly where one follows it, of the same input; only supplements are."""
    kinds = {row.input_id: row.kind for row in rows.inputs}
    followers: dict[DeliveryId, list[DeliveryRow]] = {row.delivery_id: [] for row in rows.deliveries}
    for row in rows.deliveries:
        if row.previous_delivery_id is not None:
            followers.setdefault(row.previous_delivery_id, []).append(row)
    for row in rows.deliveries:
        after = followers[row.delivery_id]
        if len(after) != (1 if row.state is DeliveryState.CARRIED else 0):
            yield Fault(_subject(row), f"is {row.state} and {len(after)} follow it")
        if any(other.input_id != row.input_id for other in after):
            yield Fault(_subject(row), "is followed by a delivery of another input")
        if row.state is DeliveryState.CARRIED and kinds.get(row.input_id) is not InputKind.SUPPLEMENT:
            yield Fault(_subject(row), "is carried and not of a supplement")


def check_delivered_once(rows: SessionRows) -> Iterator[Fault]:
    """What an output has delivered waits nowhere any more, and is delivered once (seed 004, C08)."""
    states: dict[InputId, list[DeliveryState]] = {}
    for row in rows.deliveries:
        states.setdefault(row.input_id, []).append(row.state)
    for input_id, found in states.items():
        delivered = found.count(DeliveryState.DELIVERED)
        waits = DeliveryState.PENDING in found or DeliveryState.CLAIMED in found
        if delivered > 1 or (delivered and waits):
            yield Fault(f"input {input_id}", f"is delivered {delivered} time(s), and waits: {waits}")


def check_waiting(rows: SessionRows) -> Iterator[Fault]:
    """What waits for a run is pending and untouched, and waits only while no run could take it (RULINGS A9)."""
    taking = [one.run_id for one in rows.runs if one.status in (RunStatus.QUEUED, RunStatus.RUNNING)]
    for row in rows.deliveries:
        if row.target_run_id is not None:
            continue
        if row.state is not DeliveryState.PENDING or row.context_seq is not None:
            yield Fault(_subject(row), f"waits for a run, is {row.state} and stands at {row.context_seq}")
        if taking:
            yield Fault(_subject(row), f"waits for a run, and run {taking[0]} can take it")


def check_left_behind(rows: SessionRows) -> Iterator[Fault]:
    """No supplement stays with a run that has ended without having delivered it (seed 004, 3.2)."""
    kinds = {row.input_id: row.kind for row in rows.inputs}
    ended = {one.run_id: one.status for one in rows.runs if one.status.terminal}
    for row in rows.deliveries:
        waits = row.state in (DeliveryState.PENDING, DeliveryState.CLAIMED)
        if waits and row.target_run_id in ended and kinds.get(row.input_id) is InputKind.SUPPLEMENT:
            yield Fault(_subject(row), f"is {row.state} and its run is {ended[row.target_run_id]}")


def check_queue(rows: SessionRows) -> Iterator[Fault]:
    """Questions wait only behind a live run that knows of them, each in its place; what started has its run (A10)."""
    inputs = {row.input_id: row for row in rows.inputs}
    runs = {one.run_id: one for one in rows.runs}
    live = next((one for one in rows.runs if not one.status.terminal), None)
    for one in rows.queue:
        subject = f"queued question {one.input_id}"
        asked = inputs.get(one.input_id)
        if asked is None or asked.kind is not InputKind.QUESTION or abs(one.place) != asked.input_seq:
            yield Fault(subject, f"stands at {one.place}, which is no place of a question of its session")
            continue
        if one.state is QueueState.QUEUED and (live is None or live.input_head < asked.input_seq):
            yield Fault(subject, "waits, and no live run knows of it")
        started = runs.get(one.run_id) if one.run_id is not None else None
        begun = started is not None and started.question_seq == asked.input_seq
        if begun is not (one.state is QueueState.STARTED) or (one.run_id is not None) is not begun:
            yield Fault(subject, f"is {one.state} with run {one.run_id}")
    waiting = sum(one.state is QueueState.QUEUED for one in rows.queue)
    if waiting > QUEUED_QUESTIONS_MAX:
        yield Fault(f"session {rows.session_id}", f"has {waiting} questions that wait")


def check_run_sequence(rows: SessionRows) -> Iterator[Fault]:
    """Runs are numbered in the order of their creation, and each is of a question of its session."""
    broken = broken_sequence("run_no", [one.run_no for one in rows.runs], rows.run_head)
    if broken is not None:
        yield Fault(f"session {rows.session_id}", broken)
    questions = {row.input_seq: row.input_id for row in rows.inputs if row.kind is InputKind.QUESTION}
    asked = {(row.input_id, row.target_run_id) for row in rows.deliveries}
    for one in rows.runs:
        if (questions.get(one.question_seq), one.run_id) not in asked:
            yield Fault(f"run {one.run_id}", f"has to answer input {one.question_seq}, no question that it was given")


def check_claimed(rows: SessionRows) -> Iterator[Fault]:
    """A pending delivery names no operation; any other names the frozen request that claimed it."""
    claims: dict[OperationId, frozenset[InputId] | None] = {}
    for operation in rows.operations:
        if operation.request is None:
            continue
        try:
            claims[operation.operation_id] = frozenset(Recipe.from_bytes(operation.request).claimed)
        except DAMAGED as error:
            yield Fault(f"operation {operation.operation_id}", f"its recipe cannot be read: {describe(error)}")
            claims[operation.operation_id] = None
    for row in rows.deliveries:
        if row.state is DeliveryState.PENDING:
            if row.operation_id is not None:
                yield Fault(_subject(row), f"is pending and claimed by operation {row.operation_id}")
            continue
        if row.operation_id is None and row.state is DeliveryState.CARRIED:
            continue  # no request of its run has held it
        if row.operation_id is None or row.operation_id not in claims:
            yield Fault(_subject(row), f"is {row.state} and names {row.operation_id}, no frozen operation")
            continue
        claimed = claims[row.operation_id]
        if claimed is not None and row.input_id not in claimed:
            yield Fault(_subject(row), f"is {row.state} and operation {row.operation_id} did not claim it")


def check_delivered(rows: SessionRows) -> Iterator[Fault]:
    """Delivered means that an attempt of the claiming request has begun to answer; its receipt names it (R2)."""
    answered = {f"{row.operation_id}/{row.attempt_no}" for row in rows.attempts if row.first_output_at is not None}
    for row in rows.deliveries:
        receipt = row.first_output_receipt
        if row.state is not DeliveryState.DELIVERED:
            if receipt is not None or row.delivered_at is not None:
                yield Fault(_subject(row), f"is {row.state} and has a receipt")
        elif receipt is None or row.delivered_at is None:
            yield Fault(_subject(row), "is delivered without a receipt or its time")
        elif receipt not in answered or not receipt.startswith(f"{row.operation_id}/"):
            yield Fault(_subject(row), f"names attempt {receipt}, which has no first output or is another request's")


def check_one_live_run(rows: SessionRows) -> Iterator[Fault]:
    """A session has at most one run that has not ended."""
    live = sum(not one.status.terminal for one in rows.runs)
    if live > 1:
        yield Fault(f"session {rows.session_id}", f"has {live} runs that have not ended")


def check_projected(facts: RunFacts) -> Iterator[Fault]:
    """Each input stands in the run's context where its delivery says; and only what stands there was claimed."""
    places = {
        record.context_seq: record.origin_input_id
        for record in facts.rows.records
        if record.message_kind == MessageKind.USER_REF.value
    }
    for row in facts.rows.deliveries:
        if row.context_seq is None:
            if row.state in (DeliveryState.CLAIMED, DeliveryState.DELIVERED):
                yield Fault(_subject(row), f"is {row.state} and stands nowhere in the context")
        elif places.pop(row.context_seq, None) != row.input_id:
            yield Fault(_subject(row), f"says record {row.context_seq}, which does not show its input")
    for seq in places:
        yield Fault(facts.subject, f"record {seq} shows an input whose delivery does not say so")


def check_input_heads(facts: RunFacts) -> Iterator[Fault]:
    """A run knows of inputs of its session only, and of each that it was asked to deliver."""
    head = facts.rows.session_input_head
    if head is None or facts.run.input_head > head:
        yield Fault(facts.subject, f"knows inputs to {facts.run.input_head}, its session has {head}")
    newest = max((row.input_seq for row in facts.rows.deliveries), default=0)
    if newest > facts.run.input_head:
        yield Fault(facts.subject, f"knows inputs to {facts.run.input_head} and has to deliver input {newest}")
