"""MiniMax, its OpenAI-compatible API. https://api.minimaxi.com/v1 is the same in China, by base_url."""

from agentloom_worker.llm.profiles.openai import RESPONSES_PARAMETERS
from agentloom_worker.llm.profiles.profile import ErrorClass, Fact, Profile

_API = "https://platform.minimax.io/docs/api-reference/text-openai-api"
_CODES = "https://platform.minimax.io/docs/api-reference/errorcode"
_FIELDS = "https://java.agentscope.io/v2/en/integration/model/minimax"

MINIMAX = Profile(
    "minimax",
    1,
    mid_system=False,
    done_required=False,  # no page says that [DONE] is sent
    protocols=("openai-chat", "openai-responses"),
    base_url="https://api.minimax.io/v1",
    output_limit_field="max_completion_tokens",
    # Without reasoning_split: what it splits off would have to come back in a form that is not kept. Left alone, the
    # reasoning stands inside of the text, and so it does come back.
    parameters=frozenset({"temperature", "thinking", "top_p"}),
    responses_parameters=RESPONSES_PARAMETERS & {"temperature", "top_p"},
    codes={
        "1000": ErrorClass.TRANSPORT,
        "1001": ErrorClass.TRANSPORT,
        "1002": ErrorClass.RATE_LIMIT,
        "1004": ErrorClass.REJECTED,
    },
    base_resp_errors=True,
    facts=(
        Fact("the assistant message must come back whole, the thinking in its text included", _API),
        Fact("1000 unknown, 1001 timeout, 1002 rate limit, 1004 not authorized", _CODES),
        Fact("max_completion_tokens; no tool_choice, seed, penalties, response_format or reasoning_effort", _FIELDS),
        Fact(
            "takes one system message, at the beginning",
            "https://github.com/can1357/oh-my-pi/issues/958",
        ),
    ),
)
