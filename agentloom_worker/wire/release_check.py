"""Every problem of a release document at once: of shape, of references, of names, of numbers.

The checks across fields run on the plain tree and step over what has the wrong type, so that one wrong
field hides no other. No message quotes a value, except the names by which a document refers to itself.
"""

import difflib
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agentloom_worker.wire.release_source import Path, Problem, kind_of

SLUG = "^[a-z0-9]+(-[a-z0-9]+)*$"
KEY = r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$"
MODEL_NAME = r"^[a-zA-Z0-9_\-]{1,64}$"
HANDLER = r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*(:[A-Za-z_][A-Za-z0-9_.]*)?$"
# A provider's name is any but `env`, in what pydantic's regular expressions have.
_PROVIDER = "([a-z][a-z0-9]{3,31}|[a-z][a-z0-9]|[a-df-z][a-z0-9]{2}|e[a-mo-z0-9][a-z0-9]|en[a-uw-z0-9])"
_NAME = r"[^/\u0000-\u0020\u007f][^\u0000-\u0020\u007f]*"
CREDENTIAL = rf"^(env:[A-Za-z_][A-Za-z0-9_]*|file:[^\u0000]+|{_PROVIDER}:{_NAME})$"
RATIO = "^0[.][0-9]*[1-9][0-9]*$"
HEADER_NAME = r"^[A-Za-z0-9!#$%&'*+.^_`|~\-]+$"
HEADER_TEXT = r"^[\x20-\x7e]*$"
ERROR_CODE = r"^[\x21-\x7e]+$"
ALLOWED_HOST = r"^([a-z0-9]([a-z0-9.\-]*[a-z0-9])?|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?$"
NOT_BLANK = r"\S"
PATTERN_TEXT = {
    SLUG: "must be a slug: lower-case letters and digits, words joined by single hyphens",
    KEY: "must be a key: letters, digits, `_`, `-` and `.`",
    MODEL_NAME: "must match ^[a-zA-Z0-9_-]{1,64}$, since models accept no other names",
    HANDLER: "must be `package.module:function` or the name of an entry point",
    CREDENTIAL: "must be a reference, `env:NAME`, `file:PATH` or `PROVIDER:NAME`; a secret never stands in a release",
    RATIO: 'must be decimal text between 0 and 1, both excluded, such as "0.80"',
    HEADER_NAME: "must be the name of a header",
    HEADER_TEXT: "must be printable ASCII on one line",
    ERROR_CODE: "must be an error code: printable ASCII without blanks",
    ALLOWED_HOST: "must be `host` or `host:port` in lower case",
    NOT_BLANK: "must not be blank",
}
RESERVED_TOOL_KEYS = frozenset({"result.read"})
RESERVED_MODEL_NAMES = frozenset({"result_read"})
_CHAT_PARAMETERS = frozenset(
    {"model", "messages", "tools", "functions", "stream", "stream_options", "n"}
    | {"max_tokens", "max_completion_tokens"}
)
# By protocol; a test compares them with what the encodings refuse.
OWNED_PARAMETERS = {
    "openai-chat": _CHAT_PARAMETERS,
    "openai-responses": frozenset(
        {"model", "input", "instructions", "tools", "stream", "stream_options", "store", "include", "truncation"}
        | {"background", "context_management", "conversation", "previous_response_id", "prompt", "max_output_tokens"}
    ),
    "scripted": _CHAT_PARAMETERS,
}

# Finds what is wrong with one entry of `models`: the path inside of it and the text.
ModelCheck = Callable[[Mapping[str, object]], Iterator[tuple[Path, str]]]

_VERSION_QUERY = re.compile("api-version=[A-Za-z0-9.-]{1,64}")  # as Azure's addresses and gateways before it have
_PROTOCOL_PATH = re.compile("(/chat/completions|/responses)/*$")
_SUGGESTIONS_MAX = 100  # each one compares a name with all others
_MISSING_TEXT = {
    "context_window_tokens": "is required: a window is never guessed, take it from the model's documentation",
}
_TYPE_TEXT = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "list_type": "must be a list",
}


def shape_problems(error: ValidationError, root: type[BaseModel]) -> list[Problem]:
    """What pydantic found, in our words: its own repeat the input."""
    details = error.errors(include_url=False, include_context=True)
    return [_shape_problem(one, root, suggest=index < _SUGGESTIONS_MAX) for index, one in enumerate(details)]


