"""A packed body is unpacked to the same bytes wherever it was cut, also before a fault."""

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentloom_worker import limits
from agentloom_worker.http.decoding import is_readable, iter_decoded

PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "x-gzip": lambda body: b"".join(map(gzip.compress, (body[:7], b"", body[7:50], body[50:]))),
}
CUT = "broken off"
WRONG = "wrong"


def unpacked(coding: str, chunks: Iterable[bytes], bytes_max: int = 1000) -> tuple[bytes, str]:
    """What can be read of these chunks, and what stood behind it: nothing, a fault or less than there should be."""
    response = httpx.Response(200, headers={"content-encoding": coding}, content=iter(chunks))
    body = b""
    try:
        for piece in iter_decoded(response, bytes_max):
            assert len(piece) <= limits.UNPACKED_PIECE_BYTES
            body += piece
    except httpx.DecodingError:
        return body, WRONG
    except httpx.RemoteProtocolError:
        return body, CUT
    return body, ""


def pieces_of(packed: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted(min(cut, len(packed)) for cut in cuts)
    return [packed[first:last] for first, last in zip([0, *ends], [*ends, len(packed)], strict=True)]


@given(
    body=st.binary(max_size=300) | st.binary(min_size=1, max_size=3).map(lambda one: one * 200),
    coding=st.sampled_from(sorted(PACKINGS)),
    cuts=st.lists(st.integers(0, 400), max_size=8),
    spoilt_at=st.none() | st.integers(0, 400),
    bytes_max=st.sampled_from([1000, 599, 250, 3]),
    piece_max=st.sampled_from([1, 5, 65_536]),
)
@example(b"\0\0\0\0\x91\\\0\0\x01\0\0\x02", "deflate", [], 66, 1000, 1)
@example(b"\0\0\0" * 200, "deflate", [10], 3, 599, 1)
def test_any_split_of_a_packed_body_is_the_same_body(
    body: bytes, coding: str, cuts: list[int], spoilt_at: int | None, bytes_max: int, piece_max: int
) -> None:
    packed = bytearray(PACKINGS[coding](body))
    if spoilt_at is not None:
        packed[spoilt_at % len(packed)] ^= 0x55
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "UNPACKED_PIECE_BYTES", piece_max)
        found = unpacked(coding, pieces_of(bytes(packed), cuts), bytes_max)
    assert found == unpacked(coding, [bytes(packed)], bytes_max)
    assert spoilt_at is not None or found == (body[: bytes_max + 1], "")


@pytest.mark.parametrize("coding", sorted(PACKINGS))
def test_a_packed_body_that_ends_early_is_broken_off_and_never_wrong(coding: str) -> None:
    body = b"said and done. " * 20
    packed = PACKINGS[coding](body)
    whole = {len(packed), 0}
    if coding == "x-gzip":  # between its members nothing tells that more was to come
        whole |= {len(gzip.compress(body[:7])), len(gzip.compress(body[:7]) + gzip.compress(b""))}
        whole.add(len(b"".join(map(gzip.compress, (body[:7], b"", body[7:50])))))
    for end in range(len(packed) + 1):
        for chunks in ([packed[:end]], [packed[at : at + 1] for at in range(end)]):
            found, how = unpacked(coding, chunks)
            assert body.startswith(found)
            assert how == ("" if end in whole else CUT)
    assert unpacked(coding, [packed]) == (body, "")


def test_what_stands_before_a_fault_is_read() -> None:
    packed = bytearray(gzip.compress(b"all of it"))
    packed[-1] ^= 1  # the size at its very end
    assert unpacked("gzip", [bytes(packed)]) == (b"all of it", WRONG)


@pytest.mark.parametrize("behind", [b"x", b"\0", b"\x1f\x8c", b"\x1f\x8b\x07" + bytes(10), zlib.compress(b"x")])
def test_what_is_no_member_behind_a_member_is_a_fault_behind_all_that_was_said(behind: bytes) -> None:
    packed = gzip.compress(b"all of it") + behind
    for cut in range(len(packed) + 1):
        assert unpacked("gzip", [packed[:cut], packed[cut:]]) == (b"all of it", WRONG)
    assert unpacked("deflate", [zlib.compress(b"one"), gzip.compress(b"two")]) == (b"one", WRONG)


def test_bytes_that_were_never_packed_are_a_fault() -> None:
    assert unpacked("gzip", [b"n", b"ot packed"]) == (b"", WRONG)


def test_no_more_is_taken_than_a_reader_asks_for_however_much_comes_out() -> None:
    """A bomb of two layers of repetition: nine megabytes come out of each nine thousand bytes."""
    bomb = gzip.compress(bytes(9_000_000))
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += len(bomb)
            yield bomb

    bytes_max = limits.ERROR_BODY_BYTES_MAX
    assert unpacked("gzip", endless(), bytes_max) == (bytes(bytes_max + 1), "")
    assert taken == len(bomb)
    assert unpacked("gzip", [gzip.compress(bytes(700))] * 2, 1000) == (bytes(1001), "")


@pytest.mark.parametrize(
    ("part", "parts_max"),
    [
        (gzip.compress(b"", mtime=0), limits.PACKED_EMPTY_MEMBERS_MAX + 2),
        # An empty block that is not the last one of its member.
        (b"\0\0\0\xff\xff", 1 + (2 * 1000 + limits.PACKED_BYTES_SPARE) // 5),
    ],
)
def test_an_endless_body_of_nothing_is_left(part: bytes, parts_max: int) -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        yield gzip.compress(b"said")[:10] if part[:1] == b"\0" else b""
        while True:
            taken += 1
            yield part

    assert unpacked("gzip", endless()) == (b"", WRONG)
    assert taken <= parts_max


@pytest.mark.parametrize(
    ("coding", "readable"), [("", True), ("identity", True), ("none", True), ("GZIP ", True), ("br", False)]
)
def test_only_known_codings_are_readable(coding: str, readable: bool) -> None:
    assert is_readable({"content-encoding": coding}) is readable
    assert unpacked(coding, []) == (b"", "" if readable else WRONG)


@pytest.mark.parametrize("coding", ["", "identity", "None"])
def test_a_body_that_was_not_packed_is_given_as_it_came(coding: str) -> None:
    assert unpacked(coding, [b"da", b"ta"]) == (b"data", "")
