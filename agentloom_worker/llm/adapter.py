"""What a model protocol must offer: stable request bytes, and one attempt that ends in one outcome."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agentloom_worker.cancellation import Cancellation
from agentloom_worker.domain.model import FirstOutput, Message, ModelOutcome, RequestParameters, ToolSchema
from agentloom_worker.domain.seam import SeamOf, join_fragments
from agentloom_worker.http.recording import Recording

_PIECE_BYTES = 65_536


class Fragments(Protocol):
    """The messages of a request, encoded, in order (context/view.py)."""

    @property
    def length(self) -> int:
        """How many there are."""
        ...

    @property
    def joined_bytes(self) -> int:
        """Their bytes as they stand in a body, seams included."""
        ...

    @property
    def seam(self) -> SeamOf | None:
        """How two of them meet; None: with a comma."""
        ...

    def fragments(self) -> Sequence[bytes]:
        """All of them; costs time in proportion to their number."""
        ...


@dataclass(frozen=True, slots=True)
class RequestBody:
    """The body of a request, which nobody has joined yet: making one touches no message.

    Whoever sends it iterates over pieces of about 64 KiB, so that a long history is never copied as a whole.
    """

    head: bytes = field(repr=False)
    messages: Fragments = field(repr=False)
    tail: bytes = field(repr=False)

    @property
    def size_bytes(self) -> int:
        """The length of the body as it is sent."""
        return len(self.head) + self.messages.joined_bytes + len(self.tail)

    def __iter__(self) -> Iterator[bytes]:
        piece, size = [self.head], len(self.head)
        fragments, seam = self.messages.fragments(), self.messages.seam
        parts = _with_commas(fragments) if seam is None else join_fragments(fragments, seam)
        for part in parts:
            piece.append(part)
            size += len(part)
            if size >= _PIECE_BYTES:
                yield b"".join(piece)
                piece, size = [], 0
        piece.append(self.tail)
        yield b"".join(piece)

    def join(self) -> bytes:
        """The whole body as one value."""
        return b"".join(self)


def _with_commas(fragments: Iterable[bytes]) -> Iterator[bytes]:
    comma = b""
    for fragment in fragments:
        yield comma
        yield fragment
        comma = b","


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A frozen request on its way out: its body and where it goes.

    `message_count` and `last_message` (the last message's fragment) let the scripted adapter choose a turn
    without parsing a large body; other adapters ignore them. `asked` are the body's own parameters, by which an answer
    is read: which model was asked for, and how much it may say.
    """

    body: RequestBody
    base_url: str
    message_count: int = 0
    last_message: bytes = field(default=b"", repr=False)
    asked: RequestParameters | None = None


class DeliveryStoppedError(Exception):
    """The first output must not be gone on from: the attempt ends with what had come, and closes its stream."""


@dataclass(frozen=True, slots=True)
class AttemptContext:
    """The bounds and callbacks of one attempt. Durations count from the call of `stream_once`.

    `deadline_s` None means `limits.RUN_DEADLINE_S`: no wait is without a bound. `idle_timeout_s` starts with
    the first output; None switches it off. `on_sent` is called once, just before the first byte of the
    request is written. `on_first_output` is called at most once, by the reading thread, before the next
    fragment is handled. What either raises closes the stream and leaves `stream_once` unchanged, but for a
    DeliveryStoppedError of `on_first_output`: then the outcome is Cancelled, with what had come. `recording` takes
    down what is read.
    """

    deadline_s: float | None
    first_output_timeout_s: float
    idle_timeout_s: float | None
    cancellation: Cancellation
    on_first_output: Callable[[FirstOutput], None]
    on_sent: Callable[[], None]
    api_key: str | None = field(default=None, repr=False)
    idempotency_key: str | None = None
    traceparent: str | None = None
    recording: Recording | None = None


class ModelAdapter(Protocol):
    """One model protocol. Shared by all threads of a process; encoding is pure.

    Bytes are part of what is hashed and frozen: a change of any of them needs a new `version`.
    """

    @property
    def version(self) -> str:
        """Name and version of the encoding, with the profile's; part of every request hash and cache key."""
        ...

    @property
    def seam(self) -> SeamOf | None:
        """How two fragments meet in a body; None: with a comma. A view of this adapter's fragments is made with it."""
        ...

    def encode_message(self, message: Message) -> bytes:
        """One message as the fragment that stands in the body."""
        ...

    def encode_tools(self, tools: tuple[ToolSchema, ...]) -> bytes:
        """All tools as one fragment; empty when there are none."""
        ...

    def encode_parameters(self, parameters: RequestParameters) -> bytes:
        """Everything of the body except messages and tools; hashed, and the source of the envelope.

        Raises RunError(MODEL_FEATURE_UNSUPPORTED) for a parameter that the adapter itself must set.
        """
        ...

    def frame_body(self, parameters: RequestParameters, messages: Fragments, tools: bytes) -> RequestBody:
        """The whole body; joined, it equals one encoding of the whole request."""
        ...

    def envelope_bytes(self, parameters: RequestParameters, tools: bytes) -> int:
        """`frame_body(…).size_bytes` without the fragments and the seams between them."""
        ...

    def stream_once(self, request: ModelCall, attempt: AttemptContext) -> ModelOutcome:
        """Send once, never again, and read to the end. Blocks; another thread may cancel.

        Returns Completed only after the profile's legal final frame. A passed deadline gives the attempt's
        cancellation the reason DEADLINE and returns Cancelled. Raises only what the callbacks raise.
        """
        ...

    def close(self) -> None:
        """Drop idle connections. The adapter stays usable."""
        ...
