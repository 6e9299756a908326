"""The bytes of a body around its messages: made once for each pair of parameters and tools."""

from collections.abc import Callable
from dataclasses import dataclass

from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.domain.model import RequestParameters
from agentloom_worker.domain.seam import SeamOf
from agentloom_worker.errors import Code, RunError
from agentloom_worker.limits import RELEASE_CACHE
from agentloom_worker.llm.adapter import Fragments, RequestBody

_TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class Envelope:
    """All of a body but its messages, for one pair of parameters and tools. `hashed`: the parameters alone."""

    parameters: RequestParameters
    tools: bytes
    head: bytes
    tail: bytes
    hashed: bytes


class Envelopes:
    """Makes and keeps envelopes. `list_key` names the list of messages, `document_of` the body without both lists.

    Shared by threads: what two of them make at once is the same.
    """

    def __init__(self, list_key: str, document_of: Callable[[RequestParameters], dict[str, object]]) -> None:
        assert list_key < _TOOLS, "the tools are spliced in behind the messages"
        self._list_key = list_key
        self._document_of = document_of
        # By identity, since a provider's parameters may hold what cannot be hashed; a run's are one object.
        self._kept: dict[int, Envelope] = {}

    def hashed(self, parameters: RequestParameters) -> bytes:
        """The body without messages and tools."""
        kept = self._kept.get(id(parameters))
        if kept is not None and kept.parameters is parameters:
            return kept.hashed
        return canonical_bytes(self._document_of(parameters))

    def of(self, parameters: RequestParameters, tools: bytes) -> Envelope:
        """What stands around the messages; `tools` is their JSON, or empty."""
        kept = self._kept.get(id(parameters))
        if kept is None or kept.parameters is not parameters or kept.tools != tools:
            if len(self._kept) >= RELEASE_CACHE:
                self._kept.clear()
            kept = self._kept[id(parameters)] = self._make(parameters, tools)
        return kept

    def _make(self, parameters: RequestParameters, tools: bytes) -> Envelope:
        document = self._document_of(parameters)
        key = self._list_key
        # Sorted keys: what is below the list's key stands before it, the rest after it. The tools are spliced in
        # as bytes at their place among the latter, so that large schemas are not parsed again.
        head = {name: value for name, value in document.items() if name < key}
        middle = {name: value for name, value in document.items() if key < name < _TOOLS}
        last = {name: value for name, value in document.items() if name > _TOOLS}
        before = canonical_bytes({**head, key: []}).removesuffix(b"]}")
        pieces = [canonical_bytes(middle)[1:-1]] if middle else []
        if tools:
            pieces.append(b'"tools":' + tools)
        if last:
            pieces.append(canonical_bytes(last)[1:-1])
        after = b"]" + b"".join(b"," + piece for piece in pieces) + b"}"
        return Envelope(parameters, tools, before, after, canonical_bytes(document))


class Enveloped:
    """What the encodings of all protocols share: the body around the fragments, and how these meet (`seam`).

    See `Envelopes` for the other arguments.
    """

    def __init__(
        self, list_key: str, document_of: Callable[[RequestParameters], dict[str, object]], seam: SeamOf | None
    ) -> None:
        self._envelopes = Envelopes(list_key, document_of)
        self._seam = seam

    @property
    def seam(self) -> SeamOf | None:
        """How two fragments meet; None: with a comma."""
        return self._seam

    def encode_parameters(self, parameters: RequestParameters) -> bytes:
        """The body without messages and tools."""
        return self._envelopes.hashed(parameters)

    def frame_body(self, parameters: RequestParameters, messages: Fragments, tools: bytes) -> RequestBody:
        """The whole body, as it is sent."""
        envelope = self._envelopes.of(parameters, tools)
        return RequestBody(envelope.head, messages, envelope.tail)

    def envelope_bytes(self, parameters: RequestParameters, tools: bytes) -> int:
        """Bytes of the body around the fragments and their commas."""
        envelope = self._envelopes.of(parameters, tools)
        return len(envelope.head) + len(envelope.tail)


def refuse_reserved(parameters: RequestParameters, reserved: frozenset[str]) -> None:
    """Raises RunError(MODEL_FEATURE_UNSUPPORTED) for a parameter that the adapter itself sets."""
    taken = sorted(reserved.intersection(name for name, _ in parameters.extra))
    if taken:
        raise RunError(Code.MODEL_FEATURE_UNSUPPORTED, f"parameters {', '.join(taken)} are set by the adapter itself")
