"""From the text that a model wrote as arguments to a checked JSON object, or to what the model must fix."""

import json

from agentloom_worker.capabilities.json_text import TOO_DEEP, RefusedJsonError, decode_json
from agentloom_worker.capabilities.schema import input_problems
from agentloom_worker.domain.capability import CapabilitySpec
from agentloom_worker.domain.model import Category, Executed, Failure
from agentloom_worker.errors import Code


def check_arguments(spec: CapabilitySpec, arguments_text: str) -> dict[str, object] | Failure:
    """Parse and validate; the text itself is never repaired.

    Empty or blank text and JSON null mean `{}` (some models write so for a tool without parameters).
    Refused besides broken JSON: another root than an object, a name that appears twice in one object
    (which of the two was meant nobody knows), NaN and infinities, more than JSON_DEPTH_MAX levels.
    """
    try:
        value = _read(arguments_text)
        problems = input_problems(spec, value)
    except RefusedJsonError as refused:
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


def _read(arguments_text: str) -> dict[str, object]:
    """The object that the text holds. Raises RefusedJsonError."""
    try:
        value = decode_json(arguments_text) if arguments_text.strip() else None
    except json.JSONDecodeError as error:
        raise RefusedJsonError(f"they are not valid JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise RefusedJsonError(f"they are {TOO_DEEP}") from None
    except RefusedJsonError as refused:
        raise RefusedJsonError(f"they are {TOO_DEEP}" if str(refused) == TOO_DEEP else str(refused)) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RefusedJsonError(f"they must be one JSON object, not {_JSON_NAMES[type(value)]}")
    return value


_JSON_NAMES = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
