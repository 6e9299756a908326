"""Which turn of a script answers a request: the first that fits."""

import re
from dataclasses import dataclass

from agentloom_worker.devmodel.chat import ChatRequest, text_of, user_text
from agentloom_worker.devmodel.script import Script, Span, Turn, When
from agentloom_worker.devmodel.template import fill


@dataclass(frozen=True, slots=True)
class Arrival:
    """One arrival of a request: what it says, the digest of its bytes, how often they have come (from 1)."""

    request: ChatRequest
    sha256: str
    count: int

    def fill(self, text: str | None) -> str:
        """A template with the request's words in it."""
        return fill(text or "", self.request, self.count)


def choose_turn(script: Script, arrival: Arrival) -> tuple[int, Turn] | None:
    """The first turn that fits, with its number."""
    for number, turn in enumerate(script.turns):
        if (turn.first is None or arrival.count <= turn.first) and fits(turn.when, arrival.request):
            return number, turn
    return None


def fits(when: When, request: ChatRequest) -> bool:
    """Whether every condition holds."""
    counts = (
        (when.assistant_turns, request.assistant_turns),
        (when.turns_since_user, request.turns_since_user),
        (when.tool_results, request.tool_results),
    )
    return (
        all(_count_fits(wanted, count) for wanted, count in counts)
        and when.last_role in (None, request.last_role)
        and when.model in (None, request.model)
        and when.stream in (None, request.stream)
        and request.tool_names.issuperset(when.tools_offered)
        and _text_fits(when.last_text_contains, when.last_text_matches, request.last_text)
        and _user_text_fits(when, request)
        and (
            when.any_text_contains is None
            or any(when.any_text_contains in text_of(message) for message in request.messages)
        )
    )


def _count_fits(wanted: int | Span | None, count: int) -> bool:
    return wanted is None or (wanted.holds(count) if isinstance(wanted, Span) else wanted == count)


def _text_fits(part: str | None, pattern: str | None, text: str) -> bool:
    return (part is None or part in text) and (pattern is None or re.search(pattern, text) is not None)


def _user_text_fits(when: When, request: ChatRequest) -> bool:
    if when.user_text_contains is None and when.user_text_matches is None:
        return True
    return _text_fits(when.user_text_contains, when.user_text_matches, user_text(request, first=False))
