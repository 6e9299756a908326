"""The profile of a release that names none: the protocol as it is written, nothing assumed beyond it."""

from agentloom_worker.llm.profiles.profile import Fact, Profile

# Version 1 is frozen: releases and request hashes in databases were made with it.
GENERIC = Profile(
    "generic",
    1,
    facts=(
        Fact(
            "system messages anywhere, reasoning never replayed, any parameter passed on as it is",
            "chat completions as OpenAI published them; what a server lacks, it refuses itself",
        ),
    ),
)
