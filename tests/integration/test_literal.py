"""What a commit's message says is what the database stores, whatever the value."""

from collections.abc import Iterator
from uuid import UUID

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentloom_worker.clock import SystemClock
from agentloom_worker.storage.driver import RefusedError
from agentloom_worker.storage.postgres import PostgresDriver, render
from agentloom_worker.storage.template import Statement, Template
from tests.servers import PostgresServer

ECHO = Template("echo", "u:uuid t:text b:bytes i:int f:bool", "SELECT :u, :t, :b, :i, :f", returns=True)
DIVIDE = Template("divide", "i:int", "SELECT 1 / :i", returns=True)
NASTY = "'; DROP TABLE x; --", "\\", "\\'", "''", "a\\nb", "$1 %s %(a)s", "é𝄞 \u2019", "E'x'", "\x01\x7f\r\n\t"


@pytest.fixture(scope="module")
def driver(postgres_template: str, postgres_server: PostgresServer) -> Iterator[PostgresDriver]:
    url = postgres_server.create_database(template=postgres_template)
    driver = PostgresDriver(url, SystemClock(), (ECHO, DIVIDE), 2)
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
