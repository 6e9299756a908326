"""The results as a page that people read; the figures behind it stand beside it as JSON."""

from collections.abc import Iterable, Sequence
from typing import Any

_RELATIONS_SHOWN = 16


def render(results: dict[str, Any]) -> str:
    """One Markdown page."""
    parts = ["# Benchmarks", "", *_machine(results), ""]
    if results.get("targets"):
        rows = [(row["target"], _number(row["measured"]), row["verdict"]) for row in results["targets"]]
        parts += ["## Targets", "", *_table(("target", "measured", "verdict"), rows), ""]
    parts += _throughput(results.get("throughput", []))
    parts += _latency(results.get("latency", []))
    parts += _growth(results.get("growth", []))
    parts += context_tables(results.get("context") or [])
    parts += _limit(results.get("limit"), results.get("throughput", []))
    parts += fleet_tables(results.get("fleet"))
    parts += llm_tables(results.get("llm"))
    return "\n".join(parts).rstrip() + "\n"


def _machine(results: dict[str, Any]) -> Iterable[str]:
    machine = results["machine"]
    yield (
        f"{machine['date']}, commit {machine['commit'] or 'unknown'}: {machine['cpu']}, {machine['cores']} cores,"
        f" {machine['memory_gb']} GB, {machine['system']}, Python {machine['python']}"
        f" ({machine['python_additions_per_us']:.0f} additions/µs), SQLite {machine['sqlite']} (WAL, synchronous FULL);"
        f" load before the start {machine['load_average']:.1f}."
    )
    server = results.get("postgresql")
    if server:
        settings = ", ".join(f"{name} {value}" for name, value in server["settings"].items())
        yield f"PostgreSQL {server['version']} ({server['origin']}): {settings}."
    yield ""
    yield (
        f"Each loop is one model call and one tool call with messages of about {results['message_bytes']} B. Everything"
        " runs on this machine: workers, server, model and client share its cores."
    )


def _throughput(cases: Sequence[dict[str, Any]]) -> list[str]:
    if not cases:
        return []
    rows = []
    for case in cases:
        cpu = case["cpu_ms_per_loop"]
        rows.append(
            (
                case["database"],
                case["name"],
                f"{case['runs']} × {case['loops']}",
                f"{case['loops_per_s']:.0f}",
                *(f"{cpu[name]:.2f}" if cpu[name] else "–" for name in ("workers", "postgresql", "model", "client")),
                f"{case['commits_per_loop']:.2f}",
                _number(case.get("wal_bytes_per_loop_with_images"), 0),
            )
        )
    head = (
        "database",
        "case",
        "runs × loops",
        "loops/s",
        "workers",
        "PostgreSQL",
        "model",
        "client",
        "commits",
        "WAL B",
    )
    note = "CPU is in ms per loop; WAL includes full-page images here, and is that of the whole server."
    return ["## Throughput", "", note, "", *_table(head, rows), ""]


def _latency(cases: Sequence[dict[str, Any]]) -> list[str]:
    if not cases:
        return []
    rows = [
        (case["database"], case["loops"], *(f"{case[name]:.2f}" for name in ("p50_ms", "p90_ms", "p99_ms", "mean_ms")))
        for case in cases
    ]
    head = ("database", "loops", "p50", "p90", "p99", "mean")
    return ["## One run alone: engine time per loop, ms", "", *_table(head, rows), ""]


def _growth(cases: Sequence[dict[str, Any]]) -> list[str]:
    parts: list[str] = []
    for case in cases:
        rows = []
        for window in case["windows"]:
            counted = window.get("rows_per_loop", {})
            rows.append(
                (
                    f"{window['at_loop']} ({window['first_loop']}–{window['first_loop'] + window['loops'] - 1})",
                    f"{window['ms_p50']:.2f}",
                    _number(window.get("commits_per_loop")),
                    _number(window.get("transactions_per_loop")),
                    _number(window.get("wal_bytes_per_loop"), 0),
                    _number(window.get("wal_records_per_loop"), 1),
                    *(_number(counted.get(kind), 1) for kind in ("inserted", "updated", "deleted")),
                )
            )
        head = (
            "at loop",
            "ms p50",
            "commits",
            "all transactions",
            "WAL B",
            "WAL records",
            "rows inserted",
            "updated",
            "deleted",
        )
        parts += [f"## A long run, {case['database']}: per loop", "", *_table(head, rows), ""]
        if case.get("full_page_writes"):
            parts += [
                f"Full-page images: {case['full_page_writes']}. WAL bytes are the records' own, of every writer.",
                "",
            ]
        parts += _relations(case["windows"])
    return parts


