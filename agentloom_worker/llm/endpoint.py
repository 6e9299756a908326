"""One-off questions to a model endpoint, outside of any run: for people, never for a run (seed 004, 6.1)."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from agentloom_worker import limits
from agentloom_worker.clock import Clock
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.http.decoding import iter_decoded
from agentloom_worker.http.redaction import redact
from agentloom_worker.http.transport import WATCH_EXTENSION, WatchedTransport
from agentloom_worker.http.watch import CallWatch, Limit
from agentloom_worker.llm.http_failures import failure_of_status
from agentloom_worker.llm.profiles import Profile
from agentloom_worker.version import __version__


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address, how its provider is spoken to, and the key, if there is one."""

    base_url: str
    profile: Profile
    api_key: str | None = field(default=None, repr=False)

    def url(self, path: str) -> httpx.URL:
        """The address of a path below the base; a query of the base stays behind it.

        Raises RequestError(INPUT_INVALID) for what is no http(s) address.
        """
        base, mark, query = self.base_url.partition("?")
        try:
            url = httpx.URL(f"{base.rstrip('/')}{path}{mark}{query}")
            usable = url.scheme in ("http", "https") and bool(url.host)
        except (httpx.InvalidURL, UnicodeError):
            usable = False
        if not usable:
            raise RequestError(Code.INPUT_INVALID, "the base URL must be an http or https address")
        return url

    def root(self) -> "Endpoint":
        """The server itself: the base without its version (`/v1`)."""
        return Endpoint(self.base_url.partition("?")[0].rstrip("/").removesuffix("/v1"), self.profile, self.api_key)


def shown(url: httpx.URL) -> str:
    """An address fit for a message: without user, password and query."""
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace').rpartition('@')[2]}{url.path}"


class EndpointClient:
    """Asks with the transport of the adapters: no redirect, no retry, every wait bounded. For one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._transport = WatchedTransport(clock)

    @property
    def clock(self) -> Clock:
        """What its waits are measured by."""
        return self._clock

    def get_json(self, endpoint: Endpoint, path: str, *, timeout_s: float) -> object:
        """The JSON document at a path. Raises RequestError, also where it is none or too large."""
        url = endpoint.url(path)
        body = bytearray()
        with self._answer(endpoint, url, timeout_s) as response:
            for chunk in iter_decoded(response, limits.SSE_EVENT_BYTES_MAX):
                body += chunk
                if len(body) > limits.SSE_EVENT_BYTES_MAX:
                    raise RequestError(Code.MODEL_PROTOCOL_ERROR, f"{shown(url)} answers with too many bytes")
        try:
            document: object = json.loads(body)
        except (ValueError, RecursionError):
            raise RequestError(Code.MODEL_PROTOCOL_ERROR, f"{shown(url)} does not answer with JSON") from None
        return document

    def close(self) -> None:
        """Drop idle connections."""
        self._transport.close()

    @contextmanager
    def _answer(self, endpoint: Endpoint, url: httpx.URL, timeout_s: float) -> Iterator[httpx.Response]:
        """A 200 answer whose body is not read yet.

        Raises RequestError with the code of the failure for any other answer, and for a connection that fails.
        """
        watch = CallWatch(self._clock, lambda: None)
        watch.limit(Limit.DEADLINE, timeout_s)
        headers = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": f"agentloom-worker/{__version__}"}
        if endpoint.api_key is not None:
            headers[endpoint.profile.auth_header] = f"{endpoint.profile.auth_prefix}{endpoint.api_key}"
        request = httpx.Request("GET", url, headers=headers, extensions={WATCH_EXTENSION: watch})
        try:
            response = self._transport.handle_request(request)
            try:
                if response.status_code != httpx.codes.OK:
                    raise self._refused(endpoint, response)
                yield response
            finally:
                response.close()
        except (httpx.TransportError, httpx.DecodingError) as error:
            words = redact(str(error) or type(error).__name__, endpoint.api_key)
            raise RequestError(Code.MODEL_TRANSPORT_FAILED, f"{shown(url)}: {words}") from None
        finally:
            watch.detach()

    def _refused(self, endpoint: Endpoint, response: httpx.Response) -> RequestError:
        body = bytearray()
        for chunk in iter_decoded(response, limits.ERROR_BODY_BYTES_MAX):
            body += chunk
            if len(body) >= limits.ERROR_BODY_BYTES_MAX:
                break
        failure = failure_of_status(
            response.status_code,
            response.headers,
            bytes(body[: limits.ERROR_BODY_BYTES_MAX]),
            wall_us=self._clock.wall_us(),
            secret=endpoint.api_key,
            profile=endpoint.profile,
        )
        return RequestError(Code(failure.code), failure.message)
