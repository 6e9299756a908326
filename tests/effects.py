"""Tools that leave a line outside of their process, so that effects are counted where nobody who dies counts them."""

import os
from collections import Counter
from pathlib import Path
from typing import Final

from agentloom_worker.capabilities import ToolContext

VARIABLE: Final = "TEST_EFFECTS"


def leave_line(text: str, context: ToolContext) -> str:
    """Append the key of the call to the file that the environment names; one write, so that lines stay whole."""
    with open(os.environ[VARIABLE], "ab", buffering=0) as file:
        file.write(f"{context.idempotency_key}\n".encode())
    return f"noted {text}"


def read_lines(path: Path) -> Counter[str]:
    """How many lines each call left."""
    return Counter(path.read_text().split())
