"""Classify what an endpoint answers in place of a response: by status and code tables, never by words.

`external_outcome` of an error answer: below 500 the provider refused before it generated (`not_executed`); a
5xx may have generated and been paid (`unknown`); an error inside a 200 answer began (`executed`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from agentloom_worker.domain.model import Category, Executed, Failure
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.errors import Code
from agentloom_worker.http.redaction import redact
from agentloom_worker.http.retry_after import retry_after_ms
from agentloom_worker.llm.assembly import first_object
from agentloom_worker.llm.profiles import ErrorClass, Profile

_TRANSPORT_STATUSES = frozenset({500, 502, 503, 504, 520, 521, 522, 523, 524, 529})

_REJECTED_CATEGORIES = {
    401: Category.PERMISSION,
    402: Category.LIMIT,
    403: Category.PERMISSION,
    404: Category.NOT_FOUND,
    413: Category.LIMIT,
}

# What codes mean wherever no profile says otherwise.
_COMMON: dict[str, ErrorClass] = {
    "context_length_exceeded": ErrorClass.CONTEXT_LENGTH,
    "context_window_exceeded": ErrorClass.CONTEXT_LENGTH,
    "exceed_context_size_error": ErrorClass.CONTEXT_LENGTH,  # of llama.cpp's server, also behind a proxy
    "429": ErrorClass.RATE_LIMIT,
    "RESOURCE_EXHAUSTED": ErrorClass.RATE_LIMIT,  # of Gemini, as DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE
    "rate_limit_error": ErrorClass.RATE_LIMIT,
    "rate_limit_exceeded": ErrorClass.RATE_LIMIT,
    "too_many_requests": ErrorClass.RATE_LIMIT,
    "billing_hard_limit_reached": ErrorClass.QUOTA,
    "insufficient_quota": ErrorClass.QUOTA,
    "content_filter": ErrorClass.CONTENT_FILTER,  # of Azure, with its inner code; also behind a proxy
    "ResponsibleAIPolicyViolation": ErrorClass.CONTENT_FILTER,
    "DEADLINE_EXCEEDED": ErrorClass.TRANSPORT,
    "INTERNAL": ErrorClass.TRANSPORT,
    "UNAVAILABLE": ErrorClass.TRANSPORT,
    "api_error": ErrorClass.TRANSPORT,
    "internal_error": ErrorClass.TRANSPORT,
    "internal_server_error": ErrorClass.TRANSPORT,
    "overloaded": ErrorClass.TRANSPORT,
    "overloaded_error": ErrorClass.TRANSPORT,
    "server_error": ErrorClass.TRANSPORT,
    "server_is_overloaded": ErrorClass.TRANSPORT,  # of the Responses service: with 503, or inside a stream
    "service_unavailable": ErrorClass.TRANSPORT,
    "service_unavailable_error": ErrorClass.TRANSPORT,
    "timeout": ErrorClass.TRANSPORT,
    "timeout_error": ErrorClass.TRANSPORT,
    **{str(status): ErrorClass.TRANSPORT for status in _TRANSPORT_STATUSES},
}


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
    """An error object as providers send it. `codes` are all that name its kind, as text."""

    codes: frozenset[str]
    text: str


def parse_error(body: bytes) -> ProviderError:
    """Find the error object in an error body of any kind; nothing is quoted from a body that has none."""
    document = first_object(body)
    return ProviderError(frozenset(), "") if document is None else error_of(document.get("error") or document)


def error_of(error: object) -> ProviderError:
    """Read the value of an `error` field: an object, or just a text."""
    if isinstance(error, str):
        return ProviderError(frozenset(), error)
    if not isinstance(error, dict):
        return ProviderError(frozenset(), "")
    # Azure says inside what it filtered by; OpenRouter gives a status as the code, and the kind beside it.
    inner, more = error.get("innererror") or error.get("inner_error"), error.get("metadata")
    named = [error.get(name) for name in ("code", "type", "status")]
    named.append(inner.get("code") if isinstance(inner, dict) else None)
    named.append(more.get("error_type") if isinstance(more, dict) else None)
    codes = frozenset(str(code) for code in named if isinstance(code, str | int))
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

    A code that forbids another attempt comes first, then what the profile says of a code, what it says of a status,
    and the common table of statuses.
    """
    error = parse_error(body)
    known = _known_class(error, profile, status)
    code, category, retry_class = _class_of_status(status) if known is None else _CLASSES[known]
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


def failure_of_frame(
    error_value: object, known: ErrorClass | None = None, *, secret: str | None, profile: Profile | None = None
) -> Failure:
    """The failure that an error inside a 200 answer stands for (CASES S03). `known` is its class, where it is known."""
    error = error_of(error_value)
    known = known or _known_class(error, profile)
    code, category, retry_class = Code.MODEL_PROVIDER_ERROR, Category.BUSINESS, None
    if known is not None:
        code, category, retry_class = _CLASSES[known]
    detail = f": {redact(error.text, secret)}" if error.text else ""
    return Failure(
        code=code,
        category=category,
        message=f"the provider reported an error inside its answer{_named(error, secret)}{detail}",
        external_outcome=Executed.EXECUTED,
        retry_class=retry_class,
        http_status=200,
    )


def _known_class(error: ProviderError, profile: Profile | None, status: int | None = None) -> ErrorClass | None:
    """What the codes say, and for a status what the profile says of it.

    Of all codes the one that forbids another attempt decides; the profile's word replaces the common one. Of the common
    codes that allow another attempt, none changes what a status says.
    """
    own = {} if profile is None else profile.codes
    codes = sorted(error.codes)
    said = [own[code] for code in codes if code in own]
    common = [_COMMON[code] for code in codes if code in _COMMON and code not in own]
    final = next((one for one in (*said, *common) if _CLASSES[one][2] is None), None)
    if final is not None or said:
        return final or said[0]
    if status is not None:
        return None if profile is None else profile.statuses.get(status)
    return next((one for one in (ErrorClass.RATE_LIMIT, ErrorClass.TRANSPORT) if one in common), None)


def _class_of_status(status: int) -> tuple[Code, Category, RetryClass | None]:
    if status == 429:
        return _CLASSES[ErrorClass.RATE_LIMIT]
    if status == 408:
        return Code.MODEL_TRANSPORT_FAILED, Category.TIMEOUT, RetryClass.TRANSPORT
    # 409 is a lock that passes: the official client repeats it too, and whoever keeps an idempotency key answers so
    # while the first request under it is still at work (draft-ietf-httpapi-idempotency-key-header-06, 2.7).
    if status in _TRANSPORT_STATUSES or status == 409:
        return _CLASSES[ErrorClass.TRANSPORT]
    if status >= 500:
        return Code.MODEL_PROVIDER_ERROR, Category.BUSINESS, None
    if 200 <= status < 300:
        return Code.MODEL_PROTOCOL_ERROR, Category.PROTOCOL, None
    return Code.MODEL_REQUEST_REJECTED, _REJECTED_CATEGORIES.get(status, Category.VALIDATION), None


def _named(error: ProviderError, secret: str | None) -> str:
    names = sorted(name for name in error.codes if re.fullmatch(r"[\w.\-]{1,64}", name))
    return f" ({redact(', '.join(names), secret)})" if names else ""
