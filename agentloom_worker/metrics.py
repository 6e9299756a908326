"""What a process shows to Prometheus: its counters and durations, and the depth of the queues."""

import logging
import threading
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from agentloom_worker import telemetry
from agentloom_worker.clock import Clock
from agentloom_worker.domain.dispatch import QueueDepth
from agentloom_worker.errors import AgentloomError

DEPTHS_FRESH_S = 5.0


class ProcessCollector(Collector):
    """Reads the process's telemetry when it is asked; the database at most once in five seconds."""

    def __init__(self, clock: Clock, count_queues: Callable[[], list[QueueDepth]]) -> None:
        self._clock = clock
        self._count_queues = count_queues
        self._lock = threading.Lock()
        self._depths: list[QueueDepth] = []
        self._fresh_until_s = 0.0

    def collect(self) -> Iterator[Metric]:
        """Every metric, for one scrape."""
        for name, value in sorted(telemetry.counters().items()):
            yield CounterMetricFamily(f"agentloom_{name}", f"Events of kind {name} in this process.", value=value)
        for name, reading in sorted(telemetry.gauges().items()):
            yield GaugeMetricFamily(f"agentloom_{name}", f"Last reading of {name} in this process.", value=reading)
        yield from _histograms()
        yield from self._queues()

    def _queues(self) -> Iterator[Metric]:
        rows = GaugeMetricFamily(
            "agentloom_dispatch_rows",
            "Rows of the dispatch table, the same from every process.",
            labels=["queue", "state"],
        )
        oldest = GaugeMetricFamily(
            "agentloom_oldest_due_seconds", "How long the oldest due row has waited.", labels=["queue"]
        )
        for depth in self._fresh_depths():
            for state in ("due", "waiting", "claimed", "suspect", "parked", "lost"):
                rows.add_metric([depth.queue, state], getattr(depth, state))
            oldest.add_metric([depth.queue], depth.oldest_due_us / 1_000_000)
        yield rows
        yield oldest

    def _fresh_depths(self) -> list[QueueDepth]:
        with self._lock:
            if self._clock.monotonic_s() >= self._fresh_until_s:
                self._fresh_until_s = self._clock.monotonic_s() + DEPTHS_FRESH_S
                try:
                    self._depths = self._count_queues()
                except AgentloomError:
                    # A scrape shows what the process knows, also while the database is away.
                    self._depths = []
            return self._depths


def serve_metrics(
    host: str, port: int, clock: Clock, count_queues: Callable[[], list[QueueDepth]]
) -> Callable[[], None]:
    """Show them on a port; the returned function ends that. A port that is taken is logged, not fatal."""
    registry = CollectorRegistry()
    registry.register(ProcessCollector(clock, count_queues))
    try:
        server, _thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        telemetry.log(logging.WARNING, "metrics_unavailable", port=port, error=str(error))
        return lambda: None

    def close() -> None:
        server.shutdown()
        server.server_close()

    return close


def _histograms() -> Iterator[Metric]:
    families: dict[str, HistogramMetricFamily] = {}
    for (name, label), seen in sorted(telemetry.durations().items()):
        family = families.setdefault(
            name, HistogramMetricFamily(f"agentloom_{name}_seconds", f"How long a {name} took.", labels=["of"])
        )
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip([*map(str, telemetry.BUCKETS_S), "+Inf"], seen.buckets, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric([label], buckets=buckets, sum_value=seen.sum_s)
    yield from families.values()
