"""The incident's tools read the shipped data and compute; the figures were checked against awk's."""

from collections.abc import Callable

import pytest

from agentloom_worker.examples.incident.tools import correlate, search_log, summarize_csv

LINE = "{} ERROR payments pool timeout provider=northpay waited_ms=5000 in_use=5 size=5 order={}"


def group(name: str, orders: int, failed: int, mean: float, p50: int, p95: int, largest: int) -> dict[str, object]:
    counts = {"group": name, "orders": orders, "failed": failed}
    return {**counts, "mean": mean, "p50": p50, "p95": p95, "max": largest}


def test_the_log_is_searched_whole_and_shown_in_part() -> None:
    assert search_log("pool timeout", limit=2) == {
        "pattern": "pool timeout",
        "matches": 77,
        "first_at": "2026-03-17T14:08:09Z",
        "last_at": "2026-03-17T14:32:17Z",
        "levels": {"ERROR": 77},
        "lines": [
            LINE.format("2026-03-17T14:08:09Z", "o-100377"),
            LINE.format("2026-03-17T14:08:10Z", "o-100378"),
        ],
    }


def test_a_search_is_a_regular_expression_over_all_levels() -> None:
    found = search_log(r"CHG-447[14]")
    assert (found["matches"], found["levels"]) == (4, {"INFO": 4})
    assert search_log("ERROR")["matches"] == 88


def test_a_search_without_matches_says_so() -> None:
    found = search_log("no such words")
    assert (found["matches"], found["first_at"], found["lines"]) == (0, None, [])


def test_the_orders_are_summarized_by_provider_the_slowest_first() -> None:
    assert summarize_csv("latency_ms", "provider") == {
        "column": "latency_ms",
        "group_by": "provider",
        "rows": 792,
        "groups": [
            group("northpay", 402, 79, 1338.9, 243, 5033, 5040),
            group("bluewire", 135, 3, 218.0, 208, 336, 378),
            group("cardline", 255, 5, 214.3, 206, 329, 421),
        ],
    }


def test_another_column_and_group_can_be_asked_for() -> None:
    summary = summarize_csv("amount_cents", "region")
    assert summary["groups"] == [
        group("eu-west", 502, 57, 12771.0, 12762, 23555, 24870),
        group("us-east", 290, 30, 13408.4, 14280, 23538, 24675),
    ]


def test_the_change_with_the_largest_rise_of_failures_is_the_suspect() -> None:
    found = correlate("2026-03-17T14:08:09Z", "2026-03-17T14:32:17Z")
    assert found["suspect"] == {
        "at": "2026-03-17T14:05:12Z",
        "change": "CHG-4471",
        "what": "service=payments config northpay.pool.size=50->5 by=mkoller",
        "failed_percent_before": 1.0,
        "failed_percent_after": 32.6,
        "rise": 31.6,
    }
    assert (found["failed_orders"], found["correlation"]) == (78, 0.996)
    changes, buckets = found["changes"], found["buckets"]
    assert isinstance(changes, list)
    assert isinstance(buckets, list)
    assert [change["change"] for change in changes] == ["CHG-4471", "CHG-4473", "CHG-4474"]
    assert buckets[0] == {
        "at": "2026-03-17T14:08:09Z", "log_errors": 22, "orders": 51, "failed": 22, "p95_latency_ms": 5037,
    }  # fmt: skip
    assert [bucket["failed"] for bucket in buckets] == [22, 16, 18, 10, 12]


def test_a_quiet_window_has_no_suspect_and_no_correlation() -> None:
    found = correlate("2026-03-17T13:30:00+00:00", "2026-03-17T13:31:00", 1)
    assert (found["suspect"], found["changes"], found["correlation"]) == (None, [], None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: search_log("(", 5), "not a regular expression"),
        (lambda: search_log("x", 0), "between 1 and 100"),
        (lambda: search_log("x" * 201), "at most 200 characters"),
        (lambda: summarize_csv("colour", "provider"), "latency_ms, amount_cents"),
        (lambda: summarize_csv("latency_ms", "colour"), "provider, region, status"),
        (lambda: correlate("yesterday", "2026-03-17T14:32:17Z"), "is not a time like"),
        (lambda: correlate("2026-03-17T14:32:17Z", "2026-03-17T14:32:17Z"), "later than start"),
        (lambda: correlate("2026-03-17T14:00:00Z", "2026-03-17T15:00:00Z", 0), "between 1 and 60"),
        (lambda: correlate("2026-03-16T14:00:00Z", "2026-03-17T15:00:00Z", 1), "more than 500 buckets"),
    ],
)
def test_a_wrong_argument_is_told_with_what_to_change(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
