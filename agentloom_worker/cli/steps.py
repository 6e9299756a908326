"""`agentloom steps`: what a run did, without its texts."""

from collections.abc import Sequence
from typing import Annotated

import typer

from agentloom_worker.cli.output import document, duration, print_json, print_table, print_text
from agentloom_worker.cli.place import AsJson, Database, Embedded, locate, open_to_look
from agentloom_worker.client import StepRow
from agentloom_worker.runtime.inspect import repeated_share, total_tokens

COLUMNS = ("loop", "kind", "capability", "status", "code", "attempts", "took", "tokens in", "tokens out", "id")


def steps(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")],
    embedded: Embedded = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show each operation of a run: what was called, how often, how long, how it ended."""
    with open_to_look(locate(embedded, database)) as loom:
        found = loom.steps(run)
    if as_json:
        print_json(step_documents(found))
    else:
        print_steps(found)
        print_text(describe_prefix(found))


def step_documents(found: Sequence[StepRow]) -> list[object]:
    """Steps as JSON, with their durations."""
    documents: list[object] = []
    for step in found:
        values = document(step)
        assert isinstance(values, dict), "a dataclass becomes an object"
        documents.append({**values, "duration_ms": step.duration_ms})
    return documents


def print_steps(found: Sequence[StepRow]) -> None:
    """Steps as a table."""
    print_table(COLUMNS, [_row(step) for step in found])


def describe_prefix(found: Sequence[StepRow]) -> str:
    """One line: how much of the requests a provider may have in its cache, and how much it said that it had."""
    share, tokens = repeated_share(found), total_tokens(found)
    if share is None:
        return "no request was made"
    return (
        f"{share:.0%} of the requests' tokens (estimated) repeat the request before;"
        f" the provider had {tokens.cached_tokens} of {tokens.input_tokens} in its cache"
    )


def _row(step: StepRow) -> tuple[object, ...]:
    tokens = step.tokens
    return (
        step.loop_no,
        step.kind.value,
        step.capability or "(unknown)",
        step.status.value,
        step.code if step.issues is None else f"rejected: {step.issues} issue(s)",
        len(step.attempts),
        duration(step.duration_ms),
        tokens.input_tokens if tokens else None,
        tokens.output_tokens if tokens else None,
        step.operation_id,
    )
