"""One request: its estimate, its hash and its bytes, all from fragments."""

import hashlib
from dataclasses import dataclass
from typing import Protocol

from agentloom_worker.context.view import View
from agentloom_worker.domain.budget import UTF8_MESSAGE_TOKENS, UTF8_TOOL_TOKENS, utf8_envelope_tokens
from agentloom_worker.domain.model import RequestParameters, ToolSchema

UTF8_ENVELOPE = "utf8-envelope-v1"


class Encoder(Protocol):
    """The part of a model adapter that makes bytes; pure and versioned."""

    @property
    def version(self) -> str:
        """Name and version of the encoding."""
        ...

    def encode_tools(self, tools: tuple[ToolSchema, ...]) -> bytes:
        """The tools fragment."""
        ...

    def encode_parameters(self, parameters: RequestParameters) -> bytes:
        """All of a body but messages and tools, as it is hashed."""
        ...

    def envelope_bytes(self, parameters: RequestParameters, tools: bytes) -> int:
        """The size of a body without messages."""
        ...


def estimate_tokens(encoder: Encoder, parameters: RequestParameters, tools: bytes, view: View, tool_count: int) -> int:
    """`utf8-envelope-v1`: bytes of the body as sent + 256 + 32 × messages + 64 × tools (seed 004, 4.2).

    The only true upper bound of a byte-level tokenizer; exact in bytes, since a body is a join of fragments.
    """
    body = encoder.envelope_bytes(parameters, tools) + view.joined_bytes
    return utf8_envelope_tokens(body, view.message_count, tool_count)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """What an estimate is made of, in tokens. The parts add up to `total`.

    `fixed` is what nothing can shrink: all but the history and the records that are neither prompt nor input.
    `envelope` takes up what the seams between messages add; where they merge many, it can fall below zero.
    """

    system_prompt: int
    tools: int
    protected_inputs: int
    history: int
    own_records: int
    envelope: int

    @property
    def total(self) -> int:
        """The estimate of the whole request."""
        return self.fixed + self.history + self.own_records

    @property
    def fixed(self) -> int:
        """The part that no compaction can make smaller."""
        return self.system_prompt + self.tools + self.protected_inputs + self.envelope


def break_down(encoder: Encoder, parameters: RequestParameters, tools: bytes, view: View, tool_count: int) -> Breakdown:
    """The estimate of `estimate_tokens` by its sources."""
    total = estimate_tokens(encoder, parameters, tools, view, tool_count)
    each = fragment_tokens(b"")
    prompt = fragment_tokens(view.record(1)) if view.length else 0
    inputs = view.protected_bytes + each * view.protected_length - prompt
    history = view.history_bytes + each * view.history_length
    everything = view.size_bytes + each * view.length
    schemas = len(tools) + UTF8_TOOL_TOKENS * tool_count
    return Breakdown(
        system_prompt=prompt,
        tools=schemas,
        protected_inputs=inputs,
        history=history,
        own_records=everything - prompt - inputs - history,
        envelope=total - everything - schemas,
    )


def fragment_tokens(fragment: bytes) -> int:
    """What one more message adds to the estimate."""
    return len(fragment) + 1 + UTF8_MESSAGE_TOKENS


def hash_request(encoder: Encoder, parameters: RequestParameters, tools: bytes, view: View) -> bytes:
    """sha256(adapter version ‖ parameters ‖ tools ‖ fragment chain), at the cost of the head alone (U1)."""
    digest = hashlib.sha256()
    for part in (encoder.version.encode(), encoder.encode_parameters(parameters), tools, view.chain):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()
