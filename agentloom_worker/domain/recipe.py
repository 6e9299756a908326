"""The recipe of a frozen request: what to read to build the same bytes again (RULINGS A13, U1).

What is the same in every request of a run stands once, on the run (RequestBinding); the recipe of an
operation names the place in the context and nothing that grows with the history.
"""

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from agentloom_worker.canonical import canonical_bytes, parse
from agentloom_worker.domain.model import RequestParameters
from agentloom_worker.errors import InvariantError
from agentloom_worker.frozen import quick_init
from agentloom_worker.ids import InputId


@dataclass(frozen=True, slots=True)
class RequestBinding:
    """Fixed when the run is accepted: effective parameters, catalog digest, and every version that makes bytes."""

    parameters: RequestParameters
    catalog_hash: str
    protocol: str
    adapter: str
    estimator: str

    VERSION: ClassVar[int] = 1

    def to_bytes(self) -> bytes:
        """The persisted document."""
        return canonical_bytes(
            {
                "v": self.VERSION,
                "model": self.parameters.model,
                "max_output": self.parameters.max_output_tokens,
                "parameters": dict(self.parameters.extra),
                "catalog": self.catalog_hash,
                "protocol": self.protocol,
                "adapter": self.adapter,
                "estimator": self.estimator,
            }
        )

    @classmethod
    def from_bytes(cls, body: bytes) -> "RequestBinding":
        """Read a persisted document. Raises InvariantError for an unknown version."""
        document = parse(body)
        if document.get("v") != cls.VERSION:
            raise InvariantError(f"a request binding of version {document.get('v')} cannot be read by this version")
        parameters = RequestParameters(
            document["model"], document["max_output"], tuple(sorted(document["parameters"].items()))
        )
        return cls(
            parameters,
            document["catalog"],
            document["protocol"],
            document["adapter"],
            document["estimator"],
        )


@quick_init
@dataclass(frozen=True, slots=True)
class Recipe:
    """`revision` fixes the manifest, `record_head` how many records it holds, `input_cutoff` the inputs.

    The protected inputs of the request are the context's user_ref records up to `record_head`.
    `history` is the greatest run_no of the session's earlier runs that the request shows, 0 for none: every run
    up to it had ended before this one was made, so that one number pins the selection (RULINGS A13).
    `tokens` is the estimate of the whole request.
    """

    revision: int
    record_head: int
    input_cutoff: int
    claimed: tuple[InputId, ...]
    tokens: int
    history: int = 0

    VERSION: ClassVar[int] = 1

    def to_bytes(self) -> bytes:
        """The persisted document."""
        document: dict[str, object] = {
            "v": self.VERSION,
            "revision": self.revision,
            "records": self.record_head,
            "cutoff": self.input_cutoff,
            "tokens": self.tokens,
        }
        if self.claimed:
            document["claimed"] = [str(input_id) for input_id in self.claimed]
        if self.history:
            document["history"] = self.history
        return canonical_bytes(document)

    @classmethod
    def from_bytes(cls, body: bytes) -> "Recipe":
        """Read a persisted document. Raises InvariantError for an unknown version."""
        document = parse(body)
        if document.get("v") != cls.VERSION:
            raise InvariantError(f"a recipe of version {document.get('v')} cannot be read by this version")
        return cls(
            revision=document["revision"],
            record_head=document["records"],
            input_cutoff=document["cutoff"],
            claimed=tuple(InputId(UUID(text)) for text in document.get("claimed", [])),
            tokens=document["tokens"],
            history=document.get("history", 0),
        )
