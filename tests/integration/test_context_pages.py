"""Reading a page of a context costs what the page holds, not what stands before and after it."""

import shutil
import sqlite3
from pathlib import Path
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.storage.context import context_record, effective_entry, load_view_rows

PAGE_ROWS = 20


def _steps_of_a_page(path: Path, records: int) -> int:
    """How many hundreds of instructions SQLite runs for the page after the first half of so many records."""
    context_id = UUID(int=records)
    engine = sa.create_engine(f"sqlite:///{path}")
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    with engine.begin() as conn:
        shared = {"context_id": context_id, "raw_ref": "prompt"}
        conn.execute(
            sa.insert(context_record),
            [
                {
                    **shared,
                    "context_seq": seq,
                    "record_id": UUID(int=seq),
                    "run_id": context_id,
                    "role": "system",
                    "message_kind": "prompt",
                    "logical_result_key": "prompt:system",
                }
                for seq in range(1, records + 1)
            ],
        )
        conn.execute(
            sa.insert(effective_entry),
            [
                {
                    **shared,
                    "context_seq": seq,
                    "revision": seq,
                    "effective_hash": bytes(32),
                    "tokens": 1,
                    "estimator": "utf8-envelope-v1",
                    "source_refs": b"[]",
                    "visible_fields": b"[]",
                    "dependency_refs": b"[]",
                }
                for seq in range(1, records + 1)
            ],
        )
        plain = conn.connection.driver_connection
        assert isinstance(plain, sqlite3.Connection)
        plain.set_progress_handler(count, 100)
        rows = load_view_rows(conn, context_id, after_seq=records // 2, revision=records, limit=PAGE_ROWS)
        plain.set_progress_handler(None, 100)
    engine.dispose()
    assert [row.context_seq for row in rows] == list(range(records // 2 + 1, records // 2 + PAGE_ROWS + 1))
    return steps


def test_a_page_costs_the_same_in_a_context_of_any_length(sqlite_template: Path, tmp_path: Path) -> None:
    path = tmp_path / "agentloom.sqlite"
    shutil.copy(sqlite_template, path)
    short, long = (_steps_of_a_page(path, records) for records in (100, 2000))
    assert short > 5
    assert long < 2 * short
