"""The view of one context: its wire fragments in order, their hash chain and their size.

A view only ever grows at its end, so views of one context share a list of fragments; each knows how much
of it is its own. Extending costs the new fragments only (CONTEXT, Constant cost; RULINGS U1).
"""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentloom_worker.domain.seam import SeamOf
from agentloom_worker.frozen import quick_init

EMPTY_CHAIN = hashlib.sha256(b"").digest()


@quick_init
@dataclass(frozen=True, slots=True)
class View:
    """`length` fragments; `chain` is h(n) = sha256(h(n-1) ‖ sha256(fragment n)).

    `wire_ids` are those of the newest assistant message's calls, by ordinal: what its results pair with.
    `protected_*` count the fragments that no compaction may replace: the prompt and protected inputs.
    `history_*` count those of the session's earlier runs; they stand together, right behind the prompt.
    `seam` is the encoding's, None where fragments meet with a comma; `seam_bytes` and `seam_messages` are what its
    seams add.
    """

    length: int = 0
    size_bytes: int = 0
    chain: bytes = EMPTY_CHAIN
    wire_ids: tuple[str, ...] = ()
    protected_length: int = 0
    protected_bytes: int = 0
    history_length: int = 0
    history_bytes: int = 0
    seam: SeamOf | None = None
    seam_bytes: int = 0
    seam_messages: int = 0
    _shared: list[bytes] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def extend(
        self,
        fragments: Sequence[bytes],
        wire_ids: tuple[str, ...] | None = None,
        *,
        protected: bool = False,
        history: bool = False,
    ) -> "View":
        """The view with these fragments after its own. Safe for use by many threads."""
        chain, size = self.chain, self.size_bytes
        seam_bytes, seam_messages = self.seam_bytes, self.seam_messages
        if self.seam is not None:
            before = self.last()
            for fragment in fragments:
                seam = self.seam(before, fragment)
                seam_bytes, seam_messages = seam_bytes + seam.added_bytes, seam_messages + seam.messages
                before = fragment
        for fragment in fragments:
            chain = hashlib.sha256(chain + hashlib.sha256(fragment).digest()).digest()
            size += len(fragment)
        with self._lock:
            shared, lock = self._shared, self._lock
            if len(shared) != self.length:
                # Somebody extended this view in another way: an abandoned build, or a parallel one.
                shared, lock = shared[: self.length], threading.Lock()
            shared.extend(fragments)
        return View(
            self.length + len(fragments),
            size,
            chain,
            self.wire_ids if wire_ids is None else wire_ids,
            self.protected_length + (len(fragments) if protected else 0),
            self.protected_bytes + (size - self.size_bytes if protected else 0),
            self.history_length + (len(fragments) if history else 0),
            self.history_bytes + (size - self.size_bytes if history else 0),
            self.seam,
            seam_bytes,
            seam_messages,
            shared,
            lock,
        )

    @property
    def joined_bytes(self) -> int:
        """The size of the messages as they stand in a body, without the brackets around them."""
        return self.size_bytes + (max(0, self.length - 1) if self.seam is None else self.seam_bytes)

    @property
    def message_count(self) -> int:
        """How many messages they are in a body."""
        return self.length + self.seam_messages

    def fragments(self, start: int = 0, end: int | None = None) -> list[bytes]:
        """The fragments of this view, or some of them."""
        with self._lock:
            return self._shared[start : self.length if end is None else min(end, self.length)]

    def record(self, context_seq: int) -> bytes:
        """The fragment of one of the context's own records; empty where the view does not reach it.

        The first record is the prompt; the history stands between it and the second.
        """
        position = context_seq - 1 + (self.history_length if context_seq > 1 else 0)
        with self._lock:
            return self._shared[position] if 0 <= position < self.length else b""

    def last(self) -> bytes:
        """The newest fragment; empty for an empty view."""
        with self._lock:
            return self._shared[self.length - 1] if self.length else b""
