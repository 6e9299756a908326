"""A foreign server's words, made fit for a message."""

import re

from agentloom_worker import limits

_KEY_LIKE = re.compile(r"\b(?:sk|pk|rk|key|api)[-_][A-Za-z0-9*_\-.]{6,}|\bBearer\s+\S+", re.IGNORECASE)
_REDACTED = "[redacted]"


def redact(text: str, secret: str | None) -> str:
    """A server's words, fit for a message: one short line, without the key or what looks like one."""
    if secret:
        text = text.replace(secret, _REDACTED)
    text = _KEY_LIKE.sub(_REDACTED, text)
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    cap = limits.ERROR_TEXT_CHARACTERS_MAX
    return line if len(line) <= cap else line[:cap] + "…"
