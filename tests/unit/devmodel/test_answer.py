"""Which turn answers, and how the answer is laid out in time: without a socket."""

import json
from typing import Any

import pytest

from agentloom_worker.devmodel.answer import plan_answer
from agentloom_worker.devmodel.chat import parse_chat_request
from agentloom_worker.devmodel.matching import Arrival, choose_turn, fits
from agentloom_worker.devmodel.plan import Ending, Plan
from agentloom_worker.devmodel.script import When, parse_script

DIGEST = "ab" * 32
MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "count the cats"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "count"}}]},
    {"role": "tool", "tool_call_id": "a", "content": "7 cats"},
]


def arrival(count: int = 1, **more: Any) -> Arrival:
    tools = [{"type": "function", "function": {"name": "count"}}]
    body = {"model": "m", "messages": MESSAGES, "stream": True, "tools": tools, **more}
    return Arrival(parse_chat_request(json.dumps(body).encode()), DIGEST, count)


def plan(answer: dict[str, Any], **more: Any) -> Plan:
    script = parse_script({"schema_version": 1, "turns": [{"answer": answer}], **more})
    return plan_answer(script, 0, script.turns[0], arrival())


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({}, True),
        ({"assistant_turns": 1}, True),
        ({"assistant_turns": 2}, False),
        ({"assistant_turns": {"min": 1}}, True),
        ({"assistant_turns": {"min": 2}}, False),
        ({"assistant_turns": {"max": 0}}, False),
        ({"turns_since_user": 1, "tool_results": 1}, True),
        ({"tool_results": 0}, False),
        ({"last_role": "tool"}, True),
        ({"last_role": "user"}, False),
        ({"last_text_contains": "cats"}, True),
        ({"last_text_contains": "dogs"}, False),
        ({"last_text_matches": "^[0-9]+ cats$"}, True),
        ({"last_text_matches": "^cats"}, False),
        ({"user_text_contains": "count"}, True),
        ({"user_text_contains": "7"}, False),
        ({"user_text_matches": "the c.ts$"}, True),
        ({"user_text_matches": "^the"}, False),
        ({"any_text_contains": "brief"}, True),
        ({"any_text_contains": "long"}, False),
        ({"model": "m"}, True),
        ({"model": "n"}, False),
        ({"tools_offered": ["count"]}, True),
        ({"tools_offered": ["count", "weigh"]}, False),
        ({"stream": True}, True),
        ({"stream": False}, False),
        ({"assistant_turns": 1, "model": "n"}, False),
    ],
)
def test_a_turn_fits_when_all_its_conditions_hold(condition: dict[str, Any], expected: bool) -> None:
    assert fits(When.model_validate_json(json.dumps(condition)), arrival().request) is expected


def test_the_first_turn_that_fits_answers_and_first_n_counts_arrivals() -> None:
    script = parse_script(
        {
            "schema_version": 1,
            "turns": [
                {"when": {"model": "other"}, "answer": {"text": "never"}},
                {"first": 2, "answer": {"http_error": {"status": 503}}},
                {"name": "usual", "answer": {"text": "hello"}},
            ],
        }
    )
    chosen = [choose_turn(script, arrival(count)) for count in (1, 2, 3)]
    assert [choice[0] for choice in chosen if choice] == [1, 1, 2]


def test_no_turn_may_fit() -> None:
    script = parse_script({"schema_version": 1, "turns": [{"when": {"model": "other"}, "answer": {"text": "x"}}]})
    assert choose_turn(script, arrival()) is None


def test_every_pause_stands_before_its_own_bytes() -> None:
    delay = {"headers_ms": 1000, "first_chunk_ms": 200, "between_chunks_ms": 30, "end_ms": 4}
    pieces = plan({"text": "abcdef", "chunk_chars": 2, "delay": delay}).pieces
    assert [piece.delay_s for piece in pieces] == [1.0, 0.2, 0.03, 0.03, 0.004]
    assert b'"role"' in pieces[0].payload
    assert [b'"ab"' in pieces[1].payload, b'"cd"' in pieces[2].payload, b'"ef"' in pieces[3].payload] == [True] * 3
    assert b"[DONE]" in pieces[4].payload


def test_an_answer_without_pauses_is_one_write() -> None:
    assert len(plan({"text": "x" * 1000, "tool_calls": [{"name": "f"}]}).pieces) == 1


def test_the_pauses_of_the_script_hold_where_an_answer_has_none() -> None:
    pieces = plan({"text": "a"}, delay={"end_ms": 500}).pieces
    assert [piece.delay_s for piece in pieces] == [0.0, 0.5]
    assert len(plan({"text": "a", "delay": {}}, delay={"end_ms": 500}).pieces) == 1


def test_keep_alive_comments_come_before_the_role() -> None:
    pieces = plan({"text": "a", "keep_alive": {"count": 2, "interval_ms": 50}}).pieces
    assert [piece.delay_s for piece in pieces] == [0.0, 0.05, 0.05]
    assert pieces[1].payload == b"e\r\n: keep-alive\n\n\r\n"
    assert b'"role"' in pieces[2].payload


@pytest.mark.parametrize(
    ("after_chunks", "gates", "before"),
    [
        (None, ["g"], b""),
        (0, [None, "g"], b'"role"'),
        (1, [None, "g"], b'"ab"'),
        (99, [None, "g"], b'"cd"'),
    ],
)
def test_a_gate_stands_where_the_script_says(after_chunks: int | None, gates: list[str | None], before: bytes) -> None:
    hold = {"gate": "g"} if after_chunks is None else {"gate": "g", "after_chunks": after_chunks}
    pieces = plan({"text": "abcd", "chunk_chars": 2, "hold": hold}).pieces
    assert [piece.gate for piece in pieces] == gates
    assert before in pieces[0].payload
    assert (b"[DONE]" in pieces[0].payload) is (after_chunks is None)


def test_a_cut_counts_content_chunks() -> None:
    cut = plan({"text": "abcdef", "chunk_chars": 2, "cut": {"then": "stall", "after_chunks": 1}})
    payload = b"".join(piece.payload for piece in cut.pieces)
    assert cut.ending is Ending.STALL
    assert b'"ab"' in payload
    assert b'"cd"' not in payload
    assert not payload.endswith(b"0\r\n\r\n")
