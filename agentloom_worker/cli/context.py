"""`agentloom context` and `agentloom protocols`: what a model saw, why each item was there, and who decides it."""

import json
from typing import Annotated

import typer

from agentloom_worker.cli.output import document, print_json, print_table, print_text
from agentloom_worker.cli.place import AsJson, Database, Embedded, locate, open_to_look
from agentloom_worker.cli.session import Role, SessionId
from agentloom_worker.client import Materialized
from agentloom_worker.context.protocol import Source
from agentloom_worker.context.protocols import PROTOCOLS
from agentloom_worker.domain.release import ROUNDS
from agentloom_worker.runtime.reading import ShownItem

app = typer.Typer(help="Look at what a model saw.", no_args_is_help=True)


@app.callback()
def context() -> None:
    """Look at what a model saw."""


@app.command()
def show(
    session: SessionId,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="A model operation of one of its runs.")],
    *,
    embedded: Embedded = None,
    database: Database = None,
    role: Role = None,
    brief: Annotated[bool, typer.Option("--brief", help="A line an item, without texts.")] = False,
    item: Annotated[int | None, typer.Option("--item", metavar="N", min=1, help="Only this item.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a request item by item: raw, effective, as sent; tokens, source, and why it is there.

    It is built again from what was stored and proved to be what was frozen. `raw` is what a model, a tool or the user
    said, `effective` what of it a model may see (an oversized result as its preview), `sent` the message on the wire.
    """
    with open_to_look(locate(embedded, database)) as loom:
        found = loom.context(session, operation, role=role)
    items = [one for one in found.items if item in (None, one.number)]
    if not items:
        raise typer.BadParameter(f"there are items 1 to {len(found.items)}", param_hint="--item")
    if as_json:
        print_json(_document(found, items))
        return
    print_text(_headline(found))
    if brief:
        rows = [(one.number, one.kind, one.role, one.tokens, _mark(one), _place(one.source), one.why) for one in items]
        print_table(("no", "kind", "role", "tokens", "protected", "from", "why"), rows)
        return
    for one in items:
        _print_item(one)


def _headline(found: Materialized) -> str:
    shares = sum(one.tokens for one in found.items)
    return (
        f"operation {found.operation_id} of run {found.run_id}: {found.tokens} tokens of {found.budget_tokens} by"
        f" estimate, {shares} of {len(found.items)} items, {found.tokens - shares} of tools and envelope; hash ok"
        + (f"; served by {found.served_model}" if found.served_model else "")
    )


def _print_item(one: ShownItem) -> None:
    mark = ", protected" if one.protected else ""
    print_text(f"\n{one.number}. {one.kind}, {one.role}, {one.tokens} tokens{mark}")
    print_text(f"   from: {_place(one.source)}")
    print_text(f"   why: {one.why}")
    raw = "none, the projection says it" if one.raw is None else "as effective" if one.raw == one.effective else one.raw
    for name, text in (("raw", raw), ("effective", one.effective), ("sent", one.fragment.decode())):
        print_text(f"   {name}: {_indented(text)}")


def _indented(text: str) -> str:
    return text.replace("\n", "\n      ")


def _mark(one: ShownItem) -> str | None:
    return "yes" if one.protected else None


def _place(source: Source) -> str:
    parts = [f"run {source.run_no}"]
    if source.context_seq is not None:
        parts.append(f"record {source.context_seq}")
    if source.input_seq is not None:
        parts.append(f"input {source.input_seq}")
    if source.operation_id is not None:
        parts.append(f"operation {source.operation_id}")
    return ", ".join(parts)


def _document(found: Materialized, items: list[ShownItem]) -> dict[str, object]:
    """As stored, with the hash as hexadecimal and each message as JSON."""
    return {
        "operation_id": found.operation_id,
        "run_id": found.run_id,
        "request_hash": found.request_hash.hex(),
        "hash_ok": True,
        "tokens": found.tokens,
        "budget_tokens": found.budget_tokens,
        "served_model": found.served_model,
        "items": [_item_document(one) for one in items],
    }


def _item_document(one: ShownItem) -> dict[str, object]:
    values = document(one)
    assert isinstance(values, dict), "a dataclass becomes an object"
    del values["fragment"]
    return {**values, "sent": json.loads(one.fragment)}


def protocols(as_json: AsJson = False) -> None:
    """List the context protocols that a release may name, each with the JSON Schema of its options."""
    found = [
        {
            "id": key.partition("@")[0],
            "version": int(key.partition("@")[2]),
            "default": key == ROUNDS,
            "about": protocol.about,
            "options_schema": dict(protocol.options_schema),
        }
        for key, protocol in sorted(PROTOCOLS.items())
    ]
    if as_json:
        print_json(found)
        return
    for one in found:
        default = " (where a release names none)" if one["default"] else ""
        print_text(f"{one['id']}, version {one['version']}{default}: {one['about']}")
        print_text(f"  options: {json.dumps(one['options_schema'])}")
