"""One worker process: `python -m bench.worker LOOPS THREADS`, the database's URL in BENCH_DATABASE.

Says `ready`, begins when it is told `go`, ends when its input ends. Its last line is its counters as JSON.
"""

import json
import os
import sys

from agentloom_worker import telemetry
from agentloom_worker.embedded import make_dispatcher
from bench.workload import in_process_script


def main() -> int:
    """Serve rows until the input ends."""
    loops, threads = int(sys.argv[1]), int(sys.argv[2])
    dispatcher = make_dispatcher(
        os.environ["BENCH_DATABASE"], scripts={"main": in_process_script(loops)}, threads=threads
    )
    dispatcher.ports.store.check_schema()
    print("ready", flush=True)
    if not sys.stdin.readline():
        return 1
    dispatcher.start()
    sys.stdin.read()
    dispatcher.drain(10.0)
    print(json.dumps(telemetry.counters()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
