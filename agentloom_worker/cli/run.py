"""`agentloom run`: ask one question of a release, or follow a run that is there already."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from agentloom_worker.cli.output import note, print_json, print_text
from agentloom_worker.cli.place import (
    AsJson,
    Broker,
    Database,
    Embedded,
    Redis,
    locate,
    open_to_run,
    terminable,
)
from agentloom_worker.cli.progress import Progress, follow
from agentloom_worker.client import Agentloom, RunLike, RunResult, read_release
from agentloom_worker.limits import INPUT_BYTES_MAX


def run(
    release: Annotated[Path | None, typer.Argument(metavar="RELEASE", help="A release document.")] = None,
    *,
    ask: Annotated[
        str | None, typer.Option("--ask", metavar="TEXT", help="The question; `-` reads it from stdin.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Go on with a run that did not end.")
    ] = None,
    embedded: Embedded = None,
    database: Database = None,
    broker: Broker = None,
    redis: Redis = None,
    workers: Annotated[
        bool | None,
        typer.Option(
            "--workers/--no-workers",
            help="Run steps in this process, or leave them to others; with a broker they are left to its fleet.",
        ),
    ] = None,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="Stop waiting then; the run goes on.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a question and print the answer: progress on stderr, the answer on stdout, exit code 0 on success.

    Ctrl-C stops the run. A killed process loses nothing: the next one on the same store goes on with the run.
    With --broker the steps are run by the workers of that fleet, and this process only asks and watches.
    """
    if (resume is None) == (release is None and ask is None) or (release is None) != (ask is None):
        raise typer.BadParameter("give RELEASE and --ask TEXT, or --resume RUN")
    if workers and (broker is not None or redis is not None):
        raise typer.BadParameter("--broker leaves the steps to its fleet: drop it, or --workers")
    place = locate(embedded, database, broker, redis)
    if workers is None:
        workers = place.broker is None
    with terminable(), open_to_run(place, workers=workers) as loom:
        asked: RunLike = _ask(loom, release, ask) if release is not None and ask is not None else resume or ""
        result = follow(loom, asked, Progress(), option=place.option, timeout_s=timeout_s)
    if as_json:
        print_json(result)
    report(result, quiet=as_json, option=place.option)


def _ask(loom: Agentloom, release: Path, text: str) -> RunLike:
    if text == "-":
        # One character more than is allowed, so that a question that is too long is refused, not cut.
        text = sys.stdin.read(INPUT_BYTES_MAX + 1)
    reference = loom.publish(read_release(release))
    for warning in reference.warnings:
        note(f"warning: {warning}")
    receipt = loom.ask(loom.open_session(reference), text, reference)
    note(f"run {receipt.run_id}")
    return receipt


def report(result: RunResult, *, quiet: bool, option: str) -> None:
    """Print the answer and what is odd about it; leave with exit code 1 where there is none."""
    if result.answer is not None and not quiet:
        print_text(result.answer)
    for holds, words in (
        (result.truncated, "the answer was cut at the model's output limit"),
        (result.refused, "the model refused"),
        (result.empty, "the model answered without a word"),
    ):
        if holds:
            note(f"note: {words}")
    if not result.succeeded:
        reason = f" {result.code}" if result.code else ""
        detail = f": {result.detail}" if result.detail else ""
        note(f"run {result.run_id} {result.state}{reason}{detail}")
        note(f"what it did: agentloom steps {result.run_id} {option}")
        raise typer.Exit(1)
