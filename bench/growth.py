"""What a loop costs at loop 10, 500 and 2,000: time, commits, WAL bytes and rows (PostgreSQL), by pg_waldump.

The scripted model is called once a loop; it notes the time and the WAL position of every loop.
"""

import itertools
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from agentloom_worker.embedded import make_dispatcher
from agentloom_worker.llm.adapters.scripted import CallsTurn, ScriptedRequest, TextTurn
from bench.database import Database, Postgres
from bench.workload import accept_runs, in_process_script, wait_for

_RECORD = re.compile(r"rmgr: (\S+)\s+len \(rec/tot\):\s*(\d+)/\s*(\d+),.*? desc: (\S+)")
_RELATION = re.compile(r"rel \d+/\d+/(\d+)")
_ROW_RECORDS = {
    "INSERT": "inserted",
    "INSERT+INIT": "inserted",
    "MULTI_INSERT": "inserted",
    "UPDATE": "updated",
    "UPDATE+INIT": "updated",
    "HOT_UPDATE": "updated",
    "HOT_UPDATE+INIT": "updated",
    "DELETE": "deleted",
}


@dataclass(frozen=True, slots=True)
class Window:
    """Loops `first` to `first + count - 1`."""

    name: str
    first: int
    count: int


@dataclass(slots=True)
class WalShare:
    """What some WAL holds, by relation and kind of record. Bytes are records' own, without page images."""

    records: Counter[tuple[str, str]] = field(default_factory=Counter)
    size_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    image_bytes: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    commits: int = 0


def windows(loops: int) -> list[Window]:
    """Fifty loops each at loop 10, 500 and 2,000, as far as the run goes."""
    wanted = (Window("10", 10, 50), Window("500", 500, 50), Window("2000", 1950, 50))
    return [window for window in wanted if window.first + window.count < loops]


def measure(database: Database, *, loops: int) -> dict[str, object]:
    """One run in this process, by the real dispatcher with its default settings."""
    if not isinstance(database, Postgres):
        return _measure_times(database, loops)
    with database.without_images() as images_off:
        result = _measure_wal(database, loops)
    result["full_page_writes"] = (
        "off during this part" if images_off else "as the server has it; left out by pg_waldump"
    )
    return result


def _measure_times(database: Database, loops: int) -> dict[str, object]:
    url = database.fresh()
    instants_s: list[float] = []
    _run(url, loops, lambda: instants_s.append(time.perf_counter()))
    return {
        "database": database.name,
        "loops": loops,
        "windows": [_times(window, instants_s) for window in windows(loops)],
    }


def _measure_wal(database: Postgres, loops: int) -> dict[str, object]:
    url = database.fresh()
    instants_s: list[float] = []
    positions: list[str] = []
    with closing(database.connect(url)) as connection, connection.cursor() as cursor:

        def note() -> None:
            cursor.execute("SELECT pg_current_wal_insert_lsn()")
            row = cursor.fetchone()
            assert row is not None, "a server that writes has a position"
            positions.append(row[0])
            instants_s.append(time.perf_counter())

        _run(url, loops, note)
        cursor.execute("SELECT pg_relation_filenode(oid), relname FROM pg_class WHERE relkind IN ('r', 'i', 't')")
        names = {str(node): name for node, name in cursor.fetchall() if node is not None}
    found = []
    tool = database.waldump()
    for window in windows(loops):
        entry = _times(window, instants_s)
        if tool is not None:
            # The first call is loop 1, so a loop's WAL begins at its own call and ends at the next one's.
            begin, end = positions[window.first - 1], positions[window.first - 1 + window.count]
            entry |= _describe(_dump(str(tool[0]), str(tool[1]), begin, end, names), window.count)
        found.append(entry)
    return {"database": database.name, "loops": loops, "windows": found}


def _times(window: Window, instants_s: list[float]) -> dict[str, object]:
    begin = window.first - 1
    part = instants_s[begin : begin + window.count + 1]
    gaps = sorted((later - earlier) * 1000 for earlier, later in itertools.pairwise(part))
    return {"at_loop": window.name, "first_loop": window.first, "loops": window.count, "ms_p50": gaps[len(gaps) // 2]}


def _run(url: str, loops: int, note: Callable[[], None]) -> None:
    answer = in_process_script(loops)

    def script(request: ScriptedRequest) -> CallsTurn | TextTurn:
        note()
        return answer(request)  # type: ignore[return-value]

    dispatcher = make_dispatcher(url, scripts={"main": script})
    try:
        runs = accept_runs(dispatcher.ports, "script:main", 1)
        dispatcher.start()
        wait_for(dispatcher.ports, runs)
        dispatcher.drain(10.0)
    finally:
        dispatcher.ports.store.close()


def _dump(program: str, directory: str, begin: str, end: str, names: dict[str, str]) -> WalShare:
    command = [program, "--path", directory, "--start", begin, "--end", end]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    share = WalShare()
    for line in output.splitlines():
        match = _RECORD.search(line)
        if match is None:
            continue
        manager, size, total, kind = match[1], int(match[2]), int(match[3]), match[4]
        relation = _RELATION.search(line)
        name = names.get(relation[1], "another") if relation else "-"
        share.records[name, f"{manager}/{kind}"] += 1
        share.size_bytes[name, f"{manager}/{kind}"] += size
        share.image_bytes += total - size
        if manager == "Heap" and name != "another" and kind in _ROW_RECORDS:
            share.rows[_ROW_RECORDS[kind]] += 1
        share.commits += manager == "Transaction" and kind == "COMMIT"
    return share


def _describe(share: WalShare, loops: int) -> dict[str, object]:
    by_relation: Counter[str] = Counter()
    for (relation, _), size in share.size_bytes.items():
        by_relation[relation] += size
    keys = sum(count for (name, kind), count in share.records.items() if name == "scope_commit" and "INSERT" in kind)
    return {
        # Every commit of a run leaves one row here; the rest of the transactions are the dispatcher's upkeep.
        "commits_per_loop": keys / loops,
        "transactions_per_loop": share.commits / loops,
        "wal_bytes_per_loop": share.size_bytes.total() / loops,
        "image_bytes_per_loop": share.image_bytes / loops,
        "wal_records_per_loop": share.records.total() / loops,
        "rows_per_loop": {kind: count / loops for kind, count in sorted(share.rows.items())},
        "by_relation": {relation: size / loops for relation, size in by_relation.most_common()},
        "by_record": [
            {
                "relation": key[0],
                "record": key[1],
                "bytes_per_loop": size / loops,
                "per_loop": share.records[key] / loops,
            }
            for key, size in share.size_bytes.most_common()
        ],
    }
