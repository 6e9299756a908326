"""Templates of http tools: an argument fills its place and can lead nowhere else."""

import pytest

from agentloom_worker import limits
from agentloom_worker.capabilities.http_template import (
    ArgumentRefusedError,
    Origin,
    body_names,
    fill_body,
    parse_url,
)

HOST = "https://api.example.com"


def fill(template: str, **arguments: object) -> str:
    return parse_url(HOST + template).fill(arguments)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        ("plain-1._~", "plain-1._~"),
        ("a b", "a%20b"),
        ("a/b?c#d&e=f;g", "a%2Fb%3Fc%23d%26e%3Df%3Bg"),
        ("100%", "100%25"),
        ("%2e%2e", "%252e%252e"),
        ("münchen 東", "m%C3%BCnchen%20%E6%9D%B1"),
        ("line\r\nHost: evil", "line%0D%0AHost%3A%20evil"),
        ("@evil.com:80", "%40evil.com%3A80"),
        ("{other}", "%7Bother%7D"),
        (17, "17"),
        (2.5, "2.5"),
        (True, "true"),
    ],
)
def test_argument_is_percent_encoded_in_path_and_query(value: object, encoded: str) -> None:
    assert fill("/items/{id}/x?q={id}", id=value) == f"/items/{encoded}/x?q={encoded}"


@pytest.mark.parametrize("value", ["..", ".", "../admin", "a/../b", "..\\admin", "a\\.", "./x", ""])
def test_argument_that_would_climb_or_vanish_in_the_path_is_refused(value: str) -> None:
    with pytest.raises(ArgumentRefusedError) as refused:
        fill("/items/{id}", id=value)
    assert "id may not" in str(refused.value)


def test_argument_that_climbs_together_with_the_text_around_it_is_refused() -> None:
    assert fill("/items/{id}/.x{id}", id="a") == "/items/a/.xa"
    assert fill("/items/%2E{id}", id="a") == "/items/%2Ea"
    for template in ("/items/{a}{b}", "/items/x/{b}{a}"):
        with pytest.raises(ArgumentRefusedError):
            fill(template, a=".", b=".")


def test_dots_inside_names_and_in_the_query_are_nothing_special() -> None:
    assert fill("/files/{name}.txt?like={q}", name="a..b", q="../x") == "/files/a..b.txt?like=..%2Fx"


@pytest.mark.parametrize("value", [["a"], {"a": 1}, None])
def test_value_that_is_no_text_number_or_boolean_is_refused_in_the_path(value: object) -> None:
    with pytest.raises(ArgumentRefusedError, match="id must be a text, a number or a boolean"):
        fill("/items/{id}", id=value)


def test_lone_surrogate_is_refused() -> None:
    with pytest.raises(ArgumentRefusedError, match="id is not valid Unicode"):
        fill("/items/{id}", id="\ud800")


def test_query_pair_without_its_argument_is_left_out_and_a_list_repeats_it() -> None:
    template = "/search?kind=all&q={q}&tag={tag}&page={page}"
    assert fill(template, q="x", tag=["a", "b c"]) == "/search?kind=all&q=x&tag=a&tag=b%20c"
    assert fill(template, page=2, q=None) == "/search?kind=all&page=2"
    assert fill("/search?q={q}") == "/search"


def test_target_is_bounded() -> None:
    assert fill("/x?q={q}", q="a" * 8000)
    with pytest.raises(ArgumentRefusedError, match="URL of more than 8192 bytes"):
        fill("/x?q={q}", q="a" * limits.HTTP_TOOL_TARGET_BYTES_MAX)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://h/x", "http or https URL"),
        ("/relative", "http or https URL"),
        ("https:///x", "plain host"),
        ("HTTPS://h/x", "http or https URL"),
        ("https://user@h/x", "user or a password"),
        ("https://user:pw@h/x", "user or a password"),
        ("https://{host}/x", "may not choose whom to call"),
        ("https://h:{port}/x", "may not choose whom to call"),
        ("https://h.{zone}/x", "may not choose whom to call"),
        ("https://Example.com/x", "plain host"),
        ("https://h:0/x", "plain host"),
        ("https://h:99999/x", "at most 65535"),
        ("https://h\\evil/x", "plain host"),
        ("https://h/x#part", "fragment"),
        ("https://h/a/../b", "`.` or `..`"),
        ("https://h/a/%2e%2E/b", "`.` or `..`"),
        ("https://h/a b", "percent-encode"),
        ("https://h/ä", "percent-encode"),
        ("https://h/a{b", "no placeholder"),
        ("https://h/a{}", "no placeholder"),
        ("https://h/%zz", "percent-encode"),
        ("https://h/a?b", "name=value"),
        ("https://h/a?{b}=c", "only values"),
    ],
)
def test_url_that_could_lead_elsewhere_or_is_none_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_url(url)


def test_origin_is_named_as_hosts_are_allowed() -> None:
    assert parse_url("https://h/x").origin == Origin("https", "h", 443)
    assert parse_url("https://h/x").origin.allowed_as == ("h:443", "h")
    assert parse_url("http://h:443/x").origin.allowed_as == ("h:443",)
    assert parse_url("http://[::1]:8080").origin.allowed_as == ("[::1]:8080",)
    assert parse_url("http://[::1]:8080").path == "/"


def test_body_template_takes_values_words_and_braces() -> None:
    template = {
        "title": "{title}",
        "tags": ["fixed", "{tag}", "{gone}"],
        "text": "{{{title}}} by {author}",
        "nested": {"count": "{count}", "gone": "{gone}"},
        "fixed": [1, None, True],
    }
    filled = fill_body(template, {"title": 'a "b"', "tag": {"k": [1]}, "author": 7, "count": None})
    assert filled == {
        "title": 'a "b"',
        "tags": ["fixed", {"k": [1]}],
        "text": '{a "b"} by 7',
        "nested": {"count": None},
        "fixed": [1, None, True],
    }
    assert set(body_names(template)) == {
        ("title", False),
        ("title", True),
        ("tag", False),
        ("gone", False),
        ("author", True),
        ("count", False),
    }


def test_value_inside_a_longer_text_must_be_plain() -> None:
    with pytest.raises(ArgumentRefusedError, match="a must be a text"):
        fill_body("about {a}", {"a": [1]})


def test_argument_in_a_body_is_not_read_as_a_template() -> None:
    assert fill_body(["{a}", "x {a}"], {"a": "{b} {{"}) == ["{b} {{", "x {b} {{"]


@pytest.mark.parametrize("template", ["{", "a } b", ["{{}"], {"k": "{a"}])
def test_stray_brace_in_a_body_is_refused(template: object) -> None:
    with pytest.raises(ValueError, match="write it twice"):
        list(body_names(template))
