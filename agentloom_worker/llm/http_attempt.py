"""One attempt over HTTP, for every protocol that posts JSON and reads server-sent events or one JSON document."""

import functools
import hashlib
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import assert_never

import httpx

from agentloom_worker import limits
from agentloom_worker.cancellation import CancelReason
from agentloom_worker.clock import Clock
from agentloom_worker.domain.model import (
    Cancelled,
    Category,
    Completed,
    Executed,
    Failed,
    Failure,
    FirstOutput,
    FirstOutputKind,
    ModelOutcome,
    ModelResponse,
    RequestParameters,
)
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.errors import Code
from agentloom_worker.http.decoding import iter_decoded
from agentloom_worker.http.redaction import redact
from agentloom_worker.http.transport import WATCH_EXTENSION, ResponseBody, WatchedTransport
from agentloom_worker.http.watch import CallInterrupted, CallWatch, Limit, LimitExpired
from agentloom_worker.llm.adapter import AttemptContext, DeliveryStoppedError, ModelCall
from agentloom_worker.llm.assembly import (
    Assembly,
    IncompleteAnswerError,
    ModelProtocolError,
    ProviderReportedError,
    refuse_bare_error,
)
from agentloom_worker.llm.document import DocumentBody
from agentloom_worker.llm.http_failures import failure_of_frame, failure_of_status
from agentloom_worker.llm.profiles import Profile
from agentloom_worker.llm.sse import SseParser, SseProtocolError
from agentloom_worker.version import __version__

_REQUEST_ID_HEADERS = ("x-request-id", "request-id")


@dataclass(slots=True)
class _Exchange:
    """One attempt under way; for the thread that reads it."""

    request: ModelCall
    attempt: AttemptContext
    watch: CallWatch
    assembly: Assembly
    path: str
    profile: Profile
    answered: bool = False  # a status line has arrived
    first_output_given: bool = False

    def give_first_output(self, kind: FirstOutputKind | None) -> None:
        """Report the first effective output, once; it ends the first-output limit."""
        if kind is None or self.first_output_given:
            return
        self.first_output_given = True
        self.watch.lift(Limit.FIRST_OUTPUT)
        self.attempt.on_first_output(FirstOutput(kind, kind is not FirstOutputKind.COMPLETE_FRAME))
        self.watch.start_idle(self.attempt.idle_timeout_s)

    def pieces(self, response: httpx.Response, bytes_max: int) -> Iterator[bytes]:
        """The body as `iter_decoded` gives it, taken down."""
        recording = self.attempt.recording
        for piece in iter_decoded(response, bytes_max):
            if recording is not None:
                recording.take(piece)
            yield piece

    def stop_at(self, position: int) -> None:
        """Nothing of the body behind this place is read: what is taken down ends there, wherever chunks were cut."""
        if self.attempt.recording is not None:
            self.attempt.recording.stop_at(position)


