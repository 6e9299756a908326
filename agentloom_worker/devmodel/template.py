"""Substitution in scripted texts: `{{...}}` quotes the request, so that an answer can show real results.

    {{last_user_text}} {{first_user_text}} {{model}} {{assistant_turns}} {{tool_results}} {{arrival}}
    {{last_tool_result}}   {{tool_result:NAME}}   {{tool_result:NAME#2}}   {{tool_result:NAME#2.groups.0.p95}}

`#N` counts the results of that tool from 1; without it the last one is meant. A dotted path reads into a
result that is JSON. What the request does not hold becomes `(none)`. There is no logic and no code.
"""

import json
import re

from agentloom_worker.devmodel.chat import ChatRequest, results_of, user_text

NONE = "(none)"

_PLACE = re.compile(r"\{\{\s*(.*?)\s*\}\}", re.DOTALL)
_RESULT = re.compile(
    r"(?:last_tool_result|tool_result:(?P<tool>[A-Za-z0-9_-]+)(?:#(?P<number>[1-9][0-9]*))?)"
    r"(?P<path>(?:\.[A-Za-z0-9_-]+)*)"
)
_WORDS = ("last_user_text", "first_user_text", "model", "assistant_turns", "tool_results", "arrival")


def problems_of(text: str) -> list[str]:
    """What is wrong with the places of a template, one sentence each."""
    return [
        f"unknown place {{{{{place}}}}}"
        for place in _PLACE.findall(text)
        if place not in _WORDS and not _RESULT.fullmatch(place)
    ]


def fill(text: str, request: ChatRequest, arrival: int) -> str:
    """Put the request's own words into a template that `problems_of` has passed."""
    if "{{" not in text:
        return text
    return _PLACE.sub(lambda match: _value(match.group(1), request, arrival), text)


def fill_tree(value: object, request: ChatRequest, arrival: int) -> object:
    """Fill every text of a JSON value; keys stay as they are."""
    if isinstance(value, str):
        return fill(value, request, arrival)
    if isinstance(value, dict):
        return {key: fill_tree(item, request, arrival) for key, item in value.items()}
    if isinstance(value, list):
        return [fill_tree(item, request, arrival) for item in value]
    return value


def _value(place: str, request: ChatRequest, arrival: int) -> str:
    match place:
        case "last_user_text":
            return user_text(request, first=False)
        case "first_user_text":
            return user_text(request, first=True)
        case "model":
            return request.model
        case "assistant_turns":
            return str(request.assistant_turns)
        case "tool_results":
            return str(request.tool_results)
        case "arrival":
            return str(arrival)
        case _:
            return _result(place, request)


def _result(place: str, request: ChatRequest) -> str:
    match = _RESULT.fullmatch(place)
    assert match is not None, "a script with an unknown place is refused when it is read"
    texts = results_of(request, match["tool"])
    number = int(match["number"]) if match["number"] else len(texts)
    if not 1 <= number <= len(texts):
        return NONE
    text = texts[number - 1]
    path = match["path"].split(".")[1:]
    return _look_up(text, path) if path else text


def _look_up(text: str, path: list[str]) -> str:
    try:
        value: object = json.loads(text)
    except ValueError:
        return NONE
    for part in path:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return NONE
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
