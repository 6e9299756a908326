"""Where two message fragments of a body meet.

Most encodings put a comma there. One for a provider that takes only certain sequences of roles (RULINGS A12) merges
two messages, or puts one between, without touching the fragments: their hash chain and their cache stay as they are.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple


class Seam(NamedTuple):
    """What becomes of two fragments where they meet: bytes cut off both, and what is put between.

    `messages` is how many messages the seam adds to the two; -1 where it makes one of them.
    """

    cut_before: int = 0
    between: bytes = b","
    cut_after: int = 0
    messages: int = 0

    @property
    def added_bytes(self) -> int:
        """What it adds to the size of the fragments."""
        return len(self.between) - self.cut_before - self.cut_after


# Given two neighbours, how they meet; what stands before the first fragment is empty. Pure, and part of the encoding.
SeamOf = Callable[[bytes, bytes], Seam]


def join_fragments(fragments: Iterable[bytes], seam_of: SeamOf) -> Iterator[bytes]:
    """The pieces of the joined fragments, in order."""
    before, kept_from = b"", 0
    for fragment in fragments:
        seam = seam_of(before, fragment)
        if before:
            yield before[kept_from : len(before) - seam.cut_before]
        yield seam.between
        before, kept_from = fragment, seam.cut_after
    yield before[kept_from:]
