"""Declaring http tools: what is wrong is said before anything is published, all of it at once."""

from typing import Any

import pytest

from agentloom_worker.domain.capability import CapabilityKind
from agentloom_worker.domain.release import load_release
from agentloom_worker.errors import ReleaseInvalidError
from agentloom_worker.runtime.publish import resolve_release
from tests.factories import http_tool, release_document

ID = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"], "additionalProperties": False}
TWO = {"type": "object", "properties": {"id": {"type": "string"}, "note": {"type": "string"}}, "required": ["id"]}


def problems_of(**overrides: Any) -> dict[str, str]:
    tool = http_tool("https://api.example.com/items/{id}", **({"input_schema": ID} | overrides))
    try:
        resolve_release(release_document(tools={"t": tool}))
    except ReleaseInvalidError as error:
        return dict(error.problems)
    return {}


def post(**overrides: Any) -> dict[str, Any]:
    return {"method": "POST", **overrides}


def test_smallest_tool_is_fine() -> None:
    assert problems_of() == {}


@pytest.mark.parametrize(
    ("overrides", "path", "text"),
    [
        ({"url": "https://evil.com/{id}"}, "allow", "does not list evil.com"),
        ({"url": "https://api.example.com:8443/{id}"}, "allow", "does not list api.example.com:8443"),
        ({"url": "http://api.example.com:443/{id}"}, "allow", "does not list api.example.com:443"),
        ({"url": "https://api.example.com/{id}#x"}, "url", "fragment"),
        ({"url": "https://api.example.com/{id}/{name}"}, "url", "takes {name}, which is no property"),
        ({"url": "https://api.example.com/{id}?key=sk-0123456789ab"}, "url", "looks like a secret"),
        ({"input_schema": {**ID, "required": []}}, "url", "must require it"),
        ({"input_schema": TWO}, "input_schema/properties/note", "neither by the URL nor by the body"),
        ({"input_schema": {"type": "array"}}, "input_schema/type", "type: object"),
        ({"output_schema": {"type": "no"}}, "output_schema/type", "not valid JSON Schema"),
        ({"body": {"id": "{id}"}}, "body", "for POST, PUT and PATCH"),
        (post(body={"x": "{name}"}), "body", "takes {name}, which is no property"),
        (post(body={"x": "a {note}", "y": "{id}"}, input_schema=TWO), "body", "must require it"),
        (post(body={"x": "{id"}), "body", "write it twice"),
        (post(body={"x": 1}, input_schema=TWO), "input_schema/properties/note", "neither by"),
        (post(max_redirects=1), "max_redirects", "never sent on"),
        ({"headers": {"Host": {"value": "evil.com"}}}, "headers/Host", "set by the worker"),
        ({"headers": {"content-length": {"value": "0"}}}, "headers/content-length", "set by the worker"),
        ({"headers": {"Authorization": {"value": "Bearer x"}}}, "headers/Authorization", "must be a `credential`"),
        ({"headers": {"X-Thing": {"value": "sk-0123456789ab"}}}, "headers/X-Thing", "must be a `credential`"),
        (
            {"headers": {"A": {"credential": "env:A", "prefix": "sk-0123456789ab "}}},
            "headers/A/prefix",
            "looks like a secret",
        ),
        ({"headers": {"A": {"value": "1"}, "a": {"value": "2"}}}, "headers/a", "given twice"),
        ({"headers": {"Idempotency-Key": {"value": "1"}}}, "headers/Idempotency-Key", "idempotency header"),
        ({"idempotency_header": "Authorization"}, "idempotency_header", "meaning of its own"),
    ],
)
def test_declaration_that_cannot_work_or_is_unsafe_is_refused(overrides: dict[str, Any], path: str, text: str) -> None:
    found = problems_of(**overrides)
    assert set(found) == {f"/tools/t/{path}"}
    assert text in found[f"/tools/t/{path}"]


