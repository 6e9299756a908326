"""The plans of the templates, which a connection makes once and keeps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2.extensions

from agentloom_worker.clock import SystemClock
from agentloom_worker.storage.blob import BLOB_COLLECT
from agentloom_worker.storage.postgres import PostgresDriver
from agentloom_worker.storage.schema import TEMPLATES
from agentloom_worker.storage.template import Template

# For the upkeep: who has fallen silent. No commit of a run holds it.
READ_WHOLE_TABLES = {"worker_prune"}
# What refers to a blob, by the index that answers for it.
REFERENCES = {
    "attempt_transport_blob_ix",
    "release_blob_ix",
    "user_input_blob_ix",
    "operation_raw_blob_ix",
    "operation_effective_blob_ix",
    "context_record_blob_ix",
    "effective_entry_blob_ix",
}
OWNER = "00000000-0000-0000-0000-000000000001"
BLOBS, OPERATIONS, PAGE_ROWS = 20_000, 40_000, 100
ROWS = (
    f"INSERT INTO owner (owner_id, kind, slug, created_at) VALUES ('{OWNER}', 'agent', 'a', 0)",
    f"INSERT INTO blob SELECT md5(n::text)::uuid, '{OWNER}', decode(md5(n::text), 'hex'), 1, 'text/plain', 'identity',"
    f" 'x', 0 FROM generate_series(1, {BLOBS}) n",
    "INSERT INTO operation (operation_id, run_id, node_id, loop_no, kind, capability, revision, attempts_made,"
    " unknown_attempts, drain_interrupts, status, raw_blob_id) SELECT md5(n::text)::uuid, md5((n / 100)::text)::uuid,"
    " md5((n / 100)::text)::uuid, 1, 'tool', 'echo', 1, 1, 0, 0, 'completed',"
    f" CASE WHEN n < {BLOBS} THEN md5(n::text)::uuid END FROM generate_series(1, {OPERATIONS}) n",
    "ANALYZE",
)


@contextmanager
def _prepared(url: str, *statements: str) -> Iterator["psycopg2.extensions.connection"]:
    """A connection of commits whose plans are made after these statements."""
    driver = PostgresDriver(url, SystemClock(), TEMPLATES, 1)
    connection = driver._commits.take()
    try:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        yield connection
    finally:
        driver._commits.give_back(connection)
        driver.close()


def _plan(connection: "psycopg2.extensions.connection", template: Template) -> str:
    values = ", ".join(["NULL"] * len(template.names))
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN EXECUTE {template.name}" + (f" ({values})" if values else ""))
        return "\n".join(row[0] for row in cursor.fetchall())


def test_no_template_reads_a_table_from_end_to_end_because_it_was_small_when_it_was_planned(postgres_url: str) -> None:
    with _prepared(postgres_url, "ANALYZE") as connection:
        plans = {template.name: _plan(connection, template) for template in TEMPLATES}
    assert {name for name, plan in plans.items() if "Seq Scan" in plan} == READ_WHOLE_TABLES
    assert not [name for name, plan in plans.items() if "JIT" in plan]


def test_T14_collection_looks_up_what_refers_to_a_blob_however_large_the_tables_are(postgres_url: str) -> None:
    """Planned while they are small and while they are large, and what it reads is what its page holds."""
    with _prepared(postgres_url, "ANALYZE") as connection:
        small = _plan(connection, BLOB_COLLECT)
    with _prepared(postgres_url, *ROWS) as connection:
        large = _plan(connection, BLOB_COLLECT)
        with connection.cursor() as cursor:
            cursor.execute("SELECT blob_id FROM blob ORDER BY blob_id OFFSET %s LIMIT 1", (PAGE_ROWS - 1,))
            (last,) = cursor.fetchall()[0]
            cursor.execute(
                "EXPLAIN (ANALYZE, TIMING off, FORMAT JSON) EXECUTE blob_collect (%s::uuid, %s::uuid, 0, NULL)",
                ("00000000-0000-0000-0000-000000000000", last),
            )
            ((found,),) = cursor.fetchall()
    for plan in (small, large):
        assert [name for name in REFERENCES if f"using {name}" not in plan] == []
        assert plan.count("Index Cond") == len(REFERENCES) + 1
        assert "Join" not in plan and "hashed" not in plan
    scans = list(_scans(found[0]["Plan"]))
    assert {scan["Index Name"] for scan in scans} == {"blob_pkey", *REFERENCES}
    assert (
        max(scan["Actual Rows"] * scan["Actual Loops"] + scan.get("Rows Removed by Filter", 0) for scan in scans) <= 100
    )


def _scans(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "Index Name" in node:
        yield node
    for child in node.get("Plans", ()):
        yield from _scans(child)
