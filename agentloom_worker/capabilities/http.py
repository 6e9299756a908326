"""Calling a foreign server as a tool: one request, bounded in time and size, to a host that is allowed.

What is known of the effect decides what may be repeated (RULINGS A20). Before the first byte left, nothing was
executed. After it, an error of the connection leaves the outcome unknown, and only the frozen `on_unknown`
decides: a tool that says `retry` sends the same bytes under the same idempotency key again, also where a worker
died in between. A status is an answer: it settles the call, but for those in `_REFUSALS`.
"""

import json
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import httpx

from agentloom_worker import limits
from agentloom_worker.cancellation import Cancellation
from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.capabilities.arguments import invalid_arguments
from agentloom_worker.capabilities.context import ToolContext
from agentloom_worker.capabilities.http_template import (
    DEFAULT_PORTS,
    ArgumentRefusedError,
    Origin,
    fill_body,
    parse_url,
)
from agentloom_worker.capabilities.python import check_output, output_invalid, shape
from agentloom_worker.capabilities.result import failed
from agentloom_worker.clock import Clock
from agentloom_worker.domain.capability import CapabilitySpec, HttpSpec, ResultStatus, ToolResult
from agentloom_worker.domain.model import Category, Executed, Failure
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.errors import Code, InvariantError
from agentloom_worker.frozen import replace
from agentloom_worker.http.decoding import iter_decoded
from agentloom_worker.http.redaction import redact
from agentloom_worker.http.retry_after import retry_after_ms
from agentloom_worker.http.transport import WATCH_EXTENSION, WatchedTransport
from agentloom_worker.http.watch import CallWatch, Limit, LimitExpired
from agentloom_worker.secrecy import conceal_text

_CHARSET = re.compile(r"charset=\"?([^\";\s]+)", re.IGNORECASE)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

# Statuses of servers that did not do the work, or of gateways that cannot know whether it was done.
_REFUSALS: Mapping[int, tuple[Category, RetryClass | None, Executed]] = {
    408: (Category.TIMEOUT, RetryClass.TRANSPORT, Executed.NOT_EXECUTED),
    425: (Category.TRANSPORT, RetryClass.TRANSPORT, Executed.NOT_EXECUTED),
    429: (Category.RATE_LIMIT, RetryClass.RATE_LIMIT, Executed.NOT_EXECUTED),
    502: (Category.TRANSPORT, None, Executed.UNKNOWN),
    503: (Category.TRANSPORT, RetryClass.TRANSPORT, Executed.NOT_EXECUTED),
    504: (Category.TIMEOUT, None, Executed.UNKNOWN),
}
_CATEGORIES: Mapping[int, Category] = {
    400: Category.VALIDATION,
    401: Category.PERMISSION,
    402: Category.LIMIT,
    403: Category.PERMISSION,
    404: Category.NOT_FOUND,
    409: Category.CONFLICT,
    410: Category.NOT_FOUND,
    412: Category.CONFLICT,
    413: Category.LIMIT,
    414: Category.LIMIT,
    422: Category.VALIDATION,
}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One call, ready to be sent. `own` are headers for the template's origin alone: they hold the secrets."""

    origin: Origin
    target: str
    body: bytes | None
    headers: tuple[tuple[str, str], ...]
    own: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A whole answer, or as much of an error's as is worth reading. `body` None: larger than the tool takes."""

    status: int
    headers: httpx.Headers
    body: bytes | None


def prepare_request(
    spec: CapabilitySpec, arguments: dict[str, object], resolve_credential: Callable[[str], str]
) -> HttpRequest | Failure:
    """Fill the templates in and read the secrets; a Failure says what the model should change.

    Raises RunError CREDENTIAL_UNAVAILABLE.
    """
    http = _http_of(spec)
    url = parse_url(http.url)
    if not set(url.origin.allowed_as) & set(http.allow):
        raise InvariantError(f"capability {spec.key} calls a host that its release does not allow")
    try:
        target, body = url.fill(arguments), _body(http, url.names, arguments)
    except ArgumentRefusedError as refused:
        return invalid_arguments(str(refused))
    plain, own, secrets = [], [], []
    for header in http.headers:
        if header.credential_ref is None:
            plain.append((header.name, header.text))
        else:
            secret = resolve_credential(header.credential_ref)
            secrets.append(secret)
            own.append((header.name, header.text + secret))
    return HttpRequest(url.origin, target, body, tuple(plain), tuple(own), tuple(secrets))


def _http_of(spec: CapabilitySpec) -> HttpSpec:
    if spec.http is None:
        raise InvariantError(f"capability {spec.key} has no http request")
    return spec.http


def _body(http: HttpSpec, in_url: frozenset[str], arguments: dict[str, object]) -> bytes | None:
    if not http.has_body:
        return None
    if http.body is not None:
        return canonical_bytes(fill_body(http.body[0], arguments))
    return canonical_bytes({name: value for name, value in arguments.items() if name not in in_url})


