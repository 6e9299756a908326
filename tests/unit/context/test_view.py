"""A view extended step by step is the view built at once; branches share what they can and disturb nothing (U1)."""

import hashlib
import threading

from hypothesis import given
from hypothesis import strategies as st

from agentloom_worker.context.view import EMPTY_CHAIN, View

FRAGMENTS = st.lists(st.binary(max_size=8), max_size=6)


def _slow_chain(fragments: list[bytes]) -> bytes:
    """The definition, from the first fragment on."""
    chain = hashlib.sha256(b"").digest()
    for fragment in fragments:
        chain = hashlib.sha256(chain + hashlib.sha256(fragment).digest()).digest()
    return chain


def _says(view: View, fragments: list[bytes]) -> None:
    assert view.fragments() == fragments
    assert (view.length, view.size_bytes) == (len(fragments), sum(map(len, fragments)))
    assert view.chain == _slow_chain(fragments)
    assert view.last() == (fragments[-1] if fragments else b"")


@given(st.lists(FRAGMENTS, max_size=5))
def test_extending_in_any_pieces_is_building_at_once(pieces: list[list[bytes]]) -> None:
    view = View()
    for piece in pieces:
        view = view.extend(piece)
    whole = [fragment for piece in pieces for fragment in piece]
    _says(view, whole)
    _says(View().extend(whole), whole)


@given(FRAGMENTS, st.lists(FRAGMENTS, min_size=1, max_size=4))
def test_branches_of_one_view_leave_it_and_each_other_alone(base: list[bytes], branches: list[list[bytes]]) -> None:
    root = View().extend(base)
    grown = [root.extend(branch) for branch in branches]
    deeper = [view.extend([b"more"]) for view in grown]
    _says(root, base)
    for view, deep, branch in zip(grown, deeper, branches, strict=True):
        _says(view, base + branch)
        _says(deep, [*base, *branch, b"more"])


@given(st.lists(st.tuples(FRAGMENTS, st.booleans()), max_size=5))
def test_protected_fragments_are_counted_apart(pieces: list[tuple[list[bytes], bool]]) -> None:
    view = View()
    for piece, protected in pieces:
        view = view.extend(piece, protected=protected)
    held = [fragment for piece, protected in pieces if protected for fragment in piece]
    assert (view.protected_length, view.protected_bytes) == (len(held), sum(map(len, held)))


def test_wire_ids_stay_until_the_next_message_with_calls() -> None:
    view = View().extend([b"call"], ("a", "b"))
    assert view.extend([b"result"]).wire_ids == ("a", "b")
    assert view.extend([b"answer"], ()).wire_ids == ()


def test_two_orders_of_the_same_fragments_hash_differently() -> None:
    assert View().extend([b"a", b"b"]).chain != View().extend([b"b", b"a"]).chain
    assert View().extend([b"ab"]).chain != View().extend([b"a", b"b"]).chain
    assert View().chain == EMPTY_CHAIN


def test_one_view_extended_by_many_threads_at_once_gives_each_its_own() -> None:
    root = View().extend([b"root"])
    begin = threading.Barrier(8)
    grown: dict[int, View] = {}

    def grow(number: int) -> None:
        begin.wait(timeout=10)
        view = root
        for turn in range(50):
            view = view.extend([f"{number}/{turn}".encode()])
        grown[number] = view

    threads = [threading.Thread(target=grow, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    for number in range(8):
        _says(grown[number], [b"root", *(f"{number}/{turn}".encode() for turn in range(50))])
    _says(root, [b"root"])


@given(FRAGMENTS, FRAGMENTS.filter(bool))
def test_the_history_is_counted_apart_and_own_records_are_found_behind_it(past: list[bytes], own: list[bytes]) -> None:
    view = View().extend([own[0]], protected=True).extend(past, history=True).extend(own[1:])
    assert (view.history_length, view.history_bytes) == (len(past), sum(map(len, past)))
    assert [view.record(seq) for seq in range(1, len(own) + 1)] == own
    assert view.record(len(own) + 1) == b""
