"""The recipe of a frozen request: what to read to build the same bytes again (RULINGS A13, U1)."""

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from agentloom_worker.canonical import canonical_bytes, parse
from agentloom_worker.domain.model import RequestParameters
from agentloom_worker.errors import InvariantError
from agentloom_worker.ids import ContextId, InputId


@dataclass(frozen=True, slots=True)
class Recipe:
    """`revision` fixes the manifest, `record_head` how many records it holds, `input_cutoff` the inputs.

    The protected inputs of the request are the context's user_ref records up to `record_head`.
    `tokens` is the estimate of the whole request by `estimator`.
    """

    context_id: ContextId
    revision: int
    record_head: int
    input_cutoff: int
    claimed: tuple[InputId, ...]
    parameters: RequestParameters
    catalog_hash: str
    protocol: str
    adapter: str
    estimator: str
    tokens: int

    VERSION: ClassVar[int] = 1

    def to_bytes(self) -> bytes:
        """The persisted document."""
        parameters = self.parameters
        document: dict[str, object] = {
            "v": self.VERSION,
            "context": str(self.context_id),
            "revision": self.revision,
            "records": self.record_head,
            "cutoff": self.input_cutoff,
            "model": parameters.model,
            "max_output": parameters.max_output_tokens,
            "catalog": self.catalog_hash,
            "protocol": self.protocol,
            "adapter": self.adapter,
            "estimator": self.estimator,
            "tokens": self.tokens,
        }
        if self.claimed:
            document["claimed"] = [str(input_id) for input_id in self.claimed]
        if parameters.extra:
            document["parameters"] = dict(parameters.extra)
        return canonical_bytes(document)

    @classmethod
    def from_bytes(cls, body: bytes) -> "Recipe":
        """Read a persisted document. Raises InvariantError for an unknown version."""
        document = parse(body)
        if document.get("v") != cls.VERSION:
            raise InvariantError(f"a recipe of version {document.get('v')} cannot be read by this version")
        return cls(
            context_id=ContextId(UUID(document["context"])),
            revision=document["revision"],
            record_head=document["records"],
            input_cutoff=document["cutoff"],
            claimed=tuple(InputId(UUID(text)) for text in document.get("claimed", [])),
            parameters=RequestParameters(
                document["model"],
                document["max_output"],
                tuple(sorted(document.get("parameters", {}).items())),
            ),
            catalog_hash=document["catalog"],
            protocol=document["protocol"],
            adapter=document["adapter"],
            estimator=document["estimator"],
            tokens=document["tokens"],
        )
