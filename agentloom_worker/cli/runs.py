"""`agentloom runs`: what runs there are, how one stands, what happened to it, stop it."""

from typing import Annotated

import typer

from agentloom_worker.cli.output import document, note, print_json, print_table, print_text
from agentloom_worker.cli.place import AsJson, Database, Embedded, locate, open_to_look
from agentloom_worker.cli.progress import describe
from agentloom_worker.clock import to_text

app = typer.Typer(help="Look at runs, and stop them.", no_args_is_help=True)
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]


@app.command("list")
def list_runs(
    embedded: Embedded = None,
    database: Database = None,
    live: Annotated[bool, typer.Option("--live", help="Only runs that have not ended.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000)] = 50,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    with open_to_look(locate(embedded, database)) as loom:
        found = loom.runs(limit=limit, live_only=live)
    if as_json:
        print_json(found)
        return
    rows = [(run.run_id, run.agent_id, run.state, run.code, run.loops, to_text(run.created_at)) for run in found]
    print_table(("id", "agent", "state", "code", "loops", "created"), rows)


@app.command()
def show(run: RunId, embedded: Embedded = None, database: Database = None, as_json: AsJson = False) -> None:
    """Show one run, with its answer once it has succeeded."""
    with open_to_look(locate(embedded, database)) as loom:
        found = loom.run(run)
    if as_json:
        print_json(found)
        return
    values = document(found)
    assert isinstance(values, dict), "a dataclass becomes an object"
    answer = values.pop("answer")
    print_table(("field", "value"), [(name, value) for name, value in values.items() if value is not None])
    if answer is not None:
        print_text(f"\n{answer}")


@app.command()
def events(
    run: RunId,
    embedded: Embedded = None,
    database: Database = None,
    after: Annotated[int, typer.Option("--after", min=0, help="Begin after this number.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more until the run has ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a run's events."""
    with open_to_look(locate(embedded, database)) as loom:
        found = loom.events(run, after, follow)
        if as_json:
            print_json(tuple(found))
            return
        for event in found:
            print_text(f"{event.run_seq:6d}  {to_text(event.created_at)}  {describe(event)}")


@app.command()
def stop(run: RunId, embedded: Embedded = None, database: Database = None, as_json: AsJson = False) -> None:
    """Stop a run. It is durable at once; a worker ends the run."""
    place = locate(embedded, database)
    with open_to_look(place) as loom:
        receipt = loom.stop(run)
    if as_json:
        print_json(receipt)
        return
    print_text(f"run {receipt.run_id} is {receipt.status}, cause {receipt.end_cause}")
    if receipt.status == "stopping":
        note(f"a worker ends it; without one: agentloom run --resume {receipt.run_id} {place.option}")
