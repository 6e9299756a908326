"""Profiles: how one provider's dialect of a protocol differs. Versioned, since they change request bytes."""

from dataclasses import dataclass
from enum import StrEnum


class ReasoningReplay(StrEnum):
    """When a model's reasoning is sent back to it (CASES S07)."""

    NEVER = "never"
    IN_TOOL_TURNS = "in_tool_turns"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Profile:
    """The flags of a dialect. An adapter refuses a flag that it does not implement; it never ignores one.

    `mid_system`, `strict_alternation` and `first_must_be_user` say which sequences of roles the provider
    takes (RULINGS A12). `done_required`: the stream is complete only after `[DONE]`; otherwise a finish
    reason and a well-framed end of the body will do. `new_id_opens_call`: a new id on a used index is a new
    call instead of a protocol error (CASES S04). `output_limit_field` names the parameter that bounds the
    output. These three and `stream_options` are of chat completions only: Responses has one rule for all.
    `encrypted_reasoning`: what is replayed of a Responses model's reasoning is its `encrypted_content`.
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
    output_limit_field: str = "max_tokens"
    encrypted_reasoning: bool = False


PROFILES: dict[str, Profile] = {
    "generic": Profile("generic", 1),
}
