"""The metadata that every table registers with, and the column types that they share."""

from enum import StrEnum
from typing import Any

import sqlalchemy as sa

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


def status_check(column: str, values: type[StrEnum]) -> sa.CheckConstraint:
    """A CHECK that a status column holds one of an enumeration's values."""
    listed = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} IN ({listed})", name=column)
