"""What a profile is: how one provider's dialect of a protocol differs, as data.

A change of a flag that changes request bytes needs a new `version`: it is part of every request hash.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from agentloom_worker.errors import Code, RunError


class ReasoningReplay(StrEnum):
    """When a model's reasoning is sent back to it (CASES S07)."""

    NEVER = "never"
    IN_TOOL_TURNS = "in_tool_turns"
    ALWAYS = "always"


class ErrorClass(StrEnum):
    """What a provider's error code means for the attempt (seed 004, 6.2)."""

    CONTEXT_LENGTH = "context_length"
    RATE_LIMIT = "rate_limit"
    QUOTA = "quota"
    TRANSPORT = "transport"
    REJECTED = "rejected"
    CONTENT_FILTER = "content_filter"


class Ending(StrEnum):
    """How a message ends, in the words of chat completions: those that the runtime reads."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that the flags of a profile stand on, and the page that says so."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class OtherAddress:
    """A documented address beside the default one, used by writing it as `base_url`, and what it is for."""

    base_url: str
    text: str
    source: str


@dataclass(frozen=True, slots=True)
class KnownModel:
    """What a provider documents about one of its models, by the id that requests name. None: not documented."""

    model: str
    source: str
    context_window_tokens: int | None = None
    max_output_tokens: int | None = None
    media: tuple[str, ...] = ("text",)


@dataclass(frozen=True, slots=True)
class Profile:
    """The flags of a dialect. An adapter refuses a flag that it does not implement; it never ignores one.

    Where: `base_url` is the default address, None where there is none; `other_addresses` are further documented ones,
    for people to read. `protocols` are those that the provider offers, None for any. The key goes into `auth_header`
    behind `auth_prefix`.

    Messages: `mid_system`, `strict_alternation` and `first_must_be_user` say which sequences of roles the
    provider takes (RULINGS A12). `reasoning_replay` says when reasoning goes back, in `reasoning_field`;
    `reasoning_if_empty` sends the field with calls also where the model gave none.

    Streams: `stream_options` asks for usage. `done_required`: the stream is complete only after `[DONE]`;
    otherwise a finish reason and a well-framed end of the body will do. `new_id_opens_call`: a new id on a used
    index is a new call instead of a protocol error (CASES S04). These are of chat completions only: Responses has one
    rule for all. `encrypted_reasoning`: what is replayed of a Responses model's reasoning is its `encrypted_content`.
    `encrypted_replay` is when that goes back to the model of a release that asks for it; None: the provider does not
    document that it takes it. Not every model has any to give, so a profile alone never asks. `silent_limit`: a
    Responses answer ends as completed also where it was cut at its output limit, and nothing else tells: one that
    took as many tokens as the limit counts as cut.

    Settings: `output_limit_field` names the parameter that bounds the output. `parameters` are those that
    exist in chat completions, `responses_parameters` those in responses; None: any, the endpoint itself refuses
    what it does not know. `unsupported` are dotted paths into their values that need what the profile lacks.
    `settled` are parameters that publishing puts into every release, which may say nothing else of them.

    Errors: `codes` and `statuses` classify before the common tables do, but of two codes the one that forbids another
    attempt decides. `finish_reasons` are the provider's own words for the end of a chat message: an `Ending`, or the
    class of the error that it was. `base_resp_errors` reads an error out of the `base_resp` of a 200 answer.
    `props_path` is where a server says which window it serves.
    """

    name: str
    version: int
    mid_system: bool = True
    strict_alternation: bool = False
    first_must_be_user: bool = False
    stream_options: bool = True
    done_required: bool = True
    new_id_opens_call: bool = False
    reasoning_replay: ReasoningReplay = ReasoningReplay.NEVER
    reasoning_field: str = "reasoning_content"
    reasoning_if_empty: bool = False
    encrypted_reasoning: bool = False
    encrypted_replay: ReasoningReplay | None = None
    silent_limit: bool = False
    output_limit_field: str = "max_tokens"
    protocols: tuple[str, ...] | None = None
    base_url: str | None = None
    other_addresses: tuple[OtherAddress, ...] = ()
    auth_header: str = "Authorization"
    auth_prefix: str = "Bearer "
    parameters: frozenset[str] | None = None
    responses_parameters: frozenset[str] | None = None
    unsupported: frozenset[str] = frozenset()
    settled: Mapping[str, object] = field(default_factory=dict)
    codes: Mapping[str, ErrorClass] = field(default_factory=dict)
    statuses: Mapping[int, ErrorClass] = field(default_factory=dict)
    finish_reasons: Mapping[str, Ending | ErrorClass] = field(default_factory=dict)
    base_resp_errors: bool = False
    props_path: str | None = None
    models: tuple[KnownModel, ...] = ()
    facts: tuple[Fact, ...] = ()

    def parameters_of(self, protocol: str) -> frozenset[str] | None:
        """The parameters that exist in a protocol; None: any. Simulations stand for chat completions."""
        return self.responses_parameters if protocol == "openai-responses" else self.parameters

    def encrypting(self) -> Self:
        """The profile of a release that asks for encrypted reasoning; its name stands in every request hash.

        Raises RunError(MODEL_FEATURE_UNSUPPORTED) where the provider does not document it.
        """
        if self.encrypted_replay is None:
            raise RunError(Code.MODEL_FEATURE_UNSUPPORTED, f"profile {self.name} carries no encrypted reasoning")
        return replace(
            self, name=f"{self.name}+encrypted", reasoning_replay=self.encrypted_replay, encrypted_reasoning=True
        )

    def known_model(self, model: str) -> KnownModel | None:
        """What is documented about a model."""
        return next((known for known in self.models if known.model == model), None)
