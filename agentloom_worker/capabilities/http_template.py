"""The URL and the body of an http tool: templates that take arguments, and can lead nowhere else.

Host and port are fixed text. An argument is percent-encoded down to the unreserved characters (RFC 3986, 2.3),
so it never ends its place; what it could still do in a path, climb (`..`) or vanish, is refused.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from agentloom_worker import limits

DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_URL = re.compile(r"(https?)://([^/?#]*)(/[^?#]*)?(?:\?([^#]*))?")
_HOST = re.compile(r"([a-z0-9](?:[a-z0-9.\-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?")
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_BODY_PART = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")
_LITERAL = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?\-]|%[0-9A-Fa-f]{2})*")


class ArgumentRefusedError(ValueError):
    """An argument that fits its schema and not its place in the URL; the message never quotes it."""


class _Absent:
    """What stands where an argument was not given."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request goes. `host` has its brackets if it is an IPv6 address."""

    scheme: str
    host: str
    port: int

    @property
    def allowed_as(self) -> tuple[str, ...]:
        """How a list of allowed hosts may name it."""
        named = f"{self.host}:{self.port}"
        return (named, self.host) if self.port == DEFAULT_PORTS[self.scheme] else (named,)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UrlTemplate:
    """A parsed template: where it leads, its path, and the pairs of its query."""

    origin: Origin
    path: str
    query: tuple[tuple[str, str], ...]

    @property
    def in_path(self) -> frozenset[str]:
        """The arguments that must be given."""
        return frozenset(_PLACEHOLDER.findall(self.path))

    @property
    def names(self) -> frozenset[str]:
        """All arguments that the URL takes."""
        return self.in_path | {name for _, value in self.query for name in _PLACEHOLDER.findall(value)}

    def fill(self, arguments: Mapping[str, object]) -> str:
        """The path and query of one call. Raises ArgumentRefusedError."""
        path = _PLACEHOLDER.sub(lambda found: _in_path(found[1], arguments.get(found[1])), self.path)
        if any(part in (".", "..") for part in re.split(r"[/\\]", unquote(path))):
            raise ArgumentRefusedError("a part of the path may not be `.` or `..`")
        pairs = [pair for name, value in self.query for pair in _pairs(name, value, arguments)]
        target = f"{path}?{'&'.join(pairs)}" if pairs else path
        if len(target) > limits.HTTP_TOOL_TARGET_BYTES_MAX:
            raise ArgumentRefusedError(
                f"together they make a URL of more than {limits.HTTP_TOOL_TARGET_BYTES_MAX} bytes"
            )
        return target


@lru_cache(maxsize=limits.HTTP_TEMPLATE_CACHE)
def parse_url(url: str) -> UrlTemplate:
    """Read a template. Raises ValueError with what its author must change."""
    if "#" in url:
        raise ValueError("has a fragment, which no server sees")
    found = _URL.fullmatch(url)
    if found is None:
        raise ValueError("must be an http or https URL with a host")
    scheme, authority, path, query = found.groups()
    if "@" in authority:
        raise ValueError("holds a user or a password: use a header with a `credential`")
    if "{" in authority:
        raise ValueError("has a placeholder in its host or port: a model may not choose whom to call")
    host = _HOST.fullmatch(authority)
    port = int(host[2] or DEFAULT_PORTS[scheme]) if host else 0
    if host is None or port > 65535:
        raise ValueError("must have a plain host in lower case, and a port of at most 65535 if any")
    template = UrlTemplate(Origin(scheme, host[1], port), path or "/", tuple(_query(query or "")))
    if not _LITERAL.fullmatch(_PLACEHOLDER.sub("", (path or "") + "?" + (query or ""))):
        raise ValueError("holds characters that a URL must percent-encode, or a brace that is no placeholder")
    if any(part in (".", "..") for part in unquote(template.path).split("/")):
        raise ValueError("has a part of its path that is `.` or `..`")
    return template


def body_names(template: object) -> Iterator[tuple[str, bool]]:
    """The arguments that a body template takes; whether each must be given, as it is inside a longer text.

    Raises ValueError for a brace that is neither doubled nor part of a placeholder.
    """
    if isinstance(template, str):
        if "{" in _BODY_PART.sub("", template) or "}" in _BODY_PART.sub("", template):
            raise ValueError("holds a brace that is no placeholder: write it twice")
        alone = _PLACEHOLDER.fullmatch(template) is not None
        for found in _BODY_PART.finditer(template):
            if found[1] is not None:
                yield found[1], not alone
    elif isinstance(template, dict):
        for value in template.values():
            yield from body_names(value)
    elif isinstance(template, list):
        for value in template:
            yield from body_names(value)


def fill_body(template: object, arguments: Mapping[str, object]) -> object:
    """The JSON value of one call; members and items whose argument is absent are left out.

    Raises ArgumentRefusedError.
    """
    filled = _filled(template, arguments)
    return None if isinstance(filled, _Absent) else filled


def _filled(template: object, arguments: Mapping[str, object]) -> object:
    if isinstance(template, dict):
        members = {name: _filled(value, arguments) for name, value in template.items()}
        return {name: value for name, value in members.items() if not isinstance(value, _Absent)}
    if isinstance(template, list):
        items = [_filled(value, arguments) for value in template]
        return [value for value in items if not isinstance(value, _Absent)]
    if not isinstance(template, str):
        return template
    alone = _PLACEHOLDER.fullmatch(template)
    if alone is not None:
        return arguments.get(alone[1], _Absent())
    return _BODY_PART.sub(lambda found: _braces(found, arguments), template)


def _braces(found: re.Match[str], arguments: Mapping[str, object]) -> str:
    return found[0][0] if found[1] is None else _text(found[1], arguments.get(found[1]))


def _query(query: str) -> Iterator[tuple[str, str]]:
    for pair in query.split("&") if query else ():
        name, mark, value = pair.partition("=")
        if not name or not mark:
            raise ValueError("has a query that is not of the form name=value&name=value")
        if "{" in name:
            raise ValueError("has a placeholder in a name of its query: only values may have one")
        yield name, value


def _pairs(name: str, template: str, arguments: Mapping[str, object]) -> Iterator[str]:
    """One pair, none where an argument is absent, and one per item where the value is just a list."""
    names = _PLACEHOLDER.findall(template)
    if any(arguments.get(one) is None for one in names):
        return
    alone = _PLACEHOLDER.fullmatch(template)
    whole = arguments[alone[1]] if alone else None
    if alone and isinstance(whole, list):
        yield from (f"{name}={_encoded(alone[1], item)}" for item in whole)
        return
    yield f"{name}={_PLACEHOLDER.sub(lambda found: _encoded(found[1], arguments[found[1]]), template)}"


def _in_path(name: str, value: object) -> str:
    text = _text(name, value)
    if not text:
        raise ArgumentRefusedError(f"{name} may not be empty")
    if any(part in (".", "..") for part in re.split(r"[/\\]", text)):
        # Encoded or not: servers that decode before they resolve would climb.
        raise ArgumentRefusedError(f"{name} may not hold `.` or `..` as a part of a path")
    return _encoded(name, value)


def _encoded(name: str, value: object) -> str:
    try:
        return quote(_text(name, value), safe="")
    except UnicodeEncodeError:
        raise ArgumentRefusedError(f"{name} is not valid Unicode") from None


def _text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value, allow_nan=False)
    raise ArgumentRefusedError(f"{name} must be a text, a number or a boolean here")
