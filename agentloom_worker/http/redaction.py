"""A foreign server's words, made fit for a message."""

import re

from agentloom_worker import limits
from agentloom_worker.secrecy import REDACTED, conceal_text

_KEY_LIKE = re.compile(r"\b(?:sk|pk|rk|key|api)[-_][A-Za-z0-9*_\-.]{6,}|\bBearer\s+\S+", re.IGNORECASE)


def redact(text: str, secret: str | None, *, characters_max: int = limits.ERROR_TEXT_CHARACTERS_MAX) -> str:
    """A server's words, fit for a message: one short line, without the key or what looks like one."""
    text = conceal_text(text, (secret,) if secret else ())
    text = _KEY_LIKE.sub(REDACTED, text)
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    return line if len(line) <= characters_max else line[:characters_max] + "…"


def looks_secret(text: str) -> bool:
    """Whether a text has the form that keys have."""
    return _KEY_LIKE.search(text) is not None
