"""Numbers that must follow each other."""

from collections.abc import Sequence


def first_break(numbers: Sequence[int], *, start: int = 1) -> int | None:
    """The first number that does not stand where a gapless sequence has it; None for a whole sequence."""
    for expected, number in enumerate(numbers, start):
        if number != expected:
            return expected
    return None


def broken_sequence(name: str, numbers: Sequence[int], head: int) -> str | None:
    """Why the numbers are not 1, 2, … head; None if they are."""
    gap = first_break(numbers)
    if gap is not None:
        return f"{name} {gap} is missing, or stands twice, among {len(numbers)}"
    if len(numbers) != head:
        return f"{name} ends at {len(numbers)}, the head says {head}"
    return None
