"""`agentloom dispatches`: the rows of work, and what an operator decides about parked ones."""

from typing import Annotated

import typer

from agentloom_worker.cli.output import note, print_json, print_table, print_text
from agentloom_worker.cli.place import AsJson, Database, Embedded, locate, open_to_look
from agentloom_worker.client import DispatchRow
from agentloom_worker.clock import to_text
from agentloom_worker.errors import RequestError

app = typer.Typer(help="Look at rows of work; retry or fail parked ones.", no_args_is_help=True)
DispatchId = Annotated[str, typer.Argument(metavar="DISPATCH", help="The row's id.")]
PAGE_MAX = 10_000
Limit = Annotated[int, typer.Option("--limit", min=1, max=PAGE_MAX)]


@app.command("list")
def list_dispatches(
    embedded: Embedded = None,
    database: Database = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only rows of this run.")] = None,
    limit: Limit = 1000,
    as_json: AsJson = False,
) -> None:
    """List rows of work, oldest first."""
    with open_to_look(locate(embedded, database)) as loom:
        found = loom.dispatches(run=run, limit=limit)
    _print(found, as_json=as_json)


@app.command()
def parked(embedded: Embedded = None, database: Database = None, limit: Limit = 1000, as_json: AsJson = False) -> None:
    """List rows that stopped by themselves and wait for a decision."""
    with open_to_look(locate(embedded, database)) as loom:
        found = loom.dispatches(parked_only=True, limit=limit)
    _print(found, as_json=as_json)


@app.command()
def retry(
    dispatch: Annotated[str | None, typer.Argument(metavar="[DISPATCH]", help="The row's id.")] = None,
    embedded: Embedded = None,
    database: Database = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Every parked row of this run.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help=f"Every parked row, the oldest {PAGE_MAX} of them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let a parked step run again. What it may have done outside is not repeated unless the release allows it.

    With --run or --all a row that cannot be retried is named on stderr, the others are; the exit code is 1 then.
    """
    if (dispatch is not None) + (run is not None) + everything != 1:
        raise typer.BadParameter("give DISPATCH, --run RUN or --all")
    refused = False
    retried: list[DispatchRow] = []
    with open_to_look(locate(embedded, database)) as loom:
        if dispatch is not None:
            retried.append(loom.retry_dispatch(dispatch))
        else:
            for row in loom.dispatches(run=run, parked_only=True, limit=PAGE_MAX):
                try:
                    retried.append(loom.retry_dispatch(row.dispatch_id))
                except RequestError as error:
                    refused = True
                    note(f"{error.code}: {error.message}")
    if as_json:
        lines = [
            {"dispatch_id": row.dispatch_id, "run_id": row.run_id, "step": row.step, "retried": True} for row in retried
        ]
        print_json(lines if dispatch is None else lines[0])
    else:
        for row in retried:
            print_text(f"step {row.step} of run {row.run_id} is due again")
        if not retried and not refused:
            print_text("nothing is parked")
    if refused:
        raise typer.Exit(1)


@app.command()
def fail(dispatch: DispatchId, embedded: Embedded = None, database: Database = None, as_json: AsJson = False) -> None:
    """End the run of a parked step as failed, with the code STEP_FAILED_BY_OPERATOR."""
    with open_to_look(locate(embedded, database)) as loom:
        receipt = loom.fail_dispatch(dispatch)
    if as_json:
        print_json(receipt)
    else:
        print_text(f"run {receipt.run_id} is {receipt.status}, cause {receipt.end_cause}")


def _print(found: tuple[DispatchRow, ...], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    rows = [
        (
            row.dispatch_id,
            row.run_id,
            row.step,
            row.queue,
            _state(row),
            row.attempts,
            row.failures,
            row.losses,
            row.last_error,
        )
        for row in found
    ]
    print_table(("id", "run", "step", "queue", "state", "attempts", "failures", "losses", "last error"), rows)


def _state(row: DispatchRow) -> str:
    if row.parked_at is not None:
        return f"parked {to_text(row.parked_at)}"
    if row.claimed_until is not None:
        return f"claimed until {to_text(row.claimed_until)}"
    return f"due {to_text(row.not_before)}"
