"""The plans of the templates, which a connection makes once and keeps."""

import psycopg2.extensions

from agentloom_worker.clock import SystemClock
from agentloom_worker.storage.postgres import PostgresDriver
from agentloom_worker.storage.schema import TEMPLATES
from agentloom_worker.storage.template import Template

# They are for the upkeep: what nobody refers to any more, who has fallen silent. No commit of a run holds them.
READ_WHOLE_TABLES = {"blob_collect", "worker_prune"}


def _plan(connection: "psycopg2.extensions.connection", template: Template) -> str:
    values = ", ".join(["NULL"] * len(template.names))
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN EXECUTE {template.name}" + (f" ({values})" if values else ""))
        return "\n".join(row[0] for row in cursor.fetchall())


def test_no_template_reads_a_table_from_end_to_end_because_it_was_small_when_it_was_planned(postgres_url: str) -> None:
    driver = PostgresDriver(postgres_url, SystemClock(), TEMPLATES, 1)
    connection = driver._commits.take()
    try:
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
        plans = {template.name: _plan(connection, template) for template in TEMPLATES}
    finally:
        driver._commits.give_back(connection)
        driver.close()
    assert {name for name, plan in plans.items() if "Seq Scan" in plan} == READ_WHOLE_TABLES
    assert not [name for name, plan in plans.items() if "JIT" in plan]
