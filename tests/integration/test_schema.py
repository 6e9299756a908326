"""A database that is not ready is refused with its remedy, and made ready as a whole or not at all."""

import multiprocessing
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentloom_worker import Agentloom
from agentloom_worker.bootstrap import migrate_database
from agentloom_worker.errors import AgentloomError, Code, PersistenceUnavailableError, RequestError
from tests.servers import PostgresServer

PROCESSES = 3


def tables(file: Path) -> set[str]:
    with closing(sqlite3.connect(file)) as connection:
        return {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def migrate_here(url: str) -> str:
    migrate_database(url)
    return "done"


def test_several_processes_make_one_new_file_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.sqlite"
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        assert pool.map(migrate_here, [url] * PROCESSES, chunksize=1) == ["done"] * PROCESSES
        pool.close()
        pool.join()
    Agentloom.connect(url).close()


def test_a_migration_that_breaks_off_leaves_nothing_behind(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.sqlite", tmp_path / "broken.sqlite"
    migrate_database(f"sqlite:///{whole}")
    with closing(sqlite3.connect(whole)) as connection:
        (last,) = connection.execute("SELECT name FROM sqlite_master WHERE type='table' ORDER BY rowid DESC").fetchone()
    with closing(sqlite3.connect(broken)) as connection:
        connection.execute(f"CREATE TABLE {last} (in_the_way INTEGER)")
        connection.commit()
    with pytest.raises(PersistenceUnavailableError):
        migrate_database(f"sqlite:///{broken}")
    assert tables(broken) == {last}


def test_D16_a_client_on_an_empty_database_is_told_to_migrate(tmp_path: Path) -> None:
    for run_workers in (False, True):
        with pytest.raises(RequestError) as error:
            Agentloom.connect(f"sqlite:///{tmp_path}/empty.sqlite", run_workers)
        assert error.value.code is Code.SCHEMA_BEHIND
        assert "agentloom migrate" in error.value.message


def test_D16_a_schema_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    with Agentloom.embedded(tmp_path, threads=1):
        pass
    file = tmp_path / "agentloom.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    with pytest.raises(RequestError) as error:
        Agentloom.embedded(tmp_path)
    assert error.value.code is Code.SCHEMA_BEHIND
    assert "upgrade agentloom-worker" in error.value.message


def test_D16_an_empty_postgres_is_refused_until_it_is_migrated(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    try:
        with pytest.raises(RequestError) as error:
            Agentloom.connect(url, run_workers=True)
        assert error.value.code is Code.SCHEMA_BEHIND
        migrate_database(url)
        Agentloom.connect(url).close()
    finally:
        postgres_server.drop_database(url)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("postgresql://somebody:hunter2@127.0.0.1:1/nowhere?password=hunter2", Code.PERSISTENCE_UNAVAILABLE),
        ("sqlite:////nowhere/at/all/hunter2/x.sqlite", Code.PERSISTENCE_UNAVAILABLE),
        ("mysql://somebody:hunter2@127.0.0.1/x", Code.INPUT_INVALID),
        ("postgresql://somebody:hunter2@127.0.0.1:port/x", Code.INPUT_INVALID),
        ("hunter2", Code.INPUT_INVALID),
    ],
)
def test_D16_a_database_that_cannot_be_used_is_named_without_its_password(url: str, code: Code) -> None:
    with pytest.raises(AgentloomError) as error:
        Agentloom.connect(url, run_workers=True)
    assert error.value.code is code
    assert "sqlite" in url or "hunter2" not in str(error.value)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "letter.sqlite"
    file.write_text("Dear Sir or Madam, " * 100)
    with pytest.raises(PersistenceUnavailableError):
        Agentloom.embedded(file)
    assert file.read_text().startswith("Dear Sir")
