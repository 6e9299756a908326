"""Contexts: records, their effective entries, the manifest's hash chain, calls and their results."""

from collections.abc import Iterator
from dataclasses import dataclass

from agentloom_worker.audit.facts import RunFacts
from agentloom_worker.audit.fault import Fault
from agentloom_worker.audit.sequence import broken_sequence
from agentloom_worker.canonical import canonical_bytes, parse, sha256
from agentloom_worker.domain.context import (
    EMPTY_MANIFEST,
    EffectiveEntry,
    MessageKind,
    RawRef,
    RoleContext,
    next_manifest_hash,
)
from agentloom_worker.domain.damage import DAMAGED, describe
from agentloom_worker.domain.model import Role
from agentloom_worker.domain.operation import OperationKind, OperationStatus
from agentloom_worker.domain.run import BatchState
from agentloom_worker.ids import ContextId, OperationId
from agentloom_worker.limits import AUDIT_PAGE_ROWS
from agentloom_worker.runtime.slice import load_owned_release
from agentloom_worker.storage.audit_rows import EntryRow, RecordRow
from agentloom_worker.storage.context import ViewRow


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a record of a message kind is made of."""

    role: Role
    raw_ref: RawRef


_KINDS = {
    MessageKind.PROMPT: _Kind(Role.SYSTEM, RawRef.PROMPT),
    MessageKind.USER_REF: _Kind(Role.USER, RawRef.INPUT),
    MessageKind.ASSISTANT: _Kind(Role.ASSISTANT, RawRef.OPERATION),
    MessageKind.TOOL_RESULT: _Kind(Role.TOOL, RawRef.OPERATION),
    MessageKind.FEEDBACK: _Kind(Role.SYSTEM, RawRef.RECORD),
}


def _subject(context: RoleContext) -> str:
    return f"context {context.context_id}"


def check_record_sequence(facts: RunFacts) -> Iterator[Fault]:
    """Records are only ever appended."""
    for context in facts.rows.contexts:
        numbers = [record.context_seq for record in facts.records_of(context.context_id)]
        broken = broken_sequence("context_seq", numbers, context.record_head)
        if broken is not None:
            yield Fault(_subject(context), broken)


def check_sources(facts: RunFacts) -> Iterator[Fault]:
    """A record is of this run, of the role that its kind has, and its body stands where its kind has it."""
    inputs = {row.input_id for row in facts.rows.deliveries}
    for record in facts.rows.records:
        subject = f"record {record.context_id}/{record.context_seq}"
        kind = _KINDS[MessageKind(record.message_kind)]
        if (record.role, record.raw_ref) != (kind.role.value, kind.raw_ref.value):
            yield Fault(subject, f"is {record.message_kind} of role {record.role} and body {record.raw_ref}")
        if record.run_id != facts.run.run_id:
            yield Fault(subject, f"names run {record.run_id}")
        if kind.raw_ref is RawRef.INPUT and record.origin_input_id not in inputs:
            yield Fault(subject, f"shows input {record.origin_input_id}, which this run was not asked to deliver")
        if kind.raw_ref is RawRef.PROMPT and record.release_id != facts.run.release_id:
            yield Fault(subject, f"shows the prompt of release {record.release_id}, not of the run's")
        if kind.raw_ref is RawRef.OPERATION:
            operation = facts.operations.get(record.operation_id) if record.operation_id else None
            model = kind.role is Role.ASSISTANT
            if operation is None or (operation.kind is OperationKind.MODEL) is not model or not operation.has_raw:
                yield Fault(subject, f"shows operation {record.operation_id}, no result of its kind in this run")


def check_revisions(facts: RunFacts) -> Iterator[Fault]:
    """Revisions are gapless, their watermarks never fall, and the last one covers every record."""
    for context in facts.rows.contexts:
        revisions = facts.revisions_of(context.context_id)
        broken = broken_sequence("revision", [row.revision for row in revisions], context.effective_revision)
        if broken is not None:
            yield Fault(_subject(context), broken)
        marks = [row.record_watermark for row in revisions]
        if marks != sorted(marks) or (marks[-1] if marks else 0) != context.record_head:
            yield Fault(_subject(context), f"its watermarks fall, or do not end at record {context.record_head}")


def check_manifest(facts: RunFacts) -> Iterator[Fault]:
    """Each revision's hash follows from the one before and its own entries; the context shows the last."""
    for context in facts.rows.contexts:
        delta: dict[int, list[EffectiveEntry]] = {}
        try:
            for row in facts.entries_of(context.context_id):
                delta.setdefault(row.revision, []).append(_entry(row))
        except DAMAGED as error:
            yield Fault(_subject(context), f"an entry's lists cannot be read: {describe(error)}")
            continue
        parent = EMPTY_MANIFEST
        for revision in facts.revisions_of(context.context_id):
            parent = next_manifest_hash(parent, tuple(delta.get(revision.revision, ())))
            if parent != revision.manifest_hash:
                yield Fault(_subject(context), f"the manifest hash of revision {revision.revision} does not follow")
                break
        else:
            if parent != context.manifest_hash:
                yield Fault(_subject(context), "its manifest hash is not that of its last revision")


