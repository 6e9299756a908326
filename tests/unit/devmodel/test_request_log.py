"""The log of requests is bounded and holds no secret."""

import json
from pathlib import Path
from typing import Any

from agentloom_worker.clock import ManualClock
from agentloom_worker.devmodel.plan import Plan
from agentloom_worker.devmodel.request_log import Outcome, RequestLog

PLAN = Plan("turn", "text", 200, ())


def begin(log: RequestLog, body: bytes, sha256: str = "d") -> int:
    return log.begin(sha256, log.count(sha256), (("authorization", "Bearer s3cret"), ("accept", "*/*")), body, PLAN)


def test_arrivals_are_counted_by_digest_and_start_again_after_clear() -> None:
    log = RequestLog(ManualClock())
    assert [log.count("a"), log.count("b"), log.count("a")] == [1, 1, 2]
    log.clear()
    assert log.count("a") == 1


def test_clear_keeps_open_requests_and_numbers_go_on() -> None:
    log = RequestLog(ManualClock())
    ended, still_open = begin(log, b"1"), begin(log, b"2")
    log.end(ended, Outcome.COMPLETE)
    log.clear()
    assert [record.number for record in log.records()] == [still_open]
    assert begin(log, b"3") == still_open + 1


def test_the_oldest_entries_and_bodies_make_room() -> None:
    log = RequestLog(ManualClock(), entries_max=3, bodies_bytes_max=8)
    for body in (b"aaaa", b"bbbb", b"cccc", b"dddd", b"far too long"):
        log.end(begin(log, body), Outcome.COMPLETE)
    assert [(record.number, record.body) for record in log.records()] == [
        (3, b"cccc"),
        (4, b"dddd"),
        (5, None),
    ]
    assert log.document(0, 10)["total"] == 5
    shown: Any = log.document(3, 1)
    assert [entry["number"] for entry in shown["requests"]] == [4]


def test_no_secret_header_is_kept() -> None:
    log = RequestLog(ManualClock())
    begin(log, b"{}")
    (record,) = log.records()
    assert record.headers == (("authorization", "(hidden)"), ("accept", "*/*"))


def test_each_ended_request_is_a_line_of_json(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = RequestLog(ManualClock(), path)
    first, second = begin(log, b'{"a": 1}'), begin(log, b"\xff")
    log.end(second, Outcome.CLIENT_GONE)
    log.end(first, Outcome.COMPLETE)
    log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["number"], line["arrival"], line["outcome"]) for line in lines] == [
        (2, 2, "client_gone"),
        (1, 1, "complete"),
    ]
    assert (lines[0]["body_base64"], lines[1]["body"]) == ("/w==", '{"a": 1}')
    assert lines[1]["received_at"].startswith("2027-01-15T08:00:00.")
    assert "s3cret" not in path.read_text()
