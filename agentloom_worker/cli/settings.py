"""`agentloom settings`: every variable that a process of the fleet reads, and what this one would use."""

import os
import textwrap
from typing import Annotated

import typer

from agentloom_worker.cli.output import note, print_json, print_table, print_text
from agentloom_worker.cli.place import AsJson
from agentloom_worker.errors import RequestError
from agentloom_worker.settings import current_values, load_settings, settings_reference, unread_variables

_WIDTH = 120
_HEAD = """\
# Settings

Every process of a fleet reads its settings from the environment, once, when it starts; `agentloom run` and `agentloom
chat` do too where they run the steps themselves. `agentloom settings` prints them with the values that it finds;
`agentloom doctor` looks at what they lead to. This page is `agentloom settings --markdown`.
"""


def settings(
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the reference as a page, without this environment's values.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print every setting with its variable, default and value; what may be secret in a value is left out.

    Exit code 1 where the environment holds a value that is refused.
    """
    if markdown:
        print_text(settings_page().removesuffix("\n"))
        return
    values: dict[str, str] = {}
    problem = None
    try:
        values = current_values(load_settings())
    except RequestError as error:
        problem = error
    lines = settings_reference()
    if as_json:
        keys = [{"value": values.get(line.name)} for line in lines]
        documents = [
            {"name": line.name, "env": line.env, "default": line.default, "description": line.description, **key}
            for line, key in zip(lines, keys, strict=True)
        ]
        print_json(
            {
                "settings": documents,
                "problem": problem.message if problem else None,
                "unread": unread_variables(os.environ),
            }
        )
    else:
        rows = [
            (line.env, line.default, _changed(values.get(line.name), line.default), line.description) for line in lines
        ]
        print_table(("variable", "default", "value here", "what it does"), rows)
        for name, close in unread_variables(os.environ).items():
            note(f"warning: nothing reads {name}" + (f": is {close} meant?" if close else ""))
    if problem is not None:
        raise problem


def settings_page() -> str:
    """The reference as Markdown: docs/settings.md."""
    parts = [_HEAD]
    for line in settings_reference():
        default = f"Default: `{line.default}`." if line.default else "Unset by default."
        parts.append(f"## `{line.env}`\n\n{_filled(f'{line.description} {default}')}\n")
    return "\n".join(parts)


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_on_hyphens=False, break_long_words=False)


def _changed(value: str | None, default: str) -> str | None:
    return None if value == default else value
