"""Who may read a session's material, and what a reader is shown (seed 000, 12, row L25; seed 004, C03)."""

import json
from uuid import UUID

import pytest

from agentloom_worker.capabilities.result import result_ref
from agentloom_worker.context.protocol import ItemKind
from agentloom_worker.domain.authority import ReadAuthority
from agentloom_worker.domain.model import Role
from agentloom_worker.domain.operation import OperationKind
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.domain.session import DeliveryState
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.ids import OperationId, SessionId
from agentloom_worker.limits import PREVIEW_BYTES
from agentloom_worker.llm.adapters.scripted import TextTurn
from agentloom_worker.runtime.reading import history, materialize
from tests.acceptance.harness import frozen_bodies, model_operations, operations
from tests.conversation import STEPWISE, Conversation, calls, converse, count_statements, names

NOBODY = UUID(int=1)


@pytest.fixture
def conversation(clean_sqlite: str) -> Conversation:
    """A run with a large result and a supplement, a stopped one, and one that shows both."""
    conversation = converse(clean_sqlite, settings=STEPWISE)
    conversation.ask("first \ud800", calls("x" * PREVIEW_BYTES), TextTurn("found"))
    conversation.steps(3)
    conversation.add("only yesterday")
    conversation.finish()
    conversation.ask("second", calls("a"))
    conversation.steps(4)
    conversation.add("and today")
    conversation.stop()
    conversation.ask("third", TextTurn("done"))
    conversation.finish()
    return conversation


def _mine(conversation: Conversation) -> ReadAuthority:
    return ReadAuthority(conversation.session_id, "assistant")


def _foreign(conversation: Conversation, whose: str) -> ReadAuthority:
    match whose:
        case "another session":
            other = SessionId(conversation.ports.ids.new())
            session = conversation.ports.store.load_session(conversation.session_id)
            assert session is not None
            conversation.ports.store.open_session(other, session.owner_id)
            return ReadAuthority(other, "assistant")
        case "a session that does not exist":
            return ReadAuthority(SessionId(NOBODY), "assistant")
        case _:
            return ReadAuthority(conversation.session_id, "planner")


@pytest.mark.parametrize("whose", ["another session", "a session that does not exist", "another role"])
def test_C03_L25_who_may_not_read_hears_the_same_whether_it_exists_or_not(
    conversation: Conversation, whose: str
) -> None:
    ports, authority = conversation.ports, _foreign(conversation, whose)
    model = model_operations(ports, conversation.runs[0])[0].operation_id
    heard = []
    for operation_id in (model, OperationId(NOBODY)):
        with pytest.raises(RequestError) as caught:
            materialize(ports, authority, operation_id)
        heard.append((caught.value.code, caught.value.message))
    assert heard[0] == heard[1]
    code, message = heard[0]
    assert code is Code.CONTEXT_FORBIDDEN
    assert not any(str(one) in message for one in (model, NOBODY, conversation.session_id, *conversation.runs))
    if whose == "another session":
        assert history(ports, authority) == ()
    else:
        with pytest.raises(RequestError) as caught:
            history(ports, authority)
        assert (caught.value.code, caught.value.message) == heard[0]


def test_C03_a_missing_operation_of_an_own_session_tells_no_more_than_a_foreign_one(
    conversation: Conversation,
) -> None:
    with pytest.raises(RequestError) as caught:
        materialize(conversation.ports, _mine(conversation), OperationId(NOBODY))
    assert caught.value.code is Code.CONTEXT_FORBIDDEN


def test_an_operation_without_a_frozen_request_is_named_to_its_own_role(conversation: Conversation) -> None:
    (tool,) = operations(conversation.ports, conversation.runs[0], OperationKind.TOOL)
    with pytest.raises(RequestError) as caught:
        materialize(conversation.ports, _mine(conversation), tool.operation_id)
    assert caught.value.code is Code.OPERATION_NOT_FOUND


