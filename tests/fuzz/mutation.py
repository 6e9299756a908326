"""Broken streams in any number, the same for the same seed: parts of the corpus, put together and spoilt."""

import random  # noqa: TID251 -- the same for the same seed
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

HEAD = 4  # bytes that choose how the others are read
CORPUS = Path(__file__).parent / "corpus"
_INPUT_MAX = 8_000
_WORDS = (
    *(b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\x0b", b"\x00", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xc2\x85"),
    *(b"\xf0\x9f\x98\x80", b"\xf0\x9f", b"\xed\xa0\x80", b"\xc3", b"\xff", b"data: [DONE]\n\n", b"event: error\n"),
    *(b"data", b"data:", b"data: ", b": ", b"id: 1\n", b"retry: 5\n", b"null", b"true", b"NaN", b"Infinity"),
    *(b"-1", b"1e999", b"0", b"9" * 400, b"{}", b"[]", b"[" * 60, b'{"a":' * 60, b'""', b'"\\ud83d"', b'"\\ude00"'),
    *(b'"\\u0000"', b'"index":0', b'"id":"a"', b'"name":"add"', b'"arguments":{"x":NaN}', b'"content":"x"'),
    *(b'"error":{}', b'"finish_reason":"stop"', b'"usage":{"prompt_tokens":7}', b'"refusal":"no"'),
    *(
        b'"output_index":0',
        b'"content_index":1',
        b'"status":"completed"',
        b'"type":"error"',
        b'"item":{}',
        b'"call_id":"a"',
    ),
    b'"tool_calls":[{"index":0,"id":"b","function":{}}]',
)


def corpus() -> list[bytes]:
    """The streams that everything else is made of, by name."""
    return [path.read_bytes() for path in sorted(CORPUS.iterdir())]


def inputs(count: int, seed: int) -> Iterator[bytes]:
    """So many inputs for `check`; some are whole, most are not."""
    chance, whole = random.Random(seed), corpus()
    lines = [line for body in whole for line in body.splitlines(keepends=True)]
    for _ in range(count):
        body = _start(chance, whole, lines)
        for _ in range(chance.choice((0, 1, 1, 2, 4, 16))):
            body = chance.choice(_CHANGES)(chance, body, lines)
        yield chance.randbytes(HEAD) + body[:_INPUT_MAX]


def _start(chance: random.Random, whole: Sequence[bytes], lines: Sequence[bytes]) -> bytes:
    if chance.random() < 0.6:
        return chance.choice(whole)
    return b"".join(chance.choices(lines, k=chance.randrange(1, 12)))


def _place(chance: random.Random, body: bytes) -> int:
    return chance.randrange(len(body) + 1)


def _flip(chance: random.Random, body: bytes, _lines: Sequence[bytes]) -> bytes:
    at = _place(chance, body)
    return body[:at] + chance.randbytes(1) + body[at + 1 :]


def _put_word(chance: random.Random, body: bytes, _lines: Sequence[bytes]) -> bytes:
    at = _place(chance, body)
    return body[:at] + chance.choice(_WORDS) + body[at + chance.choice((0, 0, 1, 4)) :]


def _put_line(chance: random.Random, body: bytes, lines: Sequence[bytes]) -> bytes:
    at = body.find(b"\n", _place(chance, body)) + 1
    return body[:at] + chance.choice(lines) + body[at:]


def _cut(chance: random.Random, body: bytes, _lines: Sequence[bytes]) -> bytes:
    first, last = sorted((_place(chance, body), _place(chance, body)))
    return body[:first] + body[last:] if last - first < len(body) // 2 else body[first:last]


def _repeat(chance: random.Random, body: bytes, _lines: Sequence[bytes]) -> bytes:
    first, last = sorted((_place(chance, body), _place(chance, body)))
    part = body[first:last]
    return body[:last] + part * min(chance.choice((1, 1, 2, 50)), 1 + _INPUT_MAX // (len(part) + 1)) + body[last:]


def _end_lines_otherwise(chance: random.Random, body: bytes, _lines: Sequence[bytes]) -> bytes:
    return body.replace(b"\n", chance.choice((b"\r", b"\r\n", b"\n\r")))


_CHANGES: tuple[Callable[[random.Random, bytes, Sequence[bytes]], bytes], ...] = (
    _flip,
    _put_word,
    _put_word,
    _put_line,
    _put_line,
    _cut,
    _repeat,
    _end_lines_otherwise,
)
