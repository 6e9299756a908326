"""Tools of the crash suite, and the ledger in which effects are counted outside the process that makes them."""

import os
from collections import Counter
from pathlib import Path

from agentloom_worker.capabilities.context import ToolContext

LARGE_CHARS = 70 * 1024
HUGE_CHARS = 300 * 1024


class Ledger:
    """Lines appended to a file in one write each, so that what a killed process did stays counted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, *words: object) -> None:
        """Append one line."""
        handle = os.open(self._path, os.O_APPEND | os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.write(handle, (" ".join(str(word) for word in words) + "\n").encode())
        finally:
            os.close(handle)

    def count(self, *words: object) -> int:
        """How often exactly this line stands there."""
        return self.lines()[" ".join(str(word) for word in words)]

    def lines(self) -> Counter[str]:
        """Every line with its number."""
        if not self._path.exists():
            return Counter()
        return Counter(self._path.read_text().splitlines())


_ledgers: list[Ledger] = []


def open_ledger(ledger: Ledger) -> None:
    """Set the ledger of this process."""
    _ledgers[:] = [ledger]


def _note(context: ToolContext) -> None:
    _ledgers[0].note("tool", context.operation_id)


def look(place: str, context: ToolContext) -> str:
    """Look at a place; looking twice does no harm."""
    _note(context)
    return f"nothing unusual at {place}"


def send(recipient: str, context: ToolContext) -> str:
    """Send a letter; nobody may do this twice unasked."""
    _note(context)
    return f"sent to {recipient}"


def break_down(part: str, context: ToolContext) -> str:
    """Fails after it has had its effect."""
    _note(context)
    raise ValueError(f"{part} is broken")


def print_large(context: ToolContext) -> str:
    """A result that the model sees as a preview."""
    _note(context)
    return "0123456789abcdef" * (LARGE_CHARS // 16)


def print_huge(context: ToolContext) -> str:
    """A result that is put into the store ahead of its commit."""
    _note(context)
    return "fedcba9876543210" * (HUGE_CHARS // 16)