class HttpCaller:
    """Makes the calls of a process, with the connections that it keeps. Shared by all threads.

    Certificates are verified; `ssl_context` None is httpx's default, which reads SSL_CERT_FILE.
    """

    def __init__(
        self, clock: Clock, *, user_agent: str = "agentloom-worker", ssl_context: ssl.SSLContext | None = None
    ) -> None:
        self._clock = clock
        self._user_agent = user_agent
        self._transport = WatchedTransport(clock, ssl_context)

    def call(
        self,
        spec: CapabilitySpec,
        request: HttpRequest,
        context: ToolContext,
        *,
        cancellation: Cancellation,
        entered: Callable[[], None],
    ) -> ToolResult:
        """Make one attempt, at most `spec.timeout_ms` long and never beyond the context's deadline.

        `entered` runs when the first byte is about to be sent; what it raises leaves this call. A cancellation
        ends the connection at once.
        """
        watch = CallWatch(self._clock, entered)
        watch.limit(Limit.DEADLINE, context.within(spec.timeout_ms / 1000).deadline_s())
        forget = cancellation.on_cancel(watch.interrupt)
        try:
            watch.block_s()  # Refuse before anything is sent, if the call is cancelled or late already.
            answer = self._follow(_http_of(spec), request, context, watch)
        except httpx.TransportError as error:
            return _broken(spec, request, error, watch, cancellation.cancelled)
        except (httpx.DecodingError, httpx.InvalidURL):
            return output_invalid("the server's answer cannot be read")
        finally:
            forget()
            watch.detach()
        return self._result(spec, request, answer)

    def close(self) -> None:
        """Close the idle connections."""
        self._transport.close()

    def _follow(self, http: HttpSpec, request: HttpRequest, context: ToolContext, watch: CallWatch) -> _Answer:
        for _ in range(http.max_redirects):
            answer = self._exchange(http, request, context, watch)
            onward = _onward(http, request, answer)
            if onward is None:
                return answer
            request = onward
        return self._exchange(http, request, context, watch)

    def _exchange(self, http: HttpSpec, request: HttpRequest, context: ToolContext, watch: CallWatch) -> _Answer:
        response = self._transport.handle_request(_http_request(http, request, context, watch, self._user_agent))
        try:
            wanted = 200 <= response.status_code < 300
            if not wanted:
                watch.limit(Limit.ERROR_BODY, limits.ERROR_BODY_TIMEOUT_S)
            body = bytearray()
            try:
                for chunk in iter_decoded(response, http.max_bytes if wanted else limits.ERROR_BODY_BYTES_MAX):
                    body += chunk
            except (httpx.TransportError, httpx.DecodingError):
                # The status alone settles an error; without its body a success is worth nothing.
                if wanted or watch.interrupted:
                    raise
            fits = not wanted or len(body) <= http.max_bytes
            return _Answer(response.status_code, response.headers, bytes(body) if fits else None)
        finally:
            watch.lift(Limit.ERROR_BODY)
            response.close()

    def _result(self, spec: CapabilitySpec, request: HttpRequest, answer: _Answer) -> ToolResult:
        if not 200 <= answer.status < 300:
            return failed(self._refused(request, answer))
        if answer.body is None:
            return output_invalid(f"the server's answer is larger than the {_http_of(spec).max_bytes} bytes allowed")
        try:
            value = _value(answer)
            if request.secrets:
                value = _concealed(value, request.secrets)
            result = shape(value)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            return output_invalid(f"the server's answer cannot be taken: {reason}")
        return check_output(spec, result, value)

    def _refused(self, request: HttpRequest, answer: _Answer) -> Failure:
        category, retry_class, executed = _REFUSALS.get(
            answer.status, (_CATEGORIES.get(answer.status, Category.BUSINESS), None, Executed.EXECUTED)
        )
        code = Code.TOOL_OUTCOME_UNKNOWN if executed is Executed.UNKNOWN else Code.TOOL_FAILED
        message = f"the server answered HTTP {answer.status}"
        if answer.status in _REDIRECTS:
            message += ", a redirect that is not followed"
        elif words := _words(request, answer):
            message += f": {words}"
        return Failure(
            code=code,
            category=category,
            message=message,
            external_outcome=executed,
            retry_class=retry_class,
            retry_after_ms=retry_after_ms(answer.headers, self._clock.wall_us()) if retry_class else None,
            http_status=answer.status,
        )


def _http_request(
    http: HttpSpec, request: HttpRequest, context: ToolContext, watch: CallWatch, user_agent: str
) -> httpx.Request:
    headers = {
        "accept": "application/json, text/*;q=0.9, */*;q=0.1",
        "accept-encoding": "identity",
        "user-agent": user_agent,
    }
    headers |= {name.lower(): text for name, text in (*request.headers, *request.own)}
    if request.body is not None:
        headers["content-type"] = "application/json"
    if http.method != "GET":
        headers[http.idempotency_header.lower()] = context.idempotency_key
    return httpx.Request(
        http.method,
        f"{request.origin}{request.target}",
        headers=[(name.encode("ascii"), text.encode("ascii")) for name, text in headers.items()],
        content=request.body,
        extensions={WATCH_EXTENSION: watch},
    )


