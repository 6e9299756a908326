"""Tools of the incident analyst: plain functions over the log and the orders that lie beside this file.

They read the files on every call and compute what they say. A wrong argument raises ValueError with what to
change, which is what the model gets to read.
"""

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypedDict

DATA = Path(__file__).parent / "data"
LINES_MAX = 100
PATTERN_CHARACTERS_MAX = 200
BUCKETS_MAX = 500
CHANGE_LOOKBACK = timedelta(minutes=15)
COMPARED = timedelta(minutes=10)
NUMBERS = ("latency_ms", "amount_cents")
GROUPS = ("provider", "region", "status")


@dataclass(frozen=True, slots=True)
class _Line:
    at: datetime
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class _Order:
    at: datetime
    fields: dict[str, str]

    @property
    def failed(self) -> bool:
        return self.fields["status"] == "failed"


class _Summary(TypedDict):
    group: str
    orders: int
    failed: int
    mean: float
    p50: int
    p95: int
    max: int


class _Bucket(TypedDict):
    at: str
    log_errors: int
    orders: int
    failed: int
    p95_latency_ms: int | None


class _Change(TypedDict):
    at: str
    change: str
    what: str
    failed_percent_before: float
    failed_percent_after: float
    rise: float


def search_log(pattern: str, limit: int = 20) -> dict[str, object]:
    """Search the incident log with a regular expression.

    Returns how many lines match, when the first and the last of them were written, how many there are of each
    level, and the first `limit` lines (1 to 100).
    """
    if not 1 <= limit <= LINES_MAX:
        raise ValueError(f"limit must be between 1 and {LINES_MAX}")
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise ValueError(f"pattern must have at most {PATTERN_CHARACTERS_MAX} characters")
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"pattern is not a regular expression: {error}") from error
    found = [line for line in _log_lines() if expression.search(line.text)]
    return {
        "pattern": pattern,
        "matches": len(found),
        "first_at": _text(found[0].at) if found else None,
        "last_at": _text(found[-1].at) if found else None,
        "levels": _counts([line.level for line in found]),
        "lines": [line.text for line in found[:limit]],
    }


def summarize_csv(column: str, group_by: str) -> dict[str, object]:
    """Summarize a number of the order data, group by group, the group with the highest p95 first.

    `column` is latency_ms or amount_cents; `group_by` is provider, region or status. Each group has its
    number of orders, of failed ones, and mean, p50, p95 and maximum of the column.
    """
    if column not in NUMBERS:
        raise ValueError(f"column must be one of {', '.join(NUMBERS)}")
    if group_by not in GROUPS:
        raise ValueError(f"group_by must be one of {', '.join(GROUPS)}")
    groups: dict[str, list[_Order]] = {}
    for order in _orders():
        groups.setdefault(order.fields[group_by], []).append(order)
    summaries = [_summary(name, orders, column) for name, orders in sorted(groups.items())]
    summaries.sort(key=lambda summary: -summary["p95"])
    return {
        "column": column,
        "group_by": group_by,
        "rows": sum(len(orders) for orders in groups.values()),
        "groups": summaries,
    }


def _summary(name: str, orders: Sequence[_Order], column: str) -> _Summary:
    values = sorted(int(order.fields[column]) for order in orders)
    return {
        "group": name,
        "orders": len(orders),
        "failed": sum(order.failed for order in orders),
        "mean": round(sum(values) / len(values), 1),
        "p50": _percentile(values, 50),
        "p95": _percentile(values, 95),
        "max": values[-1],
    }


