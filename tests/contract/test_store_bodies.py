"""Bodies: nothing in them is lost, a large one is stored once, and only its owner reads it."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.cleanup.blobs import collect_blobs
from agentloom_worker.domain.blob import blob_id_of
from agentloom_worker.domain.commit import BlobPut, Put
from agentloom_worker.domain.operation import AttemptState, OperationStatus, Payload
from agentloom_worker.domain.run import Phase
from agentloom_worker.ids import OwnerId
from agentloom_worker.limits import BLOB_GRACE_S, BLOB_IN_COMMIT_BYTES, INLINE_BODY_BYTES
from agentloom_worker.runtime.commit import commit
from agentloom_worker.runtime.payload import make_payload
from agentloom_worker.storage import blob
from agentloom_worker.storage.tables import metadata
from tests.ground import Ground, ask, open_session, stand, step_commit

ODD_TEXTS = {
    "nul": "before\x00after",
    "lone surrogate": "a\ud800b\udfff",
    "line separators": "a\u2028b\u2029c\u0085d\x0be",
    "special token": "<|endoftext|>",
    "joined emoji": "👩‍👩‍👧‍👦 ﷽",
}


def _owner(ground: Ground) -> OwnerId:
    return ground.slice().run.owner_id


def _blobs(ground: Ground) -> int:
    with ground.store.read() as conn:
        return int(conn.execute(sa.select(sa.func.count()).select_from(metadata.tables["blob"])).scalar_one())


@pytest.mark.parametrize("name", ODD_TEXTS)
@pytest.mark.parametrize("size", [1, INLINE_BODY_BYTES])
def test_every_character_of_an_input_survives(database_url: str, name: str, size: int) -> None:
    text = ODD_TEXTS[name] * size
    ground = stand(database_url, text=text)

    assert ground.slice().inputs[0].body == canonical_bytes(text)
    assert ask(ground.worker, ground.session_id, text) == ground.receipt


@pytest.mark.parametrize("name", ODD_TEXTS)
def test_odd_characters_in_what_is_said_of_a_failure_do_not_refuse_its_commit(database_url: str, name: str) -> None:
    ground = stand(database_url, until=Phase.AWAIT_MODEL)
    slice_ = ground.slice()
    assert slice_.attempt is not None
    ended = replace(slice_.attempt, state=AttemptState.FAILED, code="TOOL_FAILED", detail=f"it said {ODD_TEXTS[name]}")
    commit(ground.ports, step_commit(ground, ground.claim("attempt_model"), puts=(Put(slice_.attempt, ended),)))

    (stored,) = ground.store.list_attempts([slice_.attempt.operation_id])
    assert stored.state is AttemptState.FAILED
    assert stored.detail is not None
    assert stored.detail.startswith("it said ")


def test_a_body_of_ten_megabytes_survives_in_an_operation(database_url: str) -> None:
    ground = stand(database_url, until=Phase.AWAIT_MODEL)
    body = canonical_bytes("\u2028long line" * 1_000_000)
    payload, blobs = make_payload(ground.ports, _owner(ground), body)
    slice_ = ground.slice()
    assert slice_.operation is not None
    done = replace(
        slice_.operation, status=OperationStatus.COMPLETED, raw=payload, revision=slice_.operation.revision + 1
    )
    todo = step_commit(ground, ground.claim("attempt_model"), puts=(Put(slice_.operation, done),), blobs=blobs)
    commit(ground.ports, todo)

    stored = ground.store.load_operation(done.operation_id)
    assert stored is not None
    assert stored.raw == Payload(blob_id=blob_id_of(_owner(ground), body))
    assert ground.store.load_payload(_owner(ground), stored.raw) == body


def test_T14_small_bodies_are_inline_larger_ones_go_with_their_commit_and_huge_ones_before_it(
    database_url: str,
) -> None:
    ground = stand(database_url)
    owner_id = _owner(ground)
    small, large, huge = (b"x" * size for size in (INLINE_BODY_BYTES, BLOB_IN_COMMIT_BYTES, BLOB_IN_COMMIT_BYTES + 1))

    assert make_payload(ground.ports, owner_id, small) == (Payload(inline=small), ())
    payload, puts = make_payload(ground.ports, owner_id, large)
    assert (payload.blob_id, len(puts), _blobs(ground)) == (blob_id_of(owner_id, large), 1, 0)
    payload, puts = make_payload(ground.ports, owner_id, huge)
    assert (payload.blob_id, len(puts), _blobs(ground)) == (blob_id_of(owner_id, huge), 0, 1)


def test_the_same_body_of_one_owner_is_stored_once(database_url: str) -> None:
    ground = stand(database_url)
    body = b"the same" * 1000
    put = BlobPut(blob_id_of(_owner(ground), body), _owner(ground), body)
    ground.store.put_blob(put)
    commit(ground.ports, step_commit(ground, None, blobs=(put, put)))

    assert _blobs(ground) == 1
    assert ground.store.load_payload(put.owner_id, Payload(blob_id=put.blob_id)) == body


def test_a_blob_is_read_by_its_owner_only(database_url: str) -> None:
    ground = stand(database_url)
    body = b"private" * 1000
    put = BlobPut(blob_id_of(_owner(ground), body), _owner(ground), body)
    ground.store.put_blob(put)
    with ground.store.read() as conn:
        assert blob.read(conn, put.owner_id, put.blob_id) == body
        assert blob.read(conn, ground.new(), put.blob_id) is None
        assert blob.read(conn, put.owner_id, ground.new()) is None


def test_T14_collection_takes_unreferenced_blobs_after_the_grace_time_and_no_others(database_url: str) -> None:
    text = "a question of its own " * 1000
    ground = stand(database_url, text=text)
    body = b"left over" * 1000
    put = BlobPut(blob_id_of(_owner(ground), body), _owner(ground), body)
    ground.store.put_blob(put)
    assert _blobs(ground) == 2

    ground.clock.advance(BLOB_GRACE_S - 1)
    assert collect_blobs(ground.ports) == 0
    # To put it again is to touch it: its commit may still be on the way.
    ground.store.put_blob(put)
    ground.clock.advance(BLOB_GRACE_S - 1)
    assert collect_blobs(ground.ports) == 0
    ground.clock.advance(2)
    assert collect_blobs(ground.ports) == 1
    ground.clock.advance(BLOB_GRACE_S * 1000)
    assert collect_blobs(ground.ports) == 0
    assert ground.slice().inputs[0].body == canonical_bytes(text)


def test_collection_is_bounded(database_url: str) -> None:
    ground = stand(database_url)
    for number in range(5):
        body = b"left over" * 1000 + bytes([number])
        ground.store.put_blob(BlobPut(blob_id_of(_owner(ground), body), _owner(ground), body))
    ground.clock.advance(BLOB_GRACE_S + 1)
    found = [collect_blobs(ground.ports, page=1, pages_max=3) for _ in range(4)]
    assert sum(found) == 5
    assert max(found) <= 3
    assert _blobs(ground) == 0


def test_collection_goes_round_from_wherever_it_begins(database_url: str) -> None:
    ground = stand(database_url)
    for number in range(6):
        body = b"left over" * 1000 + bytes([number])
        ground.store.put_blob(BlobPut(blob_id_of(_owner(ground), body), _owner(ground), body))
    ground.clock.advance(BLOB_GRACE_S + 1)
    assert collect_blobs(ground.ports, page=2) == 6


def test_two_sessions_of_one_agent_share_a_body_and_two_agents_do_not(database_url: str) -> None:
    text = "the same long question " * 1000
    ground = stand(database_url, text=text)
    ask(ground.worker, open_session(ground.worker), text)
    assert _blobs(ground) == 1
    other = stand(database_url, text=text, agent={"id": "another"})
    assert _owner(other) != _owner(ground)
    assert _blobs(ground) == 2
