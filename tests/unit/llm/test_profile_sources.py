"""What a profile differs in stands on a page that says so: a fact that names it, or a comment at the flag itself."""

import ast
import dataclasses
import io
import re
import tokenize
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

import agentloom_worker.llm.profiles as package
from agentloom_worker.llm.profiles import PROFILES, Profile

# Whose flags are a decision of this project's own, or of a release.
NAMES = [name for name in PROFILES if name not in ("generic", "custom")]
FLAGS = [one for one in dataclasses.fields(Profile) if one.name not in ("name", "version", "facts")]

_RESPONSES = ("responses", "both protocols")
# Flag → the words of which a fact about it has at least one. Where a flag's own value is its name, see `_words_of`.
WORDS = {
    "mid_system": ("system message", "roles are system"),
    "strict_alternation": ("must alternate",),
    "first_must_be_user": ("the user first",),
    "stream_options": ("stream_options",),
    "done_required": ("[DONE]",),
    "new_id_opens_call": ("index",),
    "reasoning_replay": ("come back", "goes back", "get their reasoning back"),
    "reasoning_if_empty": ("goes back empty",),
    "encrypted_replay": ("encrypted_content",),
    "base_resp_errors": ("base_resp",),
    "silent_limit": ("usage.output_tokens",),
}


@cache
def _module_of(name: str) -> tuple[str, ast.Call]:
    """The source of a profile's module, and the call there that makes it."""
    path = Path(package.__file__).with_name(f"{name.replace('-', '_')}.py")
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Profile":
            return source, node
    raise AssertionError(f"{path.name} makes no profile")


def _comment_at(name: str, flag: str) -> str:
    """What is said in comments at a flag: in its lines, or in those directly above."""
    source, call = _module_of(name)
    keyword = next(one for one in call.keywords if one.arg == flag)
    first, last = keyword.value.lineno, keyword.value.end_lineno or keyword.value.lineno
    comments = {
        token.start[0]: token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    while first - 1 in comments and source.splitlines()[first - 2].lstrip().startswith("#"):
        first -= 1
    return " ".join(text for line, text in comments.items() if first <= line <= last)


def _words_of(flag: str, value: object) -> list[tuple[str, ...]]:
    """What the facts must name: of each of these at least one word."""
    match flag:
        case "protocols":
            assert isinstance(value, tuple)
            # Chat completions are what every profile's facts are about.
            return [_RESPONSES for protocol in value if protocol == "openai-responses"]
        case "parameters" | "responses_parameters":
            assert isinstance(value, frozenset)
            return [_RESPONSES if flag == "responses_parameters" else ("parameter", "fields of a request", *value)]
        case "unsupported":
            assert isinstance(value, frozenset)
            return [(path.rpartition(".")[2],) for path in sorted(value)]
        case _ if isinstance(value, Mapping):
            return [(str(key),) for key in value]
        case _:
            return [WORDS.get(flag) or (str(value),)]


def _differing(name: str) -> list[tuple[str, object]]:
    plain = Profile("plain", 1)
    found = [(one.name, getattr(PROFILES[name], one.name)) for one in FLAGS]
    return [(flag, value) for flag, value in found if value != getattr(plain, flag)]


@pytest.mark.parametrize("name", NAMES)
def test_every_flag_that_differs_is_named_by_a_fact_or_explained_where_it_stands(name: str) -> None:
    profile = PROFILES[name]
    facts = [fact.text for fact in profile.facts]
    unnamed = []
    for flag, value in _differing(name):
        if flag in ("base_url", "auth_prefix") or _has_sources(value):
            continue  # see below; a prefix belongs to its header
        missing = [
            words for words in _words_of(flag, value) if not any(word in text for word in words for text in facts)
        ]
        if missing and not _comment_at(name, flag):
            unnamed.append((flag, missing))
    assert unnamed == []


@pytest.mark.parametrize("name", NAMES)
def test_a_default_address_is_the_providers_own_or_named_by_a_fact(name: str) -> None:
    address = PROFILES[name].base_url
    if address is None:
        return
    host, port = re.fullmatch(r"https?://([^/:]+)(?::(\d+))?(?:/.*)?", address).groups()  # type: ignore[union-attr]
    own = host.split(".")[-2:]
    sources = [re.sub(r"^https://([^/]+).*", r"\1", fact.source).split(".")[-2:] for fact in PROFILES[name].facts]
    named = any(word in fact.text for fact in PROFILES[name].facts for word in (address, host, f"port {port}"))
    assert own in sources or named or _comment_at(name, "base_url")


def _has_sources(value: object) -> bool:
    """Whether a flag's value brings its own sources."""
    return isinstance(value, tuple) and bool(value) and all(hasattr(one, "source") for one in value)


@pytest.mark.parametrize("name", NAMES)
def test_every_source_is_a_page_and_every_known_model_has_one(name: str) -> None:
    profile = PROFILES[name]
    assert profile.facts
    sources = [fact.source for fact in profile.facts]
    for _, value in _differing(name):
        sources += [one.source for one in value] if _has_sources(value) else []  # type: ignore[attr-defined]
    assert len(sources) >= len(profile.facts) + len(profile.models)
    assert [source for source in sources if not re.fullmatch(r"https://[^/\s]+/\S+", source)] == []
    assert all(fact.text.strip() for fact in profile.facts)
    assert len({known.model for known in profile.models}) == len(profile.models)
    assert all(known.context_window_tokens for known in profile.models)