class ModelHttp:
    """Makes attempts at `{base_url}/{path}`. Shared by all threads of a process, with its connections.

    `new_assembly` makes what reads one answer to what was asked; `profile` says where the key goes and what errors
    mean. `ssl_context` None is httpx's default.
    """

    def __init__(
        self,
        clock: Clock,
        path: str,
        new_assembly: Callable[[RequestParameters | None], Assembly],
        profile: Profile,
        *,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._clock = clock
        self._path = path
        self._new_assembly = new_assembly
        self._profile = profile
        self._transport = WatchedTransport(clock, ssl_context)

    def stream_once(self, request: ModelCall, attempt: AttemptContext) -> ModelOutcome:
        """As ModelAdapter says. Nothing is retried and no redirect is followed."""
        watch = CallWatch(self._clock, attempt.on_sent)
        deadline_s = limits.RUN_DEADLINE_S if attempt.deadline_s is None else attempt.deadline_s
        watch.limit(Limit.DEADLINE, deadline_s)
        watch.limit(Limit.FIRST_OUTPUT, attempt.first_output_timeout_s)
        assembly = self._new_assembly(request.asked)
        exchange = _Exchange(request, attempt, watch, assembly, self._path, self._profile)
        forget = attempt.cancellation.on_cancel(watch.interrupt)
        try:
            return self._exchange(exchange)
        except DeliveryStoppedError:
            return Cancelled(exchange.assembly.partial(), sent=True)
        except httpx.TransportError as error:
            return _broken(exchange, error)
        except IncompleteAnswerError as error:
            return _cancelled(exchange) or _failed(
                exchange, Code.MODEL_TRANSPORT_FAILED, Category.TRANSPORT, str(error), RetryClass.TRANSPORT
            )
        except ProviderReportedError as error:
            failure = failure_of_frame(error.error, error.known, secret=attempt.api_key, profile=self._profile)
            return Failed(failure, exchange.assembly.partial())
        except (ModelProtocolError, SseProtocolError, httpx.DecodingError) as error:
            return _failed(exchange, Code.MODEL_PROTOCOL_ERROR, Category.PROTOCOL, str(error), None)
        except httpx.InvalidURL as error:
            message = f"the base URL cannot be called: {error}"
            return _failed(exchange, Code.MODEL_REQUEST_REJECTED, Category.VALIDATION, message, None)
        finally:
            forget()
            watch.detach()

    def close(self) -> None:
        """As ModelAdapter says."""
        self._transport.close()

    def _exchange(self, exchange: _Exchange) -> ModelOutcome:
        watch = exchange.watch
        watch.block_s()  # Refuse before anything is sent, if the call is cancelled or late already.
        response = self._transport.handle_request(_http_request(exchange, self._profile))
        try:
            exchange.answered = True
            if exchange.attempt.recording is not None:
                exchange.attempt.recording.begin(response.status_code, response.headers)
            if response.status_code != httpx.codes.OK:
                return self._refused(exchange, response)
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind in ("application/json", "text/json") or kind.endswith("+json"):
                return Completed(_read_document(exchange, response))
            if kind in ("text/html", "application/xhtml+xml"):
                raise ModelProtocolError("the endpoint answered with a web page")
            declared_stream = kind == "text/event-stream"
            return Completed(_read_stream(exchange, response, declared_stream=declared_stream))
        finally:
            response.close()

    def _refused(self, exchange: _Exchange, response: httpx.Response) -> ModelOutcome:
        # The status alone settles the class: the rest is worth a short wait only.
        exchange.watch.limit(Limit.ERROR_BODY, limits.ERROR_BODY_TIMEOUT_S)
        body = bytearray()
        try:
            exchange.stop_at(limits.ERROR_BODY_BYTES_MAX)
            for chunk in exchange.pieces(response, limits.ERROR_BODY_BYTES_MAX):
                body += chunk
                if len(body) >= limits.ERROR_BODY_BYTES_MAX:
                    break
        except (httpx.TransportError, httpx.DecodingError):
            if exchange.watch.passed(Limit.DEADLINE):
                exchange.attempt.cancellation.cancel(CancelReason.DEADLINE)
            cancelled = _cancelled(exchange)
            if cancelled is not None:
                return cancelled
        failure = failure_of_status(
            response.status_code,
            response.headers,
            bytes(body[: limits.ERROR_BODY_BYTES_MAX]),
            wall_us=self._clock.wall_us(),
            secret=exchange.attempt.api_key,
            profile=self._profile,
        )
        return Failed(failure, exchange.assembly.partial())


def _http_request(exchange: _Exchange, profile: Profile) -> httpx.Request:
    attempt = exchange.attempt
    headers = {
        "Accept": "text/event-stream",
        # Compression would make the provider's proxies hold fragments back.
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "Content-Length": str(exchange.request.body.size_bytes),
        "User-Agent": f"agentloom-worker/{__version__}",
    }
    if attempt.api_key is not None:
        headers[profile.auth_header] = f"{profile.auth_prefix}{attempt.api_key}"
    if attempt.idempotency_key is not None:
        headers["Idempotency-Key"] = attempt.idempotency_key
    if attempt.traceparent is not None:
        headers["traceparent"] = attempt.traceparent
    try:
        raw_headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
    except UnicodeEncodeError:
        # Its text quotes the value, which may be the key.
        raise httpx.LocalProtocolError("a header holds characters that HTTP cannot carry") from None
    return httpx.Request(
        "POST",
        _endpoint(exchange.request.base_url, exchange.path),
        headers=raw_headers,
        content=exchange.request.body,
        extensions={WATCH_EXTENSION: exchange.watch},
    )


@functools.lru_cache(maxsize=256)
def _endpoint(base_url: str, path: str) -> httpx.URL:
    """The URL that is called; a query of the base URL (some gateways want a version there) stays behind it.

    Raises httpx.InvalidURL.
    """
    base, mark, query = base_url.partition("?")
    url = httpx.URL(f"{base.rstrip('/')}/{path}{mark}{query}")
    try:
        usable = url.scheme in ("http", "https") and bool(url.host)
    except UnicodeError as error:
        raise httpx.InvalidURL("the host name is not valid") from error
    if not usable:
        raise httpx.InvalidURL("not an absolute http or https URL")
    return url


def _read_stream(exchange: _Exchange, response: httpx.Response, *, declared_stream: bool) -> ModelResponse:
    parser, digest, assembly = SseParser(), hashlib.sha256(), exchange.assembly
    events, body = 0, DocumentBody()
    for chunk in exchange.pieces(response, limits.STREAM_BYTES_MAX):
        before, number = parser.total_bytes, 0
        if not events:
            body.take_if_json(chunk)
        try:
            for number, payload in enumerate(parser.feed(chunk)):
                if exchange.watch.interrupted:  # Nothing is handled after a cancellation, arrived or not.
                    raise CallInterrupted()
                events += 1
                exchange.give_first_output(assembly.apply_payload(payload))
                if assembly.complete:
                    end = parser.end_of(number)
                    exchange.stop_at(end)
                    digest.update(chunk[: end - before])
                    return _complete(exchange, response, digest.hexdigest(), end)
        except SseProtocolError:
            exchange.stop_at(parser.fault_at)
            raise
        except BaseException:
            exchange.stop_at(parser.end_of(number))
            raise
        digest.update(chunk)
    if not events and parser.total_bytes:
        if body.is_object and not declared_stream:
            return _complete_document(exchange, response, body, digest.hexdigest(), parser.total_bytes)
        refuse_bare_error(body.bytes, exchange.profile)
        if not declared_stream:
            raise ModelProtocolError("the answer is no event stream")
    if not assembly.may_end or parser.pending or not _body_of(response).ends_by_framing:
        raise IncompleteAnswerError("the stream ended before its final frame")
    return _complete(exchange, response, digest.hexdigest(), parser.total_bytes)


def _read_document(exchange: _Exchange, response: httpx.Response) -> ModelResponse:
    body, digest, size = DocumentBody(), hashlib.sha256(), 0
    for chunk in exchange.pieces(response, limits.SSE_EVENT_BYTES_MAX):
        body.take(chunk)
        digest.update(chunk)
        size += len(chunk)
    return _complete_document(exchange, response, body, digest.hexdigest(), size)


def _complete_document(
    exchange: _Exchange, response: httpx.Response, body: DocumentBody, sha256: str, size_bytes: int
) -> ModelResponse:
    """The response of a body that has ended and is one JSON document, declared as one or not."""
    document = body.parse()
    if exchange.watch.interrupted:
        raise CallInterrupted()
    exchange.give_first_output(exchange.assembly.apply_document(document))
    return _complete(exchange, response, sha256, size_bytes)


def _complete(exchange: _Exchange, response: httpx.Response, sha256: str, size_bytes: int) -> ModelResponse:
    """The response of an answer that has its final frame. Its digest and size are those of the bytes up to there."""
    request_id = next((response.headers[name] for name in _REQUEST_ID_HEADERS if name in response.headers), None)
    result = exchange.assembly.response(request_id=request_id, transport_sha256=sha256, transport_bytes=size_bytes)
    exchange.give_first_output(FirstOutputKind.COMPLETE_FRAME)
    _body_of(response).mark_complete()
    return result


def _body_of(response: httpx.Response) -> ResponseBody:
    body = response.stream
    assert isinstance(body, ResponseBody)
    return body


def _broken(exchange: _Exchange, error: httpx.TransportError) -> ModelOutcome:
    """The outcome of a connection that failed, or that a limit or another thread ended."""
    if isinstance(error, LimitExpired) and error.limit is Limit.DEADLINE:
        exchange.attempt.cancellation.cancel(CancelReason.DEADLINE)
    cancelled = _cancelled(exchange)
    if cancelled is not None:
        return cancelled
    code, category, retry_class = Code.MODEL_TRANSPORT_FAILED, Category.TRANSPORT, RetryClass.TRANSPORT
    if isinstance(error, httpx.LocalProtocolError):
        return _failed(exchange, Code.MODEL_REQUEST_REJECTED, Category.VALIDATION, str(error), None)
    if isinstance(error, LimitExpired):
        match error.limit:
            case Limit.FIRST_OUTPUT:
                code, category = Code.MODEL_FIRST_OUTPUT_TIMEOUT, Category.TIMEOUT
            case Limit.IDLE | Limit.CONNECT:
                category = Category.TIMEOUT
            case Limit.DEADLINE | Limit.ERROR_BODY:
                pass  # The first is a cancellation, the second is caught where it is set.
            case _:
                assert_never(error.limit)
    return _failed(exchange, code, category, str(error), retry_class)


def _cancelled(exchange: _Exchange) -> Cancelled | None:
    if not exchange.attempt.cancellation.cancelled:
        return None
    return Cancelled(exchange.assembly.partial(), exchange.watch.sent)


def _failed(
    exchange: _Exchange, code: Code, category: Category, message: str, retry_class: RetryClass | None
) -> Failed:
    if category is Category.PROTOCOL:
        executed = Executed.EXECUTED
    else:
        executed = Executed.UNKNOWN if exchange.watch.sent else Executed.NOT_EXECUTED
    failure = Failure(
        code=code,
        category=category,
        message=redact(message, exchange.attempt.api_key),
        external_outcome=executed,
        retry_class=retry_class,
        http_status=200 if exchange.answered else None,
    )
    return Failed(failure, exchange.assembly.partial())
