"""Where a command finds its store: a folder with a SQLite file, a database by URL, or a fleet by its broker too."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from agentloom_worker.client import Agentloom, Settings, database_file, database_url
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.settings import load_settings

DEFAULT_FOLDER = ".agentloom"
EMBEDDED_VARIABLE = "AGENTLOOM_EMBEDDED"
DATABASE_VARIABLE = "AGENTLOOM_DATABASE"
BROKER_VARIABLE = "AGENTLOOM_BROKER"
REDIS_VARIABLE = "AGENTLOOM_REDIS"
TERMINATED = 143

Embedded = Annotated[
    Path | None,
    typer.Option(
        "--embedded",
        metavar="DIR",
        help=f"Folder (or SQLite file) of an embedded store; else ${EMBEDDED_VARIABLE}, else {DEFAULT_FOLDER}.",
    ),
]
Database = Annotated[
    str | None, typer.Option("--database", metavar="URL", help=f"URL of a database; else ${DATABASE_VARIABLE}.")
]
Broker = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="URL",
        help=f"The broker of the fleet that serves the database; else ${BROKER_VARIABLE}, beside a database.",
    ),
]
Workers = Annotated[
    bool | None,
    typer.Option(
        "--workers/--no-workers",
        help="Run steps in this process, or leave them to others; with a broker they are left to its fleet.",
    ),
]
Redis = Annotated[
    str | None,
    typer.Option(
        "--redis",
        metavar="URL",
        help=f"The Redis of the fleet's leases; else ${REDIS_VARIABLE}, else the broker where that is one.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@dataclass(frozen=True, slots=True)
class Place:
    """A store that was named. `file` is set for an embedded one, `broker` where a fleet serves it; `option` names
    it again, without a password."""

    url: str
    file: Path | None
    option: str
    broker: str | None = None
    redis: str | None = None


def locate(embedded: Path | None, database: str | None, broker: str | None = None, redis: str | None = None) -> Place:
    """The store that the options name, else the environment, else the default folder.

    Raises typer.BadParameter where both are named at one level, or a broker without a database.
    """
    if embedded is None and database is None:
        folder = os.environ.get(EMBEDDED_VARIABLE)
        embedded, database = Path(folder) if folder else None, os.environ.get(DATABASE_VARIABLE) or None
    if embedded is not None and database is not None:
        raise typer.BadParameter("name one store: --embedded DIR or --database URL, or one of their variables")
    if database is not None:
        broker = broker or os.environ.get(BROKER_VARIABLE) or None
        redis = redis or (os.environ.get(REDIS_VARIABLE) or None if broker is not None else None)
        if redis is not None and broker is None:
            raise typer.BadParameter("--redis belongs to a fleet: name its --broker too")
        return Place(database, None, "--database URL", broker, redis)
    if broker is not None or redis is not None:
        raise typer.BadParameter(f"a fleet has a database: name it by --database URL or ${DATABASE_VARIABLE}")
    path = embedded or Path(DEFAULT_FOLDER)
    return Place(database_url(path), database_file(path), f"--embedded {path}")


def open_to_look(place: Place) -> Agentloom:
    """A client that runs no steps, on a store that is there already."""
    if place.file is not None and not place.file.is_file():
        raise RequestError(
            Code.INPUT_INVALID, f"there is no store at {place.file}: name one by --embedded DIR or --database URL"
        )
    return Agentloom.connect(place.url, broker=place.broker, redis=place.redis)


def open_to_run(place: Place, *, workers: bool) -> Agentloom:
    """A client that runs steps in this process, unless others are to do it; a fleet's broker is left alone then.

    The steps are run as a worker of a fleet runs them: by the settings of the environment (docs/settings.md).
    """
    if not workers:
        return open_to_look(place)
    settings = load_settings({"database": place.url}).runtime(Settings().queues)
    if place.file is None:
        return Agentloom.connect(place.url, run_workers=True, settings=settings)
    return Agentloom.embedded(place.file, settings=settings)


def chosen_workers(workers: bool | None, broker: str | None, redis: str | None, place: Place) -> bool:
    """Whether this process runs steps: as the options say, else where no fleet does."""
    if workers and (broker is not None or redis is not None):
        raise typer.BadParameter("--broker leaves the steps to its fleet: drop it, or --workers")
    return place.broker is None if workers is None else workers


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end the block as an exit does, so that workers drain and unfinished runs go on later."""

    def leave(_number: int, _frame: object) -> NoReturn:
        raise SystemExit(TERMINATED)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
