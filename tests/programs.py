"""Programs that tests run in processes of their own: `python -m tests.programs NAME ARGUMENTS…`.

Each prints one line of JSON a fact, flushed, so that a test can act at that instant.
"""

import json
import sys
from pathlib import Path
from typing import Any

from agentloom_worker import Agentloom
from agentloom_worker.client import Settings

# A killed process is noticed within a second or two, not within half a minute.
QUICK = Settings(
    claim_ttl_s=1.5,
    claim_renew_s=0.4,
    suspect_grace_s=0.3,
    sweep_tick_s=0.1,
    control_poll_s=0.1,
    drain_s=10.0,
)


def say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def ask_and_wait(folder: str, release: str, questions: str) -> None:
    """Ask so many questions, each in a session of its own, and wait for all of them."""
    with Agentloom.embedded(folder, settings=QUICK, threads=4) as loom:
        reference = loom.publish(Path(release))
        receipts = [
            loom.ask(loom.open_session(reference), f"question {number}", reference) for number in range(int(questions))
        ]
        for receipt in receipts:
            say(run=str(receipt.run_id))
        for receipt in receipts:
            result = loom.wait(receipt, 60)
            say(run=str(receipt.run_id), status=result.status.value, answer=result.answer)


PROGRAMS = {"ask_and_wait": ask_and_wait}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
