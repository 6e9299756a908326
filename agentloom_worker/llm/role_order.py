"""Orders of roles that strict providers want, made where two fragments meet: one rule for every encoding (RULINGS A12).

Servers that render the items of a Responses request make chat messages of them first: a text is a message, a call
joins the assistant's message before it, a result is a tool's message, reasoning is part of what follows it. So a chat
template sees the same sequence of roles as in chat completions, and the same seams hold. One more thing hangs on them:
where two messages of the assistant meet, the servers make them one, and an old answer would get the next one's calls.

Sources: https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/openai/responses/utils.py and
https://github.com/ggml-org/llama.cpp/blob/master/tools/server/server-chat.cpp (the conversions of `input`).
"""

from collections.abc import Callable
from typing import NamedTuple

from agentloom_worker.domain.model import Message, Role
from agentloom_worker.domain.seam import Seam, SeamOf
from agentloom_worker.errors import Code, RunError
from agentloom_worker.llm.profiles import Profile

# Strict providers refuse an assistant message without visible text, a single space included (CASES W04).
EMPTY_ASSISTANT_TEXT = "(no content)"

# Stands before the runtime's own words where a provider takes no system message behind the first (RULINGS A12).
NOTE_LABEL = "[agentloom] "

# Stands where a provider wants a word of the user and nobody has said one.
CONTINUED = NOTE_LABEL + "(continued)"

_PARAGRAPH = b"\\n\\n"


class Marks(NamedTuple):
    """How the fragments of an encoding tell whose message they are.

    A fragment is canonical JSON, in which quotes inside of texts are escaped: no text can look like an end. What ends
    like none of them is the result of a call.
    """

    user_start: bytes
    user_end: bytes
    answer_end: bytes
    system_end: bytes
    calls_end: bytes


def order_seam(profile: Profile, marks: Marks, encode_message: Callable[[Message], bytes]) -> SeamOf | None:
    """How the fragments that `encode_message` makes meet for a profile; None: with a comma, since it wants no order.

    `strict_alternation`: two texts of the user become one, a paragraph apart; where an exchange of calls and results
    is followed by the user, an empty answer stands between; where the assistant speaks twice, a labelled text of the
    user. `first_must_be_user`: such a text also opens a conversation that the assistant would open.

    Raises MODEL_FEATURE_UNSUPPORTED for an order with system messages in the middle.
    """
    if not (profile.strict_alternation or profile.first_must_be_user):
        return None
    if profile.mid_system:
        # Seen from a system message, nobody could tell whether the conversation has begun.
        raise RunError(
            Code.MODEL_FEATURE_UNSUPPORTED,
            f"profile {profile.name}: in a strict order of roles no system message can stand in the middle",
        )
    comma, start = Seam(), Seam(between=b"")
    merged = Seam(len(marks.user_end), _PARAGRAPH, len(marks.user_start), -1)
    user, empty_answer = encode_message(Message(Role.USER, CONTINUED)), encode_message(Message(Role.ASSISTANT, ""))
    opened, opened_first = Seam(between=b"," + user + b",", messages=1), Seam(between=user + b",", messages=1)
    answered = Seam(between=b"," + empty_answer + b",", messages=1)

    def seam(before: bytes, after: bytes) -> Seam:
        by_user = after.endswith(marks.user_end)
        if not before or before.endswith(marks.system_end):
            if profile.first_must_be_user and not by_user and not after.endswith(marks.system_end):
                return opened if before else opened_first
            return comma if before else start
        if not profile.strict_alternation:
            return comma
        if before.endswith(marks.user_end):
            return merged if by_user else comma
        if before.endswith(marks.answer_end):
            return comma if by_user else opened
        return answered if by_user and not before.endswith(marks.calls_end) else comma

    return seam
