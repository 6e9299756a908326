"""Reading JSON that a model wrote: stricter than Python's parser, and never repaired."""

import json
import math
from collections import Counter
from typing import NoReturn

from agentloom_worker import limits


class RefusedJsonError(ValueError):
    """JSON that Python's parser would take and we do not; the text says why and quotes next to nothing."""


TOO_DEEP = f"nested more than {limits.JSON_DEPTH_MAX} levels deep"
TOO_MANY_DIGITS = "a number has too many digits"


def decode_json(text: str) -> object:
    """The one JSON value that a text holds.

    Raises json.JSONDecodeError for broken JSON, RecursionError or RefusedJsonError(TOO_DEEP) for more than
    JSON_DEPTH_MAX levels, and RefusedJsonError for a name that appears twice in one object (which of the two was
    meant nobody knows), for NaN and infinities, and for numbers that Python does not read.
    """
    try:
        value: object = _decoder.decode(text)
    except (json.JSONDecodeError, RefusedJsonError):
        raise
    except ValueError:
        # Python refuses to read integers of thousands of digits.
        raise RefusedJsonError(TOO_MANY_DIGITS) from None
    if text.count("[") + text.count("{") > limits.JSON_DEPTH_MAX and nested_deeper(value, limits.JSON_DEPTH_MAX):
        raise RefusedJsonError(TOO_DEEP)
    return value


def nested_deeper(value: object, levels: int) -> bool:
    """Whether arrays and objects are nested more than so many levels deep. Needs no stack."""
    layer = [value]
    for _ in range(levels):
        layer = [
            child
            for parent in layer
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not layer:
            return False
    return True


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        counted = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counted.items() if count > 1)
        raise RefusedJsonError(f"the name {twice[:64]!r} appears twice in one object")
    return value


def _constant(name: str) -> NoReturn:
    raise RefusedJsonError(f"{name} is not a JSON number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise RefusedJsonError(f"the number {text[:32]} is too large")
    return value


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
