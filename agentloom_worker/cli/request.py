"""`agentloom request`: the request of a model operation, built again from its recipe, and its hash proven."""

import json
from typing import Annotated

import typer

from agentloom_worker.cli.output import note, print_json, print_text
from agentloom_worker.cli.place import AsJson, Database, Embedded, locate, open_to_look


def request(
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="The id of a model operation.")],
    embedded: Embedded = None,
    database: Database = None,
    pretty: Annotated[bool, typer.Option("--pretty", help="Indent it; else it is byte for byte as sent.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a frozen request, and `hash ok` on stderr. It holds the texts of the run.

    For operators, who have the whole database: it asks for no session. `agentloom context show` does.
    """
    with open_to_look(locate(embedded, database)) as loom:
        body = loom.request(operation).decode()
    if as_json:
        print_json({"operation_id": operation, "hash_ok": True, "request": json.loads(body)})
        return
    print_text(json.dumps(json.loads(body), ensure_ascii=False, indent=2) if pretty else body)
    note("hash ok")
