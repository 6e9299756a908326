"""What the store asks of a database driver, and how database errors become ours."""

from collections.abc import Sequence
from typing import Protocol

import sqlalchemy as sa

from agentloom_worker.errors import AgentloomError, Code
from agentloom_worker.storage.template import Statement

Row = tuple[object, ...]


class NotAppliedError(AgentloomError):
    """A batch was refused and undone. `constraint` names a violated unique key, `entity` a missed assertion."""

    def __init__(self, code: Code, entity: str, constraint: str | None = None) -> None:
        super().__init__(code, f"{entity or constraint} refused the commit")
        self.entity = entity
        self.constraint = constraint


# The keeper's thread, and the thread that tells it of a stop (RULINGS T9).
KEEPER_CONNECTIONS = 2


class RefusedError(AgentloomError):
    """The database refuses what it was told to write, and would again: nothing of the batch was applied.

    Not a lost race: a check, a foreign key, or a value that the database does not take.
    """

    def __init__(self, what: str) -> None:
        super().__init__(Code.WRITE_REFUSED, f"the database refused a write ({what}): nothing was written")


class Driver(Protocol):
    """One database. Safe for use by many threads.

    `keeper_engine` has connections of its own, at most KEEPER_CONNECTIONS, so that readers who have taken all of
    `engine`'s cost no claim.
    """

    dialect: str
    engine: sa.Engine
    keeper_engine: sa.Engine

    def apply(self, statements: Sequence[Statement]) -> Row | None:
        """Run all statements in one transaction, in order; return the row of the last one if it returns.

        Raises NotAppliedError when an assertion or a unique key refuses (everything is undone), RefusedError when
        the database takes none of it for another reason, and PersistenceUnavailableError when the outcome stayed
        unknown after bounded re-sends (RULINGS T6).
        """
        ...

    def returning(self, statement: Statement) -> list[Row]:
        """Run one statement with RETURNING in a transaction of its own and hand back its rows."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...
