"""Every unique key that the store promises, violated once; and every statement, accepted by both databases."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy.engine import make_url

from agentloom_worker.domain.commit import OutboxRow, Put, RuntimeCommit
from agentloom_worker.domain.context import ContextRecord, MessageKind, RawRef
from agentloom_worker.domain.dispatch import Successor
from agentloom_worker.domain.model import Role
from agentloom_worker.domain.operation import Attempt, AttemptState
from agentloom_worker.domain.run import LoopTicket, Phase, TicketState
from agentloom_worker.domain.session import DeliveryState, UserInputDelivery
from agentloom_worker.errors import Code, RequestError, RevisionConflictError
from agentloom_worker.ids import DeliveryId, DispatchId, OperationId, RecordId
from agentloom_worker.runtime.commit import commit
from agentloom_worker.storage import schema
from agentloom_worker.storage.driver import NotAppliedError
from agentloom_worker.storage.session import INPUT_INSERT
from tests.databases import connect
from tests.ground import Ground, ask, dump, stand, step_commit


def _record(ground: Ground, **values: object) -> ContextRecord:
    context = ground.slice().context
    record = ContextRecord(
        context.context_id,
        context.record_head + 1,
        RecordId(ground.new()),
        ground.run_id,
        Role.ASSISTANT,
        MessageKind.ASSISTANT,
        RawRef.OPERATION,
        "assistant",
    )
    return replace(record, **values)  # type: ignore[arg-type]


def _context_seq(ground: Ground) -> tuple[Put, ...]:
    head = ground.slice().context.record_head
    return (Put(None, _record(ground, context_seq=head)),)


def _result_key(ground: Ground) -> tuple[Put, ...]:
    operation_id = OperationId(ground.new())
    head = ground.slice().context.record_head
    first = _record(ground, operation_id=operation_id)
    return Put(None, first), Put(None, _record(ground, operation_id=operation_id, context_seq=head + 2))


def _origin_input(ground: Ground) -> tuple[Put, ...]:
    input_id = ground.slice().inputs[0].delivery.input_id
    return (Put(None, _record(ground, origin_input_id=input_id, message_kind=MessageKind.USER_REF)),)


def _prompt_slot(ground: Ground) -> tuple[Put, ...]:
    release_id = ground.slice().run.release_id
    kind = MessageKind.PROMPT
    return (Put(None, _record(ground, release_id=release_id, prompt_slot="system", message_kind=kind)),)


def _delivery_claim(ground: Ground) -> tuple[Put, ...]:
    held = ground.slice().inputs[0].delivery
    again = UserInputDelivery(
        DeliveryId(ground.new()), held.input_id, held.session_id, ground.run_id, DeliveryState.PENDING, 1
    )
    claimed = replace(again, state=DeliveryState.CLAIMED, operation_id=held.operation_id, revision=2)
    return Put(None, again), Put(again, claimed)


def _ticket(ground: Ground) -> tuple[Put, ...]:
    return (Put(None, LoopTicket(ground.run_id, 1, OperationId(ground.new()), TicketState.RESERVED)),)


def _attempt(ground: Ground) -> tuple[Put, ...]:
    operation = ground.slice().operation
    assert operation is not None
    return (Put(None, Attempt(operation.operation_id, 1, AttemptState.INTENT, 1)),)


# What each database calls the key that was violated.
KEYS: dict[str, tuple[Callable[[Ground], tuple[Put, ...]], tuple[str, str]]] = {
    "context_seq": (_context_seq, ("context_record_pkey", "context_record.context_id, context_record.context_seq")),
    "result_key": (
        _result_key,
        (
            "context_record_result_key",
            "context_record.operation_id, context_record.message_kind, context_record.logical_result_key",
        ),
    ),
    "origin_input": (
        _origin_input,
        (
            "context_record_input_key",
            "context_record.context_id, context_record.origin_input_id, context_record.message_kind",
        ),
    ),
    "prompt_slot": (
        _prompt_slot,
        (
            "context_record_prompt_key",
            "context_record.context_id, context_record.release_id, context_record.prompt_slot",
        ),
    ),
    "delivery_claim": (
        _delivery_claim,
        ("user_input_delivery_claim_key", "user_input_delivery.operation_id, user_input_delivery.input_id"),
    ),
    "ticket": (_ticket, ("loop_ticket_pkey", "loop_ticket.run_id, loop_ticket.loop_no")),
    "attempt": (_attempt, ("attempt_pkey", "attempt.operation_id, attempt.attempt_no")),
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_second_row_under_a_unique_key_is_refused_by_name_and_writes_nothing(database_url: str, kind: str) -> None:
    ground = stand(database_url, until=Phase.AWAIT_MODEL)
    make, names = KEYS[kind]
    todo = step_commit(ground, ground.claim("attempt_model"), puts=make(ground))
    before = dump(ground.store)

    with pytest.raises(NotAppliedError) as refused:
        ground.store.commit(todo, None, 0)
    assert (refused.value.code, refused.value.constraint) == (
        Code.REVISION_CONFLICT,
        names[ground.store.driver.dialect == "sqlite"],
    )
    assert dump(ground.store) == before


def test_an_input_seq_is_given_once_in_a_session(database_url: str) -> None:
    ground = stand(database_url)
    before = dump(ground.store)
    # Without the statement that moves the session's head first.
    again = INPUT_INSERT(ground.new(), ground.session_id, ground.run_id, "question", b'"x"', None)
    with pytest.raises(NotAppliedError) as refused:
        ground.store.apply([again])
    assert "input_seq" in str(refused.value.constraint)
    assert dump(ground.store) == before


def test_a_session_has_one_live_run(database_url: str) -> None:
    ground = stand(database_url)
    before = dump(ground.store)
    with pytest.raises(RequestError) as refused:
        ask(ground.worker, ground.session_id, key="second")
    assert refused.value.code is Code.SESSION_BUSY
    assert dump(ground.store) == before

    ground.set_run(status="succeeded")
    assert ask(ground.worker, ground.session_id, key="second").run_id != ground.run_id


def test_T5_one_cause_is_one_row_and_two_causes_are_two(database_url: str) -> None:
    ground = stand(database_url)
    subject = ground.new()

    def waking(key: str) -> RuntimeCommit:
        row = OutboxRow(DispatchId(ground.new()), Successor("prepare_context", subject, key), "control", 1, 0)
        return step_commit(ground, None, outbox=(row,))

    commit(ground.ports, waking("prepare:n:1"))
    commit(ground.ports, waking("prepare:n:2"))
    before = dump(ground.store)
    # Never DO NOTHING: whoever asks for the same row again has decided on old facts.
    with pytest.raises(RevisionConflictError):
        commit(ground.ports, waking("prepare:n:1"))
    assert dump(ground.store) == before


def test_every_template_has_a_name_of_its_own() -> None:
    names = [template.name for template in schema.TEMPLATES]
    assert len(names) == len(set(names))


def test_every_template_is_accepted_by_postgresql(clean_postgres: str) -> None:
    with closing(connect(clean_postgres)) as connection, connection.cursor() as cursor:
        for template in schema.TEMPLATES:
            cursor.execute(template.postgres_prepare)
        cursor.execute("SELECT count(*) FROM pg_prepared_statements")
        assert cursor.fetchone() == (len(schema.TEMPLATES),)


def test_every_template_is_accepted_by_sqlite(clean_sqlite: str) -> None:
    path = make_url(clean_sqlite).database
    assert path is not None
    with closing(sqlite3.connect(path)) as connection:
        for template in schema.TEMPLATES:
            assert connection.execute(f"EXPLAIN {template.sqlite}", [None] * len(template.names)).fetchone()