def _relations(found: Sequence[dict[str, Any]]) -> list[str]:
    if not found or "by_relation" not in found[-1]:
        return []
    last = found[-1]["by_relation"]
    rows = [
        (relation, *(_number(window["by_relation"].get(relation, 0.0), 0) for window in found))
        for relation in list(last)[:_RELATIONS_SHOWN]
    ]
    rest = set(last) - {row[0] for row in rows}
    rows.append(
        ("all others", *(_number(sum(window["by_relation"].get(name, 0.0) for name in rest), 0) for window in found))
    )
    head = ("WAL B per loop by relation", *(f"at {window['at_loop']}" for window in found))
    return [*_table(head, rows), "", "`-` is what belongs to no relation: commits, running transactions.", ""]


def context_tables(found: Sequence[dict[str, Any]]) -> list[str]:
    """The cost of prepare and freeze by history, and what requests repeat; none where it was not measured."""
    parts: list[str] = []
    for one in found:
        rows = [
            (case["name"], f"{case['tokens']:,}", part, step, *_cost(case[part][step]))
            for case in one["cases"]
            for part in ("warm", "first", "cold")
            for step in ("prepare", "freeze")
        ]
        head = ("history", "tokens", "process", "step", "CPU ms", "wall ms", "reads", "rows read", "writes")
        note = (
            "Each step as a row of its own: claim, load, work, commit. `warm` goes on with a run, `first` is a run's"
            " first loop, `cold` a process whose caches are empty and whose connections are open. Medians of"
            f" {one['warm_loops']}, 1 and {one['cold_loops']}; tokens are those of the last request."
        )
        parts += [f"## Prepare and freeze, {one['database']}", "", note, "", *_table(head, rows), ""]
        parts += _prefix(one["prefix"])
    return parts


def _cost(step: dict[str, float]) -> tuple[str, ...]:
    counts = (f"{step[name]:,.0f}" for name in ("reads", "rows", "writes"))
    return (f"{step['cpu_ms']:.2f}", f"{step['wall_ms']:.2f}", *counts)


def _prefix(measured: dict[str, Any]) -> list[str]:
    rows = []
    for name in ("run", "session"):
        one = measured[name]
        breaks = ", ".join(one["breaks"]) or "none"
        between = ", ".join(each or "none" for each in one["session_breaks"]) or "–"
        ratios = (f"{one[key]:.3f}" for key in ("ratio", "ratio_4_bytes", "append_only", "session_ratio"))
        rows.append((f"{one['runs']} × {one['requests'] // one['runs']}", *ratios, breaks, between))
    head = (
        "runs × requests",
        "hit ratio",
        "at 4 B a token",
        "append-only",
        "over the session",
        "breaks in a run",
        "first to differ between runs",
    )
    note = (
        "A token is a byte, as the estimator counts; whole blocks of 128, nothing below 1,024. Contexts are compared"
        " with themselves; over the session, with its earlier runs as well. `append-only` is all of each request"
        " before."
    )
    return ["### Repeated prefix", "", note, "", *_table(head, rows), ""]


def _limit(limit: dict[str, Any] | None, throughput: Sequence[dict[str, Any]]) -> list[str]:
    if not limit:
        return []
    rows = [
        (
            result["clients"],
            f"{result['commits_per_s']:.0f}",
            f"{result['client_cpu_ms_per_commit']:.2f}",
            f"{result['postgresql_cpu_ms_per_commit']:.2f}",
        )
        for result in limit["clients"]
    ]
    head = ("clients", "commits/s", "client CPU ms", "PostgreSQL CPU ms")
    text = (
        f"The very statements of a run ({limit['statements_per_commit']:.1f} a commit), rendered beforehand and"
        " replayed by plain clients without an engine."
    )
    parts = ["## PostgreSQL's own rate of equal transactions", "", text, "", *_table(head, rows), ""]
    best = limit["commits_per_s_max"]
    for case in throughput:
        if case["database"] == "postgresql" and not case["over_http"]:
            rate = case["loops_per_s"] * case["commits_per_loop"]
            parts.append(f"- {case['name']}: {rate:.0f} commits/s, {100 * rate / best:.0f} % of the limit.")
    return [*parts, ""]


def fleet_tables(fleet: dict[str, Any] | None) -> list[str]:
    """The lines about the fleet; none where it was not measured."""
    if not fleet:
        return []
    rows = []
    for case in fleet["rates"]:
        cpu = case["cpu_ms_per_loop"]
        rows.append(
            (
                case["name"],
                case["workers"],
                f"{case['runs']} × {case['loops']}",
                f"{case['loops_per_s']:.0f}",
                f"{case['messages_per_run']:.1f}",
                _number(case.get("redis_commands_per_loop"), 1),
                *(_number(cpu.get(name)) for name in ("workers", "postgresql", "redis")),
            )
        )
    head = (
        "case",
        "processes",
        "runs × loops",
        "loops/s",
        "messages/run",
        "Redis commands/loop",
        "workers",
        "PostgreSQL",
        "Redis",
    )
    first = fleet["rates"][0]
    note = (
        f"{first['threads']} slots a process, the in-process model,"
        f" Redis {fleet['redis']['version']} ({fleet['redis']['origin']}). CPU is in ms per loop."
    )
    parts = ["## A fleet of Celery workers", "", note, "", *_table(head, rows), ""]
    if fleet["inline_share"] is not None:
        parts += [f"Two workers of all queues make {100 * fleet['inline_share']:.0f} % of the embedded rate.", ""]
    single = fleet["single"]
    times = ", ".join(f"{name} {single[f'{name}_ms']:.2f}" for name in ("p50", "p90", "p99", "mean"))
    parts += [f"One run of {single['loops']} loops alone in a worker of all queues, ms per loop: {times}.", ""]
    return parts + _recovery(fleet) + _streams(fleet["streams"])


