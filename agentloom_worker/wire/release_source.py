"""Reading what an author wrote: YAML, JSON or a Python mapping becomes one plain tree of JSON values.

YAML is read by the core schema of YAML 1.2, and whatever two readers could understand differently is
refused: `yes` and `off` as values, tags, numbers beyond 64 bits, NaN. A field given twice is refused, an
alias is followed only as far as the bounds of `limits.py` go. No message quotes a value, since a value may
be a secret put in the wrong place.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from agentloom_worker.limits import RELEASE_BYTES_MAX, RELEASE_DEPTH_MAX, RELEASE_VALUES_MAX

Path = tuple[str | int, ...]

_NAME_SHOWN_CHARACTERS = 80
_INTEGER_DIGITS_MAX = 20
_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FRACTION = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?")
_NOT_A_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_TWO_MEANINGS = frozenset({"yes", "no", "on", "off"})
_TEXT_TAG = "tag:yaml.org,2002:str"
_TOO_MANY = f"holds more than {RELEASE_VALUES_MAX} values, aliases counted"
_TOO_LARGE = "whole numbers must fit into 64 bits"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to change, and where."""

    path: Path
    text: str


@dataclass(frozen=True, slots=True)
class Source:
    """The tree as far as it could be read. `readable` is False when there is nothing worth checking."""

    tree: object
    problems: tuple[Problem, ...]
    readable: bool


@dataclass(frozen=True, slots=True)
class _Refused:
    """A scalar that must not be used as written; `stand_in` lets the other checks go on."""

    reason: str
    stand_in: object


class _Pairs(list[tuple[object, object]]):
    """A mapping as written: in order, with repeated keys."""


@dataclass(frozen=True, slots=True)
class _Unreadable:
    reason: str


class _OverBoundError(Exception):
    """The document is larger than it may be; ends the walk."""


def pointer(path: Path) -> str:
    """The path as a JSON pointer (RFC 6901), safe to print."""
    return "".join(f"/{_shown(str(part)).replace('~', '~0').replace('/', '~1')}" for part in path)


def read_source(source: bytes | str | dict[str, object]) -> Source:
    """Read a document completely, listing what is wrong with its form."""
    raw: object = _read_text(source) if isinstance(source, bytes | str) else source
    if isinstance(raw, _Unreadable):
        return Source(None, (Problem((), raw.reason),), readable=False)
    walk = _Walk()
    try:
        tree = walk.plain(raw, ())
    except _OverBoundError as error:
        return Source(None, (*walk.problems, Problem((), str(error))), readable=False)
    if not isinstance(tree, dict):
        return Source(None, (*walk.problems, Problem((), "must be a mapping")), readable=False)
    return Source(tree, tuple(walk.problems), readable=True)


def _shown(name: str) -> str:
    """A name from the document, shortened and without characters that a terminal obeys."""
    printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    short = printable[:_NAME_SHOWN_CHARACTERS]
    return short if len(short) == len(printable) else short + "…"


def _read_text(source: bytes | str) -> object:
    if len(source) > RELEASE_BYTES_MAX:
        return _Unreadable(f"is larger than {RELEASE_BYTES_MAX} bytes")
    text = source
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            return _Unreadable(f"is not UTF-8 at byte {error.start}")
    text = text.removeprefix("\ufeff")
    if not text.lstrip().startswith("{"):
        return _read_yaml(text)
    as_json = _read_json(text)
    if not isinstance(as_json, _Unreadable):
        return as_json
    as_yaml = _read_yaml(text)  # a flow mapping of YAML begins with a brace too
    if isinstance(as_yaml, _Unreadable):
        return _Unreadable(f"is neither JSON ({as_json.reason}) nor YAML ({as_yaml.reason})")
    return as_yaml


def _read_json(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_Pairs, parse_int=_whole)
    except json.JSONDecodeError as error:
        return _Unreadable(f"{error.msg}, line {error.lineno} column {error.colno}")
    except RecursionError:
        return _Unreadable(f"is nested deeper than {RELEASE_DEPTH_MAX} levels")


def _whole(digits: str) -> object:
    if len(digits) > _INTEGER_DIGITS_MAX:  # Python refuses to convert very long ones, with an exception
        return _Refused(_TOO_LARGE, 0)
    return int(digits)


def _read_yaml(text: str) -> object:
    """Build the tree from parser events: no recursion, so depth is bounded before anything is built."""
    builder = _YamlBuilder()
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            refusal = builder.take(event)
            if refusal is not None:
                return refusal
    except yaml.MarkedYAMLError as error:
        # Its own text quotes lines of the document, which may hold a secret.
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1} column {mark.column + 1}" if mark else ""
        return _Unreadable(f"cannot be read: {_shown(error.problem or 'malformed')}{where}")
    except yaml.YAMLError:
        return _Unreadable("holds a character that YAML does not allow")
    if builder.root is None:
        return _Unreadable("is empty")
    return builder.root[0]


def _line(event: yaml.Event) -> str:
    return f"line {event.start_mark.line + 1}" if event.start_mark else "somewhere"


