"""What commands print: tables and texts for people, JSON with stable keys for programs."""

import contextlib
import dataclasses
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import TextIO
from uuid import UUID

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentloom_worker.clock import to_text
from agentloom_worker.errors import Code, RequestError

PIPE_WIDTH = 180
_SHOWN_CONTROLS = "\n\t"
_LONE = re.compile("[\ud800-\udfff]")
_STDOUT_FD = 1
_ours: list[TextIO] = []


@contextlib.contextmanager
def own_stdout() -> Iterator[None]:
    """Keep stdout for what the command prints: what a tool says there, or a program that it starts, goes to stderr."""
    with contextlib.ExitStack() as stack:
        _ours.append(_set_aside(stack))
        stack.callback(_ours.pop)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


def _set_aside(stack: contextlib.ExitStack) -> TextIO:
    """The stream that stdout was; where it is the process's own, descriptor 1 is stderr's meanwhile."""
    before = sys.stdout
    try:
        if before.fileno() != _STDOUT_FD:
            return before
    except (AttributeError, OSError):
        return before
    before.flush()
    kept = os.dup(_STDOUT_FD)
    ours = stack.enter_context(os.fdopen(kept, "w", encoding=before.encoding, errors=before.errors))
    os.dup2(sys.stderr.fileno(), _STDOUT_FD)
    stack.callback(os.dup2, kept, _STDOUT_FD)
    return ours


def _stdout() -> TextIO:
    return _ours[-1] if _ours else sys.stdout


def document(value: object) -> object:
    """A value as JSON: dataclasses by field, instants (`…_at`) as ISO 8601 in UTC, ids as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _field(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): document(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [document(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, UUID):
        return str(value)
    return value


def _field(name: str, value: object) -> object:
    return to_text(value) if name.endswith("_at") and isinstance(value, int) else document(value)


def print_json(value: object) -> None:
    """One JSON document on stdout; halves of surrogate pairs, which no encoding takes, as escapes."""
    text = json.dumps(document(value), ensure_ascii=False, indent=2)
    _write(_LONE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout; an empty cell for None. Values are shown as they are, never as markup."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=column == "id", overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else printable(str(cell))) for cell in row))
    with _printing():
        console().print(table)


def console(*, stderr: bool = False) -> Console:
    """A console on the streams as they are now, wide where nobody looks."""
    stream = sys.stderr if stderr else _stdout()
    return Console(
        file=stream, markup=False, highlight=False, emoji=False, width=None if stream.isatty() else PIPE_WIDTH
    )


def print_text(text: str) -> None:
    """A text on stdout, verbatim; on a terminal without the characters that the terminal would obey."""
    _write(printable(text) if _stdout().isatty() else text)


def print_bytes(content: bytes) -> None:
    """Bytes on stdout, with nothing added."""
    with _printing():
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def _write(text: str) -> None:
    # typer.echo would take escape sequences out of what goes to a pipe.
    with _printing():
        _stdout().write(text + "\n")
        _stdout().flush()


@contextlib.contextmanager
def _printing() -> Iterator[None]:
    """Say what stdout refuses, as a full disk does. A reader that has gone away ends the command without a word."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        with contextlib.suppress(OSError, io.UnsupportedOperation):  # what could not be written is not tried again
            os.dup2(os.open(os.devnull, os.O_WRONLY), _stdout().fileno())
        raise RequestError(
            Code.INPUT_INVALID, f"cannot write to stdout: {error.strerror}; what was stored stays: read it again"
        ) from None


def note(text: str) -> None:
    """A line for people on stderr: on a terminal without the characters that it would obey, like `print_text`."""
    typer.echo(printable(text) if sys.stderr.isatty() else text, err=True)


def printable(text: str) -> str:
    """The text with control characters replaced, line ends and tabs apart."""
    return "".join(
        character if character.isprintable() or character in _SHOWN_CONTROLS else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )


def duration(milliseconds: int | None) -> str | None:
    """A duration as people read it."""
    if milliseconds is None:
        return None
    return f"{milliseconds} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:.1f} s"
