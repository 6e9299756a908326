"""Classify what an endpoint answers in place of a response: by status and code tables, never by words.

`external_outcome` of an error answer: below 500 the provider refused before it generated (`not_executed`); a
5xx may have generated and been paid (`unknown`); an error inside a 200 answer began (`executed`).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from agentloom_worker.domain.model import Category, Executed, Failure
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.errors import Code
from agentloom_worker.http.redaction import redact
from agentloom_worker.http.retry_after import retry_after_ms
from agentloom_worker.llm.profiles import ErrorClass, Profile

_TRANSPORT_STATUSES = frozenset({500, 502, 503, 504, 520, 521, 522, 523, 524, 529})

_REJECTED_CATEGORIES = {
    401: Category.PERMISSION,
    402: Category.LIMIT,
    403: Category.PERMISSION,
    404: Category.NOT_FOUND,
    413: Category.LIMIT,
}

_CONTEXT_LENGTH_CODES = frozenset(
    {
        "context_length_exceeded",
        "context_window_exceeded",
        "exceed_context_size_error",  # of llama.cpp's server, also where its profile is not named
    }
)
_RATE_LIMIT_CODES = frozenset({"429", "rate_limit_error", "rate_limit_exceeded", "too_many_requests"})
_QUOTA_CODES = frozenset({"billing_hard_limit_reached", "insufficient_quota"})
_TRANSPORT_CODES = frozenset(
    {
        "api_error",
        "internal_error",
        "internal_server_error",
        "overloaded",
        "overloaded_error",
        "server_error",
        "server_is_overloaded",  # of the Responses service: with 503, or inside a stream
        "service_unavailable",
        "service_unavailable_error",
        "timeout",
        "timeout_error",
        *(str(status) for status in _TRANSPORT_STATUSES),
    }
)


_CLASSES: dict[ErrorClass, tuple[Code, Category, RetryClass | None]] = {
    ErrorClass.CONTEXT_LENGTH: (Code.MODEL_CONTEXT_LENGTH_EXCEEDED, Category.LIMIT, None),
    ErrorClass.RATE_LIMIT: (Code.MODEL_RATE_LIMITED, Category.RATE_LIMIT, RetryClass.RATE_LIMIT),
    ErrorClass.QUOTA: (Code.MODEL_RATE_LIMITED, Category.RATE_LIMIT, None),
    ErrorClass.TRANSPORT: (Code.MODEL_PROVIDER_ERROR, Category.TRANSPORT, RetryClass.TRANSPORT),
    ErrorClass.REJECTED: (Code.MODEL_REQUEST_REJECTED, Category.VALIDATION, None),
    ErrorClass.CONTENT_FILTER: (Code.MODEL_CONTENT_FILTERED, Category.DENIED, None),
}


@dataclass(frozen=True, slots=True)
class ProviderError:
    """An error object as providers send it. `codes` are its `code` and `type`, as text."""

    codes: frozenset[str]
    text: str


def parse_error(body: bytes) -> ProviderError:
    """Find the error object in an error body of any kind; nothing is quoted from a body that has none."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ProviderError(frozenset(), "")
    if isinstance(document, list) and document:
        document = document[0]
    if isinstance(document, dict):
        return error_of(document.get("error") or document)
    return ProviderError(frozenset(), "")


def error_of(error: object) -> ProviderError:
    """Read the value of an `error` field: an object, or just a text."""
    if isinstance(error, str):
        return ProviderError(frozenset(), error)
    if not isinstance(error, dict):
        return ProviderError(frozenset(), "")
    codes = frozenset(str(error[name]) for name in ("code", "type", "status") if isinstance(error.get(name), str | int))
    message = error.get("message")
    return ProviderError(codes, message if isinstance(message, str) else "")