@pytest.mark.parametrize(
    ("overrides", "path", "text"),
    [
        ({"method": "TRACE"}, "method", "must be 'GET'"),
        ({"allow": []}, "allow", "at least 1"),
        ({"allow": ["https://h"]}, "allow/0", "`host` or `host:port`"),
        ({"allow": ["user@h"]}, "allow/0", "`host` or `host:port`"),
        ({"allow": ["*.h"]}, "allow/0", "`host` or `host:port`"),
        ({"headers": {"A b": {"value": "1"}}}, "headers/A b", "name of a header"),
        ({"headers": {"A": {"value": "1\r\nB: 2"}}}, "headers/A/value", "printable ASCII"),
        ({"headers": {"A": {"credential": "secret"}}}, "headers/A/credential", "must be a reference"),
        ({"headers": {"A": {}}}, "headers/A", "one of `value` and `credential`"),
        ({"headers": {"A": {"value": "1", "credential": "env:A"}}}, "headers/A", "one of `value` and `credential`"),
        ({"headers": {"A": {"value": "1", "prefix": "x"}}}, "headers/A", "a `credential` behind"),
        ({"description": " "}, "description", "must not be blank"),
        ({"handler": "a:b"}, "handler", "is not a known field"),
        ({"max_byte": 1}, "max_byte", "did you mean `max_bytes`?"),
        ({"max_bytes": 10**9}, "max_bytes", "less than or equal to 16777216"),
        ({"kind": "grpc"}, "kind", "must be 'python' or 'http'"),
        ({"idempotency_header": "a b"}, "idempotency_header", "name of a header"),
    ],
)
def test_shape_of_an_http_tool_is_checked_with_the_paths_of_its_author(
    overrides: dict[str, Any], path: str, text: str
) -> None:
    found = problems_of(**overrides)
    assert text in found[f"/tools/t/{path}"]


@pytest.mark.parametrize("missing", ["kind", "method", "url", "allow", "description", "input_schema", "effect"])
def test_nothing_that_an_http_tool_needs_is_guessed(missing: str) -> None:
    tool = http_tool("https://h/x")
    del tool[missing]
    with pytest.raises(ReleaseInvalidError) as refused:
        resolve_release(release_document(tools={"t": tool}))
    assert dict(refused.value.problems)[f"/tools/t/{missing}"] == "is required"


def test_frozen_http_tool_says_everything_and_reads_back_as_declared() -> None:
    tool = http_tool(
        "https://api.example.com/items/{id}",
        method="PUT",
        input_schema=TWO,
        headers={
            "Authorization": {"credential": "env:TOKEN", "prefix": "Bearer "},
            "Accept-Language": {"value": "en"},
            "X-Key": {"credential": "file:/run/key"},
        },
        body={"note": "{note}", "nothing": None},
        timeout_ms=5000,
        retry={"on_unknown": {"action": "retry"}},
    )
    release = load_release(resolve_release(release_document(tools={"put_item": tool})).body)
    spec = release.catalog.by_model_name["put_item"]
    assert spec.kind is CapabilityKind.HTTP
    assert spec.handler_ref == "PUT https://api.example.com/items/{id}"
    assert spec.http is not None
    assert (spec.http.method, spec.http.allow, spec.http.max_bytes) == ("PUT", ("api.example.com",), 1024 * 1024)
    assert (spec.http.idempotency_header, spec.http.max_redirects) == ("Idempotency-Key", 0)
    assert spec.http.body == ({"note": "{note}", "nothing": None},)
    assert [(header.name, header.text, header.credential_ref) for header in spec.http.headers] == [
        ("Accept-Language", "en", None),
        ("Authorization", "Bearer ", "env:TOKEN"),
        ("X-Key", "", "file:/run/key"),
    ]


def test_what_a_call_depends_on_changes_the_hash_of_the_catalog() -> None:
    def catalog_hash(url: str) -> str:
        release = load_release(resolve_release(release_document(tools={"t": http_tool(url)})).body)
        return release.catalog.catalog_hash

    assert catalog_hash("https://h/a") == catalog_hash("https://h/a")
    assert catalog_hash("https://h/a") != catalog_hash("https://h/b")
