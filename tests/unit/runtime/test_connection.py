"""What a limit names: an endpoint, a model there, a credential there, or both, without doubt which."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentloom_worker.bootstrap import make_ports
from agentloom_worker.client import Agentloom
from agentloom_worker.domain.release import ModelBinding, load_release
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.runtime.connection import limits_on, read_name
from agentloom_worker.runtime.ports import Settings
from agentloom_worker.runtime.publish import resolve_release
from tests.factories import release_document


def binding(
    model: str = "gpt-x", credential: str | None = "env:TEAM_KEY", base_url: str = "https://api.example.com/v1"
) -> ModelBinding:
    entry = {"model": model} | ({} if credential is None else {"credential": credential})
    document = release_document(base_url=base_url, models={"main": entry})
    return load_release(resolve_release(document).body).model


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("*", "*"),
        ("API.Example.com", "api.example.com"),
        ("10.0.0.7:8000", "10.0.0.7:8000"),
        ("[2001:DB8::1]:9/Model", "[2001:db8::1]:9/Model"),
        ("script:main/Model", "script:main/Model"),
        ("api.example.com/gpt-x", "api.example.com/gpt-x"),
        ("openrouter.ai/qwen/qwen3:free", "openrouter.ai/qwen/qwen3:free"),
        ("localhost:8000/a=b", "localhost:8000/a=b"),
        ("api.example.com@env:TEAM_KEY", "api.example.com@env:TEAM_KEY"),
        ("api.example.com@file:/run/secrets/key", "api.example.com@file:/run/secrets/key"),
        ("api.example.com@file:/run/a%20b@c", "api.example.com@file:/run/a%20b%40c"),
        ("api.example.com@vault:team/key=v1", "api.example.com@vault:team/key=v1"),
        ("api.example.com/qwen/qwen3:free@env:KEY", "api.example.com/qwen/qwen3:free@env:KEY"),
        ("api.example.com/%40cf/meta/llama%2D3@env:KEY", "api.example.com/%40cf/meta/llama-3@env:KEY"),
    ],
)
def test_each_name_has_one_spelling(written: str, name: str) -> None:
    assert read_name(written) == name
    assert read_name(name) == name


@pytest.mark.parametrize(
    ("written", "trouble"),
    [
        ("", "names no host"),
        ("https://secret", "names no host"),
        ("api.example.com/", "names no host"),
        ("api.example.com@", "names no host"),
        ("/secret", "names no host"),
        ("api example", "names no host"),
        ("*/secret", "name the endpoint"),
        ("*@env:SECRET", "name the endpoint"),
        ("api.example.com@secret", "has no credential reference"),
        ("api.example.com/claude@20990101", "write %40"),
        ("api.example.com/@cf/secret", "names no host"),
        ("api.example.com@env:NO-NAME", "has no credential reference"),
    ],
)
def test_what_names_no_connection_is_refused_and_not_quoted(written: str, trouble: str) -> None:
    with pytest.raises(ValueError, match=trouble) as caught:
        read_name(written)
    assert "secret" not in str(caught.value).lower()
    with pytest.raises(ValueError, match=trouble):
        Settings(model_lanes={written: 1}).spelt()


@pytest.mark.parametrize("setting", ["model_lanes", "model_requests", "model_tokens"])
@pytest.mark.parametrize(
    ("limited", "trouble"),
    [
        ({"https://secret": 1}, "a name in {} names no host"),
        ({"api.example.com": 0}, "a limit in {} is no whole number above 0"),
        ({"api.example.com": -1}, "a limit in {} is no whole number above 0"),
        ({"api.example.com": "1"}, "a limit in {} is no whole number above 0"),
        ({"api.example.com": 2.5}, "a limit in {} is no whole number above 0"),
        ({"api.example.com": True}, "a limit in {} is no whole number above 0"),
        ({"API.example.com": 1, "api.example.com": 2}, "two names in {} are one connection"),
    ],
)
def test_limits_that_could_not_hold_are_refused_before_anything_runs(
    tmp_path: Path, setting: str, limited: dict[str, Any], trouble: str
) -> None:
    settings = replace(Settings(), **{setting: limited})
    with pytest.raises(RequestError, match=trouble.format(setting)) as caught:
        Agentloom.embedded(tmp_path / "state", settings=settings)
    assert caught.value.code is Code.INPUT_INVALID


EVERY = {
    "api.example.com/gpt-x@env:TEAM_KEY": 1,
    "api.example.com/gpt-x": 2,
    "api.example.com@env:TEAM_KEY": 3,
    "api.example.com": 4,
}


def test_every_limit_that_names_an_attempt_counts_it_the_narrowest_first() -> None:
    assert [*limits_on(EVERY, binding()).items()] == [*EVERY.items()]
    assert [*limits_on(dict(reversed(EVERY.items())), binding())] == [*EVERY]


@pytest.mark.parametrize(
    ("attempt", "numbers"),
    [
        (binding("gpt-y"), [3, 4]),
        (binding("GPT-X"), [3, 4]),
        (binding("gpt-x", "env:OTHER_KEY"), [2, 4]),
        (binding("gpt-x", None), [2, 4]),
        (binding("gpt-y", None), [4]),
        (binding(base_url="https://API.example.com.:443/v2"), [1, 2, 3, 4]),
        (binding(base_url="https://api.example.com:8443/v1"), []),
        (binding(base_url="http://api.example.com:443/v1"), []),
    ],
)
def test_a_limit_counts_what_it_names_and_nothing_else(attempt: ModelBinding, numbers: list[int]) -> None:
    assert [*limits_on(EVERY, attempt).values()] == numbers


def test_names_with_the_schemes_own_port_count_under_the_name_without_it() -> None:
    limits = {f"api.example.com:443{name.removeprefix('api.example.com')}": number for name, number in EVERY.items()}
    assert limits_on(limits, binding()) == EVERY


def test_star_is_each_endpoint_without_a_limit_of_its_own() -> None:
    """One for a model or a credential there is none for the endpoint: both count."""
    assert limits_on({"*": 9}, binding()) == {"api.example.com": 9}
    assert limits_on({"*": 9, "api.example.com": 4}, binding()) == {"api.example.com": 4}
    narrow = {"*": 9, "api.example.com/gpt-x": 2}
    assert limits_on(narrow, binding()) == {"api.example.com/gpt-x": 2, "api.example.com": 9}
    assert limits_on(narrow, binding("gpt-y")) == {"api.example.com": 9}


@pytest.mark.parametrize("model", ["qwen/qwen3:free", "@cf/meta/llama-3", "claude@20990101", "50%40", "a b", "x=1"])
def test_a_models_id_of_any_letters_can_be_named(model: str) -> None:
    escaped = model.replace("%", "%25").replace("@", "%40").replace(" ", "%20")
    settings = Settings(model_lanes={f"api.example.com/{escaped}": 2}).spelt()
    assert [*limits_on(settings.model_lanes, binding(model)).values()] == [2]
    assert limits_on(settings.model_lanes, binding("another")) == {}


def test_ports_have_names_in_their_one_spelling_and_refuse_what_names_nothing(tmp_path: Path) -> None:
    given = {"API.example.com/%67pt-x": 1, "*": 2}
    url = f"sqlite:///{tmp_path}/store.sqlite"
    ports = make_ports(url, settings=Settings(model_lanes=given, model_requests=given, model_tokens=given))
    spelt = {"api.example.com/gpt-x": 1, "*": 2}
    found = ports.settings
    assert (found.model_lanes, found.model_requests, found.model_tokens) == (spelt, spelt, spelt)
    ports.store.close()
    with pytest.raises(ValueError, match="names no host"):
        make_ports(url, settings=Settings(model_tokens={"https://api.example.com": 1}))
