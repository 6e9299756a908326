"""Declaring an http tool: every problem of its templates, hosts and headers, before anything is published."""

from collections.abc import Iterator, Mapping, Set
from typing import Any, Final

from agentloom_worker.canonical import canonical_bytes, parse
from agentloom_worker.capabilities.declare import name_problems, schema_fingerprint
from agentloom_worker.capabilities.dialect import check_input_schema, check_schema
from agentloom_worker.capabilities.http_template import body_names, parse_url
from agentloom_worker.capabilities.problem import DeclarationError, DeclarationProblem
from agentloom_worker.domain.capability import CapabilityKind, CapabilitySpec, Effect, HttpSpec
from agentloom_worker.domain.policy import RetryPolicy
from agentloom_worker.http.redaction import looks_secret

# Set by the call itself, or decided between two hops and not end to end (RFC 9110, 7.6.1).
OWNED_HEADERS: Final = frozenset(
    {"accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host"}
    | {"keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)
SECRET_HEADERS: Final = frozenset(
    {"api-key", "authorization", "cookie", "proxy-authorization", "x-api-key", "x-auth-token"}
)


def declare_http(
    key: str,
    http: HttpSpec,
    *,
    model_name: str,
    description: str,
    input_schema: Mapping[str, Any],
    output_schema: Mapping[str, Any] | None = None,
    effect: Effect,
    timeout_ms: int,
    retry: RetryPolicy,
) -> CapabilitySpec:
    """Resolve a declaration to its frozen form. Opens no connection and reads no credential.

    Raises DeclarationError with every problem at once.
    """
    problems = list(name_problems(model_name, timeout_ms))
    if output_schema is not None:
        problems += check_schema(output_schema, "output_schema")
    wrong = check_input_schema(input_schema, "input_schema")
    problems += wrong
    problems += _header_problems(http)
    if not wrong:
        problems += _template_problems(http, input_schema)
    if problems:
        raise DeclarationError(key, problems)
    resolved = parse(canonical_bytes(input_schema))
    output = None if output_schema is None else parse(canonical_bytes(output_schema))
    return CapabilitySpec(
        key=key,
        kind=CapabilityKind.HTTP,
        model_name=model_name,
        description=description,
        input_schema=resolved,
        output_schema=output,
        schema_fingerprint=schema_fingerprint(resolved, output),
        handler_ref=f"{http.method} {http.url}",
        effect=effect,
        timeout_ms=timeout_ms,
        retry=retry,
        http=http,
    )


def _header_problems(http: HttpSpec) -> Iterator[DeclarationProblem]:
    seen = {http.idempotency_header.lower()}
    if http.idempotency_header.lower() in OWNED_HEADERS | SECRET_HEADERS:
        yield DeclarationProblem("idempotency_header", "is a header with a meaning of its own")
    for header in http.headers:
        path, name = f"headers/{header.name}", header.name.lower()
        if name in OWNED_HEADERS:
            yield DeclarationProblem(path, "is set by the worker itself")
        elif name in seen:
            yield DeclarationProblem(path, "is given twice, or is the idempotency header")
        elif header.credential_ref is None and (name in SECRET_HEADERS or looks_secret(header.text)):
            yield DeclarationProblem(path, "must be a `credential`: a secret never stands in a release")
        elif header.credential_ref is not None and looks_secret(header.text):
            yield DeclarationProblem(f"{path}/prefix", "looks like a secret, which never stands in a release")
        seen.add(name)


def _template_problems(http: HttpSpec, input_schema: Mapping[str, Any]) -> Iterator[DeclarationProblem]:
    required: set[str] = set(input_schema.get("required", ()))
    properties: set[str] = set(input_schema.get("properties", {}))
    try:
        url = parse_url(http.url)
    except ValueError as error:
        yield DeclarationProblem("url", str(error))
        return
    if looks_secret(http.url):
        yield DeclarationProblem("url", "holds what looks like a secret, which never stands in a release")
    if not set(url.origin.allowed_as) & set(http.allow):
        yield DeclarationProblem("allow", f"does not list {url.origin.allowed_as[-1]}, which the URL calls")
    if http.max_redirects and http.method != "GET":
        yield DeclarationProblem("max_redirects", f"must be 0: {http.method} is never sent on")
    yield from _name_problems("url", url.names, url.in_path, properties, required)
    used = set(url.names)
    if http.body is not None:
        if not http.has_body:
            yield DeclarationProblem("body", f"is for POST, PUT and PATCH, not for {http.method}")
        try:
            taken = list(body_names(http.body[0]))
        except ValueError as error:
            yield DeclarationProblem("body", str(error))
            return
        names = {name for name, _ in taken}
        yield from _name_problems("body", names, {name for name, must in taken if must}, properties, required)
        used |= names
    if http.body is not None or not http.has_body:
        for name in sorted(properties - used):
            yield DeclarationProblem(f"input_schema/properties/{name}", "is taken neither by the URL nor by the body")


def _name_problems(
    path: str, names: Set[str], needed: Set[str], properties: Set[str], required: Set[str]
) -> Iterator[DeclarationProblem]:
    for name in sorted(names - properties):
        yield DeclarationProblem(path, f"takes {{{name}}}, which is no property of the input schema's root")
    for name in sorted((needed & properties) - required):
        text = f"takes {{{name}}} where something must stand, so the input schema must require it"
        yield DeclarationProblem(path, text)
