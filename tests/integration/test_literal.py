"""What a commit's message says is what the database stores, whatever the value."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from uuid import UUID

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentloom_worker import telemetry
from agentloom_worker.clock import SystemClock
from agentloom_worker.storage.driver import RefusedError
from agentloom_worker.storage.postgres import PostgresDriver, render
from agentloom_worker.storage.template import Statement, Template
from tests.acceptance.harness import wait_for
from tests.servers import PostgresServer

ECHO = Template("echo", "u:uuid t:text b:bytes i:int f:bool", "SELECT :u, :t, :b, :i, :f", returns=True)
WRITE = Template("write", "i:int", "DELETE FROM worker_process WHERE :i = 0 RETURNING 1", returns=True)
DIVIDE = Template("divide", "i:int", "SELECT 1 / :i", returns=True)
NASTY = "'; DROP TABLE x; --", "\\", "\\'", "''", "a\\nb", "$1 %s %(a)s", "é𝄞 \u2019", "E'x'", "\x01\x7f\r\n\t"


@pytest.fixture(scope="module")
def driver(postgres_template: str, postgres_server: PostgresServer) -> Iterator[PostgresDriver]:
    url = postgres_server.create_database(template=postgres_template)
    driver = PostgresDriver(url, SystemClock(), (ECHO, DIVIDE, WRITE), 2)
    yield driver
    driver.close()


def echoed(driver: PostgresDriver, *values: object) -> tuple[object, ...]:
    (row,) = driver.returning(ECHO(*values))
    identity, text, body, number, flag = row
    return (UUID(identity) if identity else None, text, bytes(body) if body is not None else None, number, flag)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.tuples(
        st.none() | st.uuids(),
        st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])) | st.sampled_from(NASTY),
        st.none() | st.binary(),
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.booleans(),
    )
)
def test_every_value_comes_back_as_it_was_sent(driver: PostgresDriver, values: tuple[object, ...]) -> None:
    assert echoed(driver, *values) == values


@pytest.mark.parametrize("text", NASTY)
def test_no_text_leaves_its_literal(driver: PostgresDriver, text: str) -> None:
    assert echoed(driver, None, text, None, None, None)[1] == text


def test_a_text_with_a_nul_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="NUL"):
        render([Statement(ECHO, (None, "a\0b", None, None, None))], None)


def test_a_missing_argument_is_refused_before_it_is_sent() -> None:
    with pytest.raises(TypeError, match="missing"):
        render([ECHO(None, "a")], None)


def test_a_connection_that_was_cut_while_idle_costs_no_commit(
    driver: PostgresDriver, postgres_server: PostgresServer
) -> None:
    echoed(driver, None, "before", None, None, None)
    with sa.create_engine(postgres_server.admin_url, isolation_level="AUTOCOMMIT").connect() as admin:
        admin.execute(
            sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"),
            {"name": driver.engine.url.database},
        )
    assert echoed(driver, None, "after", None, None, None)[1] == "after"


def test_the_connection_stays_usable_after_a_refusal(driver: PostgresDriver) -> None:
    with pytest.raises(RefusedError, match="DivisionByZero 22012"):
        driver.returning(DIVIDE(0))
    assert echoed(driver, None, "after", None, None, None)[1] == "after"


@pytest.fixture
def demoted(
    postgres_template: str, postgres_server: PostgresServer
) -> Iterator[tuple[PostgresDriver, Callable[[], object]]]:
    """A driver whose server takes no writes, as a failover shows it, and what makes it take them again.

    Connections that are there already stay as they are: they lead to what was the primary (SQLSTATE 25006).
    """
    url = postgres_server.create_database(template=postgres_template)
    name = sa.make_url(url).database
    with (
        closing(PostgresDriver(url, SystemClock(), (WRITE,), 2)) as driver,
        sa.create_engine(postgres_server.admin_url, isolation_level="AUTOCOMMIT").connect() as admin,
    ):
        admin.execute(sa.text(f"ALTER DATABASE {name} SET default_transaction_read_only = on"))
        yield driver, lambda: admin.execute(sa.text(f"ALTER DATABASE {name} RESET default_transaction_read_only"))


def test_T6_a_commit_that_a_standby_refuses_is_sent_again_until_a_connection_leads_to_the_primary(
    demoted: tuple[PostgresDriver, Callable[[], object]],
) -> None:
    driver, promote = demoted
    resent = telemetry.counters().get("commit_resent", 0)
    with ThreadPoolExecutor(1) as other:
        written = other.submit(driver.returning, WRITE(1))
        again = lambda: telemetry.counters().get("commit_resent", 0) > resent  # noqa: E731
        wait_for(lambda: again() or written.done(), "it is sent again", 60)
        promote()
        assert written.result(60) == []


def test_T9_a_renewal_that_a_standby_refuses_leaves_its_connection(
    demoted: tuple[PostgresDriver, Callable[[], object]],
) -> None:
    driver, promote = demoted
    for engine in (driver.engine, driver.keeper_engine):
        with engine.connect() as connection, pytest.raises(sa.exc.DBAPIError, match="read-only"):
            connection.execute(sa.text("DELETE FROM worker_process"))
    promote()
    for engine in (driver.engine, driver.keeper_engine):
        with engine.connect() as connection:
            assert connection.execute(sa.text("DELETE FROM worker_process")).rowcount == 0
