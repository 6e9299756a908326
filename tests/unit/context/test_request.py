"""An estimate by its sources: the parts add up to it, and each source is its own."""

from hypothesis import given
from hypothesis import strategies as st

from agentloom_worker.context.request import break_down, estimate_tokens, fragment_tokens
from agentloom_worker.context.view import View
from agentloom_worker.domain.model import RequestParameters, ToolSchema
from agentloom_worker.llm.chat_encoding import ChatEncoding
from agentloom_worker.llm.profiles import Profile

PARAMETERS = RequestParameters("m", 100, (("temperature", 0),))
FRAGMENTS = st.lists(st.binary(min_size=1, max_size=20), max_size=5)


class _Encoder(ChatEncoding):
    version = "test@1"


def _tokens(fragments: list[bytes]) -> int:
    return sum(fragment_tokens(fragment) for fragment in fragments)


@given(FRAGMENTS, FRAGMENTS, FRAGMENTS, st.integers(0, 2))
def test_parts_of_an_estimate_add_up_and_name_their_sources(
    past: list[bytes], inputs: list[bytes], own: list[bytes], tools: int
) -> None:
    encoder = _Encoder(Profile("p", 1))
    schemas = encoder.encode_tools(tuple(ToolSchema(f"t{number}", "", {}) for number in range(tools)))
    view = View().extend([b"prompt"], protected=True).extend(past, history=True)
    view = view.extend(inputs, protected=True).extend(own)
    size = break_down(encoder, PARAMETERS, schemas, view, tools)
    assert size.total == estimate_tokens(encoder, PARAMETERS, schemas, view, tools)
    assert size.system_prompt == fragment_tokens(b"prompt")
    assert (size.protected_inputs, size.history, size.own_records) == (_tokens(inputs), _tokens(past), _tokens(own))
    assert size.tools == len(schemas) + 64 * tools
    assert size.envelope > 0
    assert size.fixed == size.total - size.history - size.own_records
