"""Every golden stream that ends well, with every line end, broken off after every byte: only the whole is complete."""

import pytest

from agentloom_worker.domain.model import Completed, Failed
from agentloom_worker.errors import Code
from tests.unit.http.raw_server import STREAM_HEAD, bytes_of, serving
from tests.unit.llm import streams
from tests.unit.llm.calls import new_adapter, once

WHOLE = {
    "S05": streams.S05,
    "S06 refused": streams.S06_REFUSAL,
    "S06 filtered": streams.S06_FILTERED,
    "S07": streams.S07,
    "S08": streams.S08,
    "empty": streams.EMPTY,
    "CRLF": streams.S01.replace(b"\n", b"\r\n"),
    "CR": streams.S01.replace(b"\n", b"\r"),
}


@pytest.mark.parametrize("body", WHOLE.values(), ids=WHOLE)
def test_S06_S07_S08_a_stream_that_is_broken_off_anywhere_is_not_complete(body: bytes) -> None:
    # A CR ends its line, whether a LF follows or not: the last LF of a CRLF is missed by nobody.
    ends = len(body) - 1 if body.endswith(b"\r\n") else len(body)
    with serving(*(bytes_of(STREAM_HEAD + body[:cut]) for cut in [*range(ends), len(body)])) as server:
        adapter = new_adapter()
        outcomes = [once(adapter, server.base_url) for _ in range(ends)]
        whole = once(adapter, server.base_url)
    assert isinstance(whole, Completed), whole
    for outcome in outcomes:
        assert isinstance(outcome, Failed)
        assert outcome.failure.code == Code.MODEL_TRANSPORT_FAILED
