"""A packed body is unpacked to the same bytes wherever it was cut, also before a fault."""

import gzip
import zlib
from collections.abc import Callable, Iterable

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloom_worker.http.decoding import is_readable, iter_decoded

PACKINGS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


def unpacked(coding: str, chunks: Iterable[bytes], bytes_max: int = 1000) -> tuple[bytes, bool]:
    """What can be read of these chunks, and whether a fault stood behind it."""
    response = httpx.Response(200, headers={"content-encoding": coding}, content=iter(chunks))
    body = b""
    try:
        for piece in iter_decoded(response, bytes_max):
            body += piece
    except httpx.DecodingError:
        return body, True
    return body, False


@given(
    body=st.binary(max_size=300),
    coding=st.sampled_from(sorted(PACKINGS)),
    cuts=st.lists(st.integers(0, 400), max_size=8),
    spoilt_at=st.none() | st.integers(0, 400),
)
def test_any_split_of_a_packed_body_is_the_same_body(
    body: bytes, coding: str, cuts: list[int], spoilt_at: int | None
) -> None:
    packed = bytearray(PACKINGS[coding](body))
    if spoilt_at is not None:
        packed[spoilt_at % len(packed)] ^= 0x55
    ends = sorted(min(cut, len(packed)) for cut in cuts)
    chunks = [bytes(packed[first:last]) for first, last in zip([0, *ends], [*ends, len(packed)], strict=True)]
    found = unpacked(coding, chunks)
    assert found == unpacked(coding, [bytes(packed)])
    assert spoilt_at is not None or found == (body, False)


def test_what_stands_before_a_fault_is_read() -> None:
    packed = bytearray(gzip.compress(b"all of it"))
    packed[-1] ^= 1  # the size at its very end
    assert unpacked("gzip", [bytes(packed)]) == (b"all of it", True)


@pytest.mark.parametrize(("coding", "readable"), [("", True), ("identity", True), ("GZIP ", True), ("br", False)])
def test_only_known_codings_are_readable(coding: str, readable: bool) -> None:
    assert is_readable({"content-encoding": coding}) is readable
    assert unpacked(coding, [])[1] is not readable
