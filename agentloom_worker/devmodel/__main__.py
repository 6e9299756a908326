"""`python -m agentloom_worker.devmodel SCRIPT --port N [--log FILE]`."""

import argparse
import sys
from pathlib import Path

from agentloom_worker.devmodel.request_log import BODIES_BYTES_MAX
from agentloom_worker.devmodel.script import ScriptInvalidError
from agentloom_worker.devmodel.server import serve


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal ends it; 2 if the script or the port is no good."""
    parser = argparse.ArgumentParser(prog="agentloom dev-model", description="Answer from a script.")
    parser.add_argument("script", type=Path)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--log", type=Path, default=None, help="append each ended request as a line of JSON")
    parser.add_argument(
        "--bodies-bytes", type=int, default=BODIES_BYTES_MAX, help="request bodies to keep; 0: hashes only"
    )
    options = parser.parse_args(arguments)
    try:
        serve(options.script, options.port, options.log, bodies_bytes_max=options.bodies_bytes)
    except (ScriptInvalidError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
