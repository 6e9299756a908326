"""The CommitCoordinator: the only writer of run state, one fenced transaction at a time (RUNTIME 3).

Who calls it says what it wants written; here the key decides about repetition and the database about the
rest. A refusal is believed only after the key was read (RULINGS T6, A24).
"""

import logging

from agentloom_worker import telemetry
from agentloom_worker.domain.commit import CommitReceipt, RuntimeCommit
from agentloom_worker.domain.operation import Attempt
from agentloom_worker.errors import (
    AgentloomError,
    Code,
    InvariantError,
    LeaseLostError,
    RequestError,
    RevisionConflictError,
)
from agentloom_worker.ids import ProcessId
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.storage.commit import command_hash
from agentloom_worker.storage.driver import NotAppliedError, RefusedError

_LIVE_SESSION = ("run_live_session_key", "run.session_id")


def commit(ports: Ports, todo: RuntimeCommit, process_id: ProcessId | None = None) -> CommitReceipt | None:
    """Apply one RuntimeCommit exactly once.

    Raises LeaseLostError (superseded, final), RevisionConflictError (reload and rebuild), RequestError for
    a client's conflict, RefusedError where the database takes no such rows, PersistenceUnavailableError where the
    store gives no outcome.
    """
    began_s = ports.clock.monotonic_s()
    try:
        receipt = ports.store.commit(todo, process_id, ports.settings.claim_ttl_us)
        telemetry.count("commits")
        telemetry.observe("commit", "applied", ports.clock.monotonic_s() - began_s)
        return receipt
    except (NotAppliedError, RefusedError) as refusal:
        found = ports.store.find_commit(todo.scope_id, todo.key)
        if found is None:
            if isinstance(refusal, RefusedError):
                telemetry.count("commits_refused")
                raise
            raise _refusal(todo, refusal) from refusal
        if found[0] != command_hash(todo.parts):
            raise RequestError(
                Code.IDEMPOTENCY_CONFLICT,
                f"key {todo.key!r} was used before for another command: use a new key",
            ) from refusal
        telemetry.count("commits_repeated")
        return _current(ports, todo)


def save_late(ports: Ports, attempt: Attempt, fact: bytes) -> None:
    """`late:<attempt>`: what a voided claim brought back; once, fenced by nothing, advancing nothing (R3)."""
    saved = ports.store.save_late(attempt, fact)
    telemetry.count("late_facts" if saved else "late_facts_repeated")
    telemetry.log(logging.INFO, "late_fact", operation_id=attempt.operation_id, attempt=attempt.attempt_no)


def _refusal(todo: RuntimeCommit, refusal: NotAppliedError) -> AgentloomError:
    if refusal.code is Code.LEASE_LOST:
        telemetry.count("commits_fenced")
        return LeaseLostError(f"{refusal.entity} of commit {todo.parts[0].key!r} is no longer ours to write")
    if refusal.constraint in _LIVE_SESSION and todo.accept is not None and todo.fence is None:
        return RequestError(
            Code.SESSION_BUSY,
            f"session {todo.accept.session_id} has a run that has not ended: wait for it, or stop it",
        )
    telemetry.count("commits_conflicted")
    return RevisionConflictError(refusal.entity or refusal.constraint or "a row")


def _current(ports: Ports, todo: RuntimeCommit) -> CommitReceipt | None:
    """The receipt of a commit that had been applied before: read now, since it was not seen then."""
    run_id = todo.fence.run_id if todo.fence else None
    if run_id is None:
        return None
    run = ports.store.load_run(run_id)
    if run is None:
        raise InvariantError(f"run {run_id} of a committed key is missing")
    return CommitReceipt(run.status, run.event_head, run.input_head, run.epoch, ports.store.now_us())
