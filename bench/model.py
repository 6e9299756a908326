"""The dev-model in a process of its own: `python -m bench.model`, its script as one line of JSON on its input.

Says its base URL and ends with its input.
"""

import json
import sys

from agentloom_worker.devmodel import DevModel, parse_script


def main() -> int:
    """Serve until the input ends."""
    with DevModel(parse_script(json.loads(sys.stdin.readline())), bodies_bytes_max=0) as model:
        print(model.base_url, flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
