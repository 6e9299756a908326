"""What a process shows to Prometheus."""

import re
import socket
import urllib.request
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agentloom_worker import telemetry
from agentloom_worker.clock import ManualClock
from agentloom_worker.domain.dispatch import QueueDepth
from agentloom_worker.errors import PersistenceUnavailableError
from agentloom_worker.metrics import DEPTHS_FRESH_S, serve_metrics
from tests.server_process import free_port

ROOT = Path(__file__).resolve().parents[2]
DEPTH = QueueDepth("model", due=3, waiting=2, claimed=1, suspect=1, parked=4, lost=5, oldest_due_us=1_500_000)


def scrape(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counters_readings_durations_and_depths_are_shown() -> None:
    telemetry.count("metrics_test_events", 3)
    telemetry.gauge("metrics_test_reading", 2.5)
    for seconds in (0.001, 0.3, 100.0):
        telemetry.observe("metrics_test", "a_step", seconds)
    port = free_port()
    close = serve_metrics("127.0.0.1", port, ManualClock(), lambda: [DEPTH])
    try:
        shown = scrape(port)
    finally:
        close()
    assert shown["agentloom_metrics_test_events_total", ()] == 3
    assert shown["agentloom_metrics_test_reading", ()] == 2.5
    step = ("of", "a_step")
    assert shown["agentloom_metrics_test_seconds_count", (step,)] == 3
    assert shown["agentloom_metrics_test_seconds_sum", (step,)] == 100.301
    assert shown["agentloom_metrics_test_seconds_bucket", (("le", "0.005"), step)] == 1
    assert shown["agentloom_metrics_test_seconds_bucket", (("le", "0.5"), step)] == 2
    assert shown["agentloom_metrics_test_seconds_bucket", (("le", "+Inf"), step)] == 3
    depths = {state: shown["agentloom_dispatch_rows", (("queue", "model"), ("state", state))] for state in
              ("due", "waiting", "claimed", "parked", "lost")}  # fmt: skip
    assert depths == {"due": 3, "waiting": 2, "claimed": 1, "parked": 4, "lost": 5}
    assert shown["agentloom_oldest_due_seconds", (("queue", "model"),)] == 1.5


def test_every_metric_of_the_operators_page_is_at_the_endpoint_of_a_process_that_has_done_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, empty in (("_counters", Counter()), ("_gauges", {}), ("_durations", {})):
        monkeypatch.setattr(telemetry, name, empty)
    page = (ROOT / "docs" / "operations.md").read_text()
    documented = set(re.findall(r"^\| `(agentloom_[a-z_]+)", page, re.MULTILINE))
    port = free_port()
    close = serve_metrics("127.0.0.1", port, ManualClock(), lambda: [DEPTH])
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        shown = scrape(port)
    finally:
        close()
    named = set(re.findall(r"^# TYPE (agentloom_[a-z_]+) ", text, re.MULTILINE))
    assert named == documented
    for what in ("commits", "claims_lost", "commits_fenced", "steps_parked", "redispatched"):
        assert shown[f"agentloom_{what}_total", ()] == 0
    assert ("agentloom_oldest_xmin_held_s", ()) not in shown, "a reading that nobody took is no reading"


def test_the_database_is_asked_at_most_once_in_a_while_and_may_be_away() -> None:
    clock, asked = ManualClock(), []

    def count_queues() -> list[QueueDepth]:
        asked.append(1)
        if len(asked) == 2:
            raise PersistenceUnavailableError("away")
        return [DEPTH]

    port = free_port()
    close = serve_metrics("127.0.0.1", port, clock, count_queues)
    due = ("agentloom_dispatch_rows", (("queue", "model"), ("state", "due")))
    try:
        assert due in scrape(port) and due in scrape(port)
        assert len(asked) == 1
        clock.advance(DEPTHS_FRESH_S + 1)
        assert due not in scrape(port)
        clock.advance(DEPTHS_FRESH_S + 1)
        assert due in scrape(port)
    finally:
        close()


def test_a_port_that_is_taken_costs_the_counters_and_not_the_process() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        before = telemetry.counters()
        serve_metrics("127.0.0.1", taken.getsockname()[1], ManualClock(), list)()
        assert telemetry.counters() == before
