"""What an answer brought, within bounds and without the credential, wherever it is cut."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloom_worker.domain.transport import Transport, decode_transport, encode_transport
from agentloom_worker.errors import InvariantError
from agentloom_worker.http.recording import Recording

SECRET = 'tok-01/23"45\\6789abcdef'
PLAIN = "tok-0123456789abcdef"
STREAM = {"content-type": "text/event-stream; charset=utf-8"}


def recorded(*chunks: bytes, headers: dict[str, str] | None = None, **bounds: int) -> Recording:
    recording = Recording(**bounds)
    recording.begin(200, STREAM if headers is None else headers)
    for chunk in chunks:
        recording.take(chunk)
    return recording


def finished(recording: Recording, *secrets: str, spelled: bool = False) -> Transport:
    found = recording.finish(secrets, spelled=spelled)
    assert found is not None
    return found


def test_a_call_without_an_answer_has_no_record() -> None:
    assert Recording().finish((), spelled=False) is None


def test_the_bytes_are_kept_as_they_came() -> None:
    found = finished(recorded(b"\xff\x00da", b"ta: 1\n\n"))
    assert found == Transport(200, "text/event-stream", 11, body=b"\xff\x00data: 1\n\n")


@pytest.mark.parametrize(
    "spelling",
    [
        SECRET,
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET)[1:-1].replace("/", "\\/"),
        "".join(f"\\u{ord(one):04x}" for one in SECRET),
        "".join(f"\\u{ord(one):04X}" for one in SECRET),
    ],
)
def test_a_credential_is_replaced_however_json_spells_it_and_wherever_the_chunks_are_cut(spelling: str) -> None:
    body = f'{{"echo": "{spelling}"}}'.encode()
    for at in range(len(body)):
        assert finished(recorded(body[:at], body[at:]), SECRET).body == b'{"echo": "[redacted]"}'


def test_a_credential_that_only_the_answer_spells_withholds_the_bytes() -> None:
    found = finished(recorded(b'data: {"d":"tok-01234"}\n\ndata: {"d":"56789abcdef"}\n\n'), PLAIN, spelled=True)
    assert (found.body, found.size_bytes) == (b"", 52) and "across frames" in found.withheld
    found = finished(recorded(f"data: {PLAIN}".encode()), PLAIN, spelled=True)
    assert (found.body, found.withheld) == (b"data: [redacted]", "")


def test_of_a_large_body_the_beginning_and_the_end_are_kept() -> None:
    chunks = [b"%04d" % number for number in range(1000)]
    found = finished(recorded(*chunks, head_bytes=40, tail_bytes=80))
    assert found.body == b"".join(chunks[:10] + chunks[-20:])
    assert (found.size_bytes, found.omitted_bytes, found.cut_at) == (4000, 4000 - 120, 40)


def test_a_credential_that_the_cut_runs_through_is_in_neither_part() -> None:
    body = b"x" * 300 + PLAIN.encode() + b"y" * 300
    for cut in range(250, 360):
        recording = recorded(
            *(body[at : at + 1] for at in range(len(body))), head_bytes=cut, tail_bytes=len(body) - cut - 1
        )
        found = finished(recording, PLAIN)
        assert found.omitted_bytes > 0
        for size in range(8, len(PLAIN)):
            assert PLAIN[:size].encode() not in found.body and PLAIN[-size:].encode() not in found.body


def test_a_coding_that_nobody_reads_is_withheld() -> None:
    found = finished(recorded(b"", headers={**STREAM, "content-encoding": "br"}), PLAIN)
    assert (found.body, found.withheld) == (b"", "their content encoding cannot be read")
    assert finished(recorded(b"said", headers={**STREAM, "content-encoding": "gzip"}), PLAIN).body == b"said"


@given(data=st.data(), head=st.integers(1, 40), tail=st.integers(1, 40), secret=st.booleans())
def test_any_split_of_the_bytes_is_the_same_record(data: st.DataObject, head: int, tail: int, *, secret: bool) -> None:
    """Also where the reader stopped before the end of what had arrived."""
    body = data.draw(st.binary(max_size=160))
    stop = data.draw(st.integers(0, len(body)))
    secrets = ("abc",) if secret else ()
    plain = finished(recorded(body[:stop], head_bytes=head, tail_bytes=tail), *secrets)
    cuts = sorted(data.draw(st.lists(st.integers(0, stop), max_size=12)))
    starts = [0, *cuts]
    chunks = [body[start:end] for start, end in pairwise([*starts, stop])]
    # What the network had brought along with the last chunk.
    chunks[-1] += body[stop:]
    recording = recorded(*chunks, head_bytes=head, tail_bytes=tail)
    recording.stop_at(stop)
    assert finished(recording, *secrets) == plain
    if not secret:
        kept = body[:stop]
        whole = len(kept) <= head + tail
        assert plain.body == (kept if whole else kept[:head] + kept[-tail:])
        assert (plain.size_bytes, plain.omitted_bytes) == (stop, 0 if whole else stop - head - tail)


def test_a_type_that_is_none_is_not_kept() -> None:
    for kind in (PLAIN, f"text/{PLAIN}", "a b", "x" * 500):
        assert finished(recorded(headers={"content-type": kind}), PLAIN).media_type == ""


@pytest.mark.parametrize("body", [b"", b"data: 1\n\n", b"{}\n\x00\xff" * 100])
def test_what_is_stored_is_read_back(body: bytes) -> None:
    transport = Transport(503, "text/plain", 900, 7, 2, "because", body)
    assert decode_transport(encode_transport(transport)) == transport


def test_what_is_damaged_or_newer_is_refused(monkeypatch: Any) -> None:
    with pytest.raises(InvariantError, match="damaged"):
        decode_transport(b"no zlib")
    monkeypatch.setattr("agentloom_worker.domain.transport.VERSION", 2)
    newer = encode_transport(Transport(200, "", 0))
    monkeypatch.undo()
    with pytest.raises(InvariantError, match="version 2"):
        decode_transport(newer)
