"""`agentloom dev-model`: an OpenAI-compatible server that answers from a script (docs/dev-model.md)."""

from pathlib import Path
from typing import Annotated

import typer

from agentloom_worker.devmodel import serve
from agentloom_worker.devmodel.request_log import BODIES_BYTES_MAX
from agentloom_worker.errors import Code, RequestError


def dev_model(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The script, YAML or JSON.")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 0,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="FILE", help="Append each ended request as a line of JSON.")
    ] = None,
    bodies_bytes: Annotated[
        int, typer.Option("--bodies-bytes", min=0, help="Request bodies to keep; 0: hashes only.")
    ] = BODIES_BYTES_MAX,
) -> None:
    """Serve on the loopback interface until a signal ends it."""
    try:
        serve(script, port, log, bodies_bytes_max=bodies_bytes)
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        raise RequestError(Code.INPUT_INVALID, f"cannot serve: {named}{error.strerror}") from None
