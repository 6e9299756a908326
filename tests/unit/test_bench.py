"""What the benchmarks make of their figures; that they measure is seen by running them."""

from typing import Any

import pytest

from bench import fleet, latency, prefix, recovery, report, streams, targets

FLEET: dict[str, Any] = {
    "redis": {"version": "7.0", "origin": "installed"},
    "rates": [
        {
            "name": name,
            "workers": 2,
            "threads": 4,
            "runs": 10,
            "loops": 20,
            "elapsed_s": elapsed_s,
            "loops_per_s": 200 / elapsed_s,
            "messages_per_run": messages,
            "cpu_ms_per_loop": {"workers": 2.5, "postgresql": 2.0, "client": 0.1},
        }
        for name, elapsed_s, messages in (
            (fleet.EMBEDDED, 1.0, 0.0),
            (fleet.TWO.name, 1.0, 1.0),
            (fleet.EMBEDDED, 3.0, 0.0),
            (fleet.TWO.name, 4.0, 1.0),
            (fleet.HOPS.name, 9.0, 41.0),
        )
    ],
    "inline_share": 0.8,
    "single": {"loops": 100, "p50_ms": 4.5, "p90_ms": 5.0, "p99_ms": 9.0, "mean_ms": 4.6},
    "killed": {
        "workers": 1,
        "steps": [
            {"step": "attempt_model", "settled_s": 21.0, "again_s": 21.5},
            {"step": "attempt_call", "settled_s": 22.0, "again_s": 22.5},
        ],
        "again_s_max": 22.5,
    },
    "drained": {
        "workers": 1,
        "steps": [
            {"step": "attempt_model", "settled_s": 0.1, "again_s": 2.5},
            {"step": "attempt_call", "settled_s": 0.1, "again_s": 0.25},
        ],
        "again_s_max": 2.5,
    },
}


def reading(at_s: float, open_streams: int, **figures: float) -> streams.Reading:
    """A look at a worker, with what the case is about."""
    known: dict[str, Any] = {
        "cpu_ms": 0.0,
        "rss_mb": 100.0,
        "threads": 10,
        "model_sockets": open_streams,
        "database_sockets": 2,
        "redis_sockets": 3,
        "database_sessions": 2,
    }
    return streams.Reading(at_s, open_streams, **{**known, **figures})


