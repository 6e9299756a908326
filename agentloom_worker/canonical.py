"""Canonical JSON bytes and their hashes: the one form in which bodies are stored and compared.

Sorted keys, no spaces, UTF-8, no NaN. A lone surrogate (legal in a Python string, illegal in UTF-8)
is written as its JSON escape, so that every string survives a round trip (RULINGS R13); a pair of them
that stands apart counts as the character that it means, as JSON has it.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from json import encoder as json_encoder
from typing import Any

REPLACEMENT = "�"

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def _chunks() -> Callable[[Any, int], Iterable[str]]:
    """What `_encoder.encode` makes anew at each call, made once: half of the cost of a small document.

    It keeps no list of the containers that it is in, so that a circular value raises RecursionError.
    """
    make = getattr(json_encoder, "c_make_encoder", None)  # of CPython
    if make is None:
        return lambda value, _indent: _encoder.iterencode(value)
    quote = json_encoder.encode_basestring
    made: Callable[[Any, int], Iterable[str]] = make(
        None, _encoder.default, quote, None, ":", ",", _encoder.sort_keys, _encoder.skipkeys, _encoder.allow_nan
    )
    return made


_encode = _chunks()


def canonical_bytes(value: Any) -> bytes:
    """Encode a JSON value. Raises ValueError for NaN or infinity, TypeError for what JSON does not have."""
    text = "".join(_encode(value, 0))
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        # JSON reads the two halves of a pair, written apart, as their one character: so it is written here,
        # else what was read would have other bytes than what was written.
        return _escaped("".join(_encode(json.loads(_escaped(text)), 0)))


def _escaped(text: str) -> bytes:
    # Outside of strings the encoder writes ASCII only, so the error handler can only meet a lone
    # surrogate inside a string, where `\udXXX` is the JSON escape of that very code unit.
    return text.encode("utf-8", "backslashreplace")


def parse(body: bytes) -> Any:
    """Decode canonical JSON bytes."""
    return json.loads(body)


def sha256(body: bytes) -> bytes:
    """The 32 raw bytes of the digest."""
    return hashlib.sha256(body).digest()


def sha256_hex(body: bytes) -> str:
    """The digest as 64 hexadecimal characters."""
    return hashlib.sha256(body).hexdigest()


def effective_text(raw: str) -> tuple[str, int]:
    """Make a text that any UTF-8 consumer takes: lone surrogates become U+FFFD.

    Returns the text and how many code units were replaced, so that the effective value can say so.
    """
    try:
        raw.encode("utf-8")
    except UnicodeEncodeError:
        characters = [REPLACEMENT if "\ud800" <= character <= "\udfff" else character for character in raw]
        replaced = sum(1 for old, new in zip(raw, characters, strict=True) if old != new)
        return "".join(characters), replaced
    return raw, 0
