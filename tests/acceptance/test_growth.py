"""What a long run costs: bytes of the database, and work per loop."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from agentloom_worker.context.view import View
from agentloom_worker.domain.operation import OperationKind
from agentloom_worker.llm.adapters.scripted import CallsTurn, ScriptedCall, ScriptedRequest, ScriptedTurn, TextTurn
from agentloom_worker.runtime.request import rebuild_request
from tests.acceptance.harness import answer, ask, model_operations, operations, query, simulated, wait_for
from tests.factories import python_tool, release_document
from tests.servers import PostgresServer
from tests.simulator import Worker

CALLS = 100
WARM_UP_CALLS = 50
# 100 results of 8 KB that compress worse than prose: about 800 KB, which is 200,000 tokens at four bytes each.
RESULT_BYTES = 8_000
SIZES = """
    SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND n.nspname = 'public'
"""


def _script(calls: int, request: ScriptedRequest) -> ScriptedTurn:
    loop = (request.message_count - 2) // 2
    if loop == calls:
        return TextTurn("done")
    arguments = json.dumps({"seed": f"{calls}/{loop}", "size_bytes": RESULT_BYTES})
    return CallsTurn((ScriptedCall("noise", arguments, f"call_{loop}"),))


def _size(worker: Worker) -> int:
    """Bytes of all tables with their indexes and bodies, after a VACUUM."""
    with worker.ports.store.driver.engine.connect() as conn:
        conn.exec_driver_sql("VACUUM")
    return int(query(worker.ports, SIZES)[0][0])


def test_D14_a_hundred_calls_and_200_000_tokens_grow_the_database_by_less_than_twice_the_transcript(
    postgres_url: str,
) -> None:
    tools = {"noise": python_tool(handler="tests.acceptance.tools:noise")}
    window = {"models": {"main": {"context_window_tokens": 2_000_000}}, "agent": {"limits": {"max_loops": CALLS + 1}}}
    scripts = {"warm-up": partial(_script, WARM_UP_CALLS), "main": partial(_script, CALLS)}
    with simulated(postgres_url, scripts=scripts, solitary=False) as worker:
        # A database in use: new tables bring pages and maps with them, and hot rows fill theirs, only once.
        ask(worker.ports, release_document(base_url="script:warm-up", tools=tools, **window))
        worker.drive()
        before = _size(worker)
        run_id = ask(worker.ports, release_document(tools=tools, **window))
        worker.drive()
        assert answer(worker.ports, run_id) == "done"
        assert len(operations(worker.ports, run_id, OperationKind.TOOL)) == CALLS
        transcript = len(rebuild_request(worker.ports, model_operations(worker.ports, run_id)[-1]))
        assert transcript > CALLS * RESULT_BYTES
        grown = _size(worker) - before
        assert grown < 2 * transcript, f"{grown} bytes for a transcript of {transcript}"


EARLY_LOOP, LATE_LOOP, LOOPS_COUNTED = 50, 400, 20
ROWS_READ = "SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0) FROM pg_stat_user_tables"
OTHERS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'agentloom'
"""


def _echoing(loops: int, note: Callable[[int], None] = lambda loop: None) -> Callable[[ScriptedRequest], ScriptedTurn]:
    """A model that calls a tool in every loop but the last, and says which loop it was asked in."""

    def turn(request: ScriptedRequest) -> ScriptedTurn:
        loop = (request.message_count - 2) // 2 + 1
        note(loop)
        if loop == loops:
            return TextTurn("done")
        return CallsTurn((ScriptedCall("echo", '{"text": "again"}', f"call_{loop}"),))

    return turn


def _echo_release() -> dict[str, Any]:
    return release_document(
        tools={"echo": python_tool(handler="tests.tools:echo")},
        models={"main": {"context_window_tokens": 2_000_000}},
        agent={"limits": {"max_loops": 1_000}},
    )


def test_a_late_loop_touches_as_many_fragments_and_takes_as_many_instructions_as_an_early_one(
    clean_sqlite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work: Counter[str] = Counter()
    at_loop: dict[int, Counter[str]] = {}
    extend, fragments = View.extend, View.fragments

    def counted_extend(view: View, new: Sequence[bytes], *rest: Any, **options: Any) -> View:
        work["fragments"] += len(new)
        return extend(view, new, *rest, **options)

    def counted_fragments(view: View) -> list[bytes]:
        work["fragments"] += view.length
        return fragments(view)

    def counted_instructions() -> int:
        work["instructions"] += 10
        return 0

    monkeypatch.setattr(View, "extend", counted_extend)
    monkeypatch.setattr(View, "fragments", counted_fragments)
    loops = LATE_LOOP + LOOPS_COUNTED + 1
    scripts = {"main": _echoing(loops, lambda loop: at_loop.update({loop: Counter(work)}))}
    with simulated(clean_sqlite, scripts=scripts) as worker:
        driver: Any = worker.ports.store.driver
        sa.event.listen(
            driver.engine, "connect", lambda plain, _record: plain.set_progress_handler(counted_instructions, 10)
        )
        driver._connection().set_progress_handler(counted_instructions, 10)
        run_id = ask(worker.ports, _echo_release())
        worker.drive()
        assert answer(worker.ports, run_id) == "done"
    early, late = (at_loop[first + LOOPS_COUNTED] - at_loop[first] for first in (EARLY_LOOP, LATE_LOOP))
    assert early["fragments"] == late["fragments"] == 2 * LOOPS_COUNTED
    assert early["instructions"] > 1000
    assert late["instructions"] <= 1.05 * early["instructions"]


def test_the_rows_that_postgresql_reads_per_loop_do_not_grow_with_the_run(
    postgres_server: PostgresServer, postgres_template: str
) -> None:
    # New, not emptied: nobody has analyzed its tables, so that every read is planned by key.
    url = postgres_server.create_database(template=postgres_template)
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    def number(statement: str) -> int:
        with engine.connect() as conn:
            return int(conn.execute(sa.text(statement)).scalar_one())

    def rows_read(loops: int) -> int:
        """By a run of so many loops. A connection has reported all that it read when it is closed."""
        before = number(ROWS_READ)
        with simulated(url, scripts={"main": _echoing(loops)}) as worker:
            run_id = ask(worker.ports, _echo_release())
            worker.drive()
            assert answer(worker.ports, run_id) == "done"
        wait_for(lambda: number(OTHERS) == 0, "the worker's connections are closed")
        return number(ROWS_READ) - before

    short, long = rows_read(EARLY_LOOP) / EARLY_LOOP, rows_read(LATE_LOOP) / LATE_LOOP
    assert short > 10
    assert long <= 1.05 * short
