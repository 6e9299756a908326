"""PostgreSQL's own rate of equal transactions: one run's very statements, replayed by plain clients.

A run is recorded once; every replay gets fresh ids, and is rendered to bytes before the clock starts. What is
left is one `execute` a commit: no engine, no claim that could be lost, nothing to decide.
"""

import multiprocessing
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agentloom_worker.bootstrap import invoke_inline, make_ports
from agentloom_worker.clock import SystemClock
from agentloom_worker.ids import ProcessId, SystemIds
from agentloom_worker.runtime.lease import Keeper
from agentloom_worker.runtime.ports import Ports, Settings
from agentloom_worker.runtime.step import StepRunner
from agentloom_worker.storage.postgres import PostgresDriver, render
from agentloom_worker.storage.schema import TEMPLATES
from agentloom_worker.storage.template import Statement
from bench.database import Postgres
from bench.process import cpu_ms
from bench.workload import accept_runs, first_dispatch, in_process_script

_SESSION = "SET plan_cache_mode=force_generic_plan; SET synchronous_commit=on; SET enable_seqscan=off; SET jit=off"
_UNBOUNDED = 10**9
_READY_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Recording:
    """Batches of statements in order: those that make a run ready, and the commits of its loops."""

    prologue: tuple[tuple[Statement, ...], ...]
    commits: tuple[tuple[Statement, ...], ...]
    kept: frozenset[UUID]  # ids that all replays share: owner, release, process


def record(url: str, loops: int) -> Recording:
    """Run once in this process and keep every batch that was applied."""
    ports = make_ports(
        url,
        tools=invoke_inline,
        scripts={"main": in_process_script(loops)},
        settings=Settings(inline_hops=_UNBOUNDED, inline_ms=_UNBOUNDED),
    )
    batches: list[tuple[Statement, ...]] = []
    driver = ports.store.driver
    assert isinstance(driver, PostgresDriver), "only PostgreSQL has a limit to measure"
    send = driver._send

    def sending(statements: Sequence[Statement], fetch: Any) -> Any:
        batches.append(tuple(statements))
        return send(statements, fetch)

    driver._send = sending  # type: ignore[method-assign]
    try:
        (run_id,) = accept_runs(ports, "script:main", 1)
        del batches[0]  # the release
        process_id = ProcessId(ports.ids.new())
        StepRunner(ports, process_id, Keeper(ports)).run(first_dispatch(ports, run_id))
        return _split(ports, batches, process_id)
    finally:
        ports.store.close()


def _split(ports: Ports, batches: list[tuple[Statement, ...]], process_id: ProcessId) -> Recording:
    claimed = next(i for i, batch in enumerate(batches) if batch[0].template.name == "dispatch_claim")
    owner = ports.store.find_owner("bench")
    assert owner is not None, "the release was published"
    release = ports.store.newest_release(owner)
    assert release is not None, "the release was published"
    kept = frozenset((owner, release, process_id))
    return Recording(tuple(batches[: claimed + 1]), tuple(batches[claimed + 1 :]), kept)


class Renaming:
    """Fresh ids for one replay: the same old id gets the same new one, in columns and in keys of 16 bytes."""

    def __init__(self, kept: frozenset[UUID]) -> None:
        self._ids = SystemIds(SystemClock())
        self._kept = kept
        self._new: dict[UUID, UUID] = {}

    def render(self, batch: Sequence[Statement]) -> bytes:
        """The bytes of one message."""
        renamed = [
            Statement(statement.template, tuple(self._renamed(value) for value in statement.arguments))
            for statement in batch
        ]
        return render(renamed, None)

    def _renamed(self, value: object) -> object:
        if isinstance(value, UUID):
            return value if value in self._kept else self._new.setdefault(value, self._ids.new())
        if isinstance(value, bytes) and len(value) == 16:
            known = self._new.get(UUID(bytes=value))
            return known.bytes if known else value
        return value


def measure(database: Postgres, *, loops: int, clients: Sequence[int], runs: int) -> dict[str, object]:
    """Commits per second for each number of clients, which share so many replays."""
    url = database.fresh()
    recording = record(url, loops)
    results = [_replay(database, url, recording, count, max(1, runs // count)) for count in clients]
    statements = [len(batch) for batch in recording.commits]
    return {
        "database": database.name,
        "loops": loops,
        "commits_per_run": len(statements),
        "statements_per_commit": sum(statements) / len(statements),
        "clients": results,
        "commits_per_s_max": max(result["commits_per_s"] for result in results),
    }


def _replay(database: Postgres, url: str, recording: Recording, count: int, runs: int) -> dict[str, float]:
    # Forked, so that the recording need not be written down; this process has no other thread.
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(count + 1)
    results: multiprocessing.SimpleQueue[float] = context.SimpleQueue()
    children = [
        context.Process(target=_client, args=(url, recording, runs, barrier, results), daemon=True)
        for _ in range(count)
    ]
    for child in children:
        child.start()
    pids = [child.pid or 0 for child in children]
    barrier.wait(_READY_TIMEOUT_S)
    before_ms, server_ms = sum(map(cpu_ms, pids)), database.cpu_ms() or 0.0
    began_s = time.monotonic()
    barrier.wait(_READY_TIMEOUT_S)
    commits = sum(results.get() for _ in children)
    elapsed_s = time.monotonic() - began_s
    client_ms, server_ms = sum(map(cpu_ms, pids)) - before_ms, (database.cpu_ms() or 0.0) - server_ms
    barrier.wait(_READY_TIMEOUT_S)
    for child in children:
        child.join(_READY_TIMEOUT_S)
    return {
        "clients": count,
        "commits": commits,
        "elapsed_s": elapsed_s,
        "commits_per_s": commits / elapsed_s,
        "client_cpu_ms_per_commit": client_ms / commits,
        "postgresql_cpu_ms_per_commit": server_ms / commits,
    }


def _client(url: str, recording: Recording, runs: int, barrier: Any, results: Any) -> None:
    with closing(_connect(url)) as connection, connection.cursor() as cursor:
        queries: list[bytes] = []
        for _ in range(runs):
            renaming = Renaming(recording.kept)
            for batch in recording.prologue:
                cursor.execute(renaming.render(batch))
            queries.extend(renaming.render(batch) for batch in recording.commits)
        barrier.wait(_READY_TIMEOUT_S)  # everybody is ready
        barrier.wait(_READY_TIMEOUT_S)  # the readings are taken
        for query in queries:
            cursor.execute(query)
        results.put(len(queries))
        barrier.wait(_READY_TIMEOUT_S)  # keeps /proc's entry until the readings are taken


def _connect(url: str) -> Any:
    connection = Postgres.connect(url)
    with connection.cursor() as cursor:
        cursor.execute(_SESSION)
        for template in TEMPLATES:
            cursor.execute(template.postgres_prepare)
    return connection
