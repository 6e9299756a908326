"""On what it was measured: the machine, the programs and their versions. No paths, no names of people."""

import os
import platform
import sqlite3
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

from agentloom_worker.version import __version__

_CALIBRATION_ADDITIONS = 2_000_000


def describe() -> dict[str, object]:
    """The machine, and how fast its python is: figures of two machines compare by `python_additions_per_us`."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "psycopg2": version("psycopg2-binary"),
        "sqlalchemy": version("sqlalchemy"),
        "sqlite": sqlite3.sqlite_version,
        "package": __version__,
        "commit": _commit(),
        "load_average": os.getloadavg()[0],
        "python_additions_per_us": _calibrate(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str | None:
    try:
        found = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _calibrate() -> float:
    began_s = time.process_time()
    total = 0
    for number in range(_CALIBRATION_ADDITIONS):
        total += number
    return _CALIBRATION_ADDITIONS / (time.process_time() - began_s) / 1e6
