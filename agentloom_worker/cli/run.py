"""`agentloom run`: ask questions of a release, one after the other, or follow a run that is there already."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from agentloom_worker.cli.output import note, own_stdout, print_json, print_text
from agentloom_worker.cli.place import (
    AsJson,
    Broker,
    Database,
    Embedded,
    Redis,
    Workers,
    chosen_workers,
    locate,
    open_to_run,
    terminable,
)
from agentloom_worker.cli.progress import Progress, follow
from agentloom_worker.cli.words import read_words
from agentloom_worker.client import Agentloom, ReleaseRef, RunResult, read_release
from agentloom_worker.runtime.named import RunLike


def run(
    release: Annotated[Path | None, typer.Argument(metavar="RELEASE", help="A release document.")] = None,
    *,
    ask: Annotated[
        list[str] | None,
        typer.Option("--ask", metavar="TEXT", help="A question; `-` reads it from stdin. Several are asked in turn."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Go on with a run that did not end.")
    ] = None,
    embedded: Embedded = None,
    database: Database = None,
    broker: Broker = None,
    redis: Redis = None,
    workers: Workers = None,
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", min=0, help="Stop waiting for a run then; it goes on."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a question and print the answer: progress on stderr, the answer on stdout, exit code 0 on success.

    Several --ask are one session: each is asked when the run before it has ended, however it ended, and the exit code
    is 0 only if all succeeded. With --json one question prints a run, several print a list of runs.

    Ctrl-C stops the run. A killed process loses nothing: the next one on the same store goes on with the run.
    With --broker the steps are run by the workers of that fleet, and this process only asks and watches.
    """
    questions = ask or []
    if (resume is None) == (release is None and not questions) or (release is None) != (not questions):
        raise typer.BadParameter("give RELEASE and --ask TEXT, or --resume RUN")
    if questions.count("-") > 1:
        raise typer.BadParameter("`-` reads all of stdin: give it once", param_hint="--ask")
    place = locate(embedded, database, broker, redis)
    workers = chosen_workers(workers, broker, redis, place)
    results: list[RunResult] = []
    succeeded = True
    with own_stdout():
        with terminable(), open_to_run(place, workers=workers) as loom:
            runs = [resume] if release is None else _ask_in_turn(loom, release, questions)
            for asked in runs:
                assert asked is not None, "the command line was checked"
                results.append(follow(loom, asked, Progress(), option=place.option, timeout_s=timeout_s))
                succeeded = tell(results[-1], quiet=as_json, option=place.option) and succeeded
        if as_json:
            print_json(results if len(questions) > 1 else results[0])
    if not succeeded:
        raise typer.Exit(1)


def _ask_in_turn(loom: Agentloom, release: Path, questions: list[str]) -> Iterator[RunLike]:
    """Ask each question when the caller comes for it, all in one session."""
    texts = [read_words(text) for text in questions]  # before anything is asked
    reference = publish(loom, release)
    session = loom.open_session(reference)
    if len(texts) > 1:
        note(f"session {session.session_id}")
    for text in texts:
        receipt = loom.ask(session, text, reference)
        note(f"run {receipt.run_id}")
        yield receipt


def publish(loom: Agentloom, release: Path) -> ReleaseRef:
    """Publish a release document, and say on stderr what is odd about it."""
    reference = loom.publish(read_release(release))
    for warning in reference.warnings:
        note(f"warning: {warning}")
    return reference


def tell(result: RunResult, *, quiet: bool, option: str) -> bool:
    """Print the answer and what is odd about it; whether there is one."""
    if result.answer is not None and not quiet:
        print_text(result.answer)
    for holds, words in (
        (result.truncated, "the answer was cut at the model's output limit"),
        (result.filtered, "the provider's content filter cut the answer"),
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
    return result.succeeded
