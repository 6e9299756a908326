"""What the benchmarks are held against, and by how much it was met or missed."""

from dataclasses import dataclass
from typing import Any

FLAT_PERCENT = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on one figure. `at_least` says which side is good."""

    name: str
    bound: float
    unit: str
    at_least: bool = False


LOOPS = Target("engine alone, two workers, PostgreSQL", 600, "loops/s", at_least=True)
HTTP = Target("over HTTP, two workers, PostgreSQL", 300, "loops/s", at_least=True)
SINGLE = Target("single run, engine time p50, PostgreSQL", 3.0, "ms/loop")
COMMITS = Target("commits at loop 500", 2.0, "commits/loop")
WAL = Target("WAL without page images at loop 500", 8.0, "KB/loop")
FLAT = Target("WAL flat from loop 10 to loop 2000", FLAT_PERCENT, "% apart")
HISTORY = Target("warm prepare + freeze, CPU, whatever the history, PostgreSQL", 10, "% apart")
PREFIX_REQUESTS = 50
PREFIX = Target(f"repeated prefix within a run of {PREFIX_REQUESTS} loops", 0.96, "of its tokens", at_least=True)
FLEET_SHARE = Target("fleet of two workers, of the embedded rate", 90, "%", at_least=True)
FLEET_SINGLE = Target("single run in a fleet, engine time p50", 3.0, "ms/loop")
KILLED = Target("killed worker's steps run again, the last one", 30.0, "s")
DRAINED = Target("drained worker's steps run again, the last one", 2.0, "s")
STREAMS = 200
STREAM_SESSIONS = Target(f"{STREAMS} streams in one worker, connections to PostgreSQL", 20, "connections")
STREAM_MEMORY = Target(f"{STREAMS} streams in one worker, resident memory", 250, "MB")

PARSE = Target("reading a stream, beside the official client", 5, "times its rate", at_least=True)
WARM_BODY = Target("a warm body of 200 messages, beside one json.dumps", 20, "times as fast", at_least=True)


def judge(target: Target, measured: float | None) -> dict[str, object]:
    """One row of the table; a figure that was not measured is said to be missing."""
    if measured is None:
        verdict = "not measured"
    else:
        # Two decimals are what the figures are good for.
        short = round(target.bound - measured if target.at_least else measured - target.bound, 2)
        verdict = "met" if short <= 0 else f"missed by {100 * short / target.bound:.1f} %"
    sign = "≥" if target.at_least else "≤"
    return {"target": f"{target.name}: {sign} {target.bound:g} {target.unit}", "measured": measured, "verdict": verdict}


def table(results: dict[str, Any]) -> list[dict[str, object]]:
    """Every target against what one run of the benchmarks measured."""
    throughput = {(case["database"], case["name"]): case for case in results.get("throughput", [])}
    engine = throughput.get(("postgresql", "engine, 2 workers"))
    http = throughput.get(("postgresql", "HTTP, 2 workers"))
    single = next((one for one in results.get("latency", []) if one["database"] == "postgresql"), None)
    growth = next((one for one in results.get("growth", []) if one["database"] == "postgresql"), None)
    at = {window["at_loop"]: window for window in growth["windows"]} if growth else {}
    middle = at.get("500") or at.get("10") or {}
    wal = middle.get("wal_bytes_per_loop")
    return [
        judge(LOOPS, engine and engine["loops_per_s"]),
        judge(HTTP, http and http["loops_per_s"]),
        judge(SINGLE, single and single["p50_ms"]),
        judge(COMMITS, middle.get("commits_per_loop")),
        judge(WAL, wal and wal / 1024),
        judge(FLAT, flatness_percent(at)),
        *_context(results.get("context") or []),
        *_fleet(results.get("fleet") or {}),
        *_llm(results.get("llm") or {}),
    ]


def _context(found: list[dict[str, Any]]) -> list[dict[str, object]]:
    server = next((one for one in found if one["database"] == "postgresql"), None)
    # A shorter run has less to repeat, whatever is done.
    runs = [one["prefix"]["run"] for one in found]
    ratios = [run["ratio"] for run in runs if run["requests"] >= PREFIX_REQUESTS]
    spread = history_percent(server["cases"]) if server else None
    return [judge(HISTORY, spread), judge(PREFIX, min(ratios, default=None))]


def history_percent(cases: list[dict[str, Any]]) -> float | None:
    """How far the dearest history lies above the cheapest, in percent: CPU of prepare and freeze together, warm."""
    costs = [case["warm"]["prepare"]["cpu_ms"] + case["warm"]["freeze"]["cpu_ms"] for case in cases]
    return 100 * (max(costs) / min(costs) - 1) if len(costs) > 1 else None


def _fleet(fleet: dict[str, Any]) -> list[dict[str, object]]:
    share = fleet.get("inline_share")
    streams = fleet.get("streams") or {}
    if streams.get("streams_max", 0) < STREAMS:
        # Fewer streams at once say nothing of what so many cost.
        streams = {}
    return [
        judge(FLEET_SHARE, share and 100 * share),
        judge(FLEET_SINGLE, fleet.get("single", {}).get("p50_ms")),
        judge(KILLED, fleet.get("killed", {}).get("again_s_max")),
        judge(DRAINED, fleet.get("drained", {}).get("again_s_max")),
        judge(STREAM_SESSIONS, streams.get("database_sessions_max")),
        judge(STREAM_MEMORY, streams.get("rss_mb_max")),
    ]


def _llm(llm: dict[str, Any]) -> list[dict[str, object]]:
    """The slower protocol counts."""
    ratios = [case["ratio"] for case in llm.get("parse", []) if case["ratio"] is not None]
    warm = [case["warm_ratio"] for case in llm.get("body", [])]
    return [judge(PARSE, min(ratios, default=None)), judge(WARM_BODY, min(warm, default=None))]


def flatness_percent(at: dict[str, Any]) -> float | None:
    """How far the dearest window lies above the cheapest, in percent."""
    sizes = [window["wal_bytes_per_loop"] for window in at.values() if "wal_bytes_per_loop" in window]
    return 100 * (max(sizes) / min(sizes) - 1) if len(sizes) > 1 else None
