"""`agentloom request`: a model operation's request, built again and its hash proven, or what its attempts received."""

import json
from typing import Annotated

import typer

from agentloom_worker.cli.output import note, print_bytes, print_json, print_text
from agentloom_worker.cli.place import AsJson, Database, Embedded, locate, open_to_look
from agentloom_worker.domain.transport import Transport


def request(
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="The id of a model operation.")],
    embedded: Embedded = None,
    database: Database = None,
    pretty: Annotated[bool, typer.Option("--pretty", help="Indent it; else it is byte for byte as sent.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="What came back instead: the bytes of an attempt's answer.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="With --raw: which attempt; else the newest that kept any.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a frozen request, and `hash ok` on stderr. It holds the texts of the run.

    For operators, who have the whole database: it asks for no session. `agentloom context show` does.
    """
    if attempt is not None and not raw:
        raise typer.BadParameter("--attempt goes with --raw: a request is the same in every attempt")
    with open_to_look(locate(embedded, database)) as loom:
        if raw:
            _print_received(*loom.received(operation, attempt))
            return
        body, served = loom.request(operation).decode(), loom.served_model(operation)
    if as_json:
        print_json({"operation_id": operation, "hash_ok": True, "served_model": served, "request": json.loads(body)})
        return
    print_text(json.dumps(json.loads(body), ensure_ascii=False, indent=2) if pretty else body)
    note("hash ok")
    if served is not None:
        note(f"the provider says that it served {served}")


def _print_received(attempt_no: int, found: Transport) -> None:
    """The bytes on stdout, with nothing added; what is to be known of them on stderr."""
    note(
        f"attempt {attempt_no}: HTTP {found.status} {found.media_type or 'of no stated type'}, {found.size_bytes} bytes"
    )
    if found.withheld:
        note(f"withheld: {found.withheld}")
    if found.omitted_bytes:
        note(f"{found.omitted_bytes} bytes are left out behind byte {found.cut_at}")
    print_bytes(found.body)
