"""Where a command finds its store: a folder with a SQLite file, or a database by URL."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from agentloom_worker.client import Agentloom, database_file, database_url
from agentloom_worker.errors import Code, RequestError

DEFAULT_FOLDER = ".agentloom"
EMBEDDED_VARIABLE = "AGENTLOOM_EMBEDDED"
DATABASE_VARIABLE = "AGENTLOOM_DATABASE"
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
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@dataclass(frozen=True, slots=True)
class Place:
    """A store that was named. `file` is set for an embedded one; `option` names it again, without a password."""

    url: str
    file: Path | None
    option: str


def locate(embedded: Path | None, database: str | None) -> Place:
    """The store that the options name, else the environment, else the default folder.

    Raises typer.BadParameter where both are named at one level.
    """
    if embedded is None and database is None:
        folder = os.environ.get(EMBEDDED_VARIABLE)
        embedded, database = Path(folder) if folder else None, os.environ.get(DATABASE_VARIABLE) or None
    if embedded is not None and database is not None:
        raise typer.BadParameter("name one store: --embedded DIR or --database URL, or one of their variables")
    if database is not None:
        return Place(database, None, "--database URL")
    path = embedded or Path(DEFAULT_FOLDER)
    return Place(database_url(path), database_file(path), f"--embedded {path}")


def open_to_look(place: Place) -> Agentloom:
    """A client that runs no steps, on a store that is there already."""
    if place.file is not None and not place.file.is_file():
        raise RequestError(
            Code.INPUT_INVALID, f"there is no store at {place.file}: name one by --embedded DIR or --database URL"
        )
    return Agentloom.connect(place.url)


def open_to_run(place: Place, *, workers: bool) -> Agentloom:
    """A client that runs steps in this process, unless others are to do it."""
    if not workers:
        return open_to_look(place)
    return Agentloom.connect(place.url, run_workers=True) if place.file is None else Agentloom.embedded(place.file)


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
