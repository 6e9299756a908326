"""The body of an answer, decoded no further than its reader takes it."""

import zlib
from collections.abc import Iterator, Mapping

import httpx

from agentloom_worker import limits

_AUTOMATIC = 47  # zlib's window bits for a header of either gzip or zlib
_GZIP = 31  # for a header of gzip alone
_GZIP_BEGINS = 0x1F
# `none` is no coding, but what servers of events write so that no proxy packs them; every client reads on.
_PLAIN = frozenset({"", "identity", "none"})
_PACKED = frozenset({"gzip", "x-gzip", "deflate"})


def is_readable(headers: Mapping[str, str]) -> bool:
    """Whether a body with these headers has a coding that `iter_decoded` knows."""
    return _coding_of(headers) in _PLAIN | _PACKED


def iter_decoded(response: httpx.Response, bytes_max: int) -> Iterator[bytes]:
    """The body in pieces, `bytes_max` and one byte at most: whoever has more than `bytes_max` has too much.

    httpx decodes each piece whole, and codings of codings: a thousand bytes become a gigabyte before anybody can
    count them. Here one packing is undone at most, only as far as is read, and in pieces of UNPACKED_PIECE_BYTES at
    most. Members of gzip that follow one another are one body (RFC 1952, 2.2). Raises, behind all of it that can be
    unpacked, httpx.DecodingError for any other coding and for a body that is not what it says, and
    httpx.RemoteProtocolError for one that ends before its packing does; and what reading raises.
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
    unpacking = _Unpacking(bytes_max)
    packed_left = 2 * bytes_max + limits.PACKED_BYTES_SPARE
    for chunk in response.iter_raw():
        yield from unpacking.feed(chunk[:packed_left])
        if unpacking.full:
            return
        packed_left -= len(chunk)
        if packed_left < 0:
            raise httpx.DecodingError("the packed body is much larger than what may come out of it")
    if unpacking.breaks_off:
        raise httpx.RemoteProtocolError("the packed body breaks off")


class _Unpacking:
    """A packed body, member by member. For one thread."""

    def __init__(self, bytes_max: int) -> None:
        self._member = zlib.decompressobj(_AUTOMATIC)
        self._left = bytes_max + 1
        self._first: int | None = None  # its first byte tells gzip from zlib
        self._member_size = 0
        self._empty_members = 0

    @property
    def full(self) -> bool:
        """Whether as much came out of it as is read."""
        return self._left == 0

    @property
    def breaks_off(self) -> bool:
        """Whether a body that ends here is not whole. One without a byte is."""
        return self._first is not None and not self._member.eof

    def feed(self, packed: bytes) -> Iterator[bytes]:
        """What comes out of the next bytes, until it is full. Raises httpx.DecodingError behind it."""
        if self._first is None and packed:
            self._first = packed[0]
        while packed:
            if self._member.eof:
                self._begin_member(packed[0])
            yield from self._feed_member(packed)
            if self.full:
                return
            packed = self._member.unused_data

    def _begin_member(self, begins: int) -> None:
        if self._first != _GZIP_BEGINS or begins != _GZIP_BEGINS:
            raise httpx.DecodingError("something follows the packed body")
        self._empty_members += not self._member_size
        if self._empty_members > limits.PACKED_EMPTY_MEMBERS_MAX:
            raise httpx.DecodingError("the packed body has too many empty parts")
        self._member = zlib.decompressobj(_GZIP)
        self._member_size = 0

    def _feed_member(self, packed: bytes) -> Iterator[bytes]:
        more = True
        while more:
            room = min(self._left, limits.UNPACKED_PIECE_BYTES)
            before = self._member.copy()
            try:
                piece = self._member.decompress(packed, room)
            except zlib.error:
                piece = _as_far_as_it_goes(before, packed)
                yield piece
                self._left -= len(piece)
                if self.full:
                    return
                raise httpx.DecodingError("the body is not packed as it says") from None
            yield piece
            self._left -= len(piece)
            self._member_size += len(piece)
            packed = self._member.unconsumed_tail
            # What was taken in may hold more than there was room for.
            more = len(piece) == room and not self.full and not self._member.eof


def _as_far_as_it_goes(unpacking: "zlib._Decompress", packed: bytes) -> bytes:
    """What stands before a fault, which is less than a piece: the same wherever the bytes were cut."""
    pieces: list[bytes] = []
    try:
        # What is due of the bytes before comes first, without one more: a fault takes along what is written with it.
        for end in range(len(packed) + 1):
            given = packed[max(end - 1, 0) : end]
            # One byte may hold many, and its fault may stand between them.
            while piece := unpacking.decompress(given, 1):
                pieces.append(piece)
                given = unpacking.unconsumed_tail
    except zlib.error:
        pass
    return b"".join(pieces)
