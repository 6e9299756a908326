"""Appending records against a slow oracle: gapless places, one revision a part, a manifest that hashes it all (R8)."""

from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from agentloom_worker.canonical import canonical_bytes, sha256
from agentloom_worker.clock import ManualClock
from agentloom_worker.context.append import Appended, NewRecord, append_records
from agentloom_worker.context.request import UTF8_ENVELOPE, fragment_tokens
from agentloom_worker.context.view import View
from agentloom_worker.domain.context import (
    EMPTY_MANIFEST,
    ContextRecord,
    EffectiveEntry,
    EffectiveRevision,
    MessageKind,
    RawRef,
    RoleContext,
)
from agentloom_worker.domain.model import Role
from agentloom_worker.ids import ContextId, InvocationId, NodeId, RunId, SystemIds

IDS = SystemIds(ManualClock())
EMPTY = RoleContext(
    ContextId(UUID(int=1)),
    RunId(UUID(int=2)),
    InvocationId(UUID(int=3)),
    NodeId(UUID(int=4)),
    "assistant",
    0,
    0,
    EMPTY_MANIFEST,
    None,
    1,
)


def _record(text: str, **values: object) -> NewRecord:
    body = canonical_bytes(text)
    record = NewRecord(Role.USER, MessageKind.USER_REF, RawRef.INPUT, f"input:{text}", sha256(body), b"<" + body + b">")
    return replace(record, **values)  # type: ignore[arg-type]


PARTS = st.lists(st.lists(st.builds(_record, st.text(max_size=5)), min_size=1, max_size=3), max_size=4)


def _apply(parts: list[list[NewRecord]]) -> tuple[Appended, list[object]]:
    appended, rows = Appended(EMPTY, View(), ()), list[object]()
    for number, part in enumerate(parts):
        appended = append_records(appended.context, appended.view, part, ids=IDS, cause_key=f"part:{number}")
        rows.extend(put.after for put in appended.puts)
        assert all(put.before is None for put in appended.puts)
    return appended, rows


@given(PARTS)
def test_places_are_gapless_and_every_part_is_one_revision(parts: list[list[NewRecord]]) -> None:
    appended, rows = _apply(parts)
    flat = [record for part in parts for record in part]
    records = [row for row in rows if isinstance(row, ContextRecord)]
    entries = [row for row in rows if isinstance(row, EffectiveEntry)]
    revisions = [row for row in rows if isinstance(row, EffectiveRevision)]

    assert [record.context_seq for record in records] == list(range(1, len(flat) + 1))
    assert [entry.context_seq for entry in entries] == list(range(1, len(flat) + 1))
    assert [revision.revision for revision in revisions] == list(range(1, len(parts) + 1))
    assert [entry.revision for entry in entries] == [n for n, part in enumerate(parts, 1) for _ in part]
    assert appended.context.record_head == len(flat)
    assert appended.context.effective_revision == len(parts)
    assert appended.context.revision == 1 + len(parts)
    assert [revision.record_watermark for revision in revisions] == [
        sum(map(len, parts[: number + 1])) for number in range(len(parts))
    ]
    assert [revision.cause_key for revision in revisions] == [f"part:{number}" for number in range(len(parts))]
    assert len({record.record_id for record in records}) == len(flat)


@given(PARTS)
def test_the_manifest_is_the_slow_hash_over_every_entry(parts: list[list[NewRecord]]) -> None:
    appended, rows = _apply(parts)
    expected, seq = EMPTY_MANIFEST, 0
    for part in parts:
        delta = []
        for record in part:
            seq += 1
            delta.append([seq, record.effective_hash.hex(), [], [], []])
        expected = sha256(expected + canonical_bytes(delta))
    assert appended.context.manifest_hash == expected
    revisions = [row for row in rows if isinstance(row, EffectiveRevision)]
    assert not revisions or revisions[-1].manifest_hash == expected


@given(PARTS)
def test_the_view_grows_by_the_fragments_and_the_entries_carry_their_estimate(parts: list[list[NewRecord]]) -> None:
    appended, rows = _apply(parts)
    flat = [record for part in parts for record in part]
    assert appended.view.fragments() == [record.fragment for record in flat]
    entries = [row for row in rows if isinstance(row, EffectiveEntry)]
    assert [entry.tokens for entry in entries] == [fragment_tokens(record.fragment) for record in flat]
    assert {entry.estimator for entry in entries} <= {UTF8_ENVELOPE}


def test_the_same_appends_from_the_same_heads_give_the_same_manifest() -> None:
    """A rebuilt part makes new ids and the same hashes (RULINGS T3, A24)."""
    part = [_record("a"), _record("b")]
    first, second = (append_records(EMPTY, View(), part, ids=IDS, cause_key="k") for _ in range(2))
    assert first.context == second.context
    assert first.view.chain == second.view.chain


def test_what_a_record_counts_as_changes_the_manifest() -> None:
    plain = _record("a")
    seen = {
        append_records(EMPTY, View(), [record], ids=IDS, cause_key="k").context.manifest_hash
        for record in (plain, _record("b"), replace(plain, source_refs=("other",)))
    }
    assert len(seen) == 3
