"""The metadata that every table registers with, and the column types that they share."""

from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

metadata = sa.MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_ix",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    }
)

# Instants are microseconds since the epoch, UTC, on both databases, so that one text serves both.
Instant = sa.BigInteger
Bytes = sa.LargeBinary

# Rows that commits change keep room on their page, so that an update stays there (HOT).
HOT: dict[str, Any] = {"postgresql_with": {"fillfactor": 70}}


class _Domain(sa.types.UserDefinedType[str]):
    """A domain of PostgreSQL, by its name."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_options: object) -> str:
        """The type as it stands in CREATE TABLE."""
        return self.name


def one_of(
    column: str, domain: str, values: type[StrEnum], *, nullable: bool = False
) -> tuple[sa.Column[str], sa.CheckConstraint]:
    """A text column that holds one of an enumeration's values, and what guards it on SQLite.

    On PostgreSQL it is a domain, whose check a session prepares once. A CHECK of the table is read, planned and
    prepared anew by every statement that writes a row, which was a quarter of what a commit cost the server.
    """
    listed = ", ".join(f"'{value}'" for value in values)
    statement = f"CREATE DOMAIN {domain} AS TEXT CONSTRAINT {domain}_check CHECK (VALUE IN ({listed}))"
    made = sa.DDL(statement)  # type: ignore[no-untyped-call]
    event.listen(metadata, "before_create", made.execute_if(dialect="postgresql"))
    text = sa.Text().with_variant(_Domain(domain), "postgresql")
    check = sa.CheckConstraint(f"{column} IN ({listed})", name=column)
    return sa.Column(column, text, nullable=nullable), check.ddl_if(dialect="sqlite")
