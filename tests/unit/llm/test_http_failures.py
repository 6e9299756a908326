import json
import time
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloom_worker import limits
from agentloom_worker.domain.model import Category, Executed
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.errors import Code
from agentloom_worker.http.redaction import redact
from agentloom_worker.http.retry_after import retry_after_ms
from agentloom_worker.llm.http_failures import (
    failure_of_frame,
    failure_of_status,
    parse_error,
)
from agentloom_worker.llm.profiles import ErrorClass

WALL_US = 1_800_000_000 * 1_000_000  # Fri, 15 Jan 2027 08:00:00 GMT
SECRET = "sk-test-0123456789abcdef"


@pytest.mark.parametrize(
    ("status", "error", "code", "retry_class", "executed"),
    [
        (429, {}, Code.MODEL_RATE_LIMITED, RetryClass.RATE_LIMIT, Executed.NOT_EXECUTED),
        (429, {"code": "insufficient_quota"}, Code.MODEL_RATE_LIMITED, None, Executed.NOT_EXECUTED),
        (408, {}, Code.MODEL_TRANSPORT_FAILED, RetryClass.TRANSPORT, Executed.NOT_EXECUTED),
        (409, {}, Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT, Executed.NOT_EXECUTED),
        (500, {}, Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT, Executed.UNKNOWN),
        (502, {}, Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT, Executed.UNKNOWN),
        (503, {}, Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT, Executed.UNKNOWN),
        (504, {}, Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT, Executed.UNKNOWN),
        (529, {}, Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT, Executed.UNKNOWN),
        (501, {}, Code.MODEL_PROVIDER_ERROR, None, Executed.UNKNOWN),
        (400, {}, Code.MODEL_REQUEST_REJECTED, None, Executed.NOT_EXECUTED),
        (401, {}, Code.MODEL_REQUEST_REJECTED, None, Executed.NOT_EXECUTED),
        (404, {}, Code.MODEL_REQUEST_REJECTED, None, Executed.NOT_EXECUTED),
        (422, {}, Code.MODEL_REQUEST_REJECTED, None, Executed.NOT_EXECUTED),
        (302, {}, Code.MODEL_REQUEST_REJECTED, None, Executed.NOT_EXECUTED),
        (204, {}, Code.MODEL_PROTOCOL_ERROR, None, Executed.NOT_EXECUTED),
        (
            400,
            {"code": "context_length_exceeded"},
            Code.MODEL_CONTEXT_LENGTH_EXCEEDED,
            None,
            Executed.NOT_EXECUTED,
        ),
        (
            400,
            {"type": "exceed_context_size_error", "code": "400"},
            Code.MODEL_CONTEXT_LENGTH_EXCEEDED,
            None,
            Executed.NOT_EXECUTED,
        ),
        (400, {"code": "content_filter", "status": 400}, Code.MODEL_CONTENT_FILTERED, None, Executed.NOT_EXECUTED),
        (
            400,
            {"code": None, "innererror": {"code": "ResponsibleAIPolicyViolation"}},
            Code.MODEL_CONTENT_FILTERED,
            None,
            Executed.NOT_EXECUTED,
        ),
        # A code that forbids another attempt decides, whatever the status; one that allows it changes no status.
        *(
            (status, {"type": "server_error", "code": code}, expected, None, executed)
            for status, executed in (
                (400, Executed.NOT_EXECUTED),
                (408, Executed.NOT_EXECUTED),
                (429, Executed.NOT_EXECUTED),
                (500, Executed.UNKNOWN),
                (503, Executed.UNKNOWN),
            )
            for code, expected in (
                ("insufficient_quota", Code.MODEL_RATE_LIMITED),
                ("content_filter", Code.MODEL_CONTENT_FILTERED),
            )
        ),
        *(
            (
                status,
                {"type": "rate_limit_error", "code": "context_length_exceeded"},
                Code.MODEL_CONTEXT_LENGTH_EXCEEDED,
                None,
                Executed.NOT_EXECUTED,
            )
            for status in (400, 408, 429, 500, 503)
        ),
        (400, {"code": "server_error"}, Code.MODEL_REQUEST_REJECTED, None, Executed.NOT_EXECUTED),
        (
            503,
            {"code": "rate_limit_exceeded"},
            Code.MODEL_PROVIDER_ERROR,
            RetryClass.TRANSPORT,
            Executed.UNKNOWN,
        ),
        (
            400,
            {"message": "rate limit 429, retry later"},
            Code.MODEL_REQUEST_REJECTED,
            None,
            Executed.NOT_EXECUTED,
        ),
    ],
)
def test_the_status_and_the_codes_decide_and_no_words_do(
    status: int, error: dict[str, Any], code: Code, retry_class: RetryClass | None, executed: Executed
) -> None:
    failure = failure_of_status(
        status, httpx.Headers(), json.dumps({"error": error}).encode(), wall_us=WALL_US, secret=None
    )
    assert (failure.code, failure.retry_class, failure.external_outcome) == (code, retry_class, executed)
    assert failure.http_status == status