def _shape_problem(error: ErrorDetails, root: type[BaseModel], *, suggest: bool) -> Problem:
    typed: Path = tuple(part for part in error["loc"] if part != "[key]")
    path = _written(typed)
    kind, context = error["type"], error.get("ctx", {})
    if kind == "union_tag_not_found":
        path, text = (*path, "kind"), "is required"
    elif kind == "union_tag_invalid":
        path, text = (*path, "kind"), f"must be {context['expected_tags'].replace(', ', ' or ')}"
    elif kind == "missing":
        text = _MISSING_TEXT.get(str(path[-1]), "is required")
    elif kind == "extra_forbidden":
        text = "is not a known field"
        if suggest:
            text += _did_you_mean(str(path[-1]), _fields_at(root, typed[:-1]))
    elif kind in _TYPE_TEXT:
        text = f"{_TYPE_TEXT[kind]}, not {kind_of(error['input'])}"
        if kind == "string_type" and isinstance(error["input"], bool | int | float):
            text += " (put it in quotes)"
    elif kind == "string_pattern_mismatch":
        text = PATTERN_TEXT[context["pattern"]]
    elif kind == "literal_error":
        text = f"must be {context['expected']}"
    else:
        text = error["msg"].removeprefix("Input should ").removeprefix("String should ")
        text = text if text.startswith(("must ", "says ")) else f"must {text}"
    return Problem(path, text)


def _written(typed: Path) -> Path:
    """The path as its author sees it: pydantic puts the kind of a tool behind the tool's key."""
    return (*typed[:2], *typed[3:]) if len(typed) > 2 and typed[0] == "tools" else typed