def _onward(http: HttpSpec, request: HttpRequest, answer: _Answer) -> HttpRequest | None:
    """Where a redirect leads, if it may be followed: to an allowed host, and never from https to http.

    Another origin than the template's gets none of its secrets.
    """
    location = answer.headers.get("location")
    if answer.status not in _REDIRECTS or location is None:
        return None
    try:
        url = httpx.URL(f"{request.origin}{request.target}").join(location)
        host = url.raw_host.decode("ascii").lower()
    except (httpx.InvalidURL, ValueError):
        return None
    if url.scheme not in DEFAULT_PORTS or url.userinfo or (request.origin.scheme, url.scheme) == ("https", "http"):
        return None
    origin = Origin(url.scheme, f"[{host}]" if ":" in host else host, url.port or DEFAULT_PORTS[url.scheme])
    if not set(origin.allowed_as) & set(http.allow):
        return None
    own = request.own if origin == request.origin else ()
    return replace(request, origin=origin, target=url.raw_path.decode("ascii"), own=own)


def _broken(
    spec: CapabilitySpec, request: HttpRequest, error: httpx.TransportError, watch: CallWatch, cancelled: bool
) -> ToolResult:
    """The result of a connection that failed, or that a limit or another thread ended."""
    executed = Executed.UNKNOWN if watch.sent else Executed.NOT_EXECUTED
    retry_class = None if watch.sent else RetryClass.TRANSPORT
    if cancelled:
        failure = Failure(Code.TOOL_CANCELLED, Category.CANCELLED, "the call was cancelled", executed)
        return ToolResult(ResultStatus.CANCELLED, failure=failure)
    if isinstance(error, LimitExpired) and error.limit is Limit.DEADLINE:
        text = f"no answer within {spec.timeout_ms} ms or before the deadline of the run"
        return failed(Failure(Code.TOOL_TIMEOUT, Category.TIMEOUT, text, executed, retry_class))
    code = Code.TOOL_OUTCOME_UNKNOWN if watch.sent else Code.TOOL_FAILED
    reason = redact(conceal_text(str(error), request.secrets), None)
    text = f"the connection failed {'after' if watch.sent else 'before'} the request was sent: {reason}"
    return failed(Failure(code, Category.TRANSPORT, text, executed, retry_class))


def _value(answer: _Answer) -> object:
    """What an answer says: the value of its JSON, else its text, or None. Raises ValueError, RecursionError."""
    assert answer.body is not None, "an answer that is too large has no value"
    if not answer.body:
        return None
    kind = _kind(answer)
    if not _is_json(kind):
        return _text(answer.body, kind, answer.headers.get("content-type", ""))
    try:
        value: object = json.loads(answer.body, parse_constant=_no_number)
    except UnicodeDecodeError:
        raise ValueError("its JSON is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not the JSON that it says it is: {error.msg} at character {error.pos}") from None
    return value


def _kind(answer: _Answer) -> str:
    content_type: str = answer.headers.get("content-type", "")
    return content_type.partition(";")[0].strip().lower()


def _is_json(kind: str) -> bool:
    return kind in ("application/json", "text/json") or kind.endswith("+json")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _text(body: bytes, kind: str, content_type: str) -> str:
    charset = _CHARSET.search(content_type)
    try:
        text = body.decode(charset[1] if charset else "utf-8")
    except (LookupError, UnicodeError):
        text = body.decode("utf-8", "replace") if kind.startswith("text/") else "\0"
    if "\0" in text:
        raise ValueError(f"it is {redact(kind, None) or 'of no stated type'} and no text")
    return text


def _concealed(value: object, secrets: tuple[str, ...]) -> object:
    """A server that echoes its request must not put our secrets into a row."""
    if isinstance(value, str):
        return conceal_text(value, secrets)
    if isinstance(value, list):
        return [_concealed(item, secrets) for item in value]
    if isinstance(value, dict):
        return {conceal_text(name, secrets): _concealed(item, secrets) for name, item in value.items()}
    return value


def _words(request: HttpRequest, answer: _Answer) -> str:
    """What an error answer says, on one line; of a web page nothing."""
    kind = _kind(answer)
    if not answer.body or not (_is_json(kind) or (kind.startswith("text/") and kind != "text/html")):
        return ""
    if request.secrets and _is_json(kind):
        try:
            # Parsed, for JSON may spell our secrets with escapes.
            value = _concealed(json.loads(answer.body), request.secrets)
        except (ValueError, RecursionError):
            return ""
        text = json.dumps(value, ensure_ascii=False)
    else:
        text = conceal_text(answer.body.decode("utf-8", "replace"), request.secrets)
    return redact(text, None, characters_max=limits.TOOL_MESSAGE_CHARS_MAX // 2)
