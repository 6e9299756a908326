import pytest

from agentloom_worker.llm.sse import SseParser, SseProtocolError
from tests.unit.llm import streams


def events_of(*chunks: bytes) -> list[str]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_of_the_standard_ends_a_line(end: bytes) -> None:
    assert events_of(b"data: a" + end + b"data:b" + end + end + b"data: c" + end + end) == ["a\nb", "c"]


def test_no_other_character_ends_a_line() -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"
    assert events_of(f"data: {text}\n\n".encode()) == [text]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_chunk_border_at_any_byte_changes_nothing(end: str) -> None:
    whole = "\ufeff: c\nid: 1\ndata: né😀\ndata: x\n\ndata:\n\n: k\n\ndata: [DONE]\n\n".replace("\n", end).encode()
    expected = events_of(whole)
    assert expected == ["né😀\nx", "[DONE]"]
    for cut in range(len(whole) + 1):
        assert events_of(whole[:cut], whole[cut:]) == expected
    assert events_of(*(whole[i : i + 1] for i in range(len(whole)))) == expected


def test_a_byte_order_mark_is_dropped_at_the_start_only() -> None:
    assert events_of(b"\xef\xbb", b"\xbfdata: a\n\n", b"data: \xef\xbb\xbfb\n\n") == ["a", "\ufeffb"]


def test_only_the_first_blank_after_the_colon_is_dropped() -> None:
    assert events_of(b"data:  a \n\n", b"data\n\n", b"data:x\n\n", b"database: y\n\n") == [" a ", "x"]


@pytest.mark.parametrize("body", [b"data: \xff\n\n", b": \xc3(\n\n", b"data: \xed\xa0\x80\n\n"])
def test_invalid_utf8_is_an_error_wherever_it_stands(body: bytes) -> None:
    with pytest.raises(SseProtocolError):
        events_of(body)
    with pytest.raises(SseProtocolError):
        events_of(*(body[i : i + 1] for i in range(len(body))))


def test_an_unterminated_event_is_never_given() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.pending
    assert parser.feed(b"\n") == ["a"]
    assert not parser.pending


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_an_event_above_the_bound_is_an_error_in_chunks_of_any_size(size: int) -> None:
    body = b"data: " + b"x" * 200 + b"\n\n"
    parser = SseParser(event_bytes_max=100)
    with pytest.raises(SseProtocolError, match="event"):
        for start in range(0, len(body), size):
            parser.feed(body[start : start + size])


def test_many_lines_count_towards_the_bound_of_one_event() -> None:
    parser = SseParser(event_bytes_max=100)
    with pytest.raises(SseProtocolError, match="event"):
        for _ in range(20):
            parser.feed(b"data: 0123456789\n")


def test_comments_without_end_pass_no_bound_but_the_streams() -> None:
    parser = SseParser(event_bytes_max=100, stream_bytes_max=2000)
    for _ in range(100):
        assert parser.feed(b": keep-alive\n\n") == []
    with pytest.raises(SseProtocolError, match="stream"):
        for _ in range(100):
            parser.feed(b": keep-alive\n\n")


def test_S01_golden_stream_gives_the_same_events_when_cut_at_any_byte() -> None:
    expected = events_of(streams.S01_UNICODE)
    assert len(expected) == 5
    for cut in range(len(streams.S01_UNICODE)):
        assert events_of(streams.S01_UNICODE[:cut], streams.S01_UNICODE[cut:]) == expected