def test_a_request_is_shown_item_by_item_as_the_model_saw_it(conversation: Conversation) -> None:
    ports, run_id = conversation.ports, conversation.runs[-1]
    (model,) = model_operations(ports, run_id)
    shown = materialize(ports, _mine(conversation), model.operation_id)
    (body,) = frozen_bodies(ports, run_id)
    assert [json.loads(item.fragment) for item in shown.items] == json.loads(body)["messages"]
    assert [(item.kind, item.role) for item in shown.items] == [
        (ItemKind.PROMPT, Role.SYSTEM),
        (ItemKind.USER_INPUT, Role.USER),
        (ItemKind.EFFECTIVE_RECORD, Role.ASSISTANT),
        (ItemKind.EFFECTIVE_RECORD, Role.TOOL),
        (ItemKind.USER_INPUT, Role.USER),
        (ItemKind.EFFECTIVE_RECORD, Role.ASSISTANT),
        (ItemKind.TERMINAL_MARKER, Role.SYSTEM),
        (ItemKind.USER_INPUT, Role.USER),
        (ItemKind.EFFECTIVE_RECORD, Role.ASSISTANT),
        (ItemKind.PLACEHOLDER, Role.TOOL),
        (ItemKind.TRANSFER_MARKER, Role.SYSTEM),
        (ItemKind.TERMINAL_MARKER, Role.SYSTEM),
        (ItemKind.USER_INPUT, Role.USER),
        (ItemKind.USER_INPUT, Role.USER),
    ]
    prompt, question, _, result = shown.items[:4]
    assert (prompt.raw, question.raw, question.effective) == ("Answer briefly.", "first \ud800", "first \ufffd")
    assert result.raw == "echo: " + "x" * PREVIEW_BYTES
    assert result_ref(result.source.operation_id or OperationId(NOBODY)) in result.effective
    assert [item.protected for item in shown.items] == [True] + [False] * 11 + [True] * 2
    assert [item.source.run_no for item in shown.items] == [3, *[1] * 6, *[2] * 5, 3, 3]
    carried = shown.items[-2]
    assert (carried.effective, carried.source.origin_run_id) == ("and today", conversation.runs[1])
    assert all(item.why for item in shown.items)
    assert [item.number for item in shown.items] == list(range(1, 15))
    # The items' shares and the envelope are the estimate; the envelope is what no item accounts for.
    assert 0 < shown.tokens - sum(item.tokens for item in shown.items) < 2000
    assert (shown.run_id, shown.request_hash) == (run_id, model.request_hash)
    assert shown.tokens < shown.budget_tokens


def test_a_session_is_read_in_pages_with_every_input_where_it_stands(conversation: Conversation) -> None:
    ports, authority = conversation.ports, _mine(conversation)
    rounds = history(ports, authority)
    assert [(one.run_no, one.status, one.answer) for one in rounds] == [
        (1, RunStatus.SUCCEEDED, "found"),
        (2, RunStatus.CANCELLED, None),
        (3, RunStatus.SUCCEEDED, "done"),
    ]
    assert [[(said.text, said.state) for said in one.inputs] for one in rounds] == [
        [("first \ufffd", DeliveryState.DELIVERED), ("only yesterday", DeliveryState.DELIVERED)],
        [("second", DeliveryState.DELIVERED), ("and today", DeliveryState.CARRIED)],
        [("and today", DeliveryState.DELIVERED), ("third", DeliveryState.DELIVERED)],
    ]
    paged: list[object] = []
    after = 0
    while page := history(ports, authority, after_seq=after, limit=1):
        paged.extend(page)
        after = page[-1].question_seq
    assert tuple(paged) == rounds
    # A run that has not ended is no history yet.
    conversation.ask("fourth")
    assert history(ports, authority) == rounds


def test_a_page_of_a_session_looks_at_the_roles_of_its_own_runs_only(conversation: Conversation) -> None:
    """A session of weeks has thousands of runs: what a page costs must not grow with them."""
    ports, authority = conversation.ports, _mine(conversation)
    (first,) = history(ports, authority, limit=1)
    seen = count_statements(conversation, lambda: history(ports, authority, after_seq=first.question_seq, limit=1))
    asked = [parameters for statement, parameters in seen if "node_task" in statement]
    assert [names(parameters, conversation.runs[1:2]) for parameters in asked] == [True]
    assert not names(asked, [conversation.session_id, conversation.runs[0], conversation.runs[2]])
