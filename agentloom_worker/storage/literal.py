"""Values as PostgreSQL literals, for messages that are rendered here and not by the driver.

A commit holds more than a hundred values, and the driver's own adaptation takes five times as long. Sound only
where `standard_conforming_strings` is on and the client's encoding is UTF-8 (postgres.py sees to both): then
nothing but a quote ends a string. What a literal's type is, its prepared statement says.
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _bytes(value: bytes) -> str:
    return "'\\x" + value.hex() + "'"


def _uuid(value: UUID) -> str:
    return "'" + value.hex + "'"


def _int(value: int) -> str:
    return f"{value:d}"


def _bool(value: bool) -> str:
    return "true" if value else "false"


# By the kinds of a template's parameters.
LITERALS: dict[str, Callable[[Any], str]] = {
    "uuid": _uuid,
    "text": _text,
    "bytes": _bytes,
    "int": _int,
    "bool": _bool,
}
