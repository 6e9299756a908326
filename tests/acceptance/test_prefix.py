"""What a request repeats of the one before, as the steps of a run tell it, against the bytes that were sent."""

import json

import pytest

from agentloom_worker.domain.budget import prefix_hit_tokens
from agentloom_worker.domain.model import Usage
from agentloom_worker.limits import PREFIX_BLOCK_TOKENS, PREFIX_TOKENS_MIN
from agentloom_worker.llm.adapters.scripted import CallsTurn, ScriptedCall, TextTurn
from agentloom_worker.runtime.inspect import list_steps, repeated_share, total_tokens
from tests.acceptance.harness import frozen_requests
from tests.conversation import STEPWISE, converse, converse_elsewhere

TEXTS = ["short", "x" * 2000, "y" * 300, "z" * 5000]


def _turn(text: str, usage: Usage | None = None) -> CallsTurn:
    return CallsTurn((ScriptedCall("echo", json.dumps({"text": text}), "call"),), usage=usage)


def test_each_request_of_a_run_begins_with_the_whole_one_before_and_the_steps_say_how_much_that_is(
    database_url: str,
) -> None:
    conversation = converse(database_url, settings=STEPWISE)
    for question in ("Q1", "Q2"):
        conversation.ask(question, *map(_turn, TEXTS))
        conversation.steps(9)
        assert conversation.live is not None
        # Another process takes the run on, and words come meanwhile.
        conversation = converse_elsewhere(conversation)
        conversation.add("and that")
        conversation.finish()
    for run_id in conversation.runs:
        requests = frozen_requests(conversation.ports, run_id)
        told = [step for step in list_steps(conversation.ports, run_id) if step.request_tokens is not None]
        assert len(requests) == len(told) > len(TEXTS)
        assert told[0].repeated_tokens == 0
        for before, after, step, following in zip(requests, requests[1:], told, told[1:], strict=False):
            assert after["messages"][: len(before["messages"])] == before["messages"]
            assert after["tools"] == before["tools"]
            assert step.request_tokens is not None and following.repeated_tokens is not None
            left_out = step.request_tokens - following.repeated_tokens
            assert 0 <= left_out < PREFIX_BLOCK_TOKENS or step.request_tokens < PREFIX_TOKENS_MIN
            assert following.repeated_tokens % PREFIX_BLOCK_TOKENS == 0
        share = repeated_share(told)
        assert share == sum(step.repeated_tokens or 0 for step in told) / sum(step.request_tokens or 0 for step in told)
        assert 0 < share < 1


@pytest.mark.parametrize(
    ("shared", "hit"), [(0, 0), (1023, 0), (1024, 1024), (1151, 1024), (1152, 1152), (100_000, 99_968)]
)
def test_a_hit_is_whole_blocks_and_nothing_below_what_a_cache_begins_with(shared: int, hit: int) -> None:
    assert prefix_hit_tokens(shared) == hit


def test_the_tokens_that_the_provider_had_in_its_cache_are_told_beside_the_estimate(clean_sqlite: str) -> None:
    conversation = converse(clean_sqlite)
    conversation.ask("Q", _turn("a", Usage(100, 5)), TextTurn("done", usage=Usage(130, 2, 96)))
    conversation.finish()
    steps = list_steps(conversation.ports, conversation.runs[0])
    assert [step.tokens.cached_tokens for step in steps if step.tokens] == [0, 96]
    assert total_tokens(steps).cached_tokens == 96