def test_S03_an_error_frame_is_classified_by_its_codes() -> None:
    unknown = failure_of_frame({"code": None, "type": "strange", "message": "timeout 503"}, secret=None)
    assert (unknown.code, unknown.retry_class) == (Code.MODEL_PROVIDER_ERROR, None)
    server = failure_of_frame({"code": 502, "message": "x"}, secret=None)
    assert (server.code, server.retry_class) == (Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT)
    limited = failure_of_frame({"type": "rate_limit_error"}, secret=None)
    assert (limited.code, limited.retry_class) == (Code.MODEL_RATE_LIMITED, RetryClass.RATE_LIMIT)
    assert limited.category is Category.RATE_LIMIT
    filtered = failure_of_frame({"code": "content_filter", "type": "server_error"}, secret=None)
    assert (filtered.code, filtered.retry_class) == (Code.MODEL_CONTENT_FILTERED, None)
    ended = failure_of_frame({"message": "the finish reason is x"}, ErrorClass.TRANSPORT, secret=None)
    assert (ended.code, ended.retry_class, ended.external_outcome) == (
        Code.MODEL_PROVIDER_ERROR,
        RetryClass.TRANSPORT,
        Executed.EXECUTED,
    )
    text = failure_of_frame("just words", secret=None)
    assert text.code == Code.MODEL_PROVIDER_ERROR
    assert "just words" in text.message


@pytest.mark.parametrize(
    ("headers", "expected_ms"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7_000),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "1.5"}, 1_500),
        ({"retry-after-ms": "250", "retry-after": "9"}, 250),
        ({"retry-after": "Fri, 15 Jan 2027 08:01:00 GMT"}, 60_000),
        ({"retry-after": "Fri, 15 Jan 2027 07:00:00 GMT"}, 0),
        ({"retry-after": "999999999"}, int(limits.RETRY_AFTER_MAX_S * 1000)),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "1" + "0" * 30}, int(limits.RETRY_AFTER_MAX_S * 1000)),
        ({"retry-after": "9" * 5000}, int(limits.RETRY_AFTER_MAX_S * 1000)),
        ({"retry-after-ms": "9" * 5000}, int(limits.RETRY_AFTER_MAX_S * 1000)),
        ({"retry-after": "0." + "1" * 400}, 111),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e3"}, None),
        ({"retry-after": "7, 9"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after-ms": "-1", "retry-after": "9"}, 9_000),
        ({"retry-after-ms": "soon"}, None),
        ({"retry-after-ms": "0.4"}, 0),
        ({"retry-after": "Friday, 15-Jan-27 08:01:00 GMT"}, 60_000),
        ({"retry-after": "Fri Jan 15 08:01:00 2027"}, 60_000),
        ({"retry-after": "Fri, 15 Jan 2027 08:01:00 -0000"}, 60_000),
        ({"retry-after": "Fri, 15 Jan 9999 08:01:00 GMT"}, int(limits.RETRY_AFTER_MAX_S * 1000)),
        ({"retry-after": "Fri, 15 Jan 99999 08:01:00 GMT"}, None),
        ({"retry-after": "Mon, 01 Jan 0001 00:00:00 +2359"}, 0),
    ],
)
def test_retry_after_is_read_in_each_of_its_forms(headers: dict[str, str], expected_ms: int | None) -> None:
    assert retry_after_ms(httpx.Headers([(k.encode(), v.encode()) for k, v in headers.items()]), WALL_US) == expected_ms


@given(text=st.text(st.characters(max_codepoint=0xFF)), date=st.text(st.characters(max_codepoint=0xFF)))
def test_D23_whatever_the_header_says_the_wait_is_bounded(text: str, date: str) -> None:
    for name in ("retry-after", "retry-after-ms"):
        found = retry_after_ms({name: text, "date": date}, WALL_US)
        assert found is None or 0 <= found <= limits.RETRY_AFTER_MAX_S * 1000


def test_D22_a_date_without_a_zone_is_no_date_of_this_machines_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        with monkeypatch.context() as patched:
            patched.setenv("TZ", "Asia/Tokyo")
            time.tzset()
            for date in ("Fri Jan 15 08:01:00 2027", "Fri, 15 Jan 2027 08:01:00 -0000"):
                assert retry_after_ms({"retry-after": date}, WALL_US) == 60_000
    finally:
        time.tzset()


def test_D22_a_date_is_compared_with_the_answers_own_clock() -> None:
    headers = httpx.Headers({"date": "Fri, 15 Jan 2027 09:00:00 GMT", "retry-after": "Fri, 15 Jan 2027 09:00:20 GMT"})
    assert retry_after_ms(headers, WALL_US) == 20_000


def test_a_key_is_redacted_whole_and_in_the_providers_masked_form() -> None:
    text = f"Incorrect API key provided: {SECRET}. Also sk-test***cdef and Bearer abc.def"
    line = redact(text, SECRET)
    assert SECRET not in line
    assert "cdef" not in line
    assert "abc.def" not in line
    assert line.startswith("Incorrect API key provided:")
    assert redact("your key: correct horse", "correct horse") == "your key: [redacted]"


def test_a_message_is_one_bounded_line() -> None:
    assert redact("a\n\tb\ud800", None) == "a b?"
    assert len(redact("x" * 10_000, None)) <= limits.ERROR_TEXT_CHARACTERS_MAX + 1


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>secret", b"[]", b"7", b"null", b"\xff", b'{"detail":[{"input":"secret"}]}', b"[" * 100_000],
)
def test_nothing_is_quoted_from_a_body_without_an_error_object(body: bytes) -> None:
    assert parse_error(body).text == ""
