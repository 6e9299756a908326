"""The migrations make the schema that the code declares, on both databases, however often they run (RULINGS N11)."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from agentloom_worker.clock import ManualClock, SystemClock
from agentloom_worker.errors import Code, PersistenceUnavailableError, RequestError
from agentloom_worker.storage import schema
from agentloom_worker.storage.schema import POSTGRES_FUNCTIONS, metadata, migrate
from agentloom_worker.storage.store import open_store
from tests.databases import connect
from tests.locks import Session, wait_for_waiters
from tests.servers import PostgresServer

_CATALOG = {
    "columns": """
        SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attstorage,
               pg_get_expr(d.adbin, d.adrelid)
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND c.relname <> 'alembic_version'
        ORDER BY 1, 2
    """,
    "constraints": """
        SELECT conrelid::regclass::text, conname, contype, pg_get_constraintdef(oid), condeferrable, convalidated
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace
        AND conrelid::regclass::text <> 'alembic_version' ORDER BY 1, 2
    """,
    "domains": """
        SELECT typname, format_type(typbasetype, typtypmod), typnotnull, conname, pg_get_constraintdef(c.oid)
        FROM pg_type t LEFT JOIN pg_constraint c ON c.contypid = t.oid
        WHERE typtype = 'd' AND typnamespace = 'public'::regnamespace ORDER BY 1, 4
    """,
    "indexes": """
        SELECT tablename, indexname, indexdef FROM pg_indexes
        WHERE schemaname = 'public' AND tablename <> 'alembic_version' ORDER BY 1, 2
    """,
    "options": """
        SELECT relname, relkind, relpersistence, reloptions FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relname NOT LIKE 'alembic_version%' ORDER BY 1
    """,
    "functions": """
        SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1
    """,
}


def _squeeze(value: object) -> object:
    return " ".join(value.split()) if isinstance(value, str) else value


def _postgres_catalog(url: str) -> dict[str, list[tuple]]:
    found = {}
    with closing(connect(url)) as connection, connection.cursor() as cursor:
        for name, sql in _CATALOG.items():
            cursor.execute(sql)
            found[name] = [tuple(_squeeze(value) for value in row) for row in cursor.fetchall()]
    return found


def _sqlite_catalog(url: str) -> list[tuple]:
    with sa.create_engine(url).connect() as conn:
        rows = conn.execute(sa.text("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"))
        return [
            (row[0], row[1], row[2], _definition(row[3] or ""))
            for row in rows
            if not row[1].startswith("alembic_version") and row[2] != "alembic_version"
        ]


def _definition(sql: str) -> tuple[str, ...]:
    """The lines of a definition: columns in their order, then constraints, whose order says nothing."""
    lines = [" ".join(line.split()).rstrip(",") for line in sql.splitlines() if line.strip()]
    return tuple(sorted(lines, key=lambda line: line if line.startswith("CONSTRAINT") else ""))


@pytest.fixture
def empty_postgres(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a database without any table."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def empty_url(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> str:
    """The URL of an empty database of a kind."""
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.sqlite'}"
    found: str = request.getfixturevalue("empty_postgres")
    return found


def test_N11_migrations_and_declarations_make_the_same_postgresql_catalog(
    empty_postgres: str, clean_postgres: str
) -> None:
    engine = sa.create_engine(empty_postgres)
    with engine.begin() as conn:
        for function in POSTGRES_FUNCTIONS:
            conn.execute(sa.text(function))
        metadata.create_all(conn)
    engine.dispose()
    declared, migrated = _postgres_catalog(empty_postgres), _postgres_catalog(clean_postgres)

    for name in _CATALOG:
        assert migrated[name] == declared[name], name
    # What alembic's own check does not see is there to be compared.
    assert any(row[2] == "c" for row in declared["constraints"])
    assert any(row[0] == "run_status" and "'queued'" in row[4] for row in declared["domains"])
    assert any(" WHERE " in row[2] for row in declared["indexes"])
    assert any(row[3] and "fillfactor=70" in row[3] for row in declared["options"])
    assert {row[0] for row in declared["functions"]} == {"al_assert", "al_now"}


def test_N11_migrations_and_declarations_make_the_same_sqlite_catalog(clean_sqlite: str, tmp_path: Path) -> None:
    declared_url = f"sqlite:///{tmp_path / 'declared.sqlite'}"
    engine = sa.create_engine(declared_url)
    metadata.create_all(engine)
    engine.dispose()
    declared, migrated = _sqlite_catalog(declared_url), _sqlite_catalog(clean_sqlite)

    assert migrated == declared
    assert any(" CHECK " in line for row in declared for line in row[3])
    assert any(" WHERE " in line for row in declared for line in row[3])


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_migrating_again_changes_nothing(kind: str, empty_url: str) -> None:
    look = _sqlite_catalog if kind == "sqlite" else _postgres_catalog
    migrate(empty_url)
    first = look(empty_url)
    migrate(empty_url)
    assert look(empty_url) == first


_MIGRATE = "import sys; from agentloom_worker.storage.schema import migrate; migrate(sys.argv[1])"


def _migrators(url: str, count: int) -> list[subprocess.Popen]:
    # Processes, because alembic keeps its place in the process.
    command = [sys.executable, "-c", _MIGRATE, url]
    return [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(count)]


def _all_succeed(migrators: list[subprocess.Popen]) -> None:
    outcomes = [(migrator.communicate(timeout=60)[1], migrator.returncode) for migrator in migrators]
    assert [code for _, code in outcomes] == [0] * len(migrators), [text for text, code in outcomes if code]


def test_two_processes_that_migrate_one_sqlite_file_at_once_both_succeed(tmp_path: Path, clean_sqlite: str) -> None:
    url = f"sqlite:///{tmp_path / 'empty.sqlite'}"
    _all_succeed(_migrators(url, 2))
    assert _sqlite_catalog(url) == _sqlite_catalog(clean_sqlite)
    with closing(open_store(url, SystemClock())) as store:
        store.check_schema()


def test_a_migrator_of_postgresql_waits_for_the_one_that_came_first(empty_postgres: str) -> None:
    with closing(Session(empty_postgres)) as first:
        first.run("SELECT pg_advisory_xact_lock(x'61676c6d'::bigint)")
        migrators = _migrators(empty_postgres, 2)
        wait_for_waiters(empty_postgres, 2)
        assert first.run("SELECT count(*) FROM pg_class WHERE relname = 'run'") == [(0,)]
        first.rollback()
        _all_succeed(migrators)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_D16_an_empty_database_is_refused_with_what_to_do(kind: str, empty_url: str) -> None:
    with closing(open_store(empty_url, ManualClock())) as store, pytest.raises(RequestError) as refused:
        store.check_schema()
    assert refused.value.code is Code.SCHEMA_BEHIND
    assert "empty" in refused.value.message
    assert "agentloom migrate" in refused.value.message


def test_D16_a_schema_that_is_behind_is_refused_and_named(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(open_store(database_url, ManualClock())) as store:
        store.check_schema()
        found = schema.newest_revision()
        monkeypatch.setattr(schema, "newest_revision", lambda: "9999")
        with pytest.raises(RequestError) as refused:
            store.check_schema()
    assert refused.value.code is Code.SCHEMA_BEHIND
    assert found in refused.value.message
    assert "9999" in refused.value.message


def test_D16_a_schema_of_another_version_is_refused_and_named(clean_sqlite: str) -> None:
    with closing(open_store(clean_sqlite, ManualClock())) as store:
        with store.driver.engine.connect() as conn:
            conn.execute(sa.text("UPDATE alembic_version SET version_num = 'unheard-of'"))
        with pytest.raises(RequestError) as refused:
            store.check_schema()
    assert refused.value.code is Code.SCHEMA_BEHIND
    assert "unheard-of" in refused.value.message


def test_D16_a_database_that_is_away_is_refused(clean_postgres: str) -> None:
    away = sa.engine.make_url(clean_postgres).set(port=1).render_as_string(hide_password=False)
    with closing(open_store(away, ManualClock())) as store, pytest.raises(PersistenceUnavailableError):
        store.check_schema()
