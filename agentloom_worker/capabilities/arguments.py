"""From the text that a model wrote as arguments to a checked JSON object, or to what the model must fix."""

import json
import math
from typing import NoReturn

from agentloom_worker import limits
from agentloom_worker.capabilities.schema import input_problems
from agentloom_worker.domain.capability import CapabilitySpec
from agentloom_worker.domain.model import Category, Executed, Failure
from agentloom_worker.errors import Code


class _RefusedError(ValueError):
    """JSON that Python's parser would take and we do not."""


def check_arguments(spec: CapabilitySpec, arguments_text: str) -> dict[str, object] | Failure:
    """Parse and validate; the text itself is never repaired.

    Empty or blank text and JSON null mean `{}` (some models write so for a tool without parameters).
    Refused besides broken JSON: another root than an object, a name that appears twice in one object
    (which of the two was meant nobody knows), NaN and infinities, more than JSON_DEPTH_MAX levels.
    """
    try:
        value = _read(arguments_text)
        problems = input_problems(spec, value)
    except _RefusedError as refused:
        return invalid_arguments(str(refused))
    except RecursionError:
        return invalid_arguments("the schema refers to itself without end for this value")
    if problems:
        return invalid_arguments("they do not match the tool's schema: " + "; ".join(problems))
    return value


def invalid_arguments(text: str) -> Failure:
    """The failure that tells the model what is wrong with its arguments. Nothing was executed."""
    return Failure(
        code=Code.TOOL_ARGUMENTS_INVALID,
        category=Category.VALIDATION,
        message=f"The arguments were not accepted: {text}. Nothing was executed; correct them.",
        external_outcome=Executed.NOT_EXECUTED,
    )


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


def _read(arguments_text: str) -> dict[str, object]:
    """The object that the text holds. Raises _RefusedError."""
    try:
        value = _decoder.decode(arguments_text) if arguments_text.strip() else None
    except json.JSONDecodeError as error:
        raise _RefusedError(f"they are not valid JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _RefusedError(_TOO_DEEP) from None
    except _RefusedError:
        raise
    except ValueError:
        # Python refuses to read integers of thousands of digits.
        raise _RefusedError("a number has too many digits") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _RefusedError(f"they must be one JSON object, not {_JSON_NAMES[type(value)]}")
    brackets = arguments_text.count("[") + arguments_text.count("{")
    if brackets > limits.JSON_DEPTH_MAX and nested_deeper(value, limits.JSON_DEPTH_MAX):
        raise _RefusedError(_TOO_DEEP)
    return value


_TOO_DEEP = f"they are nested more than {limits.JSON_DEPTH_MAX} levels deep"
_JSON_NAMES = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _RefusedError(f"the name {twice[:64]!r} appears twice in one object")
    return value


def _constant(name: str) -> NoReturn:
    raise _RefusedError(f"{name} is not a JSON number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _RefusedError(f"the number {text[:32]} is too large")
    return value


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
