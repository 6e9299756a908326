"""Sessions: the user's inputs in order, and one delivery for each."""

from collections.abc import Iterator

from agentloom_worker.audit.facts import RunFacts
from agentloom_worker.audit.fault import Fault
from agentloom_worker.audit.sequence import broken_sequence
from agentloom_worker.domain.context import MessageKind
from agentloom_worker.domain.damage import DAMAGED, describe
from agentloom_worker.domain.recipe import Recipe
from agentloom_worker.domain.session import DeliveryState
from agentloom_worker.ids import InputId, OperationId
from agentloom_worker.storage.audit import DeliveryRow, SessionRows


def _subject(row: DeliveryRow) -> str:
    return f"delivery {row.delivery_id}"


def check_input_sequence(rows: SessionRows) -> Iterator[Fault]:
    """The order of the user's words is that of their input_seq."""
    broken = broken_sequence("input_seq", [row.input_seq for row in rows.inputs], rows.input_head)
    if broken is not None:
        yield Fault(f"session {rows.session_id}", broken)


def check_delivery_heads(rows: SessionRows) -> Iterator[Fault]:
    """Carrying an input makes a new delivery that names the one before it; exactly one is the newest."""
    heads: dict[InputId, int] = {row.input_id: 0 for row in rows.inputs}
    carried = {row.previous_delivery_id for row in rows.deliveries}
    for row in rows.deliveries:
        if row.delivery_id not in carried:
            heads[row.input_id] = heads.get(row.input_id, 0) + 1
        if row.session_id != rows.session_id:
            yield Fault(_subject(row), f"is of session {row.session_id}, its input of {rows.session_id}")
    for input_id, count in heads.items():
        if count != 1:
            yield Fault(f"input {input_id}", f"has {count} newest deliveries")


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
    if len(rows.live_run_ids) > 1:
        yield Fault(f"session {rows.session_id}", f"has {len(rows.live_run_ids)} runs that have not ended")


def check_projected(facts: RunFacts) -> Iterator[Fault]:
    """Each input stands in the run's context where its delivery says; and only what stands there was claimed."""
    places = {
        record.context_seq: record.origin_input_id
        for record in facts.rows.records
        if record.message_kind == MessageKind.USER_REF.value
    }
    for row in facts.rows.deliveries:
        if row.context_seq is None:
            if row.state is not DeliveryState.PENDING:
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
