"""A body is an envelope around fragments that nobody has joined: it is read when it is sent, in pieces."""

from hypothesis import given
from hypothesis import strategies as st

from agentloom_worker.context.view import View
from agentloom_worker.domain.model import RequestParameters
from agentloom_worker.llm.adapter import ModelCall, RequestBody
from agentloom_worker.llm.chat_encoding import ChatEncoding
from agentloom_worker.llm.profiles import PROFILES
from tests.unit.http.raw_server import STREAM_HEAD, bytes_of, serving
from tests.unit.llm import streams
from tests.unit.llm.calls import Attempt, completed, new_adapter


@given(st.lists(st.binary(max_size=40_000), max_size=8))
def test_its_pieces_are_the_joined_fragments_and_none_is_much_larger_than_64_kib(fragments: list[bytes]) -> None:
    body = RequestBody(b"{[", View().extend(fragments), b"]}")
    pieces = list(body)
    assert b"".join(pieces) == body.join() == b"{[" + b",".join(fragments) + b"]}"
    assert body.size_bytes == len(body.join())
    assert all(len(piece) < 65_536 + 40_000 + 8 for piece in pieces)


class Unread:
    """Fragments of which only the number and the size may be asked."""

    length = 1_000_000
    joined_bytes = 600_000_000
    seam = None

    def fragments(self) -> list[bytes]:
        raise AssertionError("the messages were read")


def test_framing_a_body_reads_no_message() -> None:
    body = ChatEncoding(PROFILES["generic"]).frame_body(RequestParameters("m", 1), Unread(), b"")
    assert body.size_bytes > Unread.joined_bytes


def test_a_long_body_is_sent_whole_with_its_length() -> None:
    adapter = new_adapter()
    fragments = [b'{"content":"%d"}' % number * 5 for number in range(5_000)]
    body = adapter.frame_body(RequestParameters("m", 1), View().extend(fragments), b"")
    with serving(bytes_of(STREAM_HEAD + streams.S01)) as server:
        completed(adapter.stream_once(ModelCall(body, server.base_url), Attempt().context()))
        exchange = server.requests.get(timeout=10)
    assert exchange.body == body.join()
    assert f"\r\nContent-Length: {len(exchange.body)}\r\n".encode() in exchange.head
    assert b"ransfer-" not in exchange.head