def failure_of_status(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    wall_us: int,
    secret: str | None,
    profile: Profile | None = None,
) -> Failure:
    """The failure that a complete answer with another status than 200 stands for.

    What the profile says of a code comes first, then what it says of a status, then the common tables.
    """
    error = parse_error(body)
    known = _known_class(error, status, profile)
    code, category, retry_class = _class_of_status(status, error) if known is None else _CLASSES[known]
    detail = f": {redact(error.text, secret)}" if error.text else ""
    # Some servers answer 500 to a request that does not fit; nothing was generated all the same.
    began = status >= 500 and code is not Code.MODEL_CONTEXT_LENGTH_EXCEEDED
    return Failure(
        code=code,
        category=category,
        message=f"the endpoint answered HTTP {status}{_named(error, secret)}{detail}",
        external_outcome=Executed.UNKNOWN if began else Executed.NOT_EXECUTED,
        retry_class=retry_class,
        retry_after_ms=retry_after_ms(headers, wall_us) if retry_class is not None else None,
        http_status=status,
    )


def failure_of_frame(error_value: object, *, secret: str | None, profile: Profile | None = None) -> Failure:
    """The failure that an error inside a 200 answer stands for (CASES S03)."""
    error = error_of(error_value)
    known = _known_class(error, None, profile)
    code, category, retry_class = Code.MODEL_PROVIDER_ERROR, Category.BUSINESS, None
    if known is not None:
        code, category, retry_class = _CLASSES[known]
    elif error.codes & _CONTEXT_LENGTH_CODES:
        code, category = Code.MODEL_CONTEXT_LENGTH_EXCEEDED, Category.LIMIT
    elif error.codes & _QUOTA_CODES:
        code, category = Code.MODEL_RATE_LIMITED, Category.RATE_LIMIT
    elif error.codes & _RATE_LIMIT_CODES:
        code, category, retry_class = Code.MODEL_RATE_LIMITED, Category.RATE_LIMIT, RetryClass.RATE_LIMIT
    elif error.codes & _TRANSPORT_CODES:
        category, retry_class = Category.TRANSPORT, RetryClass.TRANSPORT
    detail = f": {redact(error.text, secret)}" if error.text else ""
    return Failure(
        code=code,
        category=category,
        message=f"the provider reported an error inside its answer{_named(error, secret)}{detail}",
        external_outcome=Executed.EXECUTED,
        retry_class=retry_class,
        http_status=200,
    )


def _known_class(error: ProviderError, status: int | None, profile: Profile | None) -> ErrorClass | None:
    """What the profile says: of two codes that it knows, the one that forbids another attempt."""
    if profile is None:
        return None
    found = [profile.codes[code] for code in sorted(error.codes) if code in profile.codes]
    if not found:
        return None if status is None else profile.statuses.get(status)
    return next((one for one in found if _CLASSES[one][2] is None), found[0])


def _class_of_status(status: int, error: ProviderError) -> tuple[Code, Category, RetryClass | None]:
    if status == 429:
        # A used-up quota comes as 429 too, and no waiting of ours brings it back.
        retry_class = None if error.codes & _QUOTA_CODES else RetryClass.RATE_LIMIT
        return Code.MODEL_RATE_LIMITED, Category.RATE_LIMIT, retry_class
    if status == 408:
        return Code.MODEL_TRANSPORT_FAILED, Category.TIMEOUT, RetryClass.TRANSPORT
    if status in _TRANSPORT_STATUSES:
        return Code.MODEL_PROVIDER_ERROR, Category.TRANSPORT, RetryClass.TRANSPORT
    if status >= 500:
        return Code.MODEL_PROVIDER_ERROR, Category.BUSINESS, None
    if 200 <= status < 300:
        return Code.MODEL_PROTOCOL_ERROR, Category.PROTOCOL, None
    if error.codes & _CONTEXT_LENGTH_CODES:
        return Code.MODEL_CONTEXT_LENGTH_EXCEEDED, Category.LIMIT, None
    return Code.MODEL_REQUEST_REJECTED, _REJECTED_CATEGORIES.get(status, Category.VALIDATION), None


def _named(error: ProviderError, secret: str | None) -> str:
    names = sorted(name for name in error.codes if re.fullmatch(r"[\w.\-]{1,64}", name))
    return f" ({redact(', '.join(names), secret)})" if names else ""
