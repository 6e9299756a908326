"""The profile `custom`: its flags stand in the release's model entry, under `dialect`."""

import json

from agentloom_worker.canonical import sha256_hex
from agentloom_worker.llm.profiles.profile import Ending, ErrorClass, Fact, Profile, ReasoningReplay

CUSTOM = Profile(
    "custom",
    1,
    facts=(Fact("every flag is what the release says", "the release's model entry, `dialect`"),),
)


def custom_profile(dialect: str) -> Profile:
    """The profile that a frozen dialect (canonical JSON) describes.

    Its name holds a digest of the flags, so that it is part of every request hash.
    """
    flags = json.loads(dialect)
    allowed = flags.get("parameters")
    return Profile(
        f"custom+{sha256_hex(dialect.encode())[:12]}",
        CUSTOM.version,
        mid_system=flags["mid_system"],
        strict_alternation=flags["strict_alternation"],
        first_must_be_user=flags["first_must_be_user"],
        stream_options=flags["stream_options"],
        done_required=flags["done_required"],
        new_id_opens_call=flags["new_id_opens_call"],
        reasoning_replay=ReasoningReplay(flags["reasoning_replay"]),
        reasoning_field=flags["reasoning_field"],
        reasoning_if_empty=flags["reasoning_if_empty"],
        encrypted_reasoning=flags["encrypted_reasoning"],
        output_limit_field=flags["output_limit_field"],
        silent_limit=flags.get("silent_limit", False),
        auth_header=flags["auth_header"],
        auth_prefix=flags["auth_prefix"],
        parameters=None if allowed is None else frozenset(allowed),
        responses_parameters=None if allowed is None else frozenset(allowed),
        codes={code: ErrorClass(what) for code, what in flags["codes"].items()},
        finish_reasons={reason: _meaning(what) for reason, what in flags.get("finish_reasons", {}).items()},
    )


def _meaning(what: str) -> Ending | ErrorClass:
    """`content_filter` is the ending: an answer that was cut there."""
    return Ending(what) if what in set(Ending) else ErrorClass(what)
