"""Operations, their attempts, and the batches of which they are members."""

from collections.abc import Iterator

from agentloom_worker.audit.facts import RunFacts
from agentloom_worker.audit.fault import Fault
from agentloom_worker.audit.sequence import broken_sequence, first_break
from agentloom_worker.domain.model import Executed
from agentloom_worker.domain.operation import AttemptState, OperationKind, OperationStatus, call_id_of
from agentloom_worker.domain.run import BatchState
from agentloom_worker.storage.audit_rows import OperationRow

_HASH_BYTES = 32


def _subject(row: OperationRow) -> str:
    return f"operation {row.operation_id}"


def check_outcome(facts: RunFacts) -> Iterator[Fault]:
    """A settled operation says how it ended, an open one has no result."""
    for row in facts.rows.operations:
        if not row.status.settled:
            if row.has_raw:
                yield Fault(_subject(row), f"is {row.status} and has a result")
        elif row.status is OperationStatus.COMPLETED:
            if not row.has_raw or row.code is not None:
                yield Fault(_subject(row), f"is completed with result {row.has_raw} and code {row.code}")
        elif row.code is None:
            yield Fault(_subject(row), f"is {row.status} without a code")


def check_executed(facts: RunFacts) -> Iterator[Fault]:
    """What may have happened outside is never called certain: the operation knows what its attempts know."""
    for row in facts.rows.operations:
        if row.status is OperationStatus.COMPLETED and row.executed is not Executed.EXECUTED:
            yield Fault(_subject(row), f"is completed and says executed {row.executed}")
        if row.status is OperationStatus.UNKNOWN and row.executed is not Executed.UNKNOWN:
            yield Fault(_subject(row), f"is unknown and says executed {row.executed}")
        states = {attempt.state for attempt in facts.attempts_of(row.operation_id)}
        settled_badly = row.status.settled and row.status is not OperationStatus.COMPLETED
        certain = row.executed is None or row.executed is Executed.NOT_EXECUTED
        if settled_badly and AttemptState.UNKNOWN in states and certain:
            yield Fault(_subject(row), f"has an attempt of unknown outcome and says executed {row.executed}")


def check_attempts(facts: RunFacts) -> Iterator[Fault]:
    """Attempts are numbered from 1 as they are made; what we answer ourselves has none (A23)."""
    for row in facts.rows.operations:
        numbers = [attempt.attempt_no for attempt in facts.attempts_of(row.operation_id)]
        broken = broken_sequence("attempt", numbers, row.attempts_made)
        if broken is not None:
            yield Fault(_subject(row), broken)
        if row.kind is OperationKind.INTERNAL and numbers:
            yield Fault(_subject(row), f"is internal and has {len(numbers)} attempt(s)")


def check_intents(facts: RunFacts) -> Iterator[Fault]:
    """At most the newest attempt is open, and only while its operation is and its run lives."""
    for row in facts.rows.operations:
        attempts = facts.attempts_of(row.operation_id)
        intents = [attempt for attempt in attempts if attempt.state is AttemptState.INTENT]
        if len(intents) > 1 or (intents and intents[0] is not attempts[-1]):
            yield Fault(_subject(row), f"has {len(intents)} open intent(s), not only the newest attempt")
        if intents and row.status is not OperationStatus.ATTEMPTING:
            yield Fault(_subject(row), f"is {row.status} and has an open intent")
        if intents and facts.run.status.terminal:
            yield Fault(_subject(row), f"has an open intent and its run is {facts.run.status}")


def check_attempt_ends(facts: RunFacts) -> Iterator[Fault]:
    """An ended attempt has the time of its end and, unless it is complete, a code or a reason for the run's end."""
    for row in facts.rows.attempts:
        subject = f"attempt {row.operation_id}/{row.attempt_no}"
        if (row.ended_at is None) is not (row.state is AttemptState.INTENT):
            yield Fault(subject, f"is {row.state} with the time of an end {row.ended_at is not None}")
        if row.state in (AttemptState.FAILED, AttemptState.UNKNOWN) and row.code is None:
            yield Fault(subject, f"is {row.state} without a code")


def check_epochs(facts: RunFacts) -> Iterator[Fault]:
    """An attempt bears the epoch that its run had when it was made."""
    for row in facts.rows.attempts:
        if not 1 <= row.epoch <= facts.run.epoch:
            yield Fault(
                f"attempt {row.operation_id}/{row.attempt_no}", f"has epoch {row.epoch}, its run {facts.run.epoch}"
            )


def check_frozen(facts: RunFacts) -> Iterator[Fault]:
    """A recipe and its hash stand together, on every model operation that was ever attempted, on no other."""
    for row in facts.rows.operations:
        if (row.request is None) is not (row.request_hash is None):
            yield Fault(_subject(row), "has only one of recipe and request hash")
        if row.request_hash is not None and len(row.request_hash) != _HASH_BYTES:
            yield Fault(_subject(row), f"has a request hash of {len(row.request_hash)} bytes")
        attempted = row.kind is OperationKind.MODEL and row.attempts_made > 0
        if attempted is not (row.request is not None):
            yield Fault(_subject(row), f"made {row.attempts_made} attempt(s) with a recipe: {row.request is not None}")


def check_members(facts: RunFacts) -> Iterator[Fault]:
    """A batch has its size in members, by ordinal, and each call bears the identity that its place gives it."""
    for batch in facts.rows.batches:
        subject = f"batch {batch.batch_id}"
        members = facts.members_of(batch.batch_id)
        ordinals = [-1 if member.ordinal is None else member.ordinal for member in members]
        if first_break(ordinals, start=0) is not None or len(members) != batch.size:
            yield Fault(subject, f"has {len(members)} members for a size of {batch.size}, or a gap in their ordinals")
        for member in members:
            if member.model_operation_id != batch.model_operation_id or member.node_id != batch.node_id:
                yield Fault(_subject(member), f"is a member of {subject} and names another model operation or node")
    for row in facts.rows.operations:
        parts = (row.batch_id, row.ordinal, row.call_id, row.model_operation_id)
        if row.kind is OperationKind.MODEL:
            if any(part is not None for part in parts):
                yield Fault(_subject(row), "is a model operation and claims to be a call")
        elif row.model_operation_id is None or row.ordinal is None or row.batch_id not in facts.batches:
            yield Fault(_subject(row), "is a call outside of any batch of its run")
        elif row.call_id != call_id_of(row.model_operation_id, row.ordinal):
            yield Fault(_subject(row), f"bears call id {row.call_id}, not that of its place")


def check_settled(facts: RunFacts) -> Iterator[Fault]:
    """The batch's counter is the number of members that have a result, and delivery comes after the last (A8).

    A member that the end of its run closed has no result and was not counted.
    """
    for batch in facts.rows.batches:
        subject = f"batch {batch.batch_id}"
        members = facts.members_of(batch.batch_id)
        results = sum(1 for member in members if member.has_raw and member.status.settled)
        if batch.settled != results:
            yield Fault(subject, f"counts {batch.settled} settled members, {results} have a result")
        if batch.state is BatchState.DELIVERED and batch.settled != batch.size:
            yield Fault(subject, f"is delivered with {batch.settled} of {batch.size} members settled")
        closed = sum(1 for member in members if member.status.settled) - results
        if closed and not facts.run.status.terminal:
            yield Fault(subject, f"has {closed} settled member(s) without a result in a run that is not over")
