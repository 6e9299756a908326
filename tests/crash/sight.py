"""Reading what a run left, in a form that is equal in every run of a scenario: no ids, no times."""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from agentloom_worker.canonical import sha256_hex
from agentloom_worker.domain.operation import Operation
from agentloom_worker.domain.recipe import Recipe
from agentloom_worker.domain.session import InputKind, UserInput
from agentloom_worker.ids import RunId
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.request import rebuild_request
from agentloom_worker.runtime.slice import load_response
from agentloom_worker.storage.session import user_input, user_input_delivery
from tests.crash.case import AttemptSeen, Hit, Message, OperationSeen, Outcome
from tests.crash.tools import Ledger
from tests.crash.wire import read_request

LONG_CHARS = 1000
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# Of the dice; everything else of an event must be equal.
_VARIABLE_FIELDS = frozenset({"delay_ms"})


def see_outcome(
    ports: Ports, run_ids: list[RunId], ledger: Ledger, tape: tuple[Hit, ...] = (), *, findings: tuple[str, ...] = ()
) -> Outcome:
    """Everything that a promise is about: the session's first run, and those that followed it.

    `findings` are those of the database's audit, which knows every run.
    """
    first, *later = [_see_run(ports, run_id, run_no, ledger, tape) for run_no, run_id in enumerate(run_ids, 1)]
    seqs, chains = _supplements(ports, run_ids)
    return replace(first, following=tuple(later), supplements=chains, places=seqs, findings=findings)


def _supplements(ports: Ports, run_ids: list[RunId]) -> tuple[tuple[int, ...], tuple[tuple[tuple[int, str], ...], ...]]:
    """Each supplement's place and its deliveries, oldest first: what was carried names what it followed."""
    run = ports.store.load_run(run_ids[0])
    assert run is not None
    stored = ports.store.list_inputs(run.session_id, after=0, limit=100)
    sent = {one.input.input_id: one.input.input_seq for one in stored if not _asks(one.input)}
    chains = []
    for input_id in sent:
        after = {one.previous_delivery_id: one for one in ports.store.list_deliveries([input_id])}
        chain, following = [], after.get(None)
        while following is not None:
            target = following.target_run_id
            chain.append((1 + run_ids.index(target) if target else 0, following.state.value))
            following = after.get(following.delivery_id)
        chains.append(tuple(chain))
    return tuple(sent.values()), tuple(chains)


def _asks(found: UserInput) -> bool:
    return found.kind is InputKind.QUESTION


def _see_run(ports: Ports, run_id: RunId, run_no: int, ledger: Ledger, tape: tuple[Hit, ...]) -> Outcome:
    run = ports.store.load_run(run_id)
    assert run is not None
    operations = ports.store.list_operations(run_id)
    lines = ledger.lines()
    answer = None
    if run.answer_operation_id is not None:
        (final,) = (operation for operation in operations if operation.operation_id == run.answer_operation_id)
        answer = load_response(ports, run, final).text
    delivery, delivered_by = _delivery(ports, run_id, run.question_seq)
    transcript, history = _transcript(ports, operations)
    names = {str(operation.operation_id): (operation.loop_no, operation.ordinal) for operation in operations}
    effects = {names[operation_id]: count for operation_id, count in _counted(lines, "tool") if operation_id in names}
    events = ports.store.list_events(run_id)
    return Outcome(
        status=run.status.value,
        code=run.end_code,
        answer=answer,
        cleanup=run.cleanup_state.value,
        loops_used=run.loops_used,
        loops_reserved=run.loops_reserved,
        transcript=transcript,
        history=history,
        operations=_operations(ports, operations),
        delivery=delivery,
        delivered_by=delivered_by,
        effects=tuple(sorted(effects.items())),
        arrivals=tuple(sorted((int(loop_no), count) for loop_no, count in _counted(lines, f"arrival {run_no}"))),
        events=tuple(
            (
                event.run_seq,
                event.kind,
                tuple(sorted((name, value) for name, value in event.fields.items() if name not in _VARIABLE_FIELDS)),
            )
            for event in events
        ),
        rows_left=tuple(f"{row.step} {row.key}" for row in ports.store.list_dispatches()),
        parked=tuple(sorted(words for words, count in _counted(lines, "parked") for _ in range(count))),
        findings=(),
        delays_ms=tuple(
            (str(event.fields["code"]), int(str(event.fields["delay_ms"])))
            for event in events
            if "delay_ms" in event.fields
        ),
        tape=tape,
    )


def _counted(lines: Counter[str], kind: str) -> list[tuple[str, int]]:
    """What stands behind the first word of the ledger's lines of a kind, with its number."""
    return [(line.removeprefix(f"{kind} "), count) for line, count in lines.items() if line.startswith(f"{kind} ")]


def _operations(ports: Ports, operations: list[Operation]) -> tuple[OperationSeen, ...]:
    attempts = ports.store.list_attempts([operation.operation_id for operation in operations])
    return tuple(
        OperationSeen(
            operation.loop_no,
            operation.ordinal,
            operation.kind.value,
            operation.capability,
            operation.status.value,
            operation.code,
            operation.executed.value if operation.executed else None,
            tuple(
                AttemptSeen(attempt.state.value, attempt.code, attempt.late is not None)
                for attempt in sorted(attempts, key=lambda attempt: attempt.attempt_no)
                if attempt.operation_id == operation.operation_id
            ),
        )
        for operation in operations
    )


def _transcript(ports: Ports, operations: list[Operation]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The last frozen request, rebuilt from its recipe, which also proves its hash; what it shows of earlier runs.

    One message stands for one record of the run's own; those that are more are the history, behind the prompt.
    """
    names: dict[str, str] = {}

    def rename(found: re.Match[str]) -> str:
        return names.setdefault(found.group(), f"<id {len(names) + 1}>")

    frozen = [operation for operation in operations if operation.request is not None]
    if not frozen:
        return (), ()
    body = _UUID.sub(rename, rebuild_request(ports, frozen[-1]).decode())
    shown = tuple(_message(message) for message in read_request(body.encode()).messages)
    recipe = frozen[-1].request
    assert recipe is not None
    first = 1 + len(shown) - Recipe.from_bytes(recipe).record_head
    return (*shown[:1], *shown[first:]), shown[1:first]


def _message(message: dict[str, Any]) -> Message:
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True) for name, value in message.items()
    }
    shorten: Callable[[str], str] = lambda text: f"{len(text)} characters {sha256_hex(text.encode())}"  # noqa: E731
    return tuple(sorted((name, text if len(text) <= LONG_CHARS else shorten(text)) for name, text in texts.items()))


def _delivery(ports: Ports, run_id: RunId, question_seq: int) -> tuple[str, int | None]:
    """The state of the question's delivery and the attempt whose first output made it."""
    table = user_input_delivery
    with ports.store.read() as conn:
        query = sa.select(table).join(user_input, user_input.c.input_id == table.c.input_id)
        row = conn.execute(query.where(table.c.target_run_id == run_id, user_input.c.input_seq == question_seq)).one()
    receipt = row.first_output_receipt
    return row.state, int(receipt.rpartition("/")[2]) if receipt else None
