"""The dev-model in a process of its own: `python -m bench.model LOOPS`; says its base URL, ends with its input."""

import sys

from agentloom_worker.devmodel import DevModel
from bench.workload import dev_model_script


def main() -> int:
    """Serve until the input ends."""
    with DevModel(dev_model_script(int(sys.argv[1])), bodies_bytes_max=0) as model:
        print(model.base_url, flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