def llm_tables(llm: dict[str, Any] | None) -> list[str]:
    """The lines about the model protocols; none where they were not measured."""
    if not llm:
        return []
    reading = [
        (
            case["protocol"],
            f"{case['stream_bytes'] / 1e6:.2f}",
            case["events"],
            f"{case['ours_mb_per_s']:.1f}",
            f"{case['ours_us_per_event']:.1f}",
            _number(case.get("official_mb_per_s"), 1),
            _number(case["ratio"], 1),
        )
        for case in llm["parse"]
    ]
    bodies = [
        (
            case["protocol"],
            case["messages"],
            f"{case['body_bytes'] / 1e3:.0f}",
            *(f"{case[f'{name}_us']:.0f}" for name in ("cold", "loop", "warm", "dumps")),
            f"{case['loop_ratio']:.1f}",
            f"{case['warm_ratio']:.1f}",
        )
        for case in llm["body"]
    ]
    official = f"official client {llm['official']}" if llm["official"] else "the official client is not installed"
    note = (
        f"Recorded streams in chunks of {llm['chunk_bytes']} B, {llm['chunk_chars']} characters an event; ours is"
        f" parsed and put together, theirs parsed into its events ({official}). CPU time, best round, side by side."
    )
    below = (
        "Cold: every message is encoded and hashed. A loop: two new messages behind what is kept. Warm: all is kept."
        " Each with estimate, hash and the pieces for the socket; µs."
    )
    first = ("protocol", "MB", "events", "ours MB/s", "µs/event", "official MB/s", "times")
    second = ("protocol", "messages", "KB", "cold", "a loop", "warm", "json.dumps", "times, a loop", "times, warm")
    parts = ["## Model protocols", "", note, "", *_table(first, reading), ""]
    return [*parts, below, "", *_table(second, bodies), ""]


def _recovery(fleet: dict[str, Any]) -> list[str]:
    rows = []
    for name in ("killed", "drained"):
        for step in ("attempt_model", "attempt_call"):
            found = [each for each in fleet[name]["steps"] if each["step"] == step]
            settled, again = (sorted(each[key] for each in found) for key in ("settled_s", "again_s"))
            median, most = again[len(again) // 2], again[-1]
            rows.append((name, step, len(found), *(f"{each:.2f}" for each in (settled[-1], median, most))))
    head = ("worker", "inside", "steps", "attempt ended after, most", "again after, median", "again after, most")
    note = (
        "Default settings; seconds on the database's clock from the signal to the claim of the next attempt, or of the"
        " next step where the tool had ended, by another worker."
    )
    return ["### A worker is lost", "", note, "", *_table(head, rows), ""]


def _streams(streams: dict[str, Any]) -> list[str]:
    cpu = streams["cpu_share"]
    sessions = (streams["database_sessions_max"], streams["database_sessions_streaming"])
    rows = [
        ("streams open at once", streams["streams_max"]),
        ("resident memory, MB: before, at most", f"{streams['rss_mb_idle']:.0f}, {streams['rss_mb_max']:.0f}"),
        ("resident memory a stream, KB", f"{_kb_per_stream(streams):.0f}"),
        ("threads", streams["threads_max"]),
        ("CPU of the worker while all stream, % of a core", _number(cpu and 100 * cpu, 0)),
        ("sessions in pg_stat_activity: at most, while all stream", f"{sessions[0]}, {sessions[1]}"),
        ("sockets to PostgreSQL", streams["database_sockets_max"]),
        ("sockets to Redis", streams["redis_sockets_max"]),
        ("sockets to the model", streams["model_sockets_max"]),
    ]
    note = (
        f"{streams['slots']} slots, each reading a stream of {streams['stream_s']} s over HTTP,"
        f" {streams['chunks_per_s']} chunks a second."
    )
    return ["### Many slow streams in one worker", "", note, "", *_table(("what", "measured"), rows), ""]


def _kb_per_stream(streams: dict[str, Any]) -> float:
    return 1024 * float(streams["rss_mb_max"] - streams["rss_mb_idle"]) / max(1, int(streams["streams_max"]))


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"
