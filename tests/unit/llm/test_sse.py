import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentloom_worker.llm.sse import SseParser, SseProtocolError
from tests import oracle_sse
from tests.oracle_sse import Reading
from tests.unit.llm import streams

# What streams are made of, and what is nearly that.
PARTS = st.sampled_from(
    [
        *("data: ", "data:", "data", ":", "id: 1", "event: x", "retry: 5", "database: ", " ", "a", "{}", "[DONE]"),
        *("\n", "\n", "\r", "\r\n", "\n\n", "\ufeff", "\u2028", "\x85", "\x0b", "\x00", "é", "😀"),
    ]
)
BODIES = st.builds(
    lambda parts, tail: "".join(parts).encode() + tail,
    st.lists(PARTS, max_size=40),
    st.sampled_from([b"", b"", b"\xff", b"\xe2\x80", b"\xf0\x9f\x98", b"\xc3(\n\ndata: a\n\n"]),
)


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


@pytest.mark.parametrize("name", [name for name in dir(streams) if isinstance(getattr(streams, name), bytes)])
def test_every_golden_stream_gives_the_same_events_when_cut_at_any_byte(name: str) -> None:
    whole = getattr(streams, name)
    expected = read(whole)
    assert expected == oracle_sse.read(whole, event_max=5_000, stream_max=10_000)
    for cut in range(len(whole)):
        assert read(whole[:cut], whole[cut:]) == expected
        first = read(whole[:cut])
        assert first == oracle_sse.read(whole[:cut], event_max=5_000, stream_max=10_000)
        assert first.events == expected.events[: len(first.events)]


def read(*chunks: bytes, event_max: int = 5_000, stream_max: int = 10_000) -> Reading:
    parser = SseParser(event_bytes_max=event_max, stream_bytes_max=stream_max)
    events: list[str] = []
    ends: list[int] = []
    try:
        for chunk in chunks:
            for number, event in enumerate(parser.feed(chunk)):
                events.append(event)
                ends.append(parser.end_of(number))
    except SseProtocolError:
        return Reading(tuple(events), True, False, (*ends, parser.fault_at))
    return Reading(tuple(events), False, parser.pending, tuple(ends))


@given(body=BODIES, cuts=st.lists(st.integers(0, 200), max_size=8), event_max=st.integers(0, 60))
@example(body=b"data: a\n\n\xff", cuts=[], event_max=60)
@example(body=b"data: a\n\ndata: bcdefg\n\n", cuts=[], event_max=10)
@example(body=b": " + b"c" * 20 + b"\n", cuts=[5], event_max=10)
@example(body=b"\xef\xbb\xbfdata: a\r\n\r\n\n", cuts=[1, 13, 14], event_max=60)
@example(body="\ufeffdata: é€😀é€😀\r\r".encode(), cuts=[2, 12, 20], event_max=10)
@example(body=b"data: a\r\n\r\n\xe2\x82(", cuts=[12, 14], event_max=60)
def test_any_split_of_any_bytes_gives_what_the_standard_says(body: bytes, cuts: list[int], event_max: int) -> None:
    expected = oracle_sse.read(body, event_max=event_max, stream_max=80)
    ends = sorted(min(cut, len(body)) for cut in cuts)
    chunks = [body[first:last] for first, last in zip([0, *ends], [*ends, len(body)], strict=True)]
    assert read(*chunks, event_max=event_max, stream_max=80) == expected
    assert read(body, event_max=event_max, stream_max=80) == expected


@pytest.mark.parametrize("end", [b"\xe2", b"\xe2\x80", b"\xf0\x9f\x98"])
def test_a_part_of_a_character_at_the_end_is_something_unfinished(end: bytes) -> None:
    parser = SseParser()
    assert list(parser.feed(b"data: a\n\n" + end)) == ["a"]
    assert parser.pending


def test_what_stands_whole_before_a_fault_is_given_and_nothing_behind_it() -> None:
    parser = SseParser()
    events = iter(parser.feed(b"data: a\n\ndata: b\n\n\xff\ndata: c\n\n"))
    assert (next(events), next(events)) == ("a", "b")
    with pytest.raises(SseProtocolError, match="UTF-8"):
        next(events)
    with pytest.raises(SseProtocolError, match="UTF-8"):
        parser.feed(b"data: d\n\n")


def test_empty_lines_of_data_count_towards_the_bound_of_one_event() -> None:
    parser = SseParser(event_bytes_max=100)
    with pytest.raises(SseProtocolError, match="event"):
        parser.feed(b"data:\n" * 21)


def test_a_chunk_larger_than_a_piece_is_read_like_many_small_ones() -> None:
    body = b"".join(b"data: %d\r\n\r\n" % number for number in range(20_000))
    assert events_of(body) == [str(number) for number in range(20_000)]
