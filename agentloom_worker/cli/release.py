"""`agentloom schema` and `agentloom validate`: the release document's form, and whether a document is right."""

import json
from pathlib import Path
from typing import Annotated

import typer

from agentloom_worker.cli.output import note, own_stdout, print_json, print_text
from agentloom_worker.cli.place import AsJson
from agentloom_worker.client import read_release
from agentloom_worker.errors import ReleaseInvalidError
from agentloom_worker.runtime.publish import resolve_release
from agentloom_worker.wire.release import release_schema

schema_app = typer.Typer(help="Print JSON Schemas.", no_args_is_help=True)


@schema_app.callback()
def schema() -> None:
    """Print JSON Schemas."""


@schema_app.command("release")
def schema_of_release() -> None:
    """Print the JSON Schema of the release document."""
    print_text(json.dumps(release_schema(), ensure_ascii=False, indent=2))


def validate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A release document, YAML or JSON.")],
    as_json: AsJson = False,
) -> None:
    """Check a release document, its tools included; every problem is listed with its path."""
    try:
        with own_stdout():  # it imports the tools
            resolved = resolve_release(read_release(file))
    except ReleaseInvalidError as error:
        problems = [{"path": path, "text": text} for path, text in error.problems]
        if as_json:
            print_json({"ok": False, "problems": problems, "warnings": []})
        else:
            for problem in problems:
                print_text(f"{problem['path'] or '(document)'}: {problem['text']}")
            note(f"error {error.code}: {file} has {len(problems)} problem(s)")
        raise typer.Exit(1) from None
    if as_json:
        summary = {"ok": True, "problems": [], "warnings": list(resolved.warnings)}
        print_json({**summary, "agent_id": resolved.agent_id, "digest": resolved.digest.hex()})
        return
    for warning in resolved.warnings:
        note(f"warning: {warning}")
    print_text(f"{file}: agent {resolved.agent_id}, digest {resolved.digest.hex()}")
