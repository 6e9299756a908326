"""The examples of docs/dev-model.md are scripts that load."""

import re
from pathlib import Path

import pytest
import yaml

from agentloom_worker.devmodel.script import Answer, Script, When, parse_script

PAGE = (Path(__file__).parents[3] / "docs" / "dev-model.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_every_example_of_the_page_is_a_valid_script(example: str) -> None:
    parse_script({"schema_version": 1, **yaml.safe_load(example)})


def test_every_field_of_a_turn_is_on_the_page() -> None:
    fields = {*Script.model_fields, *When.model_fields, *Answer.model_fields}
    assert {field for field in fields if not re.search(rf"\b{field}\b", PAGE)} == set()
