"""What a long run costs in bytes of the database."""

import json
from functools import partial

from agentloom_worker.domain.operation import OperationKind
from agentloom_worker.llm.adapters.scripted import CallsTurn, ScriptedCall, ScriptedRequest, ScriptedTurn, TextTurn
from agentloom_worker.runtime.request import rebuild_request
from tests.acceptance.harness import answer, ask, model_operations, operations, query, simulated
from tests.factories import python_tool, release_document
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