@dataclass(slots=True)
class _Open:
    """A collection whose end has not been seen. `key` holds the key that waits for its value."""

    items: _Pairs | list[object]
    key: tuple[object] | None = None


@dataclass(slots=True)
class _YamlBuilder:
    root: tuple[object] | None = None
    stack: list[_Open] = field(default_factory=list)
    anchors: dict[str, object] = field(default_factory=dict)
    events: int = 0

    def take(self, event: yaml.Event) -> _Unreadable | None:
        """Add one event; an answer ends the reading."""
        self.events += 1
        if self.events > 4 * RELEASE_VALUES_MAX:  # a value takes two, its key another: no need to read on
            return _Unreadable(_TOO_MANY)
        if isinstance(event, yaml.ScalarEvent):
            self._add(_scalar(event), event.anchor)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                return _Unreadable(f"{_line(event)}: this alias has no anchor")
            self._add(self.anchors[event.anchor], None)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(self.stack) >= RELEASE_DEPTH_MAX:
                return _Unreadable(f"is nested deeper than {RELEASE_DEPTH_MAX} levels")
            if event.tag is not None:
                return _Unreadable(f"{_line(event)}: tags are not supported")
            opened = _Open(_Pairs() if isinstance(event, yaml.MappingStartEvent) else [])
            self._add(opened.items, event.anchor)
            self.stack.append(opened)
        elif isinstance(event, yaml.CollectionEndEvent):
            self.stack.pop()
        elif isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            return _Unreadable(f"{_line(event)}: a second document begins")
        return None

    def _add(self, value: object, anchor: str | None) -> None:
        if anchor is not None:
            self.anchors[anchor] = value
        if not self.stack:
            self.root = (value,)
            return
        top = self.stack[-1]
        if not isinstance(top.items, _Pairs):
            top.items.append(value)
        elif top.key is None:
            top.key = (value,)
        else:
            top.items.append((top.key[0], value))
            top.key = None


def _scalar(event: yaml.ScalarEvent) -> object:
    text: str = event.value
    if event.tag is not None and event.tag != _TEXT_TAG:
        return _Refused("tags are not supported", text)
    if event.style is not None or event.tag is not None:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _WHOLE.fullmatch(text):
        return _whole(text)
    if _FRACTION.fullmatch(text):
        return float(text)
    if _NOT_A_NUMBER.fullmatch(text):
        return math.nan
    if text.lower() in _TWO_MEANINGS:
        return _Refused("some readers take this word for a boolean: write true or false, or quote it", text)
    return text


class _Walk:
    """One walk over a document, counting what it meets."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._values = 0
        self._characters = 0

    def plain(self, value: object, path: Path) -> object:
        """The value as plain JSON. Raises _OverBoundError."""
        self._values += 1
        if self._values > RELEASE_VALUES_MAX:
            raise _OverBoundError(_TOO_MANY)
        if len(path) > RELEASE_DEPTH_MAX:
            raise _OverBoundError(f"is nested deeper than {RELEASE_DEPTH_MAX} levels")
        if isinstance(value, _Refused):
            self.problems.append(Problem(path, value.reason))
            return value.stand_in
        if isinstance(value, _Pairs):
            return self._mapping(iter(value), path)
        if isinstance(value, dict):
            return self._mapping(iter(value.items()), path)
        if isinstance(value, list):
            return [self.plain(item, (*path, index)) for index, item in enumerate(value)]
        return self._checked_scalar(value, path)

    def _mapping(self, pairs: Iterator[tuple[object, object]], path: Path) -> dict[str, object]:
        plain: dict[str, object] = {}
        for raw_key, raw_value in pairs:
            key = raw_key.stand_in if isinstance(raw_key, _Refused) else raw_key
            if not isinstance(key, str):
                self.problems.append(Problem(path, f"holds a key that is {kind_of(key)}: keys are text"))
                continue
            self._text(key, (*path, key))
            value = self.plain(raw_value, (*path, key))
            if key in plain:
                self.problems.append(Problem((*path, key), "is given more than once"))
                continue
            plain[key] = value
        return plain

    def _checked_scalar(self, value: object, path: Path) -> object:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            self._text(value, path)
        elif isinstance(value, int):
            if not -(2**63) <= value < 2**63:
                self.problems.append(Problem(path, _TOO_LARGE))
        elif isinstance(value, float):
            if not math.isfinite(value):
                self.problems.append(Problem(path, "must be a finite number"))
                return 0.0
        else:
            self.problems.append(Problem(path, f"is {kind_of(value)}, which JSON does not have"))
            return None
        return value

    def _text(self, value: str, path: Path) -> None:
        self._characters += len(value)
        if self._characters > RELEASE_BYTES_MAX:
            raise _OverBoundError(f"holds more than {RELEASE_BYTES_MAX} characters, aliases counted")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            self.problems.append(Problem(path, "holds half of a surrogate pair, which is no character"))


def kind_of(value: object) -> str:
    """What a value is, in an author's words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return f"a Python {type(value).__name__}"
