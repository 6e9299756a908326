"""`agentloom`: every command, and how an error becomes an exit code.

0: done, and for `run` and `demo` every run succeeded. 1: refused or failed, with `error CODE: message` on
stderr. 2: the command line makes no sense. 130 and 143: interrupted by a signal.
"""

import io
import logging
import os
import sys
from typing import Annotated

import typer

from agentloom_worker import telemetry
from agentloom_worker.cli import (
    audit,
    chat,
    context,
    database,
    demo,
    devmodel,
    dispatches,
    doctor,
    fleet,
    models,
    release,
    request,
    run,
    runs,
    session,
    settings,
    steps,
)
from agentloom_worker.cli.output import print_json, print_text
from agentloom_worker.cli.place import AsJson
from agentloom_worker.errors import AgentloomError, Code
from agentloom_worker.version import __version__

app = typer.Typer(
    name="agentloom",
    help="Durable runs of LLM agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_text(__version__)
        raise typer.Exit


@app.callback()
def configure(
    *,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="LEVEL", help="What goes to stderr as JSON lines: debug … error, off.")
    ] = "error",
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and leave.")
    ] = False,
) -> None:
    """Durable runs of LLM agents."""
    levels = {
        "off": logging.CRITICAL + 1,
        **{name.lower(): level for name, level in logging.getLevelNamesMapping().items()},
    }
    if log_level.lower() not in levels:
        raise typer.BadParameter(f"{log_level!r} is none of debug, info, warning, error, off", param_hint="--log-level")
    telemetry.log_to(sys.stderr, levels[log_level.lower()])


@app.command()
def version(as_json: AsJson = False) -> None:
    """Print the version."""
    if as_json:
        print_json({"version": __version__})
    else:
        print_text(__version__)


app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("chat")(chat.chat)
app.add_typer(session.app, name="session")
app.add_typer(context.app, name="context")
app.command("protocols")(context.protocols)
app.add_typer(runs.app, name="runs")
app.command("steps")(steps.steps)
app.add_typer(dispatches.app, name="dispatches")
app.command("workers")(fleet.workers)
app.command("queues")(fleet.queues)
app.command("doctor")(doctor.doctor)
app.command("settings")(settings.settings)
app.add_typer(models.app, name="models")
app.command("request")(request.request)
app.command("audit")(audit.audit)
app.command("migrate")(database.migrate)
app.add_typer(release.schema_app, name="schema")
app.command("validate")(release.validate)
app.command("dev-model")(devmodel.dev_model)


def main(arguments: list[str] | None = None) -> None:
    """Run a command line (the process's own by default) and leave by SystemExit."""
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets a question mark, not a traceback.
            stream.reconfigure(errors="replace")
    if os.getcwd() not in sys.path:
        # A release may name functions of the project it stands in. Last, so that nothing there hides a library.
        sys.path.append(os.getcwd())
    try:
        app(args=arguments, prog_name="agentloom")
    except AgentloomError as error:
        typer.echo(f"error {error.code}: {error.message}", err=True)
        sys.exit(1)
    finally:
        telemetry.log_no_more()


def _replace_closed_streams() -> None:
    """A shell can start a program without the three streams; the next file that is opened would take their place."""
    closed = sys.stdout is None
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    if closed:
        typer.echo(
            f"error {Code.INPUT_INVALID}: stdout is closed: send it somewhere, to /dev/null if need be", err=True
        )
        sys.exit(1)
