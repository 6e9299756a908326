"""`python -m bench [--quick] [--only PART] [--postgres URL]`: every figure in one run, recorded in bench/results/."""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import context, fleet, growth, latency, limit, llm, machine, report, targets, throughput
from bench.context import ContextSize
from bench.database import Database, Postgres, open_durable_postgres, open_sqlite
from bench.fleet import FleetSize
from bench.llm import LlmSize
from bench.throughput import Case
from bench.workload import MESSAGE_BYTES, MODEL_CHUNK_CHARS, Load

PARTS = ("throughput", "latency", "growth", "context", "limit", "fleet", "llm")
WITHOUT_DATABASE = {"llm"}
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    engine: Load
    http: Load
    single_loops: int
    long_loops: int
    limit_loops: int
    limit_runs: int
    threads: int
    fleet: FleetSize
    context: ContextSize
    llm: LlmSize


FULL_FLEET = FleetSize(Load(100, 50), Load(40, 50), 2, 500, victims=3, streams=200, stream_s=20)
QUICK_FLEET = FleetSize(Load(20, 20), Load(20, 20), 1, 120, victims=1, streams=50, stream_s=4)
FULL = Size(Load(100, 50), Load(100, 50), 500, 2010, 50, 48, 4, FULL_FLEET, context.FULL, LlmSize(100_000, 30))
QUICK = Size(Load(20, 20), Load(20, 20), 120, 120, 20, 16, 4, QUICK_FLEET, context.QUICK, LlmSize(20_000, 5))


def main() -> int:
    """Measure, print the page, write it and its figures."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer loops: to see that it works, not for the record")
    parser.add_argument("--only", action="append", choices=PARTS, help="one part; may be given again")
    parser.add_argument("--postgres", metavar="URL", help="a server to use instead of one of our own")
    parser.add_argument("--database", action="append", choices=("postgresql", "sqlite"), help="one of the databases")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write")
    options = parser.parse_args()
    parts = tuple(options.only or PARTS)
    wanted = tuple(options.database or ("postgresql", "sqlite"))
    size = QUICK if options.quick else FULL
    results: dict[str, Any] = {
        "machine": machine.describe(),
        "quick": options.quick,
        "message_bytes": MESSAGE_BYTES,
        "model_chunk_chars": MODEL_CHUNK_CHARS,
    }
    if set(parts) <= WITHOUT_DATABASE:
        wanted = ()
    with ExitStack() as stack:
        databases: list[Database] = []
        if "postgresql" in wanted:
            server = stack.enter_context(open_durable_postgres(options.postgres))
            databases.append(server)
            results["postgresql"] = {
                "version": server.version,
                "origin": str(server.server.origin),
                "settings": server.settings,
            }
        if "sqlite" in wanted:
            databases.append(stack.enter_context(open_sqlite()))
        for part in parts:
            results[part] = _measure(part, size, databases)
    results["targets"] = targets.table(results)
    page = report.render(results)
    print(page)
    _write(options.results, results, page)
    return 0


def _measure(part: str, size: Size, databases: list[Database]) -> Any:
    if part == "llm":
        return llm.measure(size.llm, _say)
    if part in ("limit", "fleet"):
        server = next((database for database in databases if isinstance(database, Postgres)), None)
        if server is None:
            return None
        if part == "fleet":
            return fleet.measure(server, size.fleet, size.threads, _say)
        _say("limit, postgresql")
        server.checkpoint()
        return limit.measure(server, loops=size.limit_loops, clients=(1, 2, 8), runs=size.limit_runs)
    found = []
    for database in databases:
        if isinstance(database, Postgres):
            database.checkpoint()
        if part == "throughput":
            for case in _cases(size):
                _say(f"throughput, {database.name}, {case.name}")
                found.append(throughput.measure(database, case))
        elif part == "latency":
            _say(f"latency, {database.name}")
            found.append(latency.measure(database, loops=size.single_loops, threads=size.threads))
        elif part == "context":
            found.append(context.measure(database, size.context, _say))
        else:
            _say(f"growth, {database.name}")
            found.append(growth.measure(database, loops=size.long_loops))
    return found


def _cases(size: Size) -> Iterator[Case]:
    for workers in (1, 2):
        name = f"{workers} worker{'s' if workers > 1 else ''}"
        yield Case(f"engine, {name}", workers, False, size.engine, size.threads)
        yield Case(f"HTTP, {name}", workers, True, size.http, size.threads)


def _say(what: str) -> None:
    print(f"… {what}", file=sys.stderr, flush=True)


def _write(directory: Path, results: dict[str, Any], page: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    name = time.strftime("%Y-%m-%d-%H%M", time.gmtime()) + ("-quick" if results["quick"] else "")
    (directory / f"{name}.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    (directory / f"{name}.md").write_text(page)


if __name__ == "__main__":
    sys.exit(main())
