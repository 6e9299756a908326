"""What the benchmarks make of their figures; that they measure is seen by running them."""

from typing import Any

import pytest

from bench import fleet, latency, recovery, report, streams, targets

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
