from dataclasses import replace

import pytest

from agentloom_worker.capabilities.builtin.result import result_read_spec
from agentloom_worker.capabilities.catalog import build_catalog, find
from agentloom_worker.capabilities.problem import DeclarationError
from agentloom_worker.domain.capability import Effect
from tests.unit.capabilities.declaring import RETRY, declare


def test_catalog_does_not_depend_on_the_order_of_declaration():
    specs = [declare("look"), result_read_spec(), declare("nothing")]
    first, second = build_catalog(specs), build_catalog(reversed(specs))
    assert first == second
    assert [spec.model_name for spec in first.capabilities] == ["look", "nothing", "result_read"]
    assert find(first, "result_read") == result_read_spec()


@pytest.mark.parametrize(
    "change",
    [
        {"model_name": "peek"},
        {"description": "other"},
        {"input_schema": {"type": "object"}},
        {"output_schema": {"type": "object"}},
        {"handler_ref": "a:b"},
        {"effect": Effect.WRITE_EXTERNAL},
        {"timeout_ms": 1},
        {"retry": replace(RETRY, max_attempts=1)},
    ],
)
def test_hash_changes_with_everything_that_a_call_depends_on(change: dict[str, object]):
    spec = declare("look")
    assert build_catalog([spec]).catalog_hash != build_catalog([replace(spec, **change)]).catalog_hash


def test_two_tools_of_one_name_are_refused():
    one = declare("look")
    with pytest.raises(DeclarationError) as caught:
        build_catalog([one, replace(declare("nothing"), model_name="look"), replace(one, model_name="look2")])
    assert [(problem.path, problem.text) for problem in caught.value.problems] == [
        ("model_name", "'look' is given 2 times"),
        ("key", "'look' is given 2 times"),
    ]


def test_empty_catalog_has_a_hash_of_its_own():
    assert len(build_catalog([]).catalog_hash) == 64
