"""docs/models.md says what the table of profiles says, and its examples can be published."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentloom_worker.llm.profiles import PROFILES, ErrorClass, ReasoningReplay
from agentloom_worker.runtime.publish import resolve_release
from agentloom_worker.wire.release import DialectDocument

PAGE = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
ROWS = {
    cells[0].strip("` "): [cell.strip() for cell in cells[1:]]
    for cells in (line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| `"))
}


def test_the_table_of_the_page_is_the_table_of_profiles() -> None:
    assert list(ROWS) == list(PROFILES)
    for name, (address, roles, reasoning, limit) in ROWS.items():
        profile = PROFILES[name]
        if name == "custom":
            continue
        assert address.startswith("none") == (profile.base_url is None)
        assert profile.base_url is None or address in profile.base_url
        assert roles == (
            "alternating" if profile.strict_alternation else "free" if profile.mid_system else "one system message"
        )
        said = {
            ReasoningReplay.NEVER: ("never", "inside the text"),
            ReasoningReplay.IN_TOOL_TURNS: ("with calls",),
            ReasoningReplay.ALWAYS: ("always",),
        }
        assert reasoning.startswith(said[profile.reasoning_replay])
        assert ("sealed if asked" in reasoning) == (profile.encrypted_replay is not None)
        assert ("empty too" in reasoning) == profile.reasoning_if_empty
        assert limit == f"`{profile.output_limit_field}`"


def test_every_flag_and_every_class_of_errors_is_on_the_page() -> None:
    assert {name for name in DialectDocument.model_fields if not re.search(rf"\b{name}: ", PAGE)} == set()
    assert {one for one in ErrorClass if f"`{one}`" not in PAGE} == set()


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL), ids=("a", "b", "c"))
def test_every_example_of_the_page_can_be_published(example: str) -> None:
    models: dict[str, Any] = yaml.safe_load(example)
    agent = {"id": "example", "prompt": "Answer.", "model": "main"}
    resolve_release({"schema_version": 1, "agent": agent, **models})
