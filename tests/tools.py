"""Small tools that tests declare by name; what they did is visible in `CALLS`."""

import threading

CALLS: list[tuple[str, object]] = []
_lock = threading.Lock()


def echo(text: str) -> str:
    """Give the text back."""
    with _lock:
        CALLS.append(("echo", text))
    return f"echo: {text}"


def add(left: int, right: int) -> int:
    """Add two numbers."""
    with _lock:
        CALLS.append(("add", (left, right)))
    return left + right


def fail(reason: str) -> str:
    """Always raises."""
    with _lock:
        CALLS.append(("fail", reason))
    raise ValueError(reason)
