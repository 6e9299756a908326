"""Gives a fleet's worker the in-process model: `celery -A tasks worker -I bench.scripted`, BENCH_LOOPS its loops."""

import os
from functools import partial

from agentloom_worker.bootstrap import make_fleet_ports
from bench.workload import in_process_script
from tasks import lifecycle

lifecycle.make_fleet_ports = partial(  # type: ignore[attr-defined]
    make_fleet_ports, scripts={"main": in_process_script(int(os.environ["BENCH_LOOPS"]))}
)
