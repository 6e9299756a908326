"""What an endpoint answered to one call, byte for byte and within bounds: kept for whoever has to explain it."""

import re
from collections import deque
from collections.abc import Mapping

from agentloom_worker import limits
from agentloom_worker.domain.transport import Transport
from agentloom_worker.http.decoding import is_readable
from agentloom_worker.secrecy import SPELLED_MAX, conceal_bytes

_TYPE = re.compile(r"[\w.+\-]{1,64}/[\w.+\-]{1,64}", re.ASCII)


class Recording:
    """The body of one answer as it was read: its beginning and its end. For the thread that reads it.

    Where the chunks were cut leaves no trace. A body ends where it ended, or where its reader stopped and said so:
    what had arrived behind that place is no part of it. Chunks are kept as they are until `finish`, so an attempt
    costs no more than holding on to them.
    """

    def __init__(
        self, *, head_bytes: int = limits.TRANSPORT_HEAD_BYTES, tail_bytes: int = limits.TRANSPORT_TAIL_BYTES
    ) -> None:
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._status: int | None = None
        self._type = ""
        self._withheld = ""
        self._head: list[bytes] = []
        self._head_size = 0
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._size = 0
        self._end: int | None = None

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """The status line and the headers have arrived."""
        self._status = status
        self._type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if not is_readable(headers):
            self._withheld = "their content encoding cannot be read"

    def take(self, chunk: bytes) -> None:
        """The next bytes of the body, decoded where it is compressed."""
        self._size += len(chunk)
        room = self._head_bytes - self._head_size
        if room > 0:
            self._head.append(chunk[:room])
            self._head_size += len(self._head[-1])
            chunk = chunk[room:]
        # Without the newest chunk it is enough still: the reader may stop inside of that one.
        while self._tail and self._tail_size - len(self._tail[0]) >= self._tail_bytes:
            self._tail_size -= len(self._tail.popleft())
        if chunk:
            self._tail.append(chunk)
            self._tail_size += len(chunk)

    def stop_at(self, position: int) -> None:
        """The reader stopped there, inside of the newest chunk or at its end: the body is that long."""
        self._end = position

    def finish(self, secrets: tuple[str, ...], *, spelled: bool = False) -> Transport | None:
        """What was recorded, without these secrets; None where no status line ever came.

        `spelled`: the answer that was read from these bytes spells a secret. Where it cannot be found in them (it is
        spread over the frames of a stream), the bytes are withheld.
        """
        if self._status is None:
            return None
        size = self._size if self._end is None else min(self._end, self._size)
        head = b"".join(self._head)[:size]
        tail = b"".join(self._tail)[: max(0, size - (self._size - self._tail_size))][-self._tail_bytes :]
        omitted = size - len(head) - len(tail)
        withheld = self._withheld
        if not omitted:
            head, tail = head + tail, b""
        clean_head, clean_tail = (conceal_bytes(part, secrets) for part in (head, tail))
        if spelled and secrets and (clean_head, clean_tail) == (head, tail):
            withheld = "they spell a credential across frames"
        if omitted and secrets:
            # One that is cut in two would not be found.
            edge = SPELLED_MAX * max(map(len, secrets))
            clean_head, clean_tail = clean_head[: max(0, len(clean_head) - edge)], clean_tail[edge:]
            omitted += 2 * edge
        body = b"" if withheld else clean_head + clean_tail
        return Transport(
            status=self._status,
            media_type=self._type if _TYPE.fullmatch(self._type) and not _holds(self._type, secrets) else "",
            size_bytes=size,
            omitted_bytes=omitted,
            cut_at=len(clean_head) if omitted and not withheld else 0,
            withheld=withheld,
            body=body,
        )


def _holds(text: str, secrets: tuple[str, ...]) -> bool:
    return any(secret.lower() in text for secret in secrets)
