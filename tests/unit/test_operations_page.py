"""The operators' page names every metric and every setting that it speaks of, and none that is not there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from agentloom_worker.metrics import COUNTERS, DURATIONS, GAUGES
from agentloom_worker.settings import settings_reference

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
# How `metrics.py` names what telemetry counts, sets and observes.
SHAPES = {"count": "agentloom_{}_total", "gauge": "agentloom_{}", "observe": "agentloom_{}_seconds"}
QUEUE_METRICS = {"agentloom_dispatch_rows", "agentloom_oldest_due_seconds"}


def metrics_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "telemetry"):
            continue
        if node.func.attr in SHAPES:
            names = [part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
            assert names, f"{path}:{node.lineno} names its metric by something that is not written there"
            yield from (SHAPES[node.func.attr].format(name) for name in names)


def events_of(path: Path) -> Iterator[str]:
    yield from re.findall(r'telemetry\.log\(\s*logging\.\w+,\s*"([a-z_]+)"', path.read_text())


def sources() -> list[Path]:
    return [path for top in ("agentloom_worker", "beat", "config", "tasks") for path in (ROOT / top).rglob("*.py")]


def test_every_metric_has_its_line_and_no_other_is_named() -> None:
    documented = re.findall(r"^\| `(agentloom_[a-z_]+)", PAGE, re.MULTILINE)
    assert len(documented) == len(set(documented))
    counted = {name for path in sources() for name in metrics_of(path)}
    assert len(counted) > 40
    assert set(documented) == counted | QUEUE_METRICS


def test_the_page_and_the_endpoint_say_the_same_of_each_metric() -> None:
    said = dict(re.findall(r"^\| `(agentloom_[a-z_]+)` \| (.*) \|$", PAGE, re.MULTILINE))
    told = {
        SHAPES[kind].format(name): meaning
        for kind, table in (("count", COUNTERS), ("gauge", GAUGES), ("observe", DURATIONS))
        for name, meaning in table.items()
    }
    assert {name: meaning for name, meaning in said.items() if name not in QUEUE_METRICS} == told


def test_every_event_that_the_page_names_is_logged() -> None:
    logged = {name for path in sources() for name in events_of(path)}
    groups = re.findall(r"log ((?:`[a-z_]+`(?:, then |, | or )?)+)", PAGE)
    named = {name for group in groups for name in re.findall(r"`([a-z_]+)`", group)}
    assert len(named) > 10
    assert named <= logged


def test_every_setting_that_the_page_names_is_there() -> None:
    there = {line.env for line in settings_reference()}
    named = set(re.findall(r"AGENTLOOM_[A-Z_]+", PAGE)) - {"AGENTLOOM_EMBEDDED"}
    assert len(named) > 8
    assert named <= there


def test_every_command_that_the_page_names_is_a_command() -> None:
    from agentloom_worker.cli.app import app

    there = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    named = set(re.findall(r"agentloom ([a-z][a-z-]+)", PAGE))
    assert len(named) > 5
    assert named <= there