def correlate(start: str, end: str, bucket_minutes: int = 5) -> dict[str, object]:
    """Lay log errors and failed orders side by side between two times, and weigh the changes around them.

    Times are like 2026-03-17T14:05:00Z. Returns one row per bucket, the correlation (Pearson's r) of errors
    with failed orders, and every change deployed from 15 minutes before `start` to `end` with the share of
    orders that failed in the 10 minutes before and after it. `suspect` is the change with the largest rise.
    """
    first, last = _instant(start), _instant(end)
    if last <= first:
        raise ValueError("end must be later than start")
    if not 1 <= bucket_minutes <= 60:
        raise ValueError("bucket_minutes must be between 1 and 60")
    width = timedelta(minutes=bucket_minutes)
    if (last - first) / width > BUCKETS_MAX:
        raise ValueError(f"that is more than {BUCKETS_MAX} buckets; take wider ones")
    lines, orders = _log_lines(), _orders()
    buckets = []
    at = first
    while at < last:
        buckets.append(_bucket(lines, orders, at, min(at + width, last)))
        at += width
    changes = [
        _change(line, orders)
        for line in lines
        if " deploy " in line.text and first - CHANGE_LOOKBACK <= line.at <= last
    ]
    errors = [bucket["log_errors"] for bucket in buckets]
    failures = [bucket["failed"] for bucket in buckets]
    return {
        "start": _text(first),
        "end": _text(last),
        "failed_orders": sum(failures),
        "correlation": _pearson(errors, failures),
        "suspect": max(changes, key=lambda change: change["rise"], default=None),
        "changes": changes,
        "buckets": buckets,
    }


def _bucket(lines: Sequence[_Line], orders: Sequence[_Order], start: datetime, end: datetime) -> _Bucket:
    within = [order for order in orders if start <= order.at < end]
    latencies = sorted(int(order.fields["latency_ms"]) for order in within)
    return {
        "at": _text(start),
        "log_errors": sum(line.level == "ERROR" and start <= line.at < end for line in lines),
        "orders": len(within),
        "failed": sum(order.failed for order in within),
        "p95_latency_ms": _percentile(latencies, 95) if latencies else None,
    }


def _change(line: _Line, orders: Sequence[_Order]) -> _Change:
    before = _failed_share(orders, line.at - COMPARED, line.at)
    after = _failed_share(orders, line.at, line.at + COMPARED)
    words = line.text.split(" deploy ", 1)[1]
    return {
        "at": _text(line.at),
        "change": words.split(" ", 1)[0].removeprefix("change="),
        "what": words.split(" ", 1)[1],
        "failed_percent_before": before,
        "failed_percent_after": after,
        "rise": round(after - before, 1),
    }


def _failed_share(orders: Sequence[_Order], start: datetime, end: datetime) -> float:
    within = [order for order in orders if start <= order.at < end]
    return round(100 * sum(order.failed for order in within) / len(within), 1) if within else 0.0


def _pearson(left: Sequence[int], right: Sequence[int]) -> float | None:
    """Pearson's r to three places; None where one side does not vary."""
    left_mean, right_mean = sum(left) / len(left), sum(right) / len(right)
    products = sum((a - left_mean) * (b - right_mean) for a, b in zip(left, right, strict=True))
    spread = math.sqrt(sum((a - left_mean) ** 2 for a in left) * sum((b - right_mean) ** 2 for b in right))
    return round(products / spread, 3) if spread else None


def _percentile(ordered: Sequence[int], percent: int) -> int:
    """Nearest rank."""
    return ordered[max(math.ceil(percent * len(ordered) / 100), 1) - 1]


def _counts(names: Sequence[str]) -> dict[str, int]:
    return {name: names.count(name) for name in sorted(set(names))}


def _log_lines() -> list[_Line]:
    lines = []
    for text in (DATA / "incident.log").read_text(encoding="utf-8").splitlines():
        at, level, _ = text.split(maxsplit=2)
        lines.append(_Line(_instant(at), level, text))
    return lines


def _orders() -> list[_Order]:
    with (DATA / "orders.csv").open(encoding="utf-8", newline="") as file:
        return [_Order(_instant(row["time"]), row) for row in csv.DictReader(file)]


def _instant(text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time like 2026-03-17T14:05:00Z") from error
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _text(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
