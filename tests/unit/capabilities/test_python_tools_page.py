"""The page on Python tools: what it shows is accepted, and does what it says."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentloom_worker.capabilities.context import open_context
from agentloom_worker.capabilities.declare import recall_python
from agentloom_worker.capabilities.python import invoke_inline
from agentloom_worker.clock import ManualClock
from agentloom_worker.domain.release import load_release
from agentloom_worker.ids import OperationId, RunId, SystemIds
from agentloom_worker.runtime.publish import resolve_release
from tests.factories import release_document

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "python-tools.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "my_tools.py").write_text(block("python"))
    (tmp_path / "service.log").write_text("INFO fine\nERROR first\nERROR second\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield yaml.safe_load(block("yaml"))["tools"]
    sys.modules.pop("my_tools", None)


def test_the_page_s_tool_is_accepted_and_answers(tools: dict[str, Any]) -> None:
    release = load_release(resolve_release(release_document(tools=tools)).body)
    spec = release.catalog.by_model_name["search_log"]
    assert set(spec.input_schema["properties"]) == {"pattern", "limit"}
    clock = ManualClock()
    ids = SystemIds(clock)
    context = open_context(clock, RunId(ids.new()), OperationId(ids.new()), attempt_no=1, deadline_s=60)
    result = invoke_inline(recall_python(spec), spec, {"pattern": "ERROR", "limit": 1}, context)
    assert result.structured == ({"matches": 1, "lines": ["ERROR second"]},)
