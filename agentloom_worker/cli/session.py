"""`agentloom session`: conversations that outlive their runs. Open one, send words, look at what became of them."""

from pathlib import Path
from typing import Annotated

import typer

from agentloom_worker.bootstrap import migrate_database
from agentloom_worker.cli.output import note, own_stdout, print_json, print_table, print_text
from agentloom_worker.cli.place import AsJson, Broker, Database, Embedded, Place, Redis, locate, open_to_look
from agentloom_worker.cli.run import publish
from agentloom_worker.cli.words import read_words
from agentloom_worker.client import InputKind, InputReceipt, OnBusy, ReleaseRef, SessionRound
from agentloom_worker.clock import to_text
from agentloom_worker.limits import HISTORY_RUNS_PAGE, INPUTS_PAGE

app = typer.Typer(help="Sessions: open one, send to it, read it.", no_args_is_help=True)
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
Role = Annotated[
    str | None, typer.Option("--role", metavar="ROLE", help="The role that reads; else that of the newest release.")
]
DOCUMENTS = frozenset({".yaml", ".yml", ".json"})
TEXT_WIDTH = 60


@app.command("open")
def open_session(
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="An agent's id, or a release document (*.yaml, *.json) to publish.")
    ],
    embedded: Embedded = None,
    database: Database = None,
    on_busy: Annotated[
        OnBusy, typer.Option("--on-busy", help="What a question meets while a run of the session lives.")
    ] = OnBusy.REJECT,
    as_json: AsJson = False,
) -> None:
    """Open a session and print its id."""
    place = locate(embedded, database)
    document = Path(agent) if Path(agent).suffix in DOCUMENTS else None
    if document is not None:
        _make(place)
    with own_stdout(), open_to_look(place) as loom:
        named: ReleaseRef | str = agent if document is None else publish(loom, document)
        session = loom.open_session(named, on_busy=on_busy)
    if as_json:
        print_json({"session_id": session.session_id, "agent_id": session.agent_id, "on_busy": session.on_busy})
    else:
        print_text(str(session.session_id))


def _make(place: Place) -> None:
    """An embedded store is made where it is missing, as `agentloom run` does."""
    if place.file is not None and not place.file.is_file():
        place.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        migrate_database(place.url)


@app.command("list")
def list_sessions(
    embedded: Embedded = None,
    database: Database = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000)] = 50,
    as_json: AsJson = False,
) -> None:
    """List sessions, newest first: what runs in them, what waits for their next run, what is queued."""
    with open_to_look(locate(embedded, database)) as loom:
        found = loom.sessions(limit=limit)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one.session_id,
            one.agent_id,
            one.on_busy,
            one.runs,
            one.inputs,
            one.waiting,
            one.queued,
            one.live_status,
            to_text(one.created_at),
        )
        for one in found
    ]
    print_table(("id", "agent", "on busy", "runs", "inputs", "waiting", "queued", "live run", "opened"), rows)


@app.command()
def send(
    session: SessionId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The words; `-` reads them from stdin.")],
    *,
    question: Annotated[bool, typer.Option("--question", help="Ask; what runs already decides by on_busy.")] = False,
    supplement: Annotated[
        bool, typer.Option("--supplement", help="Add to what runs, or to the next question; start nothing.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Sending again under the same key changes nothing."),
    ] = None,
    embedded: Embedded = None,
    database: Database = None,
    broker: Broker = None,
    redis: Redis = None,
    as_json: AsJson = False,
) -> None:
    """Send words: to the run that lives, if there is one, else as a question. The receipt says where they are.

    Nothing is run here: runs of an embedded store go on in `agentloom chat`, `agentloom run --resume` or elsewhere.
    """
    if question and supplement:
        raise typer.BadParameter("--question or --supplement, not both")
    text = read_words(text)
    place = locate(embedded, database, broker, redis)
    with open_to_look(place) as loom:
        if question:
            receipt = loom.ask(session, text, idempotency_key=key)
        elif supplement:
            receipt = loom.supplement(session, text, idempotency_key=key)
        else:
            receipt = loom.send(session, text, idempotency_key=key)
    if as_json:
        print_json(receipt)
        return
    _print_receipt(receipt)
    if place.file is not None and receipt.kind is InputKind.QUESTION and receipt.run_id is not None:
        note(f"to run it here: agentloom run --resume {receipt.run_id} {place.option}")


@app.command()
def withdraw(
    session: SessionId,
    input_id: Annotated[str, typer.Argument(metavar="INPUT", help="The id of a queued question.")],
    embedded: Embedded = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Take a question back that waits in the queue; again changes nothing."""
    with open_to_look(locate(embedded, database)) as loom:
        receipt = loom.withdraw(session, input_id)
    if as_json:
        print_json(receipt)
    else:
        _print_receipt(receipt)


@app.command()
def history(
    session: SessionId,
    embedded: Embedded = None,
    database: Database = None,
    role: Role = None,
    after: Annotated[int, typer.Option("--after", min=0, help="Begin after the question with this number.")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=HISTORY_RUNS_PAGE)] = HISTORY_RUNS_PAGE,
    as_json: AsJson = False,
) -> None:
    """Show a session's ended runs in the order of their questions: inputs, answer, how each ended."""
    with open_to_look(locate(embedded, database)) as loom:
        found = loom.history(session, after, limit=limit, role=role)
    if as_json:
        print_json(found)
        return
    for one in found:
        _print_round(one)
    if len(found) == limit:
        note(f"for more: --after {found[-1].question_seq}")


def _print_round(one: SessionRound) -> None:
    code = f", {one.code}" if one.status != "succeeded" and one.code else ""
    print_text(f"run {one.run_no} ({one.run_id}) {one.status}{code}, {to_text(one.created_at)}")
    for said in one.inputs:
        print_text(f"  {said.input_seq}. {said.kind}, {said.state}: {_indented(said.text)}")
    if one.answer is not None:
        print_text(f"  answer: {_indented(one.answer)}")


@app.command()
def inputs(
    session: SessionId,
    embedded: Embedded = None,
    database: Database = None,
    role: Role = None,
    after: Annotated[int, typer.Option("--after", min=0, help="Begin after the input with this number.")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=INPUTS_PAGE)] = INPUTS_PAGE,
    as_json: AsJson = False,
) -> None:
    """List what was sent in a session, and where each of it is."""
    with open_to_look(locate(embedded, database)) as loom:
        found = loom.inputs(session, after, limit=limit, role=role)
    if as_json:
        print_json(found)
        return
    rows = [(one.input_seq, one.kind, one.state, one.run_id, _first_words(one.text), one.input_id) for one in found]
    print_table(("no", "kind", "state", "run", "text", "id"), rows)
    if len(found) == limit:
        note(f"for more: --after {found[-1].input_seq}")


def _print_receipt(receipt: InputReceipt) -> None:
    run = f", run {receipt.run_id}" if receipt.run_id is not None else ""
    print_text(f"input {receipt.input_seq} ({receipt.input_id}), {receipt.kind}: {receipt.state}{run}")


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")


def _first_words(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TEXT_WIDTH else f"{line[: TEXT_WIDTH - 1]}…"
