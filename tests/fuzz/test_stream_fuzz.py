"""Streams that were spoilt at random: no crash, no hang, no growth, and the same reading however they arrive."""

import json

import pytest

from tests.fuzz.mutation import HEAD, corpus, inputs
from tests.fuzz.soak import assert_harmless, fuzz
from tests.fuzz.stream_input import EVENT_MAX, STREAM_MAX, check

SAMPLE = 3_000


def test_a_sample_of_spoilt_streams_is_read_the_same_way_however_it_arrives() -> None:
    assert_harmless(fuzz(SAMPLE, seed=7), SAMPLE)


def test_every_stream_of_the_corpus_is_read_the_same_way_however_it_arrives() -> None:
    outcomes = [check(bytes(HEAD) + body) for body in corpus()]
    assert len(outcomes) >= 15
    assert "complete" in outcomes


def test_the_inputs_are_the_same_for_the_same_seed_and_pass_both_bounds() -> None:
    found = list(inputs(2_000, seed=3))
    assert found == list(inputs(2_000, seed=3)) != list(inputs(2_000, seed=4))
    assert any(len(data) > STREAM_MAX + HEAD for data in found)
    assert any(len(line) > EVENT_MAX for data in found for line in data.splitlines())


@pytest.mark.parametrize("constant", ["NaN", "-Infinity"])
def test_arguments_that_python_reads_and_json_does_not_have_are_a_protocol_error(constant: str) -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": {"x": float(constant)}}}
    frame = json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]})
    assert constant in frame
    assert check(bytes(HEAD) + b"data: " + frame.encode() + b"\n\n") == "protocol"
