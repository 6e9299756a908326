"""The secrets that this process has read: kept in memory only, so that no text of ours can carry one away.

The last line of defence, behind the rule that nothing puts a secret into a text: logs, evidence of failed steps, tools'
results and model answers pass through here on their way out. For many threads.
"""

import json
import threading
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from agentloom_worker import limits
from agentloom_worker.frozen import replace

REDACTED = "[redacted]"

_Value = TypeVar("_Value")
_lock = threading.Lock()
_known: dict[str, None] = {}
_in_order: tuple[str, ...] = ()


def keep_secret(secret: str) -> None:
    """Remember a secret that was read. A short one is not: replacing it everywhere would spoil what we say."""
    global _in_order  # noqa: PLW0603 - one memory a process
    if len(secret) < limits.SECRET_CHARACTERS_MIN or secret in _known:
        return
    with _lock:
        _known[secret] = None
        while len(_known) > limits.SECRETS_KEPT_MAX:
            del _known[next(iter(_known))]
        # The longest first: one may hold another.
        _in_order = tuple(sorted(_known, key=len, reverse=True))


def known_secrets() -> tuple[str, ...]:
    """What is remembered, the longest first."""
    return _in_order


def conceal_known(text: str) -> str:
    """The text without the secrets that this process has read."""
    for secret in _in_order:
        if secret in text:
            text = text.replace(secret, REDACTED)
    return text


def conceal_value(value: _Value, secrets: tuple[str, ...]) -> _Value:
    """A value of texts, bytes, containers and dataclasses without these secrets; the same object where none is in it.

    A text that is a JSON document is read as well, for JSON may spell a secret with escapes.
    """
    return _concealed(value, secrets) if secrets else value


def _concealed(value: Any, secrets: tuple[str, ...]) -> Any:
    match value:
        case str():
            return _concealed_text(value, secrets)
        case bytes():
            for secret in secrets:
                value = value.replace(secret.encode(), REDACTED.encode())
            return value
        case tuple() | list():
            items = [_concealed(item, secrets) for item in value]
            return value if all(map(_same, items, value)) else type(value)(items)
        case dict():
            pairs = {_concealed(name, secrets): _concealed(item, secrets) for name, item in value.items()}
            return value if pairs == value else pairs
        case _ if is_dataclass(value) and not isinstance(value, type):
            changed = {}
            for field in fields(value):
                before = getattr(value, field.name)
                after = _concealed(before, secrets)
                if after is not before:
                    changed[field.name] = after
            return replace(value, **changed) if changed else value
        case _:
            return value


def _concealed_text(text: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, REDACTED)
    if _may_escape(text, secrets) and text.lstrip()[:1] in ("{", "[", '"'):
        try:
            document = json.loads(text)
            found = _concealed(document, secrets)
        except (ValueError, RecursionError):
            return text
        if found != document:
            return json.dumps(found, ensure_ascii=False)
    return text


def _may_escape(text: str, secrets: tuple[str, ...]) -> bool:
    """Whether a JSON text may hold a printable ASCII character by another spelling than its own."""
    if "\\" not in text:
        return False
    return "\\u00" in text or "\\/" in text or any('"' in secret or "\\" in secret for secret in secrets)


def _same(one: object, other: object) -> bool:
    return one is other
