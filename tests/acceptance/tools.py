"""Tools whose timing or size a test decides; they run in the test's own process."""

import hashlib
import threading
from collections import defaultdict

from agentloom_worker.capabilities import ToolContext

GATE_WAIT_S = 30.0
DELIVERED: dict[str, str] = {}
_gates: defaultdict[str, threading.Event] = defaultdict(threading.Event)
_entered: defaultdict[str, threading.Event] = defaultdict(threading.Event)


def gate(name: str) -> threading.Event:
    """What the call of this name waits for."""
    return _gates[name]


def entered(name: str) -> threading.Event:
    """Set once the call of this name has begun."""
    return _entered[name]


def forget() -> None:
    """Close every gate, so that the next test starts afresh."""
    _gates.clear()
    _entered.clear()
    DELIVERED.clear()


def gated(name: str) -> str:
    """Wait for the gate of this name, then say so."""
    _entered[name].set()
    if not _gates[name].wait(GATE_WAIT_S):
        raise TimeoutError(name)
    return f"passed {name}"


def noise(seed: str, size_bytes: int) -> str:
    """A text of exactly so many bytes that compresses to a little over half of them, worse than prose."""
    count = size_bytes // 64 + 1
    digests = (hashlib.sha256(f"{seed}/{number}".encode()).hexdigest() for number in range(count))
    return "".join(digests)[:size_bytes]


def wide(size_bytes: int) -> str:
    """A text of characters of three bytes and one of one byte, so that ranges must mind boundaries."""
    return ("€" * (size_bytes // 3 + 1))[: size_bytes // 3] + "." * (size_bytes % 3)


def ping() -> str:
    """Answer; takes nothing."""
    return "pong"


def keyed(text: str, context: ToolContext) -> str:
    """Tell a far side that recognises a repetition by its key; `DELIVERED` is what it has."""
    DELIVERED.setdefault(context.idempotency_key, text)
    return f"keyed: {text}"
