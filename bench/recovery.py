"""How long a step waits after its worker was killed or told to end, with default settings, by the database's clock.

Every victim's slots are full of model calls and tool calls that do not end. Each is ended at another moment, so that
the time since its last renewal differs. A row tells when another worker claimed the next attempt.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

from agentloom_worker import limits
from agentloom_worker.runtime.ports import US
from bench.celery_workers import ALL_QUEUES, fresh_fleet
from bench.database import Postgres
from bench.process import model_running
from bench.workload import ask_all
from tests.fleet import Fleet
from tests.servers import RedisServer

_Found = TypeVar("_Found")
SLOTS = 4
_LOOK_EVERY_S = 0.05
_WAIT_S = 120.0
_HANG_MS = 3_600_000
# Three of them lie within one interval of renewal.
_BETWEEN_S = limits.CLAIM_RENEW_S / 3

_SCRIPT: dict[str, Any] = {
    "schema_version": 1,
    "turns": [
        {
            "when": {"user_text_contains": "tool", "assistant_turns": 0},
            "answer": {"tool_calls": [{"name": "hold", "arguments": {}}]},
        },
        {"answer": {"no_answer": "stall"}},
    ],
}
_HELD = (
    "SELECT d.dispatch_id, d.subject_id, d.run_id, d.step, d.claimed_until, w.pid FROM pending_dispatch d"
    " JOIN worker_process w ON w.process_id = d.claimed_by WHERE d.step IN ('attempt_model', 'attempt_call')"
)
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


@dataclass(frozen=True, slots=True)
class End:
    """How a worker is ended."""

    name: str
    signal: signal.Signals


KILL = End("killed", signal.SIGKILL)
DRAIN = End("drained", signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Hold:
    """A row and who holds it."""

    dispatch_id: str
    operation_id: str
    run_id: str
    step: str
    claimed_until: int
    pid: int


def release(base_url: str) -> dict[str, Any]:
    """An agent whose model and tool never end, and may be called again at once."""
    again = {"initial_ms": 0, "on_unknown": {"action": "retry", "max": 5}}
    return {
        "schema_version": 1,
        "agent": {"id": "recovery", "prompt": "Wait.", "model": "main", "tools": ["hold"]},
        "models": {
            "main": {
                "protocol": "openai-chat",
                "base_url": base_url,
                "model": "dev-model",
                "context_window_tokens": 128_000,
                "first_output_timeout_ms": _HANG_MS,
                "retry": again,
            }
        },
        "tools": {
            "hold": {
                "kind": "python",
                "handler": "bench.tools:hold",
                "effect": "none",
                "timeout_ms": _HANG_MS,
                "retry": again,
            }
        },
    }


def measure(database: Postgres, cache: RedisServer, how: End, *, victims: int) -> dict[str, Any]:
    """End so many workers, one after the other, beside one that is free; when each of their steps began again."""
    with (
        model_running(_SCRIPT) as (_model, base_url),
        fresh_fleet(database, cache) as (fleet, url),
        closing(database.connect(url)) as connection,
        connection.cursor() as cursor,
    ):
        pids = [fleet.worker(ALL_QUEUES, slots=SLOTS).pid for _ in range(victims)]
        first = _fill(fleet, cursor, base_url, victims * SLOTS)
        fleet.worker(ALL_QUEUES, slots=len(first))
        ended_at = _end(cursor, pids, how)
        again = _watch(cursor, first, ended_at)
        settled = _settled(cursor, list(first.values()))
    steps = [
        {
            "step": hold.step,
            "settled_s": (settled[hold.operation_id] - ended_at[hold.pid]) / US,
            "again_s": (again[run] - ended_at[hold.pid]) / US,
        }
        for run, hold in first.items()
    ]
    return {
        "workers": victims,
        "steps": steps,
        "again_s_max": max((again[run] - ended_at[hold.pid]) / US for run, hold in first.items()),
    }


def _fill(fleet: Fleet, cursor: Any, base_url: str, slots: int) -> dict[str, Hold]:
    """Give every slot a call that does not end, of the model and of a tool by turns; who holds which run."""
    questions = [("hold the tool", "hold the model")[number % 2] for number in range(slots)]
    runs = ask_all(fleet.ports, release(base_url), questions)
    steps = ["attempt_call" if "tool" in question else "attempt_model" for question in questions]
    wanted = dict(zip(map(str, runs), steps, strict=True))

    def all_hang() -> dict[str, Hold] | None:
        held = {hold.run_id: hold for hold in _holds(cursor)}
        return held if {run: hold.step for run, hold in held.items()} == wanted else None

    return _wait(all_hang, "every slot holds a step that does not end")


def _end(cursor: Any, pids: list[int], how: End) -> dict[int, int]:
    """Signal each process; when, in microseconds of the database's clock."""
    ended_at = {}
    for pid in pids:
        cursor.execute(_NOW)
        ended_at[pid] = int(cursor.fetchone()[0])
        os.kill(pid, how.signal)
        time.sleep(_BETWEEN_S)
    return ended_at


def _watch(cursor: Any, first: dict[str, Hold], ended_at: dict[int, int]) -> dict[str, int]:
    """When another worker claimed what follows the held row of each run; a fresh claim runs for the whole TTL."""
    again: dict[str, int] = {}

    def all_again() -> dict[str, int] | None:
        for hold in _holds(cursor):
            if hold.dispatch_id != first[hold.run_id].dispatch_id and hold.pid not in ended_at:
                again.setdefault(hold.run_id, hold.claimed_until - int(limits.CLAIM_TTL_S * US))
        return again if len(again) == len(first) else None

    return _wait(all_again, "every step runs again")


def _holds(cursor: Any) -> list[Hold]:
    cursor.execute(_HELD)
    return [Hold(str(row[0]), str(row[1]), str(row[2]), row[3], row[4], row[5]) for row in cursor.fetchall()]


def _settled(cursor: Any, holds: list[Hold]) -> dict[str, int]:
    """When the first attempt of each was given its end: by its own worker, or by the one that claimed it next."""
    cursor.execute(
        "SELECT operation_id::text, ended_at FROM attempt WHERE attempt_no = 1 AND operation_id::text = ANY(%s)",
        ([hold.operation_id for hold in holds],),
    )
    return {str(operation): int(ended) for operation, ended in cursor.fetchall()}


def _wait(look: Callable[[], _Found | None], what: str) -> _Found:
    until_s = time.monotonic() + _WAIT_S
    while (found := look()) is None:
        if time.monotonic() > until_s:
            raise RuntimeError(f"waited {_WAIT_S} s in vain until {what}")
        time.sleep(_LOOK_EVERY_S)
    return found
