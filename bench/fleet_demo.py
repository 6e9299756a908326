"""`make fleet`: a fleet on this machine, twenty questions at once, and where each step ran.

PostgreSQL and Redis are found or started as the tests do it; the database and the keys are this program's own.
Everything it started is ended by its id, also when it is interrupted.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from agentloom_worker.bootstrap import FleetPorts, make_fleet_ports, migrate_database
from agentloom_worker.clock import SystemClock
from agentloom_worker.devmodel import DevModel, parse_script
from agentloom_worker.ids import RunId, SessionId
from agentloom_worker.runtime.accept import accept_question
from agentloom_worker.runtime.publish import publish_release
from agentloom_worker.settings import FleetSettings
from tests.servers import open_postgres, open_redis

ROOT = Path(__file__).resolve().parents[1]
RUNS = 20
WAIT_S = 120.0
# Name, queues, pool, slots. Two workers of all steps, and the one that rows of last resort go to.
WORKERS = (
    ("east", "control,model,tools,compaction,maintenance,commands", "threads", 8),
    ("west", "control,model,tools,compaction,maintenance,commands", "threads", 8),
    ("solitary", "solitary", "prefork", 1),
)
SCRIPT: dict[str, Any] = {
    "schema_version": 1,
    "delay": {"first_chunk_ms": 100, "between_chunks_ms": 10},
    "turns": [
        {
            "when": {"assistant_turns": 0},
            "answer": {
                "tool_calls": [
                    {"name": "add", "arguments": {"left": 20, "right": 22}},
                    {"name": "echo", "arguments": {"text": "{{last_user_text}}"}},
                ]
            },
        },
        {"answer": {"text": "{{tool_result:add}}, and you said: {{first_user_text}}"}},
    ],
}


def release(base_url: str) -> dict[str, Any]:
    """One agent with two small tools on the dev-model."""
    tool = {"kind": "python", "effect": "none"}
    return {
        "schema_version": 1,
        "agent": {"id": "fleet-demo", "prompt": "Use the tools.", "model": "main", "tools": ["add", "echo"]},
        "models": {
            "main": {
                "protocol": "openai-chat",
                "base_url": base_url,
                "model": "dev-model",
                "context_window_tokens": 128_000,
            }
        },
        "tools": {"add": {**tool, "handler": "tests.tools:add"}, "echo": {**tool, "handler": "tests.tools:echo"}},
    }


@contextmanager
def processes(environment: dict[str, str], folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """The workers and a beat; at the end they are drained, and killed if that does not end them."""
    commands = {
        name: ["-A", "tasks", "worker", "-Q", queues, "-P", pool, "-c", str(slots), "-n", f"{name}@%h"]
        for name, queues, pool, slots in WORKERS
    }
    commands["beat"] = ["-A", "beat", "beat"]
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, arguments in commands.items():
            with (folder / f"{name}.log").open("wb") as log:
                started[name] = subprocess.Popen(
                    [sys.executable, "-m", "celery", *arguments],
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        yield started
    finally:
        for process in started.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for name, process in started.items():
            try:
                print(f"  {name:9} left with {process.wait(timeout=45)}")
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                print(f"  {name:9} had to be killed")


def main() -> int:
    """Run the demonstration; 0 if every run succeeded."""
    folder = Path(tempfile.mkdtemp(prefix="agentloom-fleet-"))
    with closing(open_postgres()) as postgres, closing(open_redis()) as cache:
        print(f"{postgres}\n{cache}\nlogs in {folder}")
        variables = {
            "AGENTLOOM_DATABASE": postgres.create_database("fleet"),
            "AGENTLOOM_BROKER": cache.url,
            "AGENTLOOM_KEY_PREFIX": cache.key_prefix,
            "AGENTLOOM_LOG_LEVEL": "DEBUG",
            "C_FORCE_ROOT": "1",
        }
        migrate_database(variables["AGENTLOOM_DATABASE"])
        names = {name: value for name, value in variables.items() if name.startswith("AGENTLOOM_")}
        settings = FleetSettings(**{name.removeprefix("AGENTLOOM_").lower(): value for name, value in names.items()})
        made = make_fleet_ports(settings, (), 2)
        with DevModel(parse_script(SCRIPT)) as model, processes({**os.environ, **variables}, folder) as started:
            succeeded = _serve(made, model, started, folder)
        for port in (made.publisher, made.ports.fast, made.ports.store):
            port.close()
    return 0 if succeeded == RUNS else 1


def _serve(made: FleetPorts, model: DevModel, started: dict[str, subprocess.Popen[bytes]], folder: Path) -> int:
    store = made.ports.store
    if not _wait(lambda: len(store.list_workers()) == len(WORKERS), started):
        print("the workers did not come up; their logs say why")
        return 0
    for worker in store.list_workers():
        print(f"  pid {worker.pid} serves {','.join(worker.queues)} with {worker.slots} slot(s)")
    clock = SystemClock()
    began_s = clock.monotonic_s()
    runs = _ask(made, model)
    _wait(lambda: all(_status(made, run).terminal for run in runs), started)
    took_s = clock.monotonic_s() - began_s
    # The clean-up that follows an end is a step as well.
    _wait(lambda: not store.list_dispatches(), started)
    _show(made, runs, folder)
    succeeded = sum(_status(made, run) == "succeeded" for run in runs)
    print(f"{succeeded} of {RUNS} runs succeeded in {took_s:.1f} s")
    return succeeded


def _ask(made: FleetPorts, model: DevModel) -> list[RunId]:
    """Twenty questions in as many sessions; each commit publishes its wake-up through the broker."""
    ports = made.ports
    published = publish_release(ports, release(model.base_url))
    owner = ports.store.find_owner(published.agent_id)
    assert owner is not None, "publishing makes the owner"
    runs = []
    for number in range(1, RUNS + 1):
        session_id = SessionId(ports.ids.new())
        ports.store.open_session(session_id, owner)
        session = ports.store.load_session(session_id)
        assert session is not None, "the session was just opened"
        runs.append(accept_question(ports, session, f"question {number}", None, "first").run_id)
    return runs


def _show(made: FleetPorts, runs: list[RunId], folder: Path) -> None:
    """Each run's answer, and the steps that each process committed for it."""
    places: dict[str, Counter[str]] = defaultdict(Counter)
    for name, *_rest in WORKERS:
        for line in (folder / f"{name}.log").read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and entry.get("event") == "step_committed":
                    places[entry["run_id"]][f"{name}:{entry['step']}"] += 1
    for run in runs:
        steps = " ".join(f"{place}×{count}" if count > 1 else place for place, count in places[str(run)].items())
        print(f"  {run} {_status(made, run):9} {steps}")


def _status(made: FleetPorts, run: RunId) -> Any:
    found = made.ports.store.load_run(run)
    assert found is not None, f"run {run} was accepted"
    return found.status


def _wait(holds: Any, started: dict[str, subprocess.Popen[bytes]]) -> bool:
    """Until it holds, a process ends, or the time is over."""
    clock, never = SystemClock(), threading.Event()
    until_s = clock.monotonic_s() + WAIT_S
    while not holds():
        if clock.monotonic_s() >= until_s or any(process.poll() is not None for process in started.values()):
            return False
        clock.wait(never, 0.05)
    return True


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