def _entry(row: EntryRow) -> EffectiveEntry:
    return EffectiveEntry(
        row.context_id,
        row.context_seq,
        row.revision,
        RawRef(row.raw_ref),
        row.effective_hash,
        row.tokens,
        "",
        source_refs=tuple(parse(row.source_refs)),
        visible_fields=tuple(parse(row.visible_fields)),
        dependency_refs=tuple(parse(row.dependency_refs)),
    )


def check_entries(facts: RunFacts) -> Iterator[Fault]:
    """Every record counts from the revision that first covers it, with an entry of that revision, never before."""
    for context in facts.rows.contexts:
        first: dict[int, EntryRow] = {}
        for entry in facts.entries_of(context.context_id):
            first.setdefault(entry.context_seq, entry)
        covered: dict[int, int] = {}
        low = 0
        for revision in facts.revisions_of(context.context_id):
            covered.update((seq, revision.revision) for seq in range(low + 1, revision.record_watermark + 1))
            low = max(low, revision.record_watermark)
        for record in facts.records_of(context.context_id):
            found = first.pop(record.context_seq, None)
            subject = f"record {record.context_id}/{record.context_seq}"
            if found is None:
                yield Fault(subject, "has no effective entry")
            elif found.revision != covered.get(record.context_seq):
                yield Fault(
                    subject,
                    f"counts from revision {found.revision}, appended by {covered.get(record.context_seq)}",
                )
            elif found.raw_ref != record.raw_ref:
                yield Fault(subject, f"its body is {record.raw_ref}, its entry's {found.raw_ref}")
        for seq in first:
            yield Fault(_subject(context), f"has an entry for record {seq}, which does not exist")


def check_effective_hashes(facts: RunFacts) -> Iterator[Fault]:
    """What a record counts as is its own body, or that of its prompt, input or operation, byte for byte."""
    for context in facts.rows.contexts:
        after = 0
        while True:
            page = facts.ports.store.load_view_rows(
                context.context_id, after_seq=after, revision=context.effective_revision, limit=AUDIT_PAGE_ROWS
            )
            for row in page:
                broken = _broken_body(facts, row)
                if broken is not None:
                    yield Fault(f"record {context.context_id}/{row.context_seq}", broken)
            if len(page) < AUDIT_PAGE_ROWS:
                break
            after = page[-1].context_seq


def _broken_body(facts: RunFacts, row: ViewRow) -> str | None:
    try:
        if row.message_kind is MessageKind.PROMPT:
            body = canonical_bytes(load_owned_release(facts.ports, facts.run.release_id).release.prompt)
        else:
            body = facts.ports.store.load_payload(facts.run.owner_id, row.source)
    except DAMAGED as error:
        return f"its body cannot be read: {describe(error)}"
    found = sha256(body)
    if found == row.effective_hash:
        return None
    return f"its body hashes to {found.hex()[:16]}…, its entry says {row.effective_hash.hex()[:16]}…"


