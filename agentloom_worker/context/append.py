"""Appending records: one keyed part makes one effective revision (RULINGS R8). Pure; the caller commits."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentloom_worker.context.request import UTF8_ENVELOPE, fragment_tokens
from agentloom_worker.context.view import View
from agentloom_worker.domain.commit import Put
from agentloom_worker.domain.context import (
    ContextRecord,
    EffectiveEntry,
    EffectiveRevision,
    MessageKind,
    RawRef,
    RoleContext,
    next_manifest_hash,
)
from agentloom_worker.domain.model import Role
from agentloom_worker.domain.operation import Payload
from agentloom_worker.frozen import quick_init, replace
from agentloom_worker.ids import CallId, Ids, InputId, OperationId, RecordId, ReleaseId


@quick_init
@dataclass(frozen=True, slots=True)
class NewRecord:
    """One message to append: where its raw body stands, the hash of what it counts as, its wire fragment."""

    role: Role
    message_kind: MessageKind
    raw_ref: RawRef
    logical_result_key: str
    effective_hash: bytes
    fragment: bytes
    effective_ref: str | None = None
    operation_id: OperationId | None = None
    call_id: CallId | None = None
    origin_input_id: InputId | None = None
    release_id: ReleaseId | None = None
    prompt_slot: str | None = None
    source_refs: tuple[str, ...] = ()
    body: Payload | None = None  # of a fact that was made nowhere else (RawRef.RECORD)


@quick_init
@dataclass(frozen=True, slots=True)
class Appended:
    """The moved heads, the grown view and the rows to insert."""

    context: RoleContext
    view: View
    puts: tuple[Put, ...]


def append_records(
    context: RoleContext,
    view: View,
    records: Sequence[NewRecord],
    *,
    ids: Ids,
    cause_key: str,
    wire_ids: tuple[str, ...] | None = None,
    protected: bool = False,
) -> Appended:
    """Give the records the next context_seqs and one new revision. The context's own put is the caller's."""
    revision = context.effective_revision + 1
    puts: list[Put] = []
    entries: list[EffectiveEntry] = []
    for seq, new in enumerate(records, context.record_head + 1):
        puts.append(
            Put(
                None,
                ContextRecord(
                    context.context_id,
                    seq,
                    RecordId(ids.new()),
                    context.run_id,
                    new.role,
                    new.message_kind,
                    new.raw_ref,
                    new.logical_result_key,
                    new.operation_id,
                    new.call_id,
                    new.origin_input_id,
                    new.release_id,
                    new.prompt_slot,
                    new.body,
                ),
            )
        )
        entries.append(
            EffectiveEntry(
                context.context_id,
                seq,
                revision,
                new.raw_ref,
                new.effective_hash,
                fragment_tokens(new.fragment),
                UTF8_ENVELOPE,
                new.effective_ref,
                None,
                new.source_refs,
            )
        )
    head = context.record_head + len(records)
    manifest = next_manifest_hash(context.manifest_hash, tuple(entries))
    puts.extend(Put(None, entry) for entry in entries)
    puts.append(Put(None, EffectiveRevision(context.context_id, revision, head, manifest, cause_key)))
    moved = replace(
        context,
        record_head=head,
        effective_revision=revision,
        manifest_hash=manifest,
        revision=context.revision + 1,
    )
    grown = view.extend([new.fragment for new in records], wire_ids, protected=protected)
    return Appended(moved, grown, tuple(puts))
