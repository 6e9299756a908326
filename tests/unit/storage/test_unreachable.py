"""Which words of libpq mean that a database may only be away for a while."""

import psycopg2
import pytest

from agentloom_worker.storage.postgres import is_unreachable

HERE = 'connection to server at "127.0.0.1", port 5432 failed: '
THERE = 'connection to server at "::1", port 5432 failed: '


@pytest.mark.parametrize(
    "text",
    [
        HERE + "Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?",
        HERE + "FATAL:  the database system is starting up",
        HERE + "FATAL:  the database system is shutting down",
        HERE + "FATAL:  the database system is in recovery mode",
        HERE + "FATAL:  sorry, too many clients already",
        HERE + "timeout expired",
        HERE + "server closed the connection unexpectedly",
        "SSL SYSCALL error: EOF detected",
        'could not translate host name "db" to address: Temporary failure in name resolution',
        HERE + "FATAL:  password authentication failed\n" + THERE + "Connection refused",
    ],
)
def test_D16_a_server_that_is_away_or_starting_may_be_waited_for(text: str) -> None:
    assert is_unreachable(psycopg2.OperationalError(text))


@pytest.mark.parametrize(
    "text",
    [
        HERE + 'FATAL:  password authentication failed for user "agentloom"',
        HERE + 'FATAL:  database "agentloom" does not exist',
        HERE + 'FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "a", database "b", no encryption',
        THERE + "Connection refused\n" + HERE + 'FATAL:  password authentication failed for user "agentloom"',
    ],
)
def test_D16_a_refusal_is_not_waited_for(text: str) -> None:
    assert not is_unreachable(psycopg2.OperationalError(text))


def test_D16_what_is_no_error_of_the_database_is_not_waited_for() -> None:
    assert not is_unreachable(None)
    assert not is_unreachable(ConnectionRefusedError("connection refused"))