def check_feedback(facts: RunFacts) -> Iterator[Fault]:
    """A rejected answer is followed by what is wrong with it; that follows nothing else, and never the run's answer."""
    with_calls = {batch.model_operation_id for batch in facts.rows.batches}
    for context in facts.rows.contexts:
        answered: OperationId | None = None  # by the record before
        for record in facts.records_of(context.context_id):
            subject = f"record {context.context_id}/{record.context_seq}"
            feedback = record.message_kind == MessageKind.FEEDBACK.value
            if feedback and (answered is None or record.operation_id != answered or not _rejected(facts, answered)):
                yield Fault(subject, f"corrects operation {record.operation_id}, no rejected answer right before it")
            if not feedback and answered is not None:
                yield Fault(subject, f"follows operation {answered}, an answer, without a correction")
            answer = record.message_kind == MessageKind.ASSISTANT.value and record.operation_id not in with_calls
            answered = record.operation_id if answer else None


def _rejected(facts: RunFacts, operation_id: OperationId) -> bool:
    """A completed operation whose answer is not the run's."""
    operation = facts.operations.get(operation_id)
    completed = operation is not None and operation.status is OperationStatus.COMPLETED
    return completed and operation_id != facts.run.answer_operation_id


def check_results(facts: RunFacts) -> Iterator[Fault]:
    """After its batch was delivered every call has one result, by ordinal, right after its message; before, none."""
    results: dict[ContextId, dict[int, RecordRow]] = {}
    for record in facts.rows.records:
        if record.message_kind == MessageKind.TOOL_RESULT.value:
            results.setdefault(record.context_id, {})[record.context_seq] = record
    messages = {
        record.operation_id: record
        for record in facts.rows.records
        if record.operation_id is not None and record.message_kind != MessageKind.FEEDBACK.value
    }
    for batch in facts.rows.batches:
        subject = f"batch {batch.batch_id}"
        message = messages.get(batch.model_operation_id)
        if message is None:
            yield Fault(subject, f"its message, operation {batch.model_operation_id}, is not in the context")
            continue
        members = facts.members_of(batch.batch_id)
        if batch.state is BatchState.OPEN:
            shown = sum(1 for member in members if member.operation_id in messages)
            if shown:
                yield Fault(subject, f"is open and {shown} of its results are shown")
            continue
        for offset, member in enumerate(members, 1):
            found = results.get(message.context_id, {}).pop(message.context_seq + offset, None)
            if found is None or (found.operation_id, found.call_id) != (member.operation_id, member.call_id):
                yield Fault(subject, f"the result of call {member.ordinal} does not stand in its place")
    for context_id, left in results.items():
        for seq in left:
            yield Fault(f"record {context_id}/{seq}", "is the result of no delivered call")


def check_calls(facts: RunFacts) -> Iterator[Fault]:
    """Each call that the model made, valid or not, is a member of the batch of its message, and nothing else is."""
    batches = {batch.model_operation_id: batch for batch in facts.rows.batches}
    for context, history in facts.histories:
        for record, message in zip(facts.records_of(context.context_id), history.own, strict=False):
            if record.message_kind != MessageKind.ASSISTANT.value or record.operation_id is None:
                continue
            batch = batches.get(record.operation_id)
            size = batch.size if batch is not None else 0
            if len(message.call_ids) != size:
                yield Fault(
                    f"operation {record.operation_id}", f"made {len(message.call_ids)} call(s), its batch holds {size}"
                )


def check_tokens(facts: RunFacts) -> Iterator[Fault]:
    """The estimate on an entry is that of the bytes which go to the model."""
    for context, history in facts.histories:
        newest = {entry.context_seq: entry for entry in facts.entries_of(context.context_id)}
        for seq, message in enumerate(history.own, 1):
            entry = newest.get(seq)
            if entry is not None and entry.tokens != message.tokens:
                yield Fault(
                    f"record {context.context_id}/{seq}",
                    f"is estimated at {entry.tokens} tokens, its fragment at {message.tokens}",
                )
