from dataclasses import replace

import pytest

from agentloom_worker.capabilities.catalog import refuse_repeated
from agentloom_worker.capabilities.problem import DeclarationError
from tests.unit.capabilities.declaring import declare


def test_two_tools_of_one_name_are_refused():
    one = declare("look")
    refuse_repeated([one, declare("nothing")])
    with pytest.raises(DeclarationError) as caught:
        refuse_repeated([one, replace(declare("nothing"), model_name="look"), replace(one, model_name="look2")])
    assert [(problem.path, problem.text) for problem in caught.value.problems] == [
        ("model_name", "'look' is given 2 times"),
        ("key", "'look' is given 2 times"),
    ]
