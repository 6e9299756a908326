"""What the bytes of an answer show of its form, where a whole call is not needed to see it."""

import json

import pytest

from agentloom_worker.domain.transport import Transport
from agentloom_worker.llm.sights import NOTES, Sights, look_at
from tests.unit.llm import response_streams, streams

STREAMS = {"openai-chat": streams.S01, "openai-responses": response_streams.S01}


def of(body: bytes, media_type: str = "text/event-stream", *, omitted: int = 0, cut_at: int = 0) -> Transport:
    return Transport(200, media_type, len(body) + omitted, omitted, cut_at, body=body)


@pytest.mark.parametrize("protocol", NOTES)
def test_an_answer_that_never_began_shows_nothing(protocol: str) -> None:
    assert look_at(None, protocol) == Sights()


@pytest.mark.parametrize("protocol", NOTES)
def test_the_gap_in_a_long_answer_hides_no_frame_that_is_whole(protocol: str) -> None:
    frames = STREAMS[protocol].split(b"\n\n")
    whole = look_at(of(STREAMS[protocol]), protocol)
    assert whole.finish is not None and whole.events > 3
    # What is left of the second frame is no JSON and joins nothing.
    head, tail = frames[0] + b"\n\n" + frames[1][:-5], b"\n\n".join(frames[2:])
    seen = look_at(of(head + tail, omitted=7, cut_at=len(head)), protocol)
    assert (seen.finish, seen.done, seen.events) == (whole.finish, whole.done, whole.events)


@pytest.mark.parametrize("protocol", NOTES)
@pytest.mark.parametrize("odd", [[], "x", {"choices": 1, "type": 1, "item": 1, "output": 1}, {"choices": [1, {}]}])
def test_frames_of_no_form_show_nothing(protocol: str, odd: object) -> None:
    seen = look_at(of(f"data: {json.dumps(odd)}\n\n".encode()), protocol)
    assert seen == Sights(readable=True, streamed=True, events=1)


def test_a_servers_own_words_are_not_repeated() -> None:
    seen = look_at(of(streams.delta("sk-something SECRET").encode()), "openai-chat")
    assert seen.finish == "finish reason of another form"
    item = {"type": "reasoning", "content": [{"type": "sk-something SECRET", "text": "x"}]}
    seen = look_at(of(response_streams.closed(0, **item).encode()), "openai-responses")
    assert seen.reasoning == {"of another form"}


@pytest.mark.parametrize("media_type", ["", "text/plain", "application/json", "text/event-stream"])
def test_a_json_document_is_one_whatever_its_type(media_type: str) -> None:
    seen = look_at(of(streams.S10_JSON, media_type), "openai-chat")
    assert seen == Sights(readable=True, finish="finish reason tool_calls", unnumbered=True)