def _fields_at(root: type[BaseModel], path: Path) -> Collection[str]:
    """The fields that are known where `path` leads, found by walking the types of the document."""
    kind: object = root
    for part in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            known = kind.model_fields.get(str(part))
            kind = known.annotation if known else None
            choices = [one for one in typing.get_args(kind) if one is not type(None)]
            kind = choices[0] if type(None) in typing.get_args(kind) else kind
        elif typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[1]
        elif typing.get_origin(kind) is typing.Annotated:
            variants = typing.get_args(typing.get_args(kind)[0])
            kind = next((one for one in variants if part in typing.get_args(one.model_fields["kind"].annotation)), None)
    return tuple(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else ()


def _did_you_mean(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1) if len(name) <= 64 else []
    return f"; did you mean `{near[0]}`?" if near else ""


def cross_problems(
    tree: Mapping[str, object],
    known_profiles: Collection[str],
    check_model: ModelCheck,
    retry_defaults: tuple[int, int],
) -> Iterator[Problem]:
    """What fields say about each other. `retry_defaults` are the built-in `initial_ms` and `max_ms`."""
    models, tools = _named(tree, "models"), _named(tree, "tools")
    yield from _reference_problems(_mapping(tree, "agent"), models, tools)
    yield from _tool_name_problems(tools)
    for key, model in models.items():
        yield from _model_problems(("models", key), model, known_profiles)
        if isinstance(_mapping(tree, "models").get(key), dict):
            yield from (Problem(("models", key, *path), text) for path, text in check_model(model))
    yield from _budget_problems(tree, models)
    yield from _delay_problems(tree, models, tools, retry_defaults)


def _mapping(parent: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = parent.get(name)
    return value if isinstance(value, dict) else {}


def _named(tree: Mapping[str, object], name: str) -> dict[str, Mapping[str, object]]:
    """All entries of a section, an entry of the wrong type as an empty one: its key can be referred to."""
    section = _mapping(tree, name)
    return {key: _mapping(section, key) for key in section}


def _reference_problems(
    agent: Mapping[str, object], models: Collection[str], tools: Collection[str]
) -> Iterator[Problem]:
    model = agent.get("model")
    if isinstance(model, str) and model not in models:
        yield Problem(("agent", "model"), f"names no entry of `models`{_did_you_mean(model, models)}")
    listed = agent.get("tools")
    seen: set[str] = set()
    for index, tool in enumerate(listed if isinstance(listed, list) else []):
        path: Path = ("agent", "tools", index)
        if not isinstance(tool, str):
            continue
        if tool in seen:
            yield Problem(path, "is listed more than once")
        elif tool not in tools:
            hint = _did_you_mean(tool, tools) if index < _SUGGESTIONS_MAX else ""
            yield Problem(path, f"names no entry of `tools`{hint}")
        seen.add(tool)


def _tool_name_problems(tools: Mapping[str, Mapping[str, object]]) -> Iterator[Problem]:
    first_key_of: dict[str, str] = {}
    for key, tool in tools.items():
        written = tool.get("name")
        path: Path = ("tools", key) if written is None else ("tools", key, "name")
        name = key if written is None else written
        if key in RESERVED_TOOL_KEYS:
            yield Problem(("tools", key), "is the key of a built-in tool")
        elif not isinstance(name, str):
            continue
        elif written is None and re.fullmatch(KEY, key) and not re.fullmatch(MODEL_NAME, key):
            yield Problem(path, f"needs a `name`: its key {PATTERN_TEXT[MODEL_NAME]}")
        elif name in RESERVED_MODEL_NAMES:
            yield Problem(path, f"uses the model name `{name}`, which belongs to a built-in tool")
        elif name in first_key_of:
            other = first_key_of[name]
            yield Problem(path, f"has the same model name as the tool `{other}`: the model could not choose")
        else:
            first_key_of[name] = key


def require_address(model: Mapping[str, object]) -> Iterator[tuple[Path, str]]:
    """The check of a model where nothing is known of profiles: none has an address of its own."""
    if model.get("base_url") is None:
        yield ("base_url",), "is required"


def _model_problems(path: Path, model: Mapping[str, object], known_profiles: Collection[str]) -> Iterator[Problem]:
    profile = model.get("profile")
    if isinstance(profile, str) and profile not in known_profiles:
        known = ", ".join(sorted(known_profiles))
        yield Problem((*path, "profile"), f"MODEL_FEATURE_UNSUPPORTED: is not a known profile ({known})")
    base_url = model.get("base_url")
    if isinstance(base_url, str):
        trouble = _address_trouble(model.get("protocol"), base_url)
        if trouble:
            yield Problem((*path, "base_url"), trouble)
    owned = OWNED_PARAMETERS.get(str(model.get("protocol")), _CHAT_PARAMETERS)
    for name in _mapping(model, "parameters"):
        if name in owned:
            hint = "; say `max_output_tokens` instead" if name.startswith("max_") else ""
            yield Problem((*path, "parameters", name), f"is set by the worker itself{hint}")


def _address_trouble(protocol: object, base_url: str) -> str | None:
    if protocol == "scripted":
        return None if re.fullmatch(r"script:[A-Za-z0-9_.\-]+", base_url) else "must be `script:NAME`"
    if protocol not in ("openai-chat", "openai-responses"):
        return None
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return "is not a URL"
    if not usable or not base_url.isascii() or any(c.isspace() for c in base_url):
        return "must be an http or https URL with a host"
    if parts.username is not None or parts.password is not None:
        return "holds a user or a password: use `credential`, a secret never stands in a release"
    if parts.fragment or (parts.query and not _VERSION_QUERY.fullmatch(parts.query)):
        return "must end with a path: of a query only `?api-version=…` is taken, since others may hold a secret"
    found = _PROTOCOL_PATH.search(parts.path)
    if found is not None:
        return f"must end in front of `{found.group(1)}`: the worker adds the path of the protocol itself"
    return None


def _budget_problems(tree: Mapping[str, object], models: Mapping[str, Mapping[str, object]]) -> Iterator[Problem]:
    """B = W - O - S must be above 0 (seed 000, section 7), with the defaults of `domain.budget`.

    The formula stands here a second time because this floor lies below it; a test compares the two.
    """
    key = _mapping(tree, "agent").get("model")
    model = models.get(key, {}) if isinstance(key, str) else {}
    context = _mapping(tree, "context")
    window = _count(model.get("context_window_tokens"))
    if not window:
        return
    reserve = _count(context.get("output_reserve_tokens"))
    if reserve is None:
        reserve = min(_count(model.get("max_output_tokens")) or 4096, window // 4)
    elif reserve >= window:
        text = f"{reserve} tokens leave nothing of the window of {window} tokens"
        yield Problem(("context", "output_reserve_tokens"), text)
        return
    margin = _count(context.get("safety_margin_tokens"))
    if margin is None:
        margin = max(256, -(-window // 100))
    if window - reserve - margin <= 0:
        text = (
            f"no room for input: window {window} - output reserve {reserve} - safety margin {margin}"
            f" = {window - reserve - margin} tokens"
        )
        yield Problem(("context",), text)


def _delay_problems(
    tree: Mapping[str, object],
    models: Mapping[str, Mapping[str, object]],
    tools: Mapping[str, Mapping[str, object]],
    defaults: tuple[int, int],
) -> Iterator[Problem]:
    shared = _mapping(tree, "retry")
    for section, common, entries in (
        ("models", _mapping(shared, "model"), models),
        ("tools", _mapping(shared, "tools"), tools),
    ):
        places: list[tuple[Path, tuple[Mapping[str, object], ...]]] = [
            (("retry", section.removesuffix("s") if section == "models" else section), (common,))
        ]
        places += [
            ((section, key, "retry"), (_mapping(entry, "retry"), common))
            for key, entry in entries.items()
            if _mapping(entry, "retry")
        ]
        for path, layers in places:
            initial = _first_count(layers, "initial_ms", defaults[0])
            longest = _first_count(layers, "max_ms", defaults[1])
            if longest < initial:
                yield Problem(path, f"max_ms {longest} is below initial_ms {initial}, defaults included")


def _first_count(layers: tuple[Mapping[str, object], ...], name: str, default: int) -> int:
    counts = (_count(layer.get(name)) for layer in layers)
    return next((count for count in counts if count is not None), default)


def _count(value: object) -> int | None:
    """A number of tokens or milliseconds, or None where the field is absent or is a problem of its own."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
