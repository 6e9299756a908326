"""Bytes of HTTP/1.1 responses and of JSON, as a provider in any language might send them."""

import json
from http import HTTPStatus

JSON_TYPE = (("content-type", "application/json"),)
EVENT_STREAM = (("content-type", "text/event-stream"), ("cache-control", "no-cache"))
LAST_CHUNK = b"0\r\n\r\n"

_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encode(value: object) -> bytes:
    """JSON in UTF-8; a lone surrogate becomes its escape, as a provider in another language would send it."""
    return _encoder.encode(value).encode("utf-8", "backslashreplace")


def head(status: int, headers: tuple[tuple[str, str], ...], length_bytes: int | None = None) -> bytes:
    """Status line and headers; without a length the body comes in chunks."""
    framing = "transfer-encoding: chunked" if length_bytes is None else f"content-length: {length_bytes}"
    lines = [
        f"HTTP/1.1 {status} {_reason(status)}",
        *(f"{name}: {value}" for name, value in headers),
        framing,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Scripted"


def whole_response(status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> bytes:
    """A response whose length is known."""
    return head(status, headers, len(body)) + body


def chunk(payload: bytes) -> bytes:
    """One chunk of a chunked body; empty bytes would end it, so they are left out."""
    return b"%x\r\n%b\r\n" % (len(payload), payload) if payload else b""