def with_streams(count: int) -> dict[str, Any]:
    """Results whose worker read so many streams."""
    looks = [
        reading(0.0, 0),
        reading(1.0, count // 2, database_sessions=18, rss_mb=150.0, cpu_ms=100.0),
        reading(2.0, count, database_sessions=12, rss_mb=170.0, cpu_ms=200.0),
        reading(6.0, count, database_sessions=11, rss_mb=180.0, cpu_ms=1200.0),
        reading(7.0, 1, cpu_ms=1300.0),
    ]
    asked = {"slots": count, "stream_s": 5, "chunks_per_s": 5, "model_cpu_ms": 700.0}
    return {"fleet": {**FLEET, "streams": asked | streams.summary(looks)}}


def verdicts(results: dict[str, Any]) -> dict[str, tuple[object, object]]:
    """What was measured and its verdict, by the target's text up to its bound."""
    rows = targets.table(results)
    return {str(row["target"]).partition(":")[0]: (row["measured"], row["verdict"]) for row in rows}


def test_the_share_is_taken_over_all_rounds_together() -> None:
    assert fleet.inline_share(FLEET["rates"]) == pytest.approx(0.8)


@pytest.mark.parametrize("kept", [fleet.EMBEDDED, fleet.TWO.name])
def test_there_is_no_share_of_what_was_not_measured(kept: str) -> None:
    assert fleet.inline_share([case for case in FLEET["rates"] if case["name"] == kept]) is None


def test_the_targets_of_the_fleet_say_by_how_much_they_were_missed() -> None:
    found = verdicts(with_streams(200))
    assert found[targets.FLEET_SHARE.name] == (80.0, "missed by 11.1 %")
    assert found[targets.FLEET_SINGLE.name] == (4.5, "missed by 50.0 %")
    assert found[targets.KILLED.name] == (22.5, "met")
    assert found[targets.DRAINED.name] == (2.5, "missed by 25.0 %")
    assert found[targets.STREAM_SESSIONS.name] == (18, "met")
    assert found[targets.STREAM_MEMORY.name] == (180.0, "met")


def test_fewer_streams_than_promised_are_no_measurement_of_the_promise() -> None:
    found = verdicts(with_streams(50))
    assert found[targets.STREAM_SESSIONS.name] == (None, "not measured")
    assert found[targets.STREAM_MEMORY.name] == (None, "not measured")


@pytest.mark.parametrize("results", [{}, {"fleet": None}])
def test_without_the_part_its_targets_are_not_measured(results: dict[str, Any]) -> None:
    found = verdicts(results)
    names = (targets.FLEET_SHARE, targets.FLEET_SINGLE, targets.KILLED, targets.DRAINED)
    assert {found[target.name] for target in names} == {(None, "not measured")}


def test_streams_are_summed_up_over_the_time_in_which_most_are_open() -> None:
    found = with_streams(200)["fleet"]["streams"]
    assert found["streams_max"] == 200
    assert found["streaming_s"] == 4.0
    assert found["cpu_share"] == pytest.approx(0.25)
    assert (found["database_sessions_max"], found["database_sessions_streaming"]) == (18, 11)
    assert (found["rss_mb_idle"], found["rss_mb_max"]) == (100.0, 180.0)


def test_times_are_told_by_their_quantiles() -> None:
    assert latency.summary([float(value) for value in range(1, 101)]) == {
        "p50_ms": 51.0,
        "p90_ms": 91.0,
        "p99_ms": 100.0,
        "mean_ms": 50.5,
    }


def test_the_page_shows_every_case_and_both_ends_of_a_worker() -> None:
    page = "\n".join(report.fleet_tables(with_streams(200)["fleet"]))
    assert "| two workers, a message a step | 2 | 10 × 20 | 22 | 41.0 | – | 2.50 | 2.00 | – |" in page
    assert f"| {recovery.KILL.name} | attempt_call | 1 | 22.00 | 22.50 | 22.50 |" in page
    assert f"| {recovery.DRAIN.name} | attempt_model | 1 | 0.10 | 2.50 | 2.50 |" in page
    assert "| streams open at once | 200 |" in page
    assert "| resident memory a stream, KB | 410 |" in page
    assert report.fleet_tables(None) == []


def request(*texts: str, tools: str = "echo") -> dict[str, Any]:
    """A request as it stands on the wire: its tools and what was said, the system prompt first."""
    return {"tools": [tools], "messages": [{"content": text} for text in texts]}


def test_segments_are_named_by_what_they_are() -> None:
    first, second = prefix.segments_of(
        [request("be good", "Q1", "A1", "Q2"), request("be good", "Q1", "A1", "Q2", "x")]
    )
    assert first.names == ("tools", "system", "history", "history", "record 2")
    assert second.names == (*first.names, "record 3")


@pytest.mark.parametrize(
    ("after", "name"),
    [
        (request("be good", "Q1", "A1", "Q2", "x"), None),
        (request("be good", "Q1", "A1", "Q2", tools="other"), "tools"),
        (request("be better", "Q1", "A1", "Q2"), "system"),
        (request("be good", "Q1", "A1, less", "Q2"), "history"),
        (request("be good", "Q1", "A1", "Q2, less"), "record 2"),
        (request("be good", "Q1", "A1"), "end"),
    ],
)
def test_the_first_segment_that_differs_is_named(after: dict[str, Any], name: str | None) -> None:
    before, then = prefix.segments_of([request("be good", "Q1", "A1", "Q2"), after])
    assert prefix.first_difference(before, then) == name


def test_a_hit_is_whole_blocks_from_the_beginning_and_nothing_below_the_least() -> None:
    cache = prefix.PrefixCache()
    body = bytes(range(256)) * 8
    assert cache.hit(body) == 0
    assert cache.hit(body + b"more") == 2048
    assert cache.hit(body[:1500] + b"other" * 100) == 1408
    assert cache.hit(b"!" + body) == 0
    assert cache.hit(body[:1023]) == 0
    assert cache.hit(body[:1024]) == 1024


def test_tokens_of_four_bytes_make_longer_blocks() -> None:
    cache = prefix.PrefixCache(bytes_per_token=4)
    body = bytes(range(256)) * 18
    assert cache.hit(body) == 0
    assert cache.hit(body + b"more") == 1152


def test_a_context_is_compared_with_itself_and_a_session_with_all_of_its_runs() -> None:
    long = "x" * 4000
    runs = [
        prefix.segments_of([request("be good", long), request("be good", long, "y")]),
        prefix.segments_of([request("be good", long, "y", "z")]),
    ]
    found = prefix.summary(runs)
    assert found["breaks"] == []
    assert found["session_breaks"] == [None]
    assert found["ratio"] == pytest.approx(1 / 3, abs=0.05)
    assert found["session_ratio"] == pytest.approx(2 / 3, abs=0.05)


def context_results(dearest_ms: float, *, requests: int = targets.PREFIX_REQUESTS) -> dict[str, Any]:
    """Two histories, the second one dearer, and a run of so many requests."""

    def step(cpu_ms: float) -> dict[str, float]:
        return {"samples": 9, "cpu_ms": cpu_ms, "wall_ms": 9.0, "reads": 10, "rows": 9, "writes": 10}

    def case(name: str, cpu_ms: float) -> dict[str, Any]:
        part = {"prepare": step(cpu_ms), "freeze": step(1.0)}
        return {"name": name, "records": 10, "runs": 1, "tokens": 12345, "warm": part, "first": part, "cold": part}

    one = {
        "runs": 1,
        "requests": requests,
        "ratio": 0.95,
        "ratio_4_bytes": 0.94,
        "append_only": 0.96,
        "breaks": ["record 3"],
        "session_ratio": 0.9,
        "session_breaks": [],
    }
    found = {
        "database": "postgresql",
        "warm_loops": 9,
        "cold_loops": 1,
        "cases": [case("10 records", 3.0), case("1,000 records", dearest_ms)],
        "prefix": {"run": one, "session": {**one, "runs": 2, "session_breaks": [None]}},
    }
    return {"context": [found]}


def test_the_targets_of_the_context_say_by_how_much_they_were_missed() -> None:
    found = verdicts(context_results(3.6))
    assert found[targets.HISTORY.name] == (pytest.approx(15), "missed by 50.0 %")
    assert found[targets.PREFIX.name] == (0.95, "missed by 1.0 %")
    assert verdicts(context_results(3.0))[targets.HISTORY.name] == (0, "met")


@pytest.mark.parametrize("results", [{}, {"context": []}, context_results(3.0, requests=20)])
def test_a_shorter_run_says_nothing_of_the_repeated_prefix(results: dict[str, Any]) -> None:
    assert verdicts(results)[targets.PREFIX.name] == (None, "not measured")


def test_the_page_shows_the_cost_by_history_and_where_prefixes_break() -> None:
    page = "\n".join(report.context_tables(context_results(3.6)["context"]))
    assert "| 1,000 records | 12,345 | warm | prepare | 3.60 | 9.00 | 10 | 9 | 10 |" in page
    assert "| 1 × 50 | 0.950 | 0.940 | 0.960 | 0.900 | record 3 | – |" in page
    assert report.context_tables([]) == []


LLM: dict[str, Any] = {
    "chunk_bytes": 4096,
    "chunk_chars": 12,
    "official": "3.57.0",
    "parse": [
        {
            "protocol": name,
            "stream_bytes": 2_000_000,
            "events": 1000,
            "ours_mb_per_s": 40.0,
            "ours_us_per_event": 5.0,
            "official_mb_per_s": 40.0 / ratio,
            "ratio": ratio,
        }
        for name, ratio in (("openai-chat", 16.0), ("openai-responses", 4.0))
    ],
    "body": [
        {
            "protocol": "openai-chat",
            "messages": 200,
            "body_bytes": 465_000,
            "cold_us": 3400.0,
            "loop_us": 85.0,
            "warm_us": 40.0,
            "dumps_us": 1600.0,
            "loop_ratio": 18.8,
            "warm_ratio": 40.0,
        }
    ],
}


def test_the_slower_protocol_is_held_against_the_targets() -> None:
    found = verdicts({"llm": LLM})
    assert found[targets.PARSE.name] == (4.0, "missed by 20.0 %")
    assert found[targets.WARM_BODY.name] == (40.0, "met")


def test_without_the_official_client_its_target_is_not_measured() -> None:
    alone = {**LLM, "official": None, "parse": [{**LLM["parse"][0], "ratio": None, "official_mb_per_s": None}]}
    assert verdicts({"llm": alone})[targets.PARSE.name] == (None, "not measured")
    assert "the official client is not installed" in "\n".join(report.llm_tables(alone))


def test_the_page_shows_both_sides_of_the_model_protocols() -> None:
    page = "\n".join(report.llm_tables(LLM))
    assert "| openai-chat | 2.00 | 1000 | 40.0 | 5.0 | 2.5 | 16.0 |" in page
    assert "| openai-chat | 200 | 465 | 3400 | 85 | 40 | 1600 | 18.8 | 40.0 |" in page
    assert report.llm_tables(None) == []
