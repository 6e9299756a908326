"""The secrets that this process has read: kept in memory only, so that no text of ours can carry one away.

The last line of defence, behind the rule that nothing puts a secret into a text: logs, evidence of failed steps, tools'
results and model answers pass through here on their way out. For many threads.
"""

import functools
import re
import threading
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from agentloom_worker import limits
from agentloom_worker.frozen import replace

REDACTED = "[redacted]"
_BACKSLASHES_MAX = 4
SPELLED_MAX = _BACKSLASHES_MAX + len("u0000")  # characters, of one character of a secret

# A character that JSON writes by its number, or behind a backslash though it is one to be printed.
_ESCAPE = re.compile(rf"\\{{1,{_BACKSLASHES_MAX}}}(?:u00([0-9a-fA-F]{{2}})|([\"/]))")

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
    return conceal_text(text, _in_order)


def conceal_text(text: str, secrets: tuple[str, ...]) -> str:
    """The text without these secrets, also where JSON that stands in it spells them with escapes, whole or broken."""
    plain = _ESCAPE.sub(_unescaped, text) if secrets and "\\" in text else ""
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, REDACTED)
        # Looked for in what is read once, since a search for every spelling is slow.
        if plain and (secret in plain or "\\" in secret):
            text = _spelled(secret).sub(REDACTED, text)
    return text


def conceal_bytes(body: bytes, secrets: tuple[str, ...]) -> bytes:
    """The bytes without these secrets, as `conceal_text` finds them in a text; itself where none is in it."""
    text = body.decode("latin-1")
    clean = conceal_text(text, tuple(secret.encode("utf-8", "surrogatepass").decode("latin-1") for secret in secrets))
    return body if clean is text else clean.encode("latin-1")


def conceal_value(value: _Value, secrets: tuple[str, ...]) -> _Value:
    """A value of texts, bytes, containers and dataclasses without these secrets; itself where none is in it."""
    return _concealed(value, secrets) if secrets else value


def _concealed(value: Any, secrets: tuple[str, ...]) -> Any:
    match value:
        case str():
            return conceal_text(value, secrets)
        case bytes():
            return conceal_bytes(value, secrets)
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


@functools.lru_cache(maxsize=limits.SECRETS_KEPT_MAX)
def _spelled(secret: str) -> re.Pattern[str]:
    return re.compile("".join(map(_spellings, secret)))


def _unescaped(escape: re.Match[str]) -> str:
    return escape[2] or chr(int(escape[1], 16))


def _spellings(character: str) -> str:
    """How JSON may write a character: as it is, behind a backslash, or by its number.

    JSON inside of JSON has its backslashes doubled, so there may be several. They are bounded: a text of backslashes
    alone must cost no more than another one.
    """
    digits = "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in f"{ord(character):04x}")
    plain = re.escape(character)
    if character == "\\":
        plain = rf"\\?{plain}"
    elif character in '"/':
        plain = rf"\\{{0,{_BACKSLASHES_MAX}}}{plain}"
    return rf"(?:{plain}|\\{{1,{_BACKSLASHES_MAX}}}u{digits})"


def _same(one: object, other: object) -> bool:
    return one is other
