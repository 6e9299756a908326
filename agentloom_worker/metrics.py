"""What a process shows to Prometheus: its counters and durations, and the depth of the queues."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from agentloom_worker import telemetry
from agentloom_worker.clock import Clock
from agentloom_worker.domain.dispatch import QueueDepth
from agentloom_worker.errors import AgentloomError

DEPTHS_FRESH_S = 5.0

# What telemetry counts, with its meaning: shown from the start, so that a rise from nothing is one. The rows of
# docs/operations.md say the same.
COUNTERS: Mapping[str, str] = {
    "commits": "commits applied",
    "commits_repeated": "a key was committed before: the first receipt was returned",
    "commits_fenced": "refused because the claim or the run was no longer the step's",
    "commits_conflicted": "refused because a row had moved on; the step builds again",
    "commit_resent": "sent again after a connection broke without an answer",
    "rebuilds": "pure parts built again after a conflict",
    "commits_refused": "commits that the database refused for another reason than a lost race",
    "tails_raised": "what follows an effect raised: the outcome was kept, the rest runs as its own step",
    "outcomes_waiting": "times that a finished effect waited for a database that was away",
    "tails_refused": "the database refused what follows an effect: as above, and the step that it refuses parks",
    "questions_failed": "questions that could become no run: their release cannot be opened, their receipts say so",
    "steps_salvaged": "steps of a run's end that did without rows that cannot be read; the run's detail names them",
    "late_facts": "results of voided claims, kept on their attempt",
    "late_facts_repeated": "results of voided claims that were kept before",
    "claims_missed": "wake-ups whose row was gone or held: duplicates, mostly",
    "claims_superseded": "claims that another worker took over",
    "claims_lost": (
        "claims that ended by expiry, since their process died or was away for too long; counted by who takes "
        "the row over or parks it"
    ),
    "claims_released": "claims given up after an outage of the database",
    "superseded": "steps that ended because somebody else has or did them",
    "hand_backs": "rows given back before their effect: drains, full lanes and windows, unknown versions",
    "lanes_full": "rows given back because a lane of their connection was full; they ask again",
    "windows_full": "rows given back because a limit of their connection takes no more this minute; they wait",
    "step_failures": "exceptions in steps",
    "steps_contended": "steps that came too late with each of their tries; they wait a little and go on",
    "steps_parked": "rows that this process parked, a sweep's included",
    "tool_threads_abandoned": "tools that did not end at their time limit",
    "taken_from_table": "rows taken without a message; many: wake-ups are lost or late",
    "redispatched": "rows whose wake-up the sweep repeated",
    "wake_ups_skipped": "duplicates that the fast path answered without the database",
    "wake_ups_left": "wake-ups that found no free slot",
    "wake_ups_invalid": "messages that are none of ours",
    "task_unknown": "messages and rows of a step that this version does not know",
    "message_rejected": "messages that are no tasks: dropped",
    "published": "messages published",
    "publishes_failed": "messages that the broker did not take; their rows are found by the sweep",
    "commands_run": "commands carried out",
    "commands_refused": "commands that were wrong; the reply says why",
    "commands_failed": "commands that met a database that was away; their sender repeats them",
    "command_crashes": "commands that met what none should; there is no reply, and their sender repeats them",
    "cancels_heard": "stops that were pushed to this process",
    "cancel_push_lost": "times that the subscription to stops broke",
    "cancel_push_unreadable": "messages of somebody else on that channel",
    "fast_path_errors": "errors of Redis",
    "fast_path_skipped": "questions not asked while Redis is away",
    "run_leases_renewed": "run leases that the keeper extended; none until a step can write an environment",
    "sweeps_done": "turns of upkeep that this process did",
    "sweep_crashes": "a turn of upkeep raised what nobody expects; the next goes on",
    "upkeep_crashes": "upkeep raised outside of a turn; it goes on",
    "poll_crashes": "the look at the table raised; it goes on",
    "keeper_crashes": "the keeper raised; it goes on",
    "slot_crashes": "a slot met what no step should leave; it goes on",
}
# Readings; one that was never taken is named and has no value.
GAUGES: Mapping[str, str] = {
    "slots_busy": "slots that run a step now",
    "slots_lost": (
        "steps that outlived their deadline, and tools that still run after they were given up; at a quarter "
        "of its slots the process asks to be replaced"
    ),
    "oldest_xmin_age_xids": "transactions since the oldest snapshot on the server, where this process vacuumed last",
    "oldest_xmin_held_s": "for how long, in seconds, that snapshot has been held",
}
# Durations, in seconds, by the label `of`.
DURATIONS: Mapping[str, str] = {
    "step": "from claim to the end of the slot's work, `of` each step it began with",
    "commit": "one commit, `of` the applied ones",
}


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
        counted = dict.fromkeys(COUNTERS, 0) | telemetry.counters()
        for name, value in sorted(counted.items()):
            yield CounterMetricFamily(f"agentloom_{name}", COUNTERS.get(name, name), value=value)
        taken = dict.fromkeys(GAUGES) | telemetry.gauges()
        for name, reading in sorted(taken.items()):
            yield GaugeMetricFamily(f"agentloom_{name}", GAUGES.get(name, name), value=reading)
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
    observed = sorted(telemetry.durations().items())
    families = {
        name: HistogramMetricFamily(f"agentloom_{name}_seconds", DURATIONS.get(name, name), labels=["of"])
        for name in sorted({*DURATIONS, *(name for (name, _), _ in observed)})
    }
    for (name, label), seen in observed:
        family = families[name]
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip([*map(str, telemetry.BUCKETS_S), "+Inf"], seen.buckets, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric([label], buckets=buckets, sum_value=seen.sum_s)
    yield from families.values()
