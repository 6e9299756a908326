"""The body of an answer, decoded no further than its reader takes it."""

import zlib
from collections.abc import Iterator, Mapping

import httpx

_AUTOMATIC = 47  # zlib's window bits for a header of either gzip or zlib
_PLAIN = frozenset({"", "identity"})
_PACKED = frozenset({"gzip", "x-gzip", "deflate"})


def is_readable(headers: Mapping[str, str]) -> bool:
    """Whether a body with these headers has a coding that `iter_decoded` knows."""
    return _coding_of(headers) in _PLAIN | _PACKED


def iter_decoded(response: httpx.Response, bytes_max: int) -> Iterator[bytes]:
    """The body in pieces, `bytes_max` and one byte at most: whoever has more than `bytes_max` has too much.

    httpx decodes each piece whole, and codings of codings: a thousand bytes become a gigabyte before anybody can
    count them. Here one packing is undone at most, and only as far as is read. Raises httpx.DecodingError for any
    other coding and for a body that is not what it says, behind all of it that can be unpacked, and what reading
    raises.
    """
    coding = _coding_of(response.headers)
    if coding in _PLAIN:
        yield from _whole(response, bytes_max)
    elif coding in _PACKED:
        yield from _unpacked(response, bytes_max)
    else:
        raise httpx.DecodingError("the body has a coding that was not asked for")


def _coding_of(headers: Mapping[str, str]) -> str:
    return headers.get("content-encoding", "").strip().lower()


def _whole(response: httpx.Response, bytes_max: int) -> Iterator[bytes]:
    left = bytes_max + 1
    for chunk in response.iter_raw():
        yield chunk[:left]
        left -= len(chunk)
        if left <= 0:
            return


def _unpacked(response: httpx.Response, bytes_max: int) -> Iterator[bytes]:
    unpacking = zlib.decompressobj(_AUTOMATIC)
    left, began = bytes_max + 1, False
    for chunk in response.iter_raw():
        began = True
        before = unpacking.copy()
        try:
            piece = unpacking.decompress(chunk, left)
        except zlib.error:
            yield _as_far_as_it_goes(before, chunk, left)
            raise httpx.DecodingError("the body is not packed as it says") from None
        yield piece
        left -= len(piece)
        if left == 0:
            return
        if unpacking.unused_data:
            raise httpx.DecodingError("something follows the packed body")
    if began and not unpacking.eof:
        raise httpx.DecodingError("the packed body breaks off")


def _as_far_as_it_goes(unpacking: "zlib._Decompress", chunk: bytes, bytes_max: int) -> bytes:
    """What stands before the fault of a chunk: the same wherever the chunk begins."""
    pieces: list[bytes] = []
    for at in range(len(chunk)):
        try:
            pieces.append(unpacking.decompress(chunk[at : at + 1]))
        except zlib.error:
            break
    return b"".join(pieces)[:bytes_max]
